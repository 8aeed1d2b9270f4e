// SPDX-License-Identifier: MIT
// What of the vector ALU's work fits beside the matrix unit of the same SIMD.
//
// A matrix instruction occupies the matrix unit for its passes, but keeps vector instructions (of any wave of the SIMD)
// from issuing only at its beginning. Sources: AMD's matrix instruction calculator ("can co-execute with VALU", and the
// cycles possible) for CDNA3; LLVM's SIInstrInfo::isNeverCoissue for what never runs beside a matrix instruction; thread
// traces of MI308X and MI350X, described in LLVM's open pull request 233721, for how long issue is held. Not confirmed by
// us.
#pragma once

#include "isa/instruction.h"

namespace turbo_sim {

/// Cycles from a matrix instruction's issue until a vector instruction can issue: 4, and 4 for each 16 bytes of its wider
/// operand. Those with f32 and f64 operands let none run beside them.
unsigned held_cycles(Arch, const Instruction &);

/// Vector instructions that wait until the matrix unit is idle: packed f32, dot products, transcendentals.
bool runs_alone(const Instruction &);

}  // namespace turbo_sim
