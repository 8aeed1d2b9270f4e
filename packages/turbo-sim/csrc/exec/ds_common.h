// SPDX-License-Identifier: MIT
// Pieces of the LDS handlers.
#pragma once

#include "core/machine.h"
#include "core/operands.h"
#include "cost/memory_cost.h"
#include "isa/registry.h"

#include <bit>

namespace turbo_sim {

/// Calls f(lane) for each lane of a mask, ascending.
template <class F>
inline void for_lanes(uint64_t mask, F f) {
  if (mask == ~uint64_t(0)) {
    for (unsigned l = 0; l < kLanes; ++l) f(l);
    return;
  }
  for (; mask; mask &= mask - 1) f(unsigned(std::countr_zero(mask)));
}

/// LDS addresses of all lanes: VGPR + byte offset.
struct LdsAddresses {
  alignas(64) uint32_t at[kLanes];
  LdsAddresses(const Wave &w, const Instruction &i, uint32_t offset) {
    const uint32_t *v = w.vgpr[i.src[0].reg];
    for (unsigned l = 0; l < kLanes; ++l) at[l] = v[l] + offset;
  }
  void count(Wave &w, uint64_t mask, unsigned bytes) const {
    if (w.worker->costs_on && mask) count_lds(w, at, mask, bytes);
  }
};

/// Rows that an instruction loads, zero where no lane is.
template <unsigned N>
struct Rows {
  alignas(64) uint32_t v[N][kLanes] = {};
  void deliver(Wave &w, const Instruction &i, uint64_t mask, unsigned first = 0) const {
    for (unsigned k = 0; k < N; ++k) deliver_vgpr(w, i, i.dst.reg + first + k, v[k], mask);
  }
};

void register_ds_atomics(Registry &);  // ds_atomic.cpp
void register_ds_lanes(Registry &);    // ds_lane.cpp: exchange between lanes, transposed reads

}  // namespace turbo_sim
