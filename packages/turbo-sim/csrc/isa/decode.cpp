// SPDX-License-Identifier: MIT
// Classification of a word by its top bits, operands, and the scalar formats.
#include "isa/decode.h"

#include "core/machine.h"
#include "isa/registry.h"

#include <cstdio>
#include <cstring>

namespace turbo_sim {

// --- operands

bool is_literal(unsigned code) { return code == 255; }

Operand scalar_operand(unsigned reg, unsigned dwords) {
  Operand o;
  o.kind = Kind::Scalar;
  o.reg = uint16_t(reg);
  o.dwords = uint8_t(dwords);
  o.type = dwords == 2 ? Type::B64 : Type::B32;
  return o;
}

Operand vector_operand(unsigned reg, OperandType t, bool agpr) {
  Operand o;
  o.kind = agpr ? Kind::Agpr : Kind::Vgpr;
  o.reg = uint16_t(reg + (agpr ? 256 : 0));
  o.dwords = t.dwords ? t.dwords : uint8_t(1);
  o.type = t.type;
  return o;
}

/// Inline constants 240..248: 0.5, -0.5, 1, -1, 2, -2, 4, -4, 1/(2 pi), in the operand's own format.
static uint64_t float_constant(unsigned code, Type type) {
  static const uint16_t kF16[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000, 0xc000, 0x4400, 0xc400, 0x3118};
  static const uint32_t kF32[] = {0x3f000000, 0xbf000000, 0x3f800000, 0xbf800000, 0x40000000,
                                  0xc0000000, 0x40800000, 0xc0800000, 0x3e22f983};
  static const uint64_t kF64[] = {0x3fe0000000000000, 0xbfe0000000000000, 0x3ff0000000000000,
                                  0xbff0000000000000, 0x4000000000000000, 0xc000000000000000,
                                  0x4010000000000000, 0xc010000000000000, 0x3fc45f306dc9c882};
  switch (type) {
    case Type::F16:
    case Type::PackedF16: return kF16[code - 240];
    case Type::B64:
    case Type::I64:
    case Type::F64: return kF64[code - 240];
    default: return kF32[code - 240];
  }
}

Operand decode_source(unsigned code, OperandType t, const Words &words, unsigned literal_at) {
  Operand o;
  o.type = t.type;
  o.dwords = t.dwords ? t.dwords : uint8_t(1);
  const bool wide = t.type == Type::B64 || t.type == Type::I64 || t.type == Type::F64;
  if (code >= 256) return vector_operand(code - 256, t);
  if (code < 125 || code == 126 || code == 127) {
    o.kind = Kind::Scalar;
    o.reg = uint16_t(code);
  } else if (code >= 128 && code <= 208) {
    int64_t v = code <= 192 ? int64_t(code) - 128 : 192 - int64_t(code);
    o.kind = Kind::Constant;
    o.value = wide ? uint64_t(v) : uint64_t(uint32_t(v));
  } else if (code >= 240 && code <= 248) {
    o.kind = Kind::Constant;
    o.value = float_constant(code, t.type);
  } else if (code == 255) {
    if (literal_at >= words.avail) throw DecodeError("literal past the end of the code");
    uint32_t v = words.w[literal_at];
    o.kind = Kind::Literal;
    o.value = v;
    if (t.type == Type::F64) o.value = uint64_t(v) << 32;
    if (t.type == Type::I64) o.value = uint64_t(int64_t(int32_t(v)));
  } else if ((code >= 235 && code <= 239) || (code >= 251 && code <= 254)) {
    o.kind = Kind::Special;
    o.reg = uint16_t(code >= 251 ? code - 251 + unsigned(SpecialReg::Vccz) : code - 235);
  } else {
    throw DecodeError("source operand " + std::to_string(code) + " does not exist");
  }
  return o;
}

// --- scalar formats

static void need(Op op, Format f, unsigned code) {
  if (op == Op::invalid) {
    char text[64];
    std::snprintf(text, sizeof text, "unknown %s opcode 0x%x", format_name(f), code);
    throw DecodeError(text);
  }
}

static Operand scalar_dst(unsigned code, OperandType t) {
  if (!t.dwords) return {};
  if (code >= 128 || code == 125) throw DecodeError("destination " + std::to_string(code) + " is no scalar register");
  Operand o = scalar_operand(code, t.dwords);
  o.type = t.type;
  return o;
}

static void decode_scalar(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0];
  const unsigned src0 = bits(w, 0, 8), src1 = bits(w, 8, 8), dst = bits(w, 16, 7);
  unsigned code, literals = 0;
  if (w >> 23 == 0x17f) {
    i.format = Format::SOPP, code = bits(w, 16, 7);
  } else if (w >> 23 == 0x17e) {
    i.format = Format::SOPC, code = bits(w, 16, 7);
  } else if (w >> 23 == 0x17d) {
    i.format = Format::SOP1, code = bits(w, 8, 8);
  } else if (w >> 28 == 0xb) {
    i.format = Format::SOPK, code = bits(w, 23, 5);
  } else {
    i.format = Format::SOP2, code = bits(w, 23, 7);
  }
  i.op = find_op(arch, i.format, code);
  need(i.op, i.format, code);
  const OpInfo &info = op_info(i.op);
  i.imm = int16_t(w & 0xffff);
  switch (i.format) {
    case Format::SOPP: break;
    case Format::SOPK: {
      const bool reads =
          !std::strncmp(info.name, "s_cmpk", 6) || i.op == Op::s_setreg_b32 || i.op == Op::s_cbranch_i_fork;
      if (i.op == Op::s_setreg_imm32_b32) {
        i.src[0] = decode_source(255, {Type::B32, 1}, words, 1);
        literals = 1;
      } else if (reads) {
        i.src[0] = scalar_operand(dst, i.op == Op::s_cbranch_i_fork ? 2 : 1);
      } else {
        i.dst =
            scalar_dst(dst, {i.op == Op::s_call_b64 ? Type::B64 : Type::B32, uint8_t(i.op == Op::s_call_b64 ? 2 : 1)});
        if (i.op == Op::s_addk_i32 || i.op == Op::s_mulk_i32 || i.op == Op::s_cmovk_i32) i.src[0] = i.dst;
      }
      break;
    }
    case Format::SOPC:
      i.src[0] = decode_source(src0, info.types[1], words, 1);
      if (i.op != Op::s_set_gpr_idx_on)
        i.src[1] = decode_source(src1, info.types[2], words, 1);
      else
        i.imm = int32_t(src1);
      literals = is_literal(src0) || (is_literal(src1) && i.op != Op::s_set_gpr_idx_on);
      break;
    case Format::SOP1:
      i.dst = scalar_dst(dst, info.types[0]);
      if (info.types[1].dwords) {
        i.src[0] = decode_source(src0, info.types[1], words, 1);
        literals = is_literal(src0);
      }
      break;
    default:
      i.dst = scalar_dst(dst, info.types[0]);
      i.src[0] = decode_source(src0, info.types[1], words, 1);
      i.src[1] = decode_source(src1, info.types[2], words, 1);
      literals = is_literal(src0) || is_literal(src1);
  }
  for (const Operand &o : i.src)
    if (o.is_vector()) throw DecodeError("vector register in a scalar instruction");
  i.size = uint8_t(4 + 4 * literals);
}

