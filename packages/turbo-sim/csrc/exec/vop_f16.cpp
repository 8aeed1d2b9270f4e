// SPDX-License-Identifier: MIT
// Scalar f16 arithmetic. On gfx9 the VOP2 set writes zeros to the register's upper half; v_fma_f16, min3, max3 and med3
// (VOP3 only) keep it.
#include "exec/f16_math.h"

namespace turbo_sim {
namespace {

template <class F>
inline void unary(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = source_f16(w, i, 0, ta);
  with_f16_rounding(w.mode, [&](auto round) {
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = settle_nan16(round(f(f16_to_f32(a[l]))), a[l], 0, 0);
  });
  result_f16(w, i, out.v, false);
}
// Sums and products of two f16 are exact in double.
template <class F>
inline void binary(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = source_f16(w, i, 1, tb);
  with_f16_rounding(w.mode, [&](auto round) {
    for (unsigned l = 0; l < kLanes; ++l)
      out.v[l] =
          settle_nan16(round(f(double(f16_to_f32(a[l])), double(f16_to_f32(b[l])), round.down())), a[l], b[l], 0);
  });
  result_f16(w, i, out.v, false);
}

#define UNARY(X)                \
  X(v_ceil_f16, std::ceil(a))   \
  X(v_floor_f16, std::floor(a)) \
  X(v_trunc_f16, std::trunc(a)) \
  X(v_rndne_f16, round_half_even(a))
#define BINARY(X)                             \
  X(v_add_f16, f16_add_exact(a, b, down))     \
  X(v_sub_f16, f16_add_exact(a, -b, down))    \
  X(v_subrev_f16, f16_add_exact(b, -a, down)) \
  X(v_mul_f16, a *b)

#define X(name, expr)                          \
  void name(Wave &w, const Instruction &i) {   \
    unary(w, i, [](float a) { return expr; }); \
  }
UNARY(X)
#undef X
#define X(name, expr)                                                                  \
  void name(Wave &w, const Instruction &i) {                                           \
    binary(w, i, [](double a, double b, [[maybe_unused]] bool down) { return expr; }); \
  }
BINARY(X)
#undef X

void v_fract_f16(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f16(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    const float x = f16_to_f32(a[l]);
    const uint32_t r = f32_to_f16(x - std::floor(x));
    out.v[l] = settle_nan16(r == 0x3C00 ? 0x3BFFu : r, a[l], 0, 0);
  }
  result_f16(w, i, out.v, false);
}

void v_fma_f16(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = source_f16(w, i, 1, tb), *c = source_f16(w, i, 2, tc);
  with_f16_rounding(w.mode, [&](auto round) {
    for (unsigned l = 0; l < kLanes; ++l) {
      const double r = f16_fma_exact(f16_to_f32(a[l]), f16_to_f32(b[l]), f16_to_f32(c[l]), round.down());
      out.v[l] = settle_nan16(round(r), a[l], b[l], c[l]);
    }
  });
  result_f16(w, i, out.v, true);
}

template <bool MAX>
void min_max(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = source_f16(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f16_min_max(MAX, w.mode.ieee, a[l], b[l]);
  result_f16(w, i, out.v, false);
}
enum class Three { Min, Max, Med };
template <Three KIND>
void of_three(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = source_f16(w, i, 1, tb), *c = source_f16(w, i, 2, tc);
  const bool ieee = w.mode.ieee;
  auto low = [ieee](uint32_t x, uint32_t y) { return f16_min_max(false, ieee, x, y); };
  auto high = [ieee](uint32_t x, uint32_t y) { return f16_min_max(true, ieee, x, y); };
  auto nan = [](uint32_t x) { return (x & 0x7FFF) > 0x7C00; };
  for (unsigned l = 0; l < kLanes; ++l) {
    const bool smallest = KIND == Three::Min || (KIND == Three::Med && (nan(a[l]) || nan(b[l]) || nan(c[l])));
    out.v[l] = smallest             ? low(low(a[l], b[l]), c[l])
               : KIND == Three::Max ? high(high(a[l], b[l]), c[l])
                                    : high(low(a[l], b[l]), low(high(a[l], b[l]), c[l]));
  }
  result_f16(w, i, out.v, true);
}

void v_ldexp_f16(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = src16(w, i, 1, tb);
  const F16Rounding round(w.mode);
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = settle_nan16(round(std::ldexp(double(f16_to_f32(a[l])), int16_t(b[l]))), a[l], 0, 0);
  result_f16(w, i, out.v, false);
}
void v_frexp_mant_f16(Wave &w, const Instruction &i) {
  unary(w, i, [](float a) {
    int exponent;
    return std::isfinite(a) ? std::frexp(a, &exponent) : a;
  });
}
void v_frexp_exp_i16_f16(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f16(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    int exponent = 0;
    const float x = f16_to_f32(a[l]);
    if (std::isfinite(x)) std::frexp(x, &exponent);
    out.v[l] = uint32_t(exponent) & 0xFFFF;
  }
  write16(w, i, out.v, false);
}

}  // namespace

void register_vop_f16(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kFloat>);
  UNARY(X)
  BINARY(X)
#undef X
#define X(name, fn) r.select(Op::name, bind_checked<fn, kFloat>);
  X(v_fract_f16, v_fract_f16)
  X(v_min_f16, min_max<false>)
  X(v_max_f16, min_max<true>)
  X(v_ldexp_f16, v_ldexp_f16)
  X(v_frexp_mant_f16, v_frexp_mant_f16)
#undef X
#define X(name, fn) r.select(Op::name, bind_checked<fn, kFloat | kOpSel>);
  X(v_fma_f16, v_fma_f16)
  X(v_min3_f16, of_three<Three::Min>)
  X(v_max3_f16, of_three<Three::Max>)
  X(v_med3_f16, of_three<Three::Med>)
#undef X
  r.select(Op::v_frexp_exp_i16_f16, bind_checked<v_frexp_exp_i16_f16, kNegAbs>);
}

}  // namespace turbo_sim
