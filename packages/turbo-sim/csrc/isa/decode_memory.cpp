// SPDX-License-Identifier: MIT
// Memory formats: SMEM, DS, MUBUF, FLAT / GLOBAL / SCRATCH.
#include "isa/decode.h"

#include <cstdio>
#include <cstring>

namespace turbo_sim {
namespace {

void look_up(Arch arch, Instruction &i, Format f, unsigned code) {
  i.format = f;
  i.op = find_op(arch, f, code);
  if (i.op != Op::invalid) return;
  char text[64];
  std::snprintf(text, sizeof text, "unknown %s opcode 0x%x", format_name(f), code);
  throw DecodeError(text);
}

int32_t sign_extend(unsigned value, unsigned bits_) { return int32_t(value << (32 - bits_)) >> (32 - bits_); }

bool is_atomic(const OpInfo &info) { return std::strstr(info.name, "atomic"); }

void decode_smem(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  look_up(arch, i, Format::SMEM, bits(w, 18, 8));
  const OpInfo &info = op_info(i.op);
  const unsigned data = bits(w, 6, 7);
  i.sc0 = bits(w, 16, 1);
  if (info.types[0].dwords && (!is_atomic(info) || i.sc0)) i.dst = scalar_operand(data, info.types[0].dwords);
  if (info.types[3].dwords) i.src[3] = scalar_operand(data, info.types[3].dwords);
  if (!info.types[1].dwords) return;  // s_memtime, cache control
  i.src[0] = scalar_operand(bits(w, 0, 6) << 1, info.types[1].dwords);
  // imm = 1: 21-bit signed offset; soffset_en: an SGPR is added too. imm = 0 without it: the offset field names the
  // SGPR.
  if (bits(w, 17, 1)) i.offset = sign_extend(bits(x, 0, 21), 21);
  if (bits(w, 14, 1))
    i.src[1] = decode_source(bits(x, 25, 7), {Type::B32, 1}, words, 4);
  else if (!bits(w, 17, 1))
    i.src[1] = decode_source(bits(x, 0, 7), {Type::B32, 1}, words, 4);
}

void decode_ds(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  look_up(arch, i, Format::DS, bits(w, 17, 8));
  const OpInfo &info = op_info(i.op);
  const bool acc = bits(w, 25, 1);  // data and destination are AGPRs
  i.offset = int32_t(bits(w, 0, 16));
  i.offset0 = uint8_t(bits(w, 0, 8));
  i.offset1 = uint8_t(bits(w, 8, 8));
  i.gds = bits(w, 16, 1);
  if (info.types[0].dwords) i.dst = vector_operand(bits(x, 24, 8), info.types[0], acc);
  if (info.types[1].dwords) i.src[0] = vector_operand(bits(x, 0, 8), info.types[1]);
  if (info.types[2].dwords) i.src[1] = vector_operand(bits(x, 8, 8), info.types[2], acc);
  if (info.types[3].dwords) i.src[2] = vector_operand(bits(x, 16, 8), info.types[3], acc);
}

void decode_mubuf(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  look_up(arch, i, Format::MUBUF, bits(w, 18, 7));
  const OpInfo &info = op_info(i.op);
  i.offset = int32_t(bits(w, 0, 12));
  i.offen = bits(w, 12, 1);
  i.idxen = bits(w, 13, 1);
  i.sc0 = bits(w, 14, 1);
  i.sc1 = bits(w, 15, 1);
  i.lds = bits(w, 16, 1);
  i.nt = bits(w, 17, 1);
  if (i.op == Op::buffer_wbl2 || i.op == Op::buffer_inv) return;
  const bool acc = bits(x, 23, 1);
  const unsigned data = bits(x, 8, 8), address_dwords = unsigned(i.offen) + unsigned(i.idxen);
  if (info.types[0].dwords && (!is_atomic(info) || i.sc0) && !i.lds) i.dst = vector_operand(data, info.types[0], acc);
  if (info.types[3].dwords) i.src[3] = vector_operand(data, info.types[3], acc);
  if (address_dwords) i.src[0] = vector_operand(bits(x, 0, 8), {Type::B32, uint8_t(address_dwords)});
  i.src[1] = scalar_operand(bits(x, 16, 5) << 2, 4);
  i.src[2] = decode_source(bits(x, 24, 8), {Type::B32, 1}, words, 4);
  if (i.src[2].kind == Kind::Literal) throw DecodeError("literal as soffset");
}

/// Typed buffer access: decoded so that it can be named, not executed.
void decode_mtbuf(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  look_up(arch, i, Format::MTBUF, bits(w, 15, 4));
  const OpInfo &info = op_info(i.op);
  i.offset = int32_t(bits(w, 0, 12));
  i.offen = bits(w, 12, 1);
  i.idxen = bits(w, 13, 1);
  i.sc0 = bits(w, 14, 1);
  i.imm = int32_t(bits(w, 19, 7));  // data format, number format << 4
  i.sc1 = bits(x, 21, 1);
  i.nt = bits(x, 22, 1);
  const bool acc = bits(x, 23, 1);
  const unsigned data = bits(x, 8, 8), address_dwords = unsigned(i.offen) + unsigned(i.idxen);
  if (info.types[0].dwords) i.dst = vector_operand(data, info.types[0], acc);
  if (info.types[3].dwords) i.src[3] = vector_operand(data, info.types[3], acc);
  if (address_dwords) i.src[0] = vector_operand(bits(x, 0, 8), {Type::B32, uint8_t(address_dwords)});
  i.src[1] = scalar_operand(bits(x, 16, 5) << 2, 4);
  i.src[2] = decode_source(bits(x, 24, 8), {Type::B32, 1}, words, 4);
  if (i.src[2].kind == Kind::Literal) throw DecodeError("literal as soffset");
}

void decode_flat(Arch arch, const Words &words, Instruction &i) {
  const uint32_t w = words.w[0], x = words.w[1];
  static const Format kSegment[] = {Format::FLAT, Format::SCRATCH, Format::GLOBAL, Format::Invalid};
  const Format f = kSegment[bits(w, 14, 2)];
  if (f == Format::Invalid) throw DecodeError("reserved FLAT segment 3");
  look_up(arch, i, f, bits(w, 18, 7));
  const OpInfo &info = op_info(i.op);
  i.sc0 = bits(w, 16, 1);
  i.nt = bits(w, 17, 1);
  i.sc1 = bits(w, 25, 1);
  i.lds = std::strstr(info.name, "_lds_");
  // FLAT offsets are 12 bits, unsigned; GLOBAL and SCRATCH 13 bits, signed.
  i.offset = f == Format::FLAT ? int32_t(bits(w, 0, 12)) : sign_extend(bits(w, 0, 13), 13);
  const bool acc = bits(x, 23, 1);
  const unsigned saddr = bits(x, 16, 7);
  const bool has_saddr = f != Format::FLAT && saddr != 0x7f;
  const bool has_vaddr = f != Format::SCRATCH || bits(w, 13, 1);  // bit 13: "sve", scratch with a VGPR address
  if (has_saddr) i.src[1] = scalar_operand(saddr, f == Format::GLOBAL ? 2 : 1);
  if (has_vaddr) {
    const bool narrow = f == Format::SCRATCH || has_saddr;
    i.src[0] = vector_operand(bits(x, 0, 8), narrow ? OperandType{Type::B32, 1} : OperandType{Type::B64, 2});
  }
  if (info.types[0].dwords && (!is_atomic(info) || i.sc0)) i.dst = vector_operand(bits(x, 24, 8), info.types[0], acc);
  if (info.types[3].dwords) i.src[3] = vector_operand(bits(x, 8, 8), info.types[3], acc);
}

}  // namespace

void decode_memory(Arch arch, const Words &words, Instruction &i) {
  i.size = 8;
  switch (words.w[0] >> 26) {
    case 0x30: return decode_smem(arch, words, i);
    case 0x36: return decode_ds(arch, words, i);
    case 0x37: return decode_flat(arch, words, i);
    case 0x3a: return decode_mtbuf(arch, words, i);
    default: return decode_mubuf(arch, words, i);
  }
}

}  // namespace turbo_sim
