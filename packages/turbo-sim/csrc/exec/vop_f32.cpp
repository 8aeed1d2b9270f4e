// SPDX-License-Identifier: MIT
// f32 arithmetic: rounding and subnormals as MODE says, NaN as in settle_nans32.
#include "exec/vop_float.h"

namespace turbo_sim {
namespace {

// Rounding to an integer has a direction of its own: MODE's does not enter (and must not: baseline x86 builds floor
// from additions).
template <class F>
inline void unary(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(float(f(as_float(a[l]))));
  settle_nans32(out.v, a);
  result_f32(w, i, out.v);
}
template <class F>
inline void binary(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = source_f32(w, i, 1, tb);
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(float(f(as_float(a[l]), as_float(b[l]))));
  }
  settle_nans32(out.v, a, b);
  result_f32(w, i, out.v);
}
inline void fma(Wave &w, const Instruction &i, const uint32_t *a, const uint32_t *b, const uint32_t *c) {
  Lanes out;
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(std::fma(as_float(a[l]), as_float(b[l]), as_float(c[l])));
  }
  settle_nans32(out.v, a, b, c);
  result_f32(w, i, out.v);
}

#define UNARY(X)                \
  X(v_ceil_f32, std::ceil(a))   \
  X(v_floor_f32, std::floor(a)) \
  X(v_trunc_f32, std::trunc(a)) \
  X(v_rndne_f32, round_half_even(a))

#define BINARY(X)        \
  X(v_add_f32, a + b)    \
  X(v_sub_f32, a - b)    \
  X(v_subrev_f32, b - a) \
  X(v_mul_f32, a *b)     \
  X(v_mul_legacy_f32, a == 0 || b == 0 ? 0.0f : a * b)

#define X(name, expr)                          \
  void name(Wave &w, const Instruction &i) {   \
    unary(w, i, [](float a) { return expr; }); \
  }
UNARY(X)
#undef X
#define X(name, expr)                                    \
  void name(Wave &w, const Instruction &i) {             \
    binary(w, i, [](float a, float b) { return expr; }); \
  }
BINARY(X)
#undef X

// x - floor(x), below 1 also where the subtraction would round up to it.
void v_fract_f32(Wave &w, const Instruction &i) {
  Lanes ta, floors, out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) floors.v[l] = as_bits(std::floor(as_float(a[l])));
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) {
      const float r = as_float(a[l]) - as_float(floors.v[l]);
      out.v[l] = as_bits(r >= 1.0f ? 0x1.fffffep-1f : r);
    }
  }
  settle_nans32(out.v, a);
  result_f32(w, i, out.v);
}

// v_fma_f32, v_fmamk_f32 (literal second) and v_fmaak_f32 (literal third) differ in encoding only.
void v_fma_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc;
  fma(w, i, source_f32(w, i, 0, ta), source_f32(w, i, 1, tb), source_f32(w, i, 2, tc));
}
void v_fmac_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc;
  fma(w, i, source_f32(w, i, 0, ta), source_f32(w, i, 1, tb), accumulator_f32(w, i, tc));
}

// --- min, max, med -------------------------------------------------------------------------------------------------
template <class F>
inline void select3(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = source_f32(w, i, 1, tb), *c = source_f32(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l], b[l], c[l]);
  result_f32(w, i, out.v);
}

