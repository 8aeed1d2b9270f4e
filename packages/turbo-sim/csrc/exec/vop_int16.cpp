// SPDX-License-Identifier: MIT
// 16-bit integer instructions. On gfx9 those of the VOP2 set (and their VOP3 forms) write zeros to the upper half of
// the register; the VOP3-only ones keep it.
#include "exec/valu.h"

#include <algorithm>

namespace turbo_sim {
namespace {

inline uint32_t s16(uint32_t x) { return uint32_t(int32_t(int16_t(x))); }
inline uint32_t umin(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t umax(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline uint32_t smin(uint32_t a, uint32_t b) { return int16_t(a) < int16_t(b) ? a : b; }
inline uint32_t smax(uint32_t a, uint32_t b) { return int16_t(a) > int16_t(b) ? a : b; }
inline uint32_t saturate_i16(int32_t x) { return uint32_t(std::clamp(x, -0x8000, 0x7FFF)); }

#define BINARY(X)                                         \
  X(v_add_u16, a + b)                                     \
  X(v_sub_u16, a - b)                                     \
  X(v_subrev_u16, b - a)                                  \
  X(v_mul_lo_u16, a *b)                                   \
  X(v_lshlrev_b16, b << (a & 15))                         \
  X(v_lshrrev_b16, b >> (a & 15))                         \
  X(v_ashrrev_i16, uint32_t(int32_t(s16(b)) >> (a & 15))) \
  X(v_max_u16, umax(a, b))                                \
  X(v_min_u16, umin(a, b))                                \
  X(v_max_i16, smax(a, b))                                \
  X(v_min_i16, smin(a, b))

// VOP3 only: these keep the other half.
#define BINARY_KEEP(X) \
  X(v_add_i16, a + b)  \
  X(v_sub_i16, a - b)

#define TERNARY_KEEP(X)                                \
  X(v_mad_u16, a *b + c)                               \
  X(v_mad_i16, a *b + c)                               \
  X(v_min3_i16, smin(smin(a, b), c))                   \
  X(v_min3_u16, umin(umin(a, b), c))                   \
  X(v_max3_i16, smax(smax(a, b), c))                   \
  X(v_max3_u16, umax(umax(a, b), c))                   \
  X(v_med3_i16, smax(smin(a, b), smin(smax(a, b), c))) \
  X(v_med3_u16, umax(umin(a, b), umin(umax(a, b), c)))

// With clamp, results saturate.
#define SATURATING(X)                                                 \
  X(v_add_u16, umin(a + b, 0xFFFF), false)                            \
  X(v_sub_u16, a < b ? 0 : a - b, false)                              \
  X(v_subrev_u16, b < a ? 0 : b - a, false)                           \
  X(v_add_i16, saturate_i16(int32_t(s16(a)) + int32_t(s16(b))), true) \
  X(v_sub_i16, saturate_i16(int32_t(s16(a)) - int32_t(s16(b))), true)

template <class F>
inline void binary16(Wave &w, const Instruction &i, bool keep, F f) {
  Lanes ta, tb, out;
  const uint32_t *a = src16(w, i, 0, ta), *b = src16(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l], b[l]) & 0xFFFF;
  write16(w, i, out.v, keep);
}
template <class F>
inline void ternary16(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = src16(w, i, 0, ta), *b = src16(w, i, 1, tb), *c = src16(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l], b[l], c[l]) & 0xFFFF;
  write16(w, i, out.v, true);
}

#define X(name, expr)                                                               \
  void name(Wave &w, const Instruction &i) {                                        \
    binary16(w, i, false, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }
BINARY(X)
#undef X
#define X(name, expr)                                                              \
  void name(Wave &w, const Instruction &i) {                                       \
    binary16(w, i, true, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }
BINARY_KEEP(X)
#undef X
#define X(name, expr)                                                                     \
  void name(Wave &w, const Instruction &i) {                                              \
    ternary16(w, i, [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return expr; }); \
  }
TERNARY_KEEP(X)
#undef X
#define X(name, expr, keep)                                                        \
  void name##_saturating(Wave &w, const Instruction &i) {                          \
    binary16(w, i, keep, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }                                                                                \
  Handler name##_form(const Instruction &i) {                                      \
    require_modifiers(i, keep ? kClamp | kOpSel : kClamp);                         \
    return i.clamp ? name##_saturating : name;                                     \
  }
SATURATING(X)
#undef X

// 16-bit factors, 32-bit sum.
void v_mad_u32_u16(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = src16(w, i, 0, ta), *b = src16(w, i, 1, tb), *c = src32(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = (a[l] & 0xFFFF) * (b[l] & 0xFFFF) + c[l];
  write32(w, i, out.v);
}
void v_mad_i32_i16(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = src16(w, i, 0, ta), *b = src16(w, i, 1, tb), *c = src32(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = s16(a[l]) * s16(b[l]) + c[l];
  write32(w, i, out.v);
}

void v_bitop3_b16(Wave &w, const Instruction &i) {
  uint32_t on[8];
  for (unsigned n = 0; n < 8; ++n) on[n] = i.bitop3 >> n & 1 ? ~0u : 0;
  ternary16(w, i, [&on](uint32_t a, uint32_t b, uint32_t c) -> uint32_t {
    return (on[0] & ~a & ~b & ~c) | (on[1] & ~a & ~b & c) | (on[2] & ~a & b & ~c) | (on[3] & ~a & b & c) |
           (on[4] & a & ~b & ~c) | (on[5] & a & ~b & c) | (on[6] & a & b & ~c) | (on[7] & a & b & c);
  });
}

// Two halves to one register; f16 so far as neg, abs and constants go. Subnormals pass unchanged.
void v_pack_b32_f16(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = srcf16(w, i, 0, ta), *b = srcf16(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = (a[l] & 0xFFFF) | b[l] << 16;
  write32(w, i, out.v);
}

// op_sel bit 3 would choose a half of a result that has only one.
Handler pack_form(const Instruction &i) {
  require_modifiers(i, kNegAbs | kOpSel);
  if (i.op_sel & 8) throw NotImplemented("op_sel of the destination");
  return v_pack_b32_f16;
}

}  // namespace

void register_vop_int16(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kInt>);
  BINARY(X)
#undef X
#define X(name, expr) r.select(Op::name, bind_checked<name, kOpSel>);
  BINARY_KEEP(X)
  TERNARY_KEEP(X)
#undef X
#define X(name, expr, keep) r.select(Op::name, name##_form);  // after BINARY: replaces the plain form
  SATURATING(X)
#undef X
  r.select(Op::v_mad_u32_u16, bind_checked<v_mad_u32_u16, kOpSel>);
  r.select(Op::v_mad_i32_i16, bind_checked<v_mad_i32_i16, kOpSel>);
  r.select(Op::v_bitop3_b16, bind_checked<v_bitop3_b16, kOpSel>);
  r.select(Op::v_pack_b32_f16, pack_form);
}

}  // namespace turbo_sim
