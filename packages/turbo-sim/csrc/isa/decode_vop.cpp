// SPDX-License-Identifier: MIT
// Vector ALU formats: VOP1, VOP2, VOPC with literal, DPP or SDWA word; VOP3 and VOP3B.
#include "isa/decode.h"

#include <cstdio>

namespace turbo_sim {
namespace {

[[noreturn]] void fail(const char *what, unsigned code) {
  char text[80];
  std::snprintf(text, sizeof text, "%s 0x%x", what, code);
  throw DecodeError(text);
}

Operand mask_pair(unsigned reg) { return scalar_operand(reg, 2); }

/// Opcodes whose 64-bit form has a scalar destination in place of abs and op_sel (VOP3B).
bool has_scalar_dst(Op op) {
  switch (op) {
    case Op::v_add_co_u32:
    case Op::v_sub_co_u32:
    case Op::v_subrev_co_u32:
    case Op::v_addc_co_u32:
    case Op::v_subb_co_u32:
    case Op::v_subbrev_co_u32:
    case Op::v_div_scale_f32:
    case Op::v_div_scale_f64:
    case Op::v_mad_u64_u32:
    case Op::v_mad_i64_i32: return true;
    default: return false;
  }
}

Operand destination(Op op, unsigned reg, const OperandType &t) {
  if (op == Op::v_readlane_b32 || op == Op::v_readfirstlane_b32) return scalar_operand(reg, 1);
  if (op == Op::v_accvgpr_mov_b32) return vector_operand(reg, t, true);
  return vector_operand(reg, t);
}

void decode_sdwa(const Words &words, Instruction &i, const OpInfo &info) {
  const uint32_t x = words.w[1];
  auto source = [&](unsigned reg, bool scalar, const OperandType &t) {
    return scalar ? decode_source(reg, t, words, 4) : vector_operand(reg, t);
  };
  i.has_sdwa = true;
  i.src[0] = source(bits(x, 0, 8), bits(x, 23, 1), info.types[1]);
  i.src_sel[0] = Sel(bits(x, 16, 3));
  if (info.types[2].dwords) {
    i.src[1] = source(bits(words.w[0], 9, 8), bits(x, 31, 1), info.types[2]);
    i.src_sel[1] = Sel(bits(x, 24, 3));
  }
  i.sext = uint8_t(bits(x, 19, 1) | bits(x, 27, 1) << 1);
  i.neg = uint8_t(bits(x, 20, 1) | bits(x, 28, 1) << 1);
  i.abs = uint8_t(bits(x, 21, 1) | bits(x, 29, 1) << 1);
  if (i.format == Format::VOPC) {  // bits 8..15 name the destination mask instead
    i.sdst = bits(x, 15, 1) ? mask_pair(bits(x, 8, 7)) : mask_pair(106);
  } else {
    i.dst_sel = Sel(bits(x, 8, 3));
    i.dst_unused = Unused(bits(x, 11, 2));
    i.clamp = bits(x, 13, 1);
    i.omod = uint8_t(bits(x, 14, 2));
    if (i.dst_sel > DWORD || i.dst_unused > UNUSED_PRESERVE) fail("reserved SDWA field in", x);
  }
  if (i.src_sel[0] > DWORD || i.src_sel[1] > DWORD) fail("reserved SDWA select in", x);
}

void decode_dpp(const Words &words, Instruction &i, const OpInfo &info) {
  const uint32_t x = words.w[1];
  i.has_dpp = true;
  i.src[0] = vector_operand(bits(x, 0, 8), info.types[1], i.op == Op::v_accvgpr_mov_b32);
  i.dpp_ctrl = uint16_t(bits(x, 8, 9));
  i.bound_ctrl = bits(x, 19, 1);
  i.neg = uint8_t(bits(x, 20, 1) | bits(x, 22, 1) << 1);
  i.abs = uint8_t(bits(x, 21, 1) | bits(x, 23, 1) << 1);
  i.bank_mask = uint8_t(bits(x, 24, 4));
  i.row_mask = uint8_t(bits(x, 28, 4));
}

/// VOP1, VOP2 and VOPC in their 32-bit form, with the extra word if there is one.
void decode_short(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0];
  const unsigned top = bits(w, 25, 6), src0 = bits(w, 0, 9), src1 = bits(w, 9, 8), dst = bits(w, 17, 8);
  unsigned code = top;
  i.format = Format::VOP2;
  if (top == 0x3f) i.format = Format::VOP1, code = src1;
  if (top == 0x3e) i.format = Format::VOPC, code = dst;
  i.op = find_op(arch, i.format, code);
  if (i.op == Op::invalid)
    fail(i.format == Format::VOP1   ? "unknown VOP1 opcode"
         : i.format == Format::VOP2 ? "unknown VOP2 opcode"
                                    : "unknown VOPC opcode",
         code);
  const OpInfo &info = op_info(i.op);
  const bool two = i.format != Format::VOP1;
  if (i.format == Format::VOPC)
    i.sdst = mask_pair(106);
  else if (info.types[0].dwords)
    i.dst = destination(i.op, dst, info.types[0]);
  if (has_scalar_dst(i.op)) i.sdst = mask_pair(106);
  i.size = 4;
  if (src0 == 249 || src0 == 250) {
    if (words.avail < 2) throw DecodeError("DPP or SDWA word past the end of the code");
    i.size = 8;
  }
  if (src0 == 249) {
    decode_sdwa(words, i, info);
  } else {
    if (src0 == 250)
      decode_dpp(words, i, info);
    else if (info.types[1].dwords)
      i.src[0] = decode_source(src0, info.types[1], words, 1);
    if (two) i.src[1] = vector_operand(src1, info.types[2]);
    if (src0 == 255) i.size = 8;
  }
  if (i.op == Op::v_accvgpr_mov_b32 && i.src[0].kind == Kind::Vgpr)
    i.src[0] = vector_operand(i.src[0].reg, info.types[1], true);
  switch (i.op) {
    case Op::v_cndmask_b32:
    case Op::v_addc_co_u32:
    case Op::v_subb_co_u32:
    case Op::v_subbrev_co_u32: i.src[2] = mask_pair(106); break;
    case Op::v_fmamk_f32:
    case Op::v_madmk_f16:  // D = src0 * literal + vsrc1
      i.src[2] = i.src[1];
      i.src[1] = decode_source(255, info.types[2], words, 1);
      i.size = 8;
      break;
    case Op::v_fmaak_f32:
    case Op::v_madak_f16:  // D = src0 * vsrc1 + literal
      i.src[2] = decode_source(255, info.types[3], words, 1);
      i.size = 8;
      break;
    default: break;
  }
}

/// The truth table of v_bitop3 is spread over the fields that it has no use for.
bool is_bitop3(Op op) { return op == Op::v_bitop3_b32 || op == Op::v_bitop3_b16; }

void decode_long(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  const unsigned code = bits(w, 16, 10);
  i.format = Format::VOP3;
  i.size = 8;
  i.op = find_op(arch, Format::VOP3, code);
  if (i.op == Op::invalid) fail("unknown VOP3 opcode", code);
  const OpInfo &info = op_info(i.op);
  if (info.format == Format::VOPC) {
    i.sdst = mask_pair(bits(w, 0, 8));
  } else if (info.types[0].dwords) {
    i.dst = destination(i.op, bits(w, 0, 8), info.types[0]);
  }
  const unsigned source[3] = {bits(x, 0, 9), bits(x, 9, 9), bits(x, 18, 9)};
  for (unsigned k = 0; k < 3; ++k) {
    if (!info.types[k + 1].dwords) continue;
    if (is_literal(source[k])) throw DecodeError("VOP3 with a literal");
    if (source[k] == 249 || source[k] == 250) throw DecodeError("VOP3 with a DPP or SDWA source");
    i.src[k] = decode_source(source[k], info.types[k + 1], words, 4);
  }
  i.clamp = bits(w, 15, 1);
  if (is_bitop3(i.op)) {
    i.bitop3 = uint8_t(bits(x, 29, 3) | bits(w, 8, 3) << 3 | bits(x, 27, 2) << 6);
    i.op_sel = uint8_t(bits(w, 11, 4));
    return;
  }
  i.omod = uint8_t(bits(x, 27, 2));
  i.neg = uint8_t(bits(x, 29, 3));
  if (has_scalar_dst(i.op)) {
    i.sdst = mask_pair(bits(w, 8, 7));
  } else {
    i.abs = uint8_t(bits(w, 8, 3));
    i.op_sel = uint8_t(bits(w, 11, 4));
  }
}

/// Operands that must be of one register file.
void check_files(const Instruction &i) {
  auto vector = [&](const Operand &o) {
    if (!o.is_vector()) throw DecodeError(std::string(op_name(i.op)) + " with a source that is no VGPR");
  };
  auto uniform = [&](const Operand &o) {
    if (o.is_vector()) throw DecodeError(std::string(op_name(i.op)) + " with a VGPR where a scalar must be");
  };
  switch (i.op) {
    case Op::v_readfirstlane_b32:
    case Op::v_swap_b32:
    case Op::v_accvgpr_mov_b32:
    case Op::v_permlane16_swap_b32:
    case Op::v_permlane32_swap_b32: return vector(i.src[0]);
    case Op::v_readlane_b32: vector(i.src[0]), uniform(i.src[1]); return;
    case Op::v_writelane_b32: uniform(i.src[0]), uniform(i.src[1]); return;
    default: return;
  }
}

}  // namespace

