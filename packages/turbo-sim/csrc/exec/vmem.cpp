// SPDX-License-Identifier: MIT
// Loads, stores and LDS-DMA once the lanes' addresses are known.
#include "exec/vmem.h"

#include "cost/memory_cost.h"
#include "exec/ds_common.h"

#include <algorithm>

namespace turbo_sim {
namespace {

/// All lanes of `mask` lie in the allocation that was hit last: no per-lane check is needed.
bool inside_last(const Wave &w, const Targets &t, unsigned bytes, Access a) {
  if (!(w.worker->checks & check_bit(Check::Bounds)) || w.worker->launch->map.empty()) return true;
  const Allocation *m = w.worker->last_hit;
  if (!m || (a != Access::Load && !m->writable)) return false;
  uint64_t low = ~uint64_t(0), high = 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t x = t.at[l];
    const bool on = t.mask >> l & 1;
    low = std::min(low, on ? x : ~uint64_t(0));
    high = std::max(high, on ? x : 0);
  }
  return low >= m->begin && high <= m->end - std::min<uint64_t>(bytes, m->end - m->begin) && m->end - m->begin >= bytes;
}

/// Global memory only, whole accesses, nothing that needs a check of its own.
bool simple(const Wave &w, const Targets &t, unsigned bytes, Access a) {
  return !t.lds && !t.scratch && !t.partial && inside_last(w, t, bytes, a);
}

uint8_t *pointer(Wave &w, const Instruction &i, const Targets &t, unsigned l, unsigned bytes, Access a) {
  if (t.scratch >> l & 1) return scratch_ptr(w, i, uint32_t(t.at[l]), bytes, a, int(l));
  return global_ptr(w, i, t.at[l], bytes, a, int(l));
}

void load_bytes(Wave &w, const Instruction &i, const Targets &t, unsigned l, void *out, unsigned bytes) {
  std::memset(out, 0, bytes);
  if (t.lds >> l & 1) return lds_read(w, i, uint32_t(t.at[l]), out, bytes, int(l));
  if (t.partial) bytes = std::min(bytes, t.dwords[l] * 4u);
  if (const uint8_t *p = pointer(w, i, t, l, bytes, Access::Load)) std::memcpy(out, p, bytes);
}

void store_bytes(Wave &w, const Instruction &i, const Targets &t, unsigned l, const void *in, unsigned bytes) {
  if (t.lds >> l & 1) return lds_write(w, i, uint32_t(t.at[l]), in, bytes, int(l));
  if (t.partial) bytes = std::min(bytes, t.dwords[l] * 4u);
  if (uint8_t *p = pointer(w, i, t, l, bytes, Access::Store)) std::memcpy(p, in, bytes);
}

void count(Wave &w, const Targets &t, unsigned bytes, Access a) {
  if (w.worker->costs_on && t.mask) count_vmem(w, t.at, t.mask & ~t.lds, bytes, a);
}

template <class T>
void load_small(Wave &w, const Instruction &i, const Targets &t) {
  Rows<1> out;
  if (simple(w, t, sizeof(T), Access::Load))
    for_lanes(t.mask, [&](unsigned l) {
      T v;
      std::memcpy(&v, reinterpret_cast<const void *>(t.at[l]), sizeof v);
      out.v[0][l] = uint32_t(int32_t(v));
    });
  else
    for_lanes(t.mask, [&](unsigned l) {
      T v;
      load_bytes(w, i, t, l, &v, sizeof v);
      out.v[0][l] = uint32_t(int32_t(v));
    });
  out.deliver(w, i, t.exec);
}

template <unsigned N>
void load_dwords(Wave &w, const Instruction &i, const Targets &t) {
  Rows<N> out;
  if (simple(w, t, N * 4, Access::Load))
    for_lanes(t.mask, [&](unsigned l) {
      uint32_t d[N];
      std::memcpy(d, reinterpret_cast<const void *>(t.at[l]), sizeof d);
      for (unsigned k = 0; k < N; ++k) out.v[k][l] = d[k];
    });
  else
    for_lanes(t.mask, [&](unsigned l) {
      uint32_t d[N];
      load_bytes(w, i, t, l, d, sizeof d);
      for (unsigned k = 0; k < N; ++k) out.v[k][l] = d[k];
    });
  out.deliver(w, i, t.exec);
}

template <class T, unsigned Shift>
void store_small(Wave &w, const Instruction &i, const Targets &t) {
  const uint32_t *data = w.vgpr[i.src[3].reg];
  for_lanes(t.mask, [&](unsigned l) {
    const T v = T(data[l] >> Shift);
    store_bytes(w, i, t, l, &v, sizeof v);
  });
}

template <unsigned N>
void store_dwords(Wave &w, const Instruction &i, const Targets &t) {
  const uint32_t (*rows)[kLanes] = &w.vgpr[i.src[3].reg];
  const bool fast = simple(w, t, N * 4, Access::Store);
  for_lanes(t.mask, [&](unsigned l) {
    uint32_t d[N];
    for (unsigned k = 0; k < N; ++k) d[k] = rows[k][l];
    if (fast)
      std::memcpy(reinterpret_cast<void *>(t.at[l]), d, sizeof d);
    else
      store_bytes(w, i, t, l, d, sizeof d);
  });
}

}  // namespace

