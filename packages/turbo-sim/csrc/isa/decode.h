// SPDX-License-Identifier: MIT
// Binary decoding of the GFX9 formats.
#pragma once

#include "isa/opinfo.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace turbo_sim {

struct Code;

/// A word that is no instruction of the architecture, or a form that the decoder does not know. The text says which.
struct DecodeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Decodes the instruction at `p` (`avail` bytes left). Sets everything but exec, index and target.
Instruction decode_one(Arch, const uint8_t *p, size_t avail);

/// Decodes a whole section. Words that do not decode become instructions that stop the launch when reached.
Code decode_section(Arch, const uint8_t *p, size_t size);

/// Text of the error of an instruction that cannot be executed ("" if it can be).
std::string stop_reason(Arch, const uint8_t *p, size_t avail);

// --- pieces shared by decode*.cpp
struct Words {
  uint32_t w[4] = {0, 0, 0, 0};
  unsigned avail = 0;  // words that are there
};
inline unsigned bits(uint32_t word, unsigned low, unsigned n) { return word >> low & ((1u << n) - 1); }

/// 9-bit source operand; `type` decides the bits of constants. Literals are read from words.w[literal_at].
Operand decode_source(unsigned code, OperandType, const Words &, unsigned literal_at);
Operand vector_operand(unsigned reg, OperandType, bool agpr = false);
Operand scalar_operand(unsigned reg, unsigned dwords);
bool is_literal(unsigned code);

void decode_vop(Arch, const Words &, Instruction &);     // VOP1, VOP2, VOPC, VOP3
void decode_vop3p(Arch, const Words &, Instruction &);   // packed and MFMA
void decode_memory(Arch, const Words &, Instruction &);  // DS, MUBUF, FLAT family, SMEM

}  // namespace turbo_sim
