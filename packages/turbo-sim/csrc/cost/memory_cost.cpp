// SPDX-License-Identifier: MIT
#include "cost/memory_cost.h"

#include <algorithm>
#include <bit>

namespace turbo_sim {
namespace {

/// Cycles of one group of lanes: the largest number of different dwords in one bank.
uint32_t group_cycles(const uint32_t *dwords, unsigned n, unsigned banks) {
  uint32_t sorted[kLanes * 4];
  std::copy(dwords, dwords + n, sorted);
  std::sort(sorted, sorted + n);
  const unsigned distinct = unsigned(std::unique(sorted, sorted + n) - sorted);
  uint8_t busy[64] = {};
  uint32_t worst = 0;
  for (unsigned k = 0; k < distinct; ++k) worst = std::max<uint32_t>(worst, ++busy[sorted[k] % banks]);
  return worst;
}

}  // namespace

LdsCost lds_cost(Arch arch, const uint32_t *addr, uint64_t mask, unsigned bytes) {
  const unsigned banks = arch == Arch::gfx950 ? 64 : 32;
  const unsigned dwords_each = std::max(1u, bytes / 4);
  const unsigned lanes_at_once = std::max(1u, banks / (dwords_each == 3 ? 4 : dwords_each));
  LdsCost cost;
  uint32_t dwords[kLanes * 4];
  for (unsigned first = 0; first < kLanes; first += lanes_at_once) {
    unsigned n = 0;
    for (unsigned l = first; l < std::min(first + lanes_at_once, kLanes); ++l) {
      if (!(mask >> l & 1)) continue;
      const uint32_t end = (addr[l] + bytes - 1) / 4;
      for (uint32_t d = addr[l] / 4; d <= end && n < kLanes * 4; ++d) dwords[n++] = d;
    }
    if (!n) continue;
    cost.cycles += group_cycles(dwords, n, banks);
    ++cost.ideal;
  }
  return cost;
}

uint32_t segments_touched(const uint64_t *addr, uint64_t mask, unsigned bytes) {
  uint64_t seen[2 * kLanes];
  unsigned n = 0;
  uint64_t last = ~uint64_t(0);
  for (uint64_t m = mask; m; m &= m - 1) {
    const unsigned l = unsigned(std::countr_zero(m));
    for (uint64_t s = addr[l] / 64; s <= (addr[l] + bytes - 1) / 64; ++s)
      if (s != last) seen[n++] = last = s;
  }
  std::sort(seen, seen + n);
  return uint32_t(std::unique(seen, seen + n) - seen);
}

void count_lds(Wave &w, const uint32_t *addr, uint64_t mask, unsigned bytes) {
  const LdsCost c = lds_cost(w.worker->launch->code->arch, addr, mask, bytes);
  Costs &costs = w.worker->costs;
  costs.lds_bytes += uint64_t(std::popcount(mask)) * bytes;
  costs.lds_cycles += c.cycles;
  costs.lds_conflict_cycles += c.cycles - c.ideal;
  w.worker->count_memory_cycles(w, c.cycles - c.ideal);
}

void count_vmem(Wave &w, const uint64_t *addr, uint64_t mask, unsigned bytes, Access a) {
  Costs &costs = w.worker->costs;
  const uint64_t asked = uint64_t(std::popcount(mask)) * bytes;
  (a == Access::Load ? costs.vmem_load_bytes : costs.vmem_store_bytes) += asked;
  if (a == Access::Atomic) costs.atomics += unsigned(std::popcount(mask));
  const uint32_t segments = segments_touched(addr, mask, bytes);
  costs.vmem_segments += segments;
  w.worker->count_memory_cycles(w, segments);
}

}  // namespace turbo_sim
