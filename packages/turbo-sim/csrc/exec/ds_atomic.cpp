// SPDX-License-Identifier: MIT
// LDS atomics. A work-group runs on one host thread, so a plain read-modify-write is atomic.
#include "exec/atomics.h"
#include "exec/ds_common.h"

namespace turbo_sim {
namespace {

template <class T>
T lane_value(const Wave &w, const Operand &o, unsigned lane) {
  if (!o.present()) return 0;
  T v = w.vgpr[o.reg][lane];
  if constexpr (sizeof(T) == 8) v |= T(w.vgpr[o.reg + 1][lane]) << 32;
  return v;
}

/// One atomic per lane at `offset` with data a and b; the old values go to rows first .. of dst if there is one.
template <class T, atomics::Next<T> F>
void atomic_at(Wave &w, const Instruction &i, uint32_t offset, const Operand &a, const Operand &b, unsigned first) {
  constexpr unsigned kDwords = sizeof(T) / 4;
  if (i.gds) throw Fault("gds: not implemented");
  const uint64_t mask = w.exec();
  const LdsAddresses at(w, i, offset);
  Rows<kDwords> out;
  for_lanes(mask, [&](unsigned l) {
    if (at.at[l] % sizeof(T)) throw Fault("LDS atomic at the misaligned address " + std::to_string(at.at[l]));
    uint8_t *p = lds_atomic_ptr(w, i, at.at[l], sizeof(T), int(l));
    if (!p) return;
    T old;
    std::memcpy(&old, p, sizeof old);
    const T next = F(old, lane_value<T>(w, a, l), lane_value<T>(w, b, l));
    std::memcpy(p, &next, sizeof next);
    out.v[0][l] = uint32_t(old);
    if constexpr (kDwords == 2) out.v[1][l] = uint32_t(old >> 32);
  });
  at.count(w, mask, sizeof(T));
  if (w.worker->costs_on) w.worker->costs.atomics += unsigned(std::popcount(mask));
  if (i.dst.present()) out.deliver(w, i, mask, first);
}

template <class T, atomics::Next<T> F>
void atomic(Wave &w, const Instruction &i) {
  atomic_at<T, F>(w, i, uint32_t(i.offset), i.src[1], i.src[2], 0);
}

template <class T, unsigned Scale>
void exchange2(Wave &w, const Instruction &i) {
  constexpr unsigned kStep = Scale * sizeof(T);
  atomic_at<T, atomics::swap<T>>(w, i, i.offset0 * kStep, i.src[1], Operand(), 0);
  atomic_at<T, atomics::swap<T>>(w, i, i.offset1 * kStep, i.src[2], Operand(), sizeof(T) / 4);
}

}  // namespace

void register_ds_atomics(Registry &r) {
#define BOTH(plain, returning, type, function)       \
  r.set(Op::plain, atomic<type, atomics::function>); \
  r.set(Op::returning, atomic<type, atomics::function>);
  BOTH(ds_add_u32, ds_add_rtn_u32, uint32_t, add)
  BOTH(ds_sub_u32, ds_sub_rtn_u32, uint32_t, sub)
  BOTH(ds_rsub_u32, ds_rsub_rtn_u32, uint32_t, rsub)
  BOTH(ds_inc_u32, ds_inc_rtn_u32, uint32_t, inc)
  BOTH(ds_dec_u32, ds_dec_rtn_u32, uint32_t, dec)
  BOTH(ds_min_i32, ds_min_rtn_i32, uint32_t, smin)
  BOTH(ds_max_i32, ds_max_rtn_i32, uint32_t, smax)
  BOTH(ds_min_u32, ds_min_rtn_u32, uint32_t, umin)
  BOTH(ds_max_u32, ds_max_rtn_u32, uint32_t, umax)
  BOTH(ds_and_b32, ds_and_rtn_b32, uint32_t, bit_and)
  BOTH(ds_or_b32, ds_or_rtn_b32, uint32_t, bit_or)
  BOTH(ds_xor_b32, ds_xor_rtn_b32, uint32_t, bit_xor)
  BOTH(ds_mskor_b32, ds_mskor_rtn_b32, uint32_t, mskor)
  BOTH(ds_cmpst_b32, ds_cmpst_rtn_b32, uint32_t, cmpst)
  BOTH(ds_cmpst_f32, ds_cmpst_rtn_f32, uint32_t, fcmpst)
  BOTH(ds_min_f32, ds_min_rtn_f32, uint32_t, fmin)
  BOTH(ds_max_f32, ds_max_rtn_f32, uint32_t, fmax)
  BOTH(ds_add_f32, ds_add_rtn_f32, uint32_t, fadd)
  BOTH(ds_pk_add_f16, ds_pk_add_rtn_f16, uint32_t, pk_add_f16)
  BOTH(ds_pk_add_bf16, ds_pk_add_rtn_bf16, uint32_t, pk_add_bf16)
  BOTH(ds_add_u64, ds_add_rtn_u64, uint64_t, add)
  BOTH(ds_sub_u64, ds_sub_rtn_u64, uint64_t, sub)
  BOTH(ds_rsub_u64, ds_rsub_rtn_u64, uint64_t, rsub)
  BOTH(ds_inc_u64, ds_inc_rtn_u64, uint64_t, inc)
  BOTH(ds_dec_u64, ds_dec_rtn_u64, uint64_t, dec)
  BOTH(ds_min_i64, ds_min_rtn_i64, uint64_t, smin)
  BOTH(ds_max_i64, ds_max_rtn_i64, uint64_t, smax)
  BOTH(ds_min_u64, ds_min_rtn_u64, uint64_t, umin)
  BOTH(ds_max_u64, ds_max_rtn_u64, uint64_t, umax)
  BOTH(ds_and_b64, ds_and_rtn_b64, uint64_t, bit_and)
  BOTH(ds_or_b64, ds_or_rtn_b64, uint64_t, bit_or)
  BOTH(ds_xor_b64, ds_xor_rtn_b64, uint64_t, bit_xor)
  BOTH(ds_mskor_b64, ds_mskor_rtn_b64, uint64_t, mskor)
  BOTH(ds_cmpst_b64, ds_cmpst_rtn_b64, uint64_t, cmpst)
  BOTH(ds_cmpst_f64, ds_cmpst_rtn_f64, uint64_t, fcmpst)
  BOTH(ds_min_f64, ds_min_rtn_f64, uint64_t, fmin)
  BOTH(ds_max_f64, ds_max_rtn_f64, uint64_t, fmax)
  BOTH(ds_add_f64, ds_add_rtn_f64, uint64_t, fadd)
#undef BOTH
  r.set(Op::ds_wrxchg_rtn_b32, atomic<uint32_t, atomics::swap>);
  r.set(Op::ds_wrxchg_rtn_b64, atomic<uint64_t, atomics::swap>);
  r.set(Op::ds_wrap_rtn_b32, atomic<uint32_t, atomics::wrap>);
  r.set(Op::ds_wrxchg2_rtn_b32, exchange2<uint32_t, 1>);
  r.set(Op::ds_wrxchg2_rtn_b64, exchange2<uint64_t, 1>);
  r.set(Op::ds_wrxchg2st64_rtn_b32, exchange2<uint32_t, 64>);
  r.set(Op::ds_wrxchg2st64_rtn_b64, exchange2<uint64_t, 64>);
  // ds_append, ds_consume, ds_condxchg32_rtn_b64: no kernel of the census has them.
}

}  // namespace turbo_sim
