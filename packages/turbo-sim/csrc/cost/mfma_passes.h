// SPDX-License-Identifier: MIT
// Passes (units of 4 clocks) that an MFMA occupies the matrix unit.
#pragma once

#include "isa/instruction.h"

namespace turbo_sim {

/// gfx950's f8f6f4 forms take twice as long if either operand is FP8 or BF8 (cbsz / blgp 0 or 1).
unsigned mfma_passes(Arch, const Instruction &);

}  // namespace turbo_sim
