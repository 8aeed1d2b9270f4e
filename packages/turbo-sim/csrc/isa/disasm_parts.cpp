// SPDX-License-Identifier: MIT
// Operands and immediates as text.
#include "isa/disasm.h"

#include <cstdio>

namespace turbo_sim {
namespace {

std::string format(const char *f, unsigned long long v) {
  char text[64];
  std::snprintf(text, sizeof text, f, v);
  return text;
}

std::string range(char prefix, unsigned first, unsigned count) {
  std::string p(1, prefix);
  if (count <= 1) return p + std::to_string(first);
  return p + "[" + std::to_string(first) + ":" + std::to_string(first + count - 1) + "]";
}

std::string scalar_text(unsigned reg, unsigned dwords) {
  auto pair = [&](const char *name, unsigned first) {
    return dwords == 2 ? std::string(name) : std::string(name) + (reg == first ? "_lo" : "_hi");
  };
  if (reg < 102) return range('s', reg, dwords);
  if (reg < 104) return pair("flat_scratch", 102);
  if (reg < 106) return pair("xnack_mask", 104);
  if (reg < 108) return pair("vcc", 106);
  if (reg < 124) {
    unsigned first = reg - 108;
    if (dwords <= 1) return "ttmp" + std::to_string(first);
    return "ttmp[" + std::to_string(first) + ":" + std::to_string(first + dwords - 1) + "]";
  }
  if (reg == 124) return "m0";
  return pair("exec", 126);
}

/// Inline constants are printed as the number, literals in hexadecimal.
std::string constant_text(const Operand &o) {
  static const struct {
    uint16_t f16;
    uint32_t f32;
    uint64_t f64;
    const char *text;
  } kFloats[] = {
      {0x3800, 0x3f000000, 0x3fe0000000000000, "0.5"},       {0xb800, 0xbf000000, 0xbfe0000000000000, "-0.5"},
      {0x3c00, 0x3f800000, 0x3ff0000000000000, "1.0"},       {0xbc00, 0xbf800000, 0xbff0000000000000, "-1.0"},
      {0x4000, 0x40000000, 0x4000000000000000, "2.0"},       {0xc000, 0xc0000000, 0xc000000000000000, "-2.0"},
      {0x4400, 0x40800000, 0x4010000000000000, "4.0"},       {0xc400, 0xc0800000, 0xc010000000000000, "-4.0"},
      {0x3118, 0x3e22f983, 0x3fc45f306dc9c882, "0.15915494"}};
  const bool wide = o.type == Type::B64 || o.type == Type::I64 || o.type == Type::F64;
  const bool half = o.type == Type::F16 || o.type == Type::PackedF16;
  for (const auto &f : kFloats) {
    uint64_t bits = wide ? f.f64 : half ? f.f16 : f.f32;
    if (o.value == bits) return wide && f.f16 == 0x3118 ? "0.15915494309189532" : f.text;
  }
  return std::to_string(wide ? (long long)(o.value) : (long long)(int32_t(o.value)));
}

}  // namespace

std::string operand_text(const Operand &o) {
  static const char *const kSpecial[] = {
      "src_shared_base", "src_shared_limit", "src_private_base", "src_private_limit", "src_pops_exiting_wave_id",
      "src_vccz",        "src_execz",        "src_scc",          "src_lds_direct"};
  switch (o.kind) {
    case Kind::None: return "off";
    case Kind::Scalar: return scalar_text(o.reg, o.dwords);
    case Kind::Vgpr: return range('v', o.reg, o.dwords);
    case Kind::Agpr: return range('a', o.reg - 256u, o.dwords);
    case Kind::Constant: return constant_text(o);
    case Kind::Literal: return format("0x%llx", o.type == Type::F64 ? o.value >> 32 : o.value & 0xffffffff);
    case Kind::Special: return kSpecial[o.reg];
  }
  return "?";
}

std::string waitcnt_text(unsigned imm) {
  const unsigned vm = (imm & 0xf) | (imm >> 14 & 3) << 4, exp = imm >> 4 & 7, lgkm = imm >> 8 & 0xf;
  const bool all = vm == 63 && exp == 7 && lgkm == 15;  // nothing to wait for: all three are shown
  std::string s;
  auto add = [&](const char *name, unsigned n, unsigned none) {
    if (n == none && !all) return;
    if (!s.empty()) s += ' ';
    s += std::string(name) + "(" + std::to_string(n) + ")";
  };
  add("vmcnt", vm, 63);
  add("expcnt", exp, 7);
  add("lgkmcnt", lgkm, 15);
  return s;
}

std::string hwreg_text(unsigned imm) {
  static const char *const kNames[] = {nullptr,
                                       "MODE",
                                       "STATUS",
                                       "TRAPSTS",
                                       "HW_ID",
                                       "GPR_ALLOC",
                                       "LDS_ALLOC",
                                       "IB_STS",
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       "SH_MEM_BASES",
                                       "TBA_LO",
                                       "TBA_HI",
                                       "TMA_LO",
                                       "TMA_HI",
                                       "XCC_ID",
                                       "SQ_PERF_SNAPSHOT_DATA",
                                       "SQ_PERF_SNAPSHOT_DATA1",
                                       "SQ_PERF_SNAPSHOT_PC_LO",
                                       "SQ_PERF_SNAPSHOT_PC_HI"};
  const unsigned id = imm & 63, offset = imm >> 6 & 31, width = (imm >> 11 & 31) + 1;
  std::string s = "hwreg(";
  s += id < sizeof kNames / sizeof *kNames && kNames[id] ? "HW_REG_" + std::string(kNames[id]) : std::to_string(id);
  if (offset || width != 32) s += ", " + std::to_string(offset) + ", " + std::to_string(width);
  return s + ")";
}

std::string dpp_text(const Instruction &i) {
  const unsigned c = i.dpp_ctrl, n = c & 15;
  std::string s;
  if (c < 0x100) {
    s = " quad_perm:[" + std::to_string(c & 3) + "," + std::to_string(c >> 2 & 3) + "," + std::to_string(c >> 4 & 3) +
        "," + std::to_string(c >> 6) + "]";
  } else if (c >= 0x101 && c <= 0x10f) {
    s = " row_shl:" + std::to_string(n);
  } else if (c >= 0x111 && c <= 0x11f) {
    s = " row_shr:" + std::to_string(n);
  } else if (c >= 0x121 && c <= 0x12f) {
    s = " row_ror:" + std::to_string(n);
  } else if (c >= 0x150 && c <= 0x15f) {
    s = " row_newbcast:" + std::to_string(n);
  } else {
    switch (c) {
      case 0x130: s = " wave_shl:1"; break;
      case 0x134: s = " wave_rol:1"; break;
      case 0x138: s = " wave_shr:1"; break;
      case 0x13c: s = " wave_ror:1"; break;
      case 0x140: s = " row_mirror"; break;
      case 0x141: s = " row_half_mirror"; break;
      case 0x142: s = " row_bcast:15"; break;
      case 0x143: s = " row_bcast:31"; break;
      default: s = " /* Invalid dpp_ctrl value */";
    }
  }
  s += format(" row_mask:0x%llx", i.row_mask) + format(" bank_mask:0x%llx", i.bank_mask);
  if (i.bound_ctrl) s += " bound_ctrl:1";
  return s;
}

std::string swizzle_text(unsigned offset) {
  if (!offset) return "";
  auto number = [](unsigned v) { return "," + std::to_string(v); };
  std::string s = " offset:";
  if (offset >= 0xe000) return s + format("swizzle(FFT,%llu)", offset & 0x1f);
  if (offset >= 0xc000) return s + "swizzle(ROTATE" + number(offset >> 10 & 1) + number(offset >> 5 & 31) + ")";
  if (offset >= 0x8000)
    return s + "swizzle(QUAD_PERM" + number(offset & 3) + number(offset >> 2 & 3) + number(offset >> 4 & 3) +
           number(offset >> 6 & 3) + ")";
  const unsigned both = offset & 31, set = offset >> 5 & 31, flip = offset >> 10 & 31;
  const bool one_bit = flip && !(flip & (flip - 1));
  if (both == 31 && set == 0 && one_bit) return s + "swizzle(SWAP" + number(flip) + ")";
  if (both == 31 && set == 0 && flip > 0 && !(flip & (flip + 1))) return s + "swizzle(REVERSE" + number(flip + 1) + ")";
  if (both + 1 != 0 && flip == 0) {
    const unsigned group = 32 - both;
    if (group > 1 && !(group & (group - 1)) && set < group)
      return s + "swizzle(BROADCAST" + number(group) + number(set) + ")";
  }
  std::string mask;
  for (unsigned bit = 16; bit; bit >>= 1) {
    const bool a = both & bit, o = set & bit, x = flip & bit;
    mask += o ? (x ? '0' : '1') : a ? (x ? 'i' : 'p') : (x ? '1' : '0');
  }
  return s + "swizzle(BITMASK_PERM,\"" + mask + "\")";
}

std::string sendmsg_text(unsigned imm) {
  static const char *const kNames[] = {nullptr,
                                       "MSG_INTERRUPT",
                                       "MSG_GS",
                                       "MSG_GS_DONE",
                                       "MSG_SAVEWAVE",
                                       "MSG_STALL_WAVE_GEN",
                                       "MSG_HALT_WAVES",
                                       "MSG_ORDERED_PS_DONE",
                                       "MSG_EARLY_PRIM_DEALLOC",
                                       "MSG_GS_ALLOC_REQ",
                                       "MSG_GET_DOORBELL"};
  if (imm < sizeof kNames / sizeof *kNames && kNames[imm]) return std::string("sendmsg(") + kNames[imm] + ")";
  return std::to_string(imm);
}

std::string format_text(unsigned formats) {
  static const char *const kData[] = {"INVALID",     "8",        "16",          "8_8",        "32",      "16_16",
                                      "10_11_11",    "11_11_10", "10_10_10_2",  "2_10_10_10", "8_8_8_8", "32_32",
                                      "16_16_16_16", "32_32_32", "32_32_32_32", "RESERVED_15"};
  static const char *const kNumber[] = {"UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "RESERVED_6", "FLOAT"};
  const unsigned data = formats & 15, number = formats >> 4 & 7;
  std::string s;  // 8-bit and UNORM are what is left out
  if (data != 1) s = std::string("BUF_DATA_FORMAT_") + kData[data];
  if (number) s += std::string(s.empty() ? "" : ",") + "BUF_NUM_FORMAT_" + kNumber[number];
  return s.empty() ? s : " format:[" + s + "]";
}

std::string gpr_idx_text(unsigned bits) {
  static const char *const kNames[] = {"SRC0", "SRC1", "SRC2", "DST"};
  std::string s;
  for (unsigned k = 0; k < 4; ++k) {
    if (!(bits >> k & 1)) continue;
    if (!s.empty()) s += ',';
    s += kNames[k];
  }
  return "gpr_idx(" + s + ")";
}

std::string bit_list(const char *name, unsigned bits, unsigned count) {
  std::string s = std::string(" ") + name + ":[";
  for (unsigned k = 0; k < count; ++k) {
    if (k) s += ',';
    s += bits >> k & 1 ? '1' : '0';
  }
  return s + "]";
}

}  // namespace turbo_sim
