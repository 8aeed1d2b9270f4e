// SPDX-License-Identifier: MIT
// What opcodes.def says about an opcode, and look-up by encoding.
#pragma once

#include "isa/instruction.h"

namespace turbo_sim {

struct OperandType {
  Type type = Type::None;
  uint8_t dwords = 0;
};

struct OpInfo {
  const char *name = "";
  Format format = Format::Invalid;  // native encoding; VOP1/2/C opcodes also exist as VOP3
  int16_t code[2] = {-1, -1};       // per arch
  InstClass cls = InstClass::Other;
  // VALU, SALU: destination, src0, src1, src2. DS: destination, address, data0, data1.
  // SMEM, MUBUF, FLAT...: destination, address, none, data.
  OperandType types[4];
};

const OpInfo &op_info(Op);

/// Opcode `code` of an encoding, or Op::invalid. VOP3 resolves the promoted VOPC (0x000), VOP2 (0x100), VOP1 (0x140)
/// ranges.
Op find_op(Arch, Format, unsigned code);

}  // namespace turbo_sim
