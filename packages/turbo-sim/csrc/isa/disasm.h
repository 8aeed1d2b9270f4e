// SPDX-License-Identifier: MIT
// Text of a decoded instruction, in the syntax of llvm-objdump. Used by findings, profiles and the decoder's tests.
#pragma once

#include "isa/instruction.h"

#include <string>

namespace turbo_sim {

std::string disassemble(Arch, const Instruction &);

// --- pieces (disasm_parts.cpp)
std::string operand_text(const Operand &);
std::string waitcnt_text(unsigned imm);
std::string hwreg_text(unsigned imm);
std::string dpp_text(const Instruction &);
std::string swizzle_text(unsigned offset);
std::string sendmsg_text(unsigned imm);
std::string format_text(unsigned data_and_number_format);  // MTBUF
std::string gpr_idx_text(unsigned bits);
std::string bit_list(const char *name, unsigned bits, unsigned count);  // " op_sel:[0,1]"

}  // namespace turbo_sim
