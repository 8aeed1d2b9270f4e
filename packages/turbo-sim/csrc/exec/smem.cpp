// SPDX-License-Identifier: MIT
// Scalar memory: s_load, s_buffer_load, s_store, scalar atomics, clocks and cache control.
#include "core/machine.h"
#include "core/operands.h"
#include "isa/opinfo.h"
#include "isa/registry.h"

#include <atomic>

namespace turbo_sim {
namespace {

/// Base + SGPR offset + immediate; the two low bits are dropped, as for any scalar access.
uint64_t address_of(Wave &w, const Instruction &i) {
  uint64_t base = w.read64(i.src[0].reg);
  uint64_t a = base + uint64_t(int64_t(i.offset));
  if (i.src[1].present()) a += scalar32(w, i.src[1]);
  return a & ~uint64_t(3);
}

void load(Wave &w, const Instruction &i) {
  uint32_t v[16];
  const unsigned n = i.dst.dwords;
  const uint8_t *p = global_ptr(w, i, address_of(w, i), n * 4, Access::Load, -1);
  if (p)
    std::memcpy(v, p, n * 4);
  else
    std::memset(v, 0, sizeof v);
  for (unsigned k = 0; k < n; ++k) deliver_sgpr(w, i, i.dst.reg + k, v[k]);
}

/// Buffer descriptor: base 48 bits, stride 14 bits, num_records. Offsets at or beyond the end read 0.
void buffer_load(Wave &w, const Instruction &i) {
  const uint32_t *d = &w.sgpr[i.src[0].reg];
  const uint64_t base = d[0] | uint64_t(d[1] & 0xffff) << 32;
  const uint32_t stride = d[1] >> 16 & 0x3fff;
  const uint64_t size = stride ? uint64_t(stride) * d[2] : d[2];
  uint64_t offset = uint64_t(int64_t(i.offset)) + (i.src[1].present() ? scalar32(w, i.src[1]) : 0);
  offset &= ~uint64_t(3);
  for (unsigned k = 0; k < i.dst.dwords; ++k, offset += 4) {
    uint32_t v = 0;
    if (offset + 4 <= size) {
      if (const uint8_t *p = global_ptr(w, i, base + offset, 4, Access::Load, -1)) std::memcpy(&v, p, 4);
    }
    deliver_sgpr(w, i, i.dst.reg + k, v);
  }
}

void store(Wave &w, const Instruction &i) {
  const unsigned n = i.src[3].dwords;
  if (uint8_t *p = global_ptr(w, i, address_of(w, i), n * 4, Access::Store, -1))
    std::memcpy(p, &w.sgpr[i.src[3].reg], n * 4);
}

/// 32-bit scalar atomics: new value from (old, data); the old value is returned with glc.
template <typename F>
void atomic32(Wave &w, const Instruction &i, F next) {
  const uint32_t data = w.sgpr[i.src[3].reg];
  uint8_t *p = global_ptr(w, i, address_of(w, i), 4, Access::Atomic, -1);
  if (!p) return;
  std::atomic_ref<uint32_t> cell(*reinterpret_cast<uint32_t *>(p));
  uint32_t old = cell.load();
  while (!cell.compare_exchange_weak(old, next(old, data))) {
  }
  if (i.dst.present()) deliver_sgpr(w, i, i.dst.reg, old);
}

void nothing(Wave &, const Instruction &) {}

/// A clock that only moves with the wave's own instructions would need a cost per instruction: steps of 4 per read.
void clock(Wave &w, const Instruction &i) {
  thread_local uint64_t ticks = 0;
  ticks += 4;
  deliver_sgpr(w, i, i.dst.reg, uint32_t(ticks));
  deliver_sgpr(w, i, i.dst.reg + 1, uint32_t(ticks >> 32));
}

}  // namespace

void register_smem(Registry &r) {
  for (Op op : {Op::s_load_dword, Op::s_load_dwordx2, Op::s_load_dwordx4, Op::s_load_dwordx8, Op::s_load_dwordx16})
    r.set(op, load);
  for (Op op : {Op::s_buffer_load_dword, Op::s_buffer_load_dwordx2, Op::s_buffer_load_dwordx4,
                Op::s_buffer_load_dwordx8, Op::s_buffer_load_dwordx16})
    r.set(op, buffer_load);
  for (Op op : {Op::s_store_dword, Op::s_store_dwordx2, Op::s_store_dwordx4}) r.set(op, store);
  for (Op op : {Op::s_dcache_inv, Op::s_dcache_wb, Op::s_dcache_inv_vol, Op::s_dcache_wb_vol}) r.set(op, nothing);
  r.set(Op::s_memtime, clock);
  r.set(Op::s_memrealtime, clock);
#define ATOMIC(name, expr) \
  r.set(Op::name,          \
        [](Wave &w, const Instruction &i) { atomic32(w, i, [](uint32_t a, uint32_t b) { return uint32_t(expr); }); })
  ATOMIC(s_atomic_swap, ((void)a, b));
  ATOMIC(s_atomic_add, a + b);
  ATOMIC(s_atomic_sub, a - b);
  ATOMIC(s_atomic_smin, int32_t(a) < int32_t(b) ? a : b);
  ATOMIC(s_atomic_umin, a < b ? a : b);
  ATOMIC(s_atomic_smax, int32_t(a) > int32_t(b) ? a : b);
  ATOMIC(s_atomic_umax, a > b ? a : b);
  ATOMIC(s_atomic_and, a & b);
  ATOMIC(s_atomic_or, a | b);
  ATOMIC(s_atomic_xor, a ^ b);
  ATOMIC(s_atomic_inc, a >= b ? 0 : a + 1);
  ATOMIC(s_atomic_dec, (a == 0 || a > b) ? b : a - 1);
}

}  // namespace turbo_sim