void decode_vop(Arch arch, const Words &words, Instruction &i) {
  if (words.w[0] >> 31 == 0)
    decode_short(arch, words, i);
  else
    decode_long(arch, words, i);
  check_files(i);
  i.plain = !(i.neg | i.abs | i.op_sel | i.omod) && !i.clamp && !i.has_dpp && !i.has_sdwa;
}

// --- VOP3P

namespace {

/// Dwords of an f8f6f4 operand by its format field: fp8, bf8, fp6, bf6, fp4.
unsigned f8f6f4_dwords(unsigned format) {
  static const uint8_t kDwords[8] = {8, 8, 6, 6, 4, 0, 0, 0};
  if (!kDwords[format]) fail("reserved f8f6f4 format", format);
  return kDwords[format];
}

void decode_mfma(const uint32_t w, const uint32_t x, const Words &words, Instruction &i, bool f8f6f4) {
  const OpInfo &info = op_info(i.op);
  i.format = Format::MFMA;
  if (info.cls != InstClass::Mfma) {  // v_accvgpr_read / write: the register file follows from the opcode alone
    const bool read = i.op == Op::v_accvgpr_read_b32;
    const unsigned code = bits(x, 0, 9);
    i.dst = vector_operand(bits(w, 0, 8), info.types[0], !read);
    i.src[0] =
        code >= 256 ? vector_operand(code - 256, info.types[1], read) : decode_source(code, info.types[1], words, 4);
    return;
  }
  i.cbsz = uint8_t(bits(w, 8, 3));
  i.abid = uint8_t(bits(w, 11, 4));
  i.blgp = uint8_t(bits(x, 29, 3));
  const bool acc_cd = bits(w, 15, 1);
  i.dst = vector_operand(bits(w, 0, 8), info.types[0], acc_cd);
  const unsigned source[3] = {bits(x, 0, 9), bits(x, 9, 9), bits(x, 18, 9)};
  const bool acc[3] = {bool(bits(x, 27, 1)), bool(bits(x, 28, 1)), acc_cd};
  const unsigned format[2] = {i.cbsz, i.blgp};
  for (unsigned k = 0; k < 3; ++k) {
    OperandType t = info.types[k + 1];
    if (!t.dwords) continue;
    if (f8f6f4 && k < 2) t.dwords = uint8_t(f8f6f4_dwords(format[k]));
    if (is_literal(source[k])) throw DecodeError("MFMA with a literal");
    if (source[k] >= 256)
      i.src[k] = vector_operand(source[k] - 256, t, acc[k]);
    else
      i.src[k] = decode_source(source[k], t, words, 4);
    if (i.src[k].kind == Kind::Scalar || i.src[k].kind == Kind::Special)
      throw DecodeError("scalar register as an MFMA operand");
  }
}

bool is_f8f6f4(unsigned code) { return code == 0x2d || code == 0x2e; }

}  // namespace