// --- classification

Instruction decode_one(Arch arch, const uint8_t *p, size_t avail) {
  Words words;
  words.avail = unsigned(avail / 4 < 4 ? avail / 4 : 4);
  if (!words.avail) throw DecodeError("end of the code");
  std::memcpy(words.w, p, words.avail * 4);
  const uint32_t w = words.w[0];
  Instruction i;
  if (w >> 31 == 0) {
    decode_vop(arch, words, i);  // VOP2; VOP1 and VOPC are its opcodes 0x3f and 0x3e
  } else if (w >> 30 == 2) {
    decode_scalar(arch, words, i);
  } else {
    if (words.avail < 2) throw DecodeError("instruction past the end of the code");
    switch (w >> 26) {
      case 0x34:  // 110100: VOP3, with VOP3P as 110100111
        if (w >> 23 == 0x1a7)
          decode_vop3p(arch, words, i);
        else
          decode_vop(arch, words, i);
        break;
      case 0x30:  // 110000 SMEM
      case 0x36:  // 110110 DS
      case 0x37:  // 110111 FLAT, GLOBAL, SCRATCH
      case 0x38:  // 111000 MUBUF
      case 0x3a:  // 111010 MTBUF
        decode_memory(arch, words, i);
        break;
      default: {
        char text[64];
        std::snprintf(text, sizeof text, "unknown encoding, top bits 0x%02x", w >> 26);
        throw DecodeError(text);
      }
    }
  }
  need(i.op, i.format, 0);
  i.cls = op_info(i.op).cls;
  if (i.size / 4u > words.avail) throw DecodeError("instruction past the end of the code");
  return i;
}