void vmem_load(Wave &w, const Instruction &i, const Targets &t, Shape s) {
  count(w, t, shape_bytes(s), Access::Load);
  switch (s) {
    case Shape::U8: return load_small<uint8_t>(w, i, t);
    case Shape::I8: return load_small<int8_t>(w, i, t);
    case Shape::U16: return load_small<uint16_t>(w, i, t);
    case Shape::I16: return load_small<int16_t>(w, i, t);
    case Shape::D1: return load_dwords<1>(w, i, t);
    case Shape::D2: return load_dwords<2>(w, i, t);
    case Shape::D3: return load_dwords<3>(w, i, t);
    default: return load_dwords<4>(w, i, t);
  }
}

void vmem_store(Wave &w, const Instruction &i, const Targets &t, Shape s) {
  count(w, t, shape_bytes(s), Access::Store);
  switch (s) {
    case Shape::U8: return store_small<uint8_t, 0>(w, i, t);
    case Shape::B8High: return store_small<uint8_t, 16>(w, i, t);
    case Shape::U16: return store_small<uint16_t, 0>(w, i, t);
    case Shape::B16High: return store_small<uint16_t, 16>(w, i, t);
    case Shape::D1: return store_dwords<1>(w, i, t);
    case Shape::D2: return store_dwords<2>(w, i, t);
    case Shape::D3: return store_dwords<3>(w, i, t);
    default: return store_dwords<4>(w, i, t);
  }
}

void vmem_load_lds(Wave &w, const Instruction &i, const Targets &t, Shape s) {
  const bool gfx942 = w.worker->launch->code->arch == Arch::gfx942;
  const unsigned bytes = shape_bytes(s), lane_bytes = std::max(4u, bytes);
  if (gfx942 && bytes > 4) throw Fault("LDS-DMA of more than a dword: not an instruction of gfx942");
  count(w, t, bytes, Access::Load);
  const uint32_t base = (gfx942 ? w.m0() & 0xffff : w.m0()) + uint32_t(i.offset);
  for_lanes(t.exec, [&](unsigned l) {
    uint32_t d[4] = {};
    if (t.mask >> l & 1) load_bytes(w, i, t, l, d, bytes);
    if (s == Shape::I8) d[0] = uint32_t(int32_t(int8_t(d[0])));
    if (s == Shape::I16) d[0] = uint32_t(int32_t(int16_t(d[0])));
    deliver_lds(w, i, base + l * lane_bytes, d, lane_bytes, int(l));
  });
}

uint8_t *atomic_target(Wave &w, const Instruction &i, const Targets &t, unsigned l, unsigned bytes) {
  if (t.at[l] % bytes) throw Fault(std::to_string(bytes) + "-byte atomic at a misaligned address");
  if (t.lds >> l & 1) return lds_atomic_ptr(w, i, uint32_t(t.at[l]), bytes, int(l));
  return pointer(w, i, t, l, bytes, Access::Atomic);
}

void count_atomic(Wave &w, const Targets &t, unsigned bytes) { count(w, t, bytes, Access::Atomic); }

}  // namespace turbo_sim