// Without NaN among the inputs, the common case, a comparison and the rule for zeros are all.
template <bool MAX>
inline uint32_t pick_number(uint32_t a, uint32_t b) {
  const float x = as_float(a), y = as_float(b);
  const uint32_t r = (MAX ? x > y : x < y) ? a : b;
  return x == y ? (MAX ? a & b : a | b) : r;
}
template <class... Rows>
bool any_nan(const Rows *...rows) {
  uint32_t found = 0;
  for (unsigned l = 0; l < kLanes; ++l) found |= ((((rows[l] & 0x7FFFFFFFu) > 0x7F800000u) ? 1u : 0u) | ...);
  return found;
}
template <bool MAX, class Careful>
void min_max2(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = source_f32(w, i, 1, tb);
  const Careful careful(w.mode.ieee);
  if (any_nan(a, b))
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = careful(a[l], b[l]);
  else
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = pick_number<MAX>(a[l], b[l]);
  result_f32(w, i, out.v);
}
template <bool MAX, class Careful>
void min_max3(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = source_f32(w, i, 1, tb), *c = source_f32(w, i, 2, tc);
  const Careful careful(w.mode.ieee);
  if (any_nan(a, b, c))
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = careful(careful(a[l], b[l]), c[l]);
  else
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = pick_number<MAX>(pick_number<MAX>(a[l], b[l]), c[l]);
  result_f32(w, i, out.v);
}
void v_min_f32(Wave &w, const Instruction &i) { min_max2<false, Min32>(w, i); }
void v_max_f32(Wave &w, const Instruction &i) { min_max2<true, Max32>(w, i); }
void v_min3_f32(Wave &w, const Instruction &i) { min_max3<false, Min32>(w, i); }
void v_max3_f32(Wave &w, const Instruction &i) { min_max3<true, Max32>(w, i); }
void v_med3_f32(Wave &w, const Instruction &i) {
  const Min32 least(w.mode.ieee);
  const Max32 most(w.mode.ieee);
  select3(w, i, [=](uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t smallest = least(least(a, b), c);
    const uint32_t middle = most(least(a, b), least(most(a, b), c));
    return is_nan32(a) || is_nan32(b) || is_nan32(c) ? smallest : middle;
  });
}
// IEEE 754-2019 minimum and maximum: NaN wins.
void v_minimum3_f32(Wave &w, const Instruction &i) {
  select3(w, i, [m = Min32(true)](uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t nan = is_nan32(a) ? a : is_nan32(b) ? b : c;
    return is_nan32(nan) ? nan | 0x400000u : m(m(a, b), c);
  });
}
void v_maximum3_f32(Wave &w, const Instruction &i) {
  select3(w, i, [m = Max32(true)](uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t nan = is_nan32(a) ? a : is_nan32(b) ? b : c;
    return is_nan32(nan) ? nan | 0x400000u : m(m(a, b), c);
  });
}

// --- exponent and mantissa -----------------------------------------------------------------------------------------
void v_ldexp_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) {
      // Within +-300 the scaled value is exact in double and rounds once; beyond, the result is 0 or infinity anyway.
      const int32_t n = int32_t(b[l]) > 300 ? 300 : int32_t(b[l]) < -300 ? -300 : int32_t(b[l]);
      out.v[l] = as_bits(float(double(as_float(a[l])) * as_double(uint64_t(n + 1023) << 52)));
    }
  }
  settle_nans32(out.v, a);
  result_f32(w, i, out.v);
}

void v_frexp_mant_f32(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    int exponent;
    const float x = as_float(a[l]);
    out.v[l] = std::isfinite(x) ? as_bits(std::frexp(x, &exponent)) : a[l];
  }
  settle_nans32(out.v, a);
  result_f32(w, i, out.v);
}
void v_frexp_exp_i32_f32(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    int exponent = 0;
    const float x = as_float(a[l]);
    if (std::isfinite(x)) std::frexp(x, &exponent);
    out.v[l] = uint32_t(exponent);
  }
  write32(w, i, out.v);
}

}  // namespace

void register_vop_f32(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kFloat>);
  UNARY(X)
  BINARY(X)
#undef X
#define X(name) r.select(Op::name, bind_checked<name, kFloat>);
  X(v_fract_f32)
  X(v_fma_f32)
  X(v_fmac_f32)
  X(v_min_f32)
  X(v_max_f32)
  X(v_min3_f32)
  X(v_max3_f32)
  X(v_med3_f32)
  X(v_minimum3_f32)
  X(v_maximum3_f32)
  X(v_ldexp_f32)
  X(v_frexp_mant_f32)
#undef X
  r.select(Op::v_fmamk_f32, bind_checked<v_fma_f32, kInt>);
  r.select(Op::v_fmaak_f32, bind_checked<v_fma_f32, kInt>);
  r.select(Op::v_frexp_exp_i32_f32, bind_checked<v_frexp_exp_i32_f32, kNegAbs>);
}

}  // namespace turbo_sim
