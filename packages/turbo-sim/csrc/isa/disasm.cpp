// SPDX-License-Identifier: MIT
#include "isa/disasm.h"

#include "isa/opinfo.h"

#include <cstdio>
#include <cstring>

namespace turbo_sim {
namespace {

std::string hex(unsigned v) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", v);
  return text;
}

/// "a, b, c" builder.
struct List {
  std::string text;
  void add(const std::string &s) {
    if (!text.empty()) text += ", ";
    text += s;
  }
  void add(const Operand &o) { add(operand_text(o)); }
  void add_present(const Operand &o) {
    if (o.present()) add(o);
  }
};

bool number(const Operand &o) { return o.is_constant(); }

/// -v1, |v1|, -|v1|, neg(1.0), sext(v1)
std::string modified(const Instruction &i, unsigned k, bool signs = true) {
  std::string s = operand_text(i.src[k]);
  if (i.sext >> k & 1) return "sext(" + s + ")";
  const bool neg = signs && (i.neg >> k & 1), abs = i.abs >> k & 1;
  if (abs) s = "|" + s + "|";
  if (!neg) return s;
  return number(i.src[k]) && !abs ? "neg(" + s + ")" : "-" + s;
}

unsigned source_count(const Instruction &i) {
  unsigned n = 0;
  while (n < 3 && i.src[n].present()) ++n;
  return n;
}

std::string vop(const Instruction &i) {
  const OpInfo &info = op_info(i.op);
  std::string name = info.name;
  const bool only_short =
      i.op == Op::v_fmamk_f32 || i.op == Op::v_fmaak_f32 || i.op == Op::v_madak_f16 || i.op == Op::v_madmk_f16;
  const bool bare = only_short || i.op == Op::v_nop || i.op == Op::v_clrexcp || i.op == Op::v_swap_b32 ||
                    i.op == Op::v_readfirstlane_b32 || i.op == Op::v_accvgpr_mov_b32;
  if (i.has_sdwa)
    name += "_sdwa";
  else if (i.has_dpp)
    name += "_dpp";
  else if (i.format != Format::VOP3)
    name += bare ? "" : "_e32";
  else if (info.format != Format::VOP3 && !bare)
    name += "_e64";
  List list;
  list.add_present(i.dst);
  list.add_present(i.sdst);
  for (unsigned k = 0; k < 3; ++k)
    if (i.src[k].present()) list.add(modified(i, k));
  std::string s = list.text;
  if (i.bitop3) s += " bitop3:" + hex(i.bitop3);
  if (i.format == Format::VOP3 && i.op_sel) {  // one bit per source, then the destination's
    const unsigned n = source_count(i);
    s += bit_list("op_sel", (i.op_sel & ((1u << n) - 1)) | (i.op_sel >> 3 & 1) << n, n + 1);
  }
  if (i.clamp) s += " clamp";
  static const char *const kOmod[] = {"", " mul:2", " mul:4", " div:2"};
  s += kOmod[i.omod];
  if (i.has_dpp) s += dpp_text(i);
  if (i.has_sdwa) {
    static const char *const kSel[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"};
    static const char *const kUnused[] = {"UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"};
    const bool no_dst_sel = i.format == Format::VOPC || i.op == Op::v_cvt_pk_f32_fp8 || i.op == Op::v_cvt_pk_f32_bf8 ||
                            i.op == Op::v_cvt_f32_fp8 || i.op == Op::v_cvt_f32_bf8;
    if (!no_dst_sel) s += std::string(" dst_sel:") + kSel[i.dst_sel] + " dst_unused:" + kUnused[i.dst_unused];
    s += std::string(" src0_sel:") + kSel[i.src_sel[0]];
    if (i.src[1].present()) s += std::string(" src1_sel:") + kSel[i.src_sel[1]];
  }
  return s.empty() ? name : name + " " + s;
}

std::string vop3p(const Instruction &i) {
  List list;
  list.add_present(i.dst);
  const unsigned n = source_count(i);
  const bool mix = i.op == Op::v_fma_mix_f32 || i.op == Op::v_fma_mixlo_f16 || i.op == Op::v_fma_mixhi_f16;
  for (unsigned k = 0; k < n; ++k) list.add(modified(i, k, mix));
  std::string s = list.text;
  const unsigned mask = (1u << n) - 1;
  if (i.op_sel & mask) s += bit_list("op_sel", i.op_sel, n);
  const bool no_halves = !std::strncmp(op_name(i.op), "v_dot4", 6) || !std::strncmp(op_name(i.op), "v_dot8", 6);
  if (!no_halves && (i.op_sel_hi & mask) != (mix ? 0 : mask)) s += bit_list("op_sel_hi", i.op_sel_hi, n);
  if (!mix && i.neg) s += bit_list("neg_lo", i.neg, n);
  if (i.neg_hi) s += bit_list("neg_hi", i.neg_hi, n);
  if (i.clamp) s += " clamp";
  return std::string(op_name(i.op)) + " " + s;
}

std::string mfma(const Instruction &i) {
  List list;
  list.add(i.dst);
  for (unsigned k = 0; k < 3; ++k) list.add_present(i.src[k]);
  const bool scaled = i.size == 16;
  if (scaled) {
    list.add(i.src[3]);
    list.add(i.src[4]);
  }
  std::string s = list.text;
  if (scaled) {
    if (i.op_sel & 3) s += bit_list("op_sel", i.op_sel & 3, 3);
    s += bit_list("op_sel_hi", i.op_sel_hi & 3, 3);
  }
  if (i.op == Op::v_mfma_f64_16x16x4_f64 || i.op == Op::v_mfma_f64_4x4x4_4b_f64) {
    if (i.cbsz) s += " cbsz:" + std::to_string(i.cbsz);
    if (i.abid) s += " abid:" + std::to_string(i.abid);
    if (i.blgp) s += bit_list("neg", i.blgp, 3);
  } else {
    if (i.cbsz) s += " cbsz:" + std::to_string(i.cbsz);
    if (i.abid) s += " abid:" + std::to_string(i.abid);
    if (i.blgp) s += " blgp:" + std::to_string(i.blgp);
  }
  return std::string(op_name(i.op)) + " " + s;
}

std::string sop(const Instruction &i) {
  const std::string name = op_name(i.op);
  List list;
  switch (i.format) {
    case Format::SOPP:
      switch (i.op) {
        case Op::s_waitcnt: list.add(waitcnt_text(i.imm & 0xffff)); break;
        case Op::s_sendmsg:
        case Op::s_sendmsghalt: list.add(sendmsg_text(i.imm & 0xffff)); break;
        case Op::s_endpgm:
          if (i.imm) list.add(std::to_string(i.imm & 0xffff));
          break;
        case Op::s_barrier:
        case Op::s_wakeup:
        case Op::s_icache_inv:
        case Op::s_ttracedata:
        case Op::s_endpgm_saved:
        case Op::s_endpgm_ordered_ps_done:
        case Op::s_set_gpr_idx_off: break;
        case Op::s_set_gpr_idx_mode: list.add(gpr_idx_text(i.imm)); break;
        default: {
          const unsigned v = i.imm & 0xffff;
          list.add(i.cls == InstClass::Branch || v <= 64 ? std::to_string(v) : hex(v));
        }
      }
      break;
    case Format::SOPK:
      if (i.op == Op::s_setreg_b32 || i.op == Op::s_setreg_imm32_b32) {
        list.add(hwreg_text(i.imm & 0xffff));
        list.add(i.op == Op::s_setreg_imm32_b32 ? std::to_string(int32_t(i.src[0].value)) : operand_text(i.src[0]));
      } else if (i.op == Op::s_getreg_b32) {
        list.add(i.dst);
        list.add(hwreg_text(i.imm & 0xffff));
      } else {
        list.add(i.dst.present() ? i.dst : i.src[0]);
        list.add(i.op == Op::s_call_b64 || i.op == Op::s_cbranch_i_fork ? std::to_string(i.imm & 0xffff)
                                                                        : hex(i.imm & 0xffff));
      }
      break;
    default:
      list.add_present(i.dst);
      list.add_present(i.src[0]);
      list.add_present(i.src[1]);
      if (i.op == Op::s_set_gpr_idx_on) list.add(gpr_idx_text(i.imm));
  }
  return list.text.empty() ? name : name + " " + list.text;
}

std::string offset_text(int32_t offset) { return offset ? " offset:" + std::to_string(offset) : ""; }

std::string smem(const Instruction &i) {
  List list;
  if (i.dst.present())
    list.add(i.dst);
  else
    list.add_present(i.src[3]);
  std::string s;
  if (i.src[0].present()) {
    list.add(i.src[0]);
    const std::string imm = (i.offset < 0 ? "-" : "") + hex(unsigned(i.offset < 0 ? -i.offset : i.offset));
    list.add(i.src[1].present() ? operand_text(i.src[1]) : imm);
    s = list.text;
    if (i.src[1].present() && i.offset) s += " offset:" + imm;
  } else {
    s = list.text;
  }
  if (i.sc0) s += " glc";
  return s.empty() ? op_name(i.op) : std::string(op_name(i.op)) + " " + s;
}

std::string ds(const Instruction &i) {
  List list;
  list.add_present(i.dst);
  for (unsigned k = 0; k < 3; ++k) list.add_present(i.src[k]);
  std::string s = list.text;
  const char *name = op_name(i.op);
  if (i.op == Op::ds_swizzle_b32) {
    s += swizzle_text(unsigned(i.offset));
  } else if (std::strstr(name, "read2") || std::strstr(name, "write2") || std::strstr(name, "wrxchg2")) {
    if (i.offset0) s += " offset0:" + std::to_string(i.offset0);
    if (i.offset1) s += " offset1:" + std::to_string(i.offset1);
  } else {
    s += offset_text(i.offset);
  }
  if (i.gds) s += " gds";
  return s.empty() ? name : std::string(name) + " " + s;
}

std::string cache_bits(const Instruction &i) {
  return std::string(i.sc0 ? " sc0" : "") + (i.nt ? " nt" : "") + (i.sc1 ? " sc1" : "");
}

std::string mubuf(const Instruction &i) {
  const std::string name = op_name(i.op);
  if (!i.src[1].present()) return name + cache_bits(i);  // buffer_wbl2, buffer_inv
  List list;
  if (i.dst.present())
    list.add(i.dst);
  else if (i.src[3].present())
    list.add(i.src[3]);
  list.add(i.src[0]);
  list.add(i.src[1]);
  list.add(i.src[2]);
  std::string s = list.text;
  if (i.format == Format::MTBUF) s += format_text(unsigned(i.imm));
  if (i.idxen) s += " idxen";
  if (i.offen) s += " offen";
  return name + " " + s + offset_text(i.offset) + cache_bits(i) + (i.lds ? " lds" : "");
}

std::string flat(const Instruction &i) {
  List list;
  const bool data_first = i.dst.present();
  if (data_first) list.add(i.dst);
  list.add(i.src[0]);
  list.add_present(i.src[3]);
  if (i.format != Format::FLAT) list.add(i.src[1]);
  return std::string(op_name(i.op)) + " " + list.text + offset_text(i.offset) + cache_bits(i);
}

}  // namespace

std::string disassemble(Arch, const Instruction &i) {
  switch (i.format) {
    case Format::Invalid: return "<unknown>";
    case Format::VOP1:
    case Format::VOP2:
    case Format::VOPC:
    case Format::VOP3: return vop(i);
    case Format::VOP3P: return vop3p(i);
    case Format::MFMA: return mfma(i);
    case Format::SMEM: return smem(i);
    case Format::DS: return ds(i);
    case Format::MUBUF:
    case Format::MTBUF: return mubuf(i);
    case Format::FLAT:
    case Format::GLOBAL:
    case Format::SCRATCH: return flat(i);
    default: return sop(i);
  }
}

}  // namespace turbo_sim