void decode_vop3p(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  const unsigned code = bits(w, 16, 7);
  if (arch == Arch::gfx950 && code == 0x2c) {  // v_mfma_ld_scale_b32: prefix with the scales of the MFMA that follows
    if (words.avail < 4 || words.w[2] >> 23 != 0x1a7) throw DecodeError("scale prefix without an MFMA");
    const unsigned inner = bits(words.w[2], 16, 7);
    i.op = is_f8f6f4(inner) ? find_op(arch, Format::VOP3PX2, inner) : Op::invalid;
    if (i.op == Op::invalid) fail("scale prefix before opcode", inner);
    decode_mfma(words.w[2], words.w[3], words, i, true);
    i.abid = 0;  // set in the second half, without meaning there
    i.src[3] = decode_source(bits(x, 0, 9), {Type::F32, 1}, words, 4);
    i.src[4] = decode_source(bits(x, 9, 9), {Type::F32, 1}, words, 4);
    i.op_sel = uint8_t(bits(w, 11, 3));
    i.op_sel_hi = uint8_t(bits(x, 27, 2));
    i.size = 16;
    i.plain = false;
    return;
  }
  i.op = find_op(arch, Format::VOP3P, code);
  if (i.op == Op::invalid) fail("unknown VOP3P opcode", code);
  i.size = 8;
  const OpInfo &info = op_info(i.op);
  if (info.cls == InstClass::Mfma || i.op == Op::v_accvgpr_read_b32 || i.op == Op::v_accvgpr_write_b32) {
    decode_mfma(w, x, words, i, arch == Arch::gfx950 && is_f8f6f4(code));
    return;
  }
  i.format = Format::VOP3P;
  i.dst = vector_operand(bits(w, 0, 8), info.types[0]);
  i.op_sel = uint8_t(bits(w, 11, 3));
  i.op_sel_hi = uint8_t(bits(x, 27, 2) | bits(w, 14, 1) << 2);
  i.neg = uint8_t(bits(x, 29, 3));
  i.clamp = bits(w, 15, 1);
  const bool mix = i.op == Op::v_fma_mix_f32 || i.op == Op::v_fma_mixlo_f16 || i.op == Op::v_fma_mixhi_f16;
  (mix ? i.abs : i.neg_hi) = uint8_t(bits(w, 8, 3));
  const unsigned source[3] = {bits(x, 0, 9), bits(x, 9, 9), bits(x, 18, 9)};
  unsigned present = 0;
  for (unsigned k = 0; k < 3; ++k) {
    OperandType t = info.types[k + 1];
    if (!t.dwords) continue;
    present |= 1u << k;
    if (mix) t.type = i.op_sel_hi >> k & 1 ? Type::F16 : Type::F32;  // each source is f16 or f32 by its op_sel_hi bit
    if (is_literal(source[k])) throw DecodeError("VOP3P with a literal");
    i.src[k] = decode_source(source[k], t, words, 4);
  }
  i.plain = !(i.neg | i.neg_hi | i.abs | i.op_sel) && !i.clamp && (i.op_sel_hi & present) == (mix ? 0 : present);
}

}  // namespace turbo_sim
