// SPDX-License-Identifier: MIT
// What a memory instruction costs, from its addresses: LDS bank conflicts, bytes and 64-byte segments.
#pragma once

#include "core/machine.h"

namespace turbo_sim {

/// LDS: 32 banks of 4 bytes on gfx942, 64 on gfx950. Lanes are served in order, as many at once as would fill the banks
/// if they did not collide (b32: 32 or 64 lanes); a group takes as many cycles as the busiest bank has different
/// dwords. `cycles` without conflicts is that with every group taking one. Which lanes form a group is documented only
/// in part.
struct LdsCost {
  uint32_t cycles = 0, ideal = 0;
};
LdsCost lds_cost(Arch, const uint32_t *addr, uint64_t mask, unsigned bytes);

/// Different 64-byte segments that the lanes touch.
uint32_t segments_touched(const uint64_t *addr, uint64_t mask, unsigned bytes);

/// Adds an instruction to the worker's costs.
void count_lds(Wave &, const uint32_t *addr, uint64_t mask, unsigned bytes);
void count_vmem(Wave &, const uint64_t *addr, uint64_t mask, unsigned bytes, Access);

}  // namespace turbo_sim