// --- sections

/// Bound to everything that cannot be executed. Decodes the bytes again to say why.
static void stop_here(Wave &w, const Instruction &i) {
  const Code &code = *w.worker->launch->code;
  throw Fault(stop_reason(code.arch, code.bytes.data() + i.offset_in_code, code.bytes.size() - i.offset_in_code));
}

std::string stop_reason(Arch arch, const uint8_t *p, size_t avail) {
  uint32_t words[2] = {0, 0};
  std::memcpy(words, p, avail < 8 ? avail : 8);
  char hex[32];
  std::snprintf(hex, sizeof hex, "0x%08x 0x%08x", words[0], words[1]);
  try {
    Instruction i = decode_one(arch, p, avail);
    try {
      registry().bind(i);
      return "";
    } catch (const NotImplemented &e) {
      return std::string(op_name(i.op)) + " (" + hex + "): not implemented: " + e.what();
    }
  } catch (const DecodeError &e) {
    return std::string("undecodable word ") + hex + " for " + (arch == Arch::gfx942 ? "gfx942" : "gfx950") + ": " +
           e.what();
  }
}

Code decode_section(Arch arch, const uint8_t *p, size_t size) {
  Code code;
  code.arch = arch;
  code.bytes.assign(p, p + size);
  code.index_of_dword.assign(size / 4 + 1, kNoInst);
  code.insts.reserve(size / 6);
  for (size_t at = 0; at + 4 <= size;) {
    Instruction i;
    try {
      i = decode_one(arch, p + at, size - at);
      i.exec = registry().bind(i);
    } catch (const DecodeError &) {
      i = Instruction();
      i.size = 4;
      i.exec = stop_here;
    } catch (const NotImplemented &) {
      i.exec = stop_here;
    }
    i.offset_in_code = uint32_t(at);
    i.index = uint32_t(code.insts.size());
    code.index_of_dword[at / 4] = i.index;
    at += i.size;
    code.insts.push_back(i);
  }
  // A last instruction that stops a wave which runs off the end.
  Instruction end;
  end.size = 4;
  end.exec = [](Wave &, const Instruction &) { throw Fault("the wave ran past the end of the code"); };
  end.offset_in_code = uint32_t(size);
  end.index = uint32_t(code.insts.size());
  code.index_of_dword[size / 4] = end.index;
  code.insts.push_back(end);
  // Branch targets.
  for (Instruction &i : code.insts) {
    const bool branch =
        i.cls == InstClass::Branch && (i.format == Format::SOPP || i.op == Op::s_call_b64) && i.op != Op::s_endpgm;
    if (!branch) continue;
    int64_t to = int64_t(i.offset_in_code) + i.size + int64_t(i.imm) * 4;
    if (to >= 0 && to <= int64_t(size) && code.index_of_dword[size_t(to) / 4] != kNoInst)
      i.target = int32_t(code.index_of_dword[size_t(to) / 4]);
  }
  return code;
}

}  // namespace turbo_sim
