// SPDX-License-Identifier: MIT
// 64-bit integer instructions and those with a carry.
#include "exec/valu.h"

namespace turbo_sim {
namespace {

// --- 64-bit operands -----------------------------------------------------------------------------------------------
void v_mov_b64(Wave &w, const Instruction &i) {
  Lanes64 ta, out;
  const uint64_t *a = src64(w, i, 0, ta);
  std::memcpy(out.v, a, sizeof out.v);
  write64(w, i, out.v);
}

// Shift count (32-bit) first, value (64-bit) second.
template <class F>
inline void shift64(Wave &w, const Instruction &i, F f) {
  Lanes ta;
  Lanes64 tb, out;
  const uint32_t *a = src32(w, i, 0, ta);
  const uint64_t *b = src64(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l] & 63, b[l]);
  write64(w, i, out.v);
}
void v_lshlrev_b64(Wave &w, const Instruction &i) {
  shift64(w, i, [](uint32_t n, uint64_t x) { return x << n; });
}
void v_lshrrev_b64(Wave &w, const Instruction &i) {
  shift64(w, i, [](uint32_t n, uint64_t x) { return x >> n; });
}
void v_ashrrev_i64(Wave &w, const Instruction &i) {
  shift64(w, i, [](uint32_t n, uint64_t x) { return uint64_t(int64_t(x) >> n); });
}

void v_lshl_add_u64(Wave &w, const Instruction &i) {
  Lanes tb;
  Lanes64 ta, tc, out;
  const uint64_t *a = src64(w, i, 0, ta), *c = src64(w, i, 2, tc);
  const uint32_t *b = src32(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = (a[l] << (b[l] & 7)) + c[l];
  write64(w, i, out.v);
}

// 32 x 32 + 64 -> 64 with the carry out of bit 63.
template <bool SIGNED>
void mad64(Wave &w, const Instruction &i) {
  Lanes ta, tb;
  Lanes64 tc, out;
  uint8_t carry[kLanes];
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  const uint64_t *c = src64(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t product = SIGNED ? uint64_t(int64_t(int32_t(a[l])) * int32_t(b[l])) : uint64_t(a[l]) * b[l];
    const uint64_t sum = product + c[l];
    out.v[l] = sum;
    // Signed: overflow of the 64-bit sum.
    carry[l] = SIGNED ? uint8_t(((product ^ sum) & (c[l] ^ sum)) >> 63) : uint8_t(sum < product);
  }
  const uint64_t bits = pack_flags(carry) & w.exec();
  write64(w, i, out.v);
  write_lane_mask(w, i.sdst, bits);
}

// --- carries -------------------------------------------------------------------------------------------------------
// f(a, b, carry in) -> 64-bit result whose bit 32 is the carry (borrow) out.
template <bool CARRY_IN, class F>
inline void with_carry(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, out;
  uint8_t carry[kLanes];
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  const uint64_t in = CARRY_IN ? scalar64(w, i.src[2]) : 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t r = f(uint64_t(a[l]), uint64_t(b[l]), in >> l & 1);
    out.v[l] = uint32_t(r);
    carry[l] = uint8_t(r >> 32 & 1);
  }
  const uint64_t bits = pack_flags(carry) & w.exec();
  write32(w, i, out.v);
  write_lane_mask(w, i.sdst, bits);
}

#define CARRY(X)                     \
  X(v_add_co_u32, false, a + b)      \
  X(v_sub_co_u32, false, a - b)      \
  X(v_subrev_co_u32, false, b - a)   \
  X(v_addc_co_u32, true, a + b + in) \
  X(v_subb_co_u32, true, a - b - in) \
  X(v_subbrev_co_u32, true, b - a - in)

#define X(name, carry_in, expr)                                                                            \
  void name(Wave &w, const Instruction &i) {                                                               \
    with_carry<carry_in>(w, i, [](uint64_t a, uint64_t b, [[maybe_unused]] uint64_t in) { return expr; }); \
  }
CARRY(X)
#undef X

}  // namespace

void register_vop_int64(Registry &r) {
  r.select(Op::v_mov_b64, bind_checked<v_mov_b64, kInt>);
  r.select(Op::v_lshlrev_b64, bind_checked<v_lshlrev_b64, kInt>);
  r.select(Op::v_lshrrev_b64, bind_checked<v_lshrrev_b64, kInt>);
  r.select(Op::v_ashrrev_i64, bind_checked<v_ashrrev_i64, kInt>);
  r.select(Op::v_lshl_add_u64, bind_checked<v_lshl_add_u64, kInt>);
  r.select(Op::v_mad_u64_u32, bind_checked<mad64<false>, kInt>);
  r.select(Op::v_mad_i64_i32, bind_checked<mad64<true>, kInt>);
#define X(name, carry_in, expr) r.select(Op::name, bind_checked<name, kInt>);
  CARRY(X)
#undef X
}

}  // namespace turbo_sim
