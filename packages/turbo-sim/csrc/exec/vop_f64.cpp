// SPDX-License-Identifier: MIT
// f64 arithmetic: rounding and subnormals as MODE says, NaN as in settle_nans64.
#include "exec/vop_float.h"

namespace turbo_sim {
namespace {

// Rounding to an integer has a direction of its own: MODE's does not enter (and must not: baseline x86 builds floor
// from additions).
template <class F>
inline void unary(Wave &w, const Instruction &i, F f) {
  Lanes64 ta, out;
  const uint64_t *a = source_f64(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(double(f(as_double(a[l]))));
  settle_nans64(out.v, a);
  result_f64(w, i, out.v);
}
template <class F>
inline void binary(Wave &w, const Instruction &i, F f) {
  Lanes64 ta, tb, out;
  const uint64_t *a = source_f64(w, i, 0, ta), *b = source_f64(w, i, 1, tb);
  {
    RoundingScope scope(w.mode.round64);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(double(f(as_double(a[l]), as_double(b[l]))));
  }
  settle_nans64(out.v, a, b);
  result_f64(w, i, out.v);
}
inline void fma(Wave &w, const Instruction &i, const uint64_t *a, const uint64_t *b, const uint64_t *c) {
  Lanes64 out;
  {
    RoundingScope scope(w.mode.round64);
    for (unsigned l = 0; l < kLanes; ++l)
      out.v[l] = as_bits(std::fma(as_double(a[l]), as_double(b[l]), as_double(c[l])));
  }
  settle_nans64(out.v, a, b, c);
  result_f64(w, i, out.v);
}
template <class F>
inline void select2(Wave &w, const Instruction &i, F f) {
  Lanes64 ta, tb, out;
  const uint64_t *a = source_f64(w, i, 0, ta), *b = source_f64(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l], b[l]);
  result_f64(w, i, out.v);
}

#define UNARY(X)                \
  X(v_ceil_f64, std::ceil(a))   \
  X(v_floor_f64, std::floor(a)) \
  X(v_trunc_f64, std::trunc(a)) \
  X(v_rndne_f64, round_half_even(a))
#define BINARY(X)     \
  X(v_add_f64, a + b) \
  X(v_mul_f64, a *b)

#define X(name, expr)                           \
  void name(Wave &w, const Instruction &i) {    \
    unary(w, i, [](double a) { return expr; }); \
  }
UNARY(X)
#undef X
#define X(name, expr)                                      \
  void name(Wave &w, const Instruction &i) {               \
    binary(w, i, [](double a, double b) { return expr; }); \
  }
BINARY(X)
#undef X

void v_fract_f64(Wave &w, const Instruction &i) {
  Lanes64 ta, floors, out;
  const uint64_t *a = source_f64(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) floors.v[l] = as_bits(std::floor(as_double(a[l])));
  {
    RoundingScope scope(w.mode.round64);
    for (unsigned l = 0; l < kLanes; ++l) {
      const double r = as_double(a[l]) - as_double(floors.v[l]);
      out.v[l] = as_bits(r >= 1.0 ? 0x1.fffffffffffffp-1 : r);
    }
  }
  settle_nans64(out.v, a);
  result_f64(w, i, out.v);
}
void v_fma_f64(Wave &w, const Instruction &i) {
  Lanes64 ta, tb, tc;
  fma(w, i, source_f64(w, i, 0, ta), source_f64(w, i, 1, tb), source_f64(w, i, 2, tc));
}
void v_fmac_f64(Wave &w, const Instruction &i) {
  Lanes64 ta, tb, tc;
  fma(w, i, source_f64(w, i, 0, ta), source_f64(w, i, 1, tb), accumulator_f64(w, i, tc));
}
void v_min_f64(Wave &w, const Instruction &i) { select2(w, i, Min64(w.mode.ieee)); }
void v_max_f64(Wave &w, const Instruction &i) { select2(w, i, Max64(w.mode.ieee)); }

void v_ldexp_f64(Wave &w, const Instruction &i) {
  Lanes64 ta, out;
  Lanes tb;
  const uint64_t *a = source_f64(w, i, 0, ta);
  const uint32_t *b = src32(w, i, 1, tb);
  {
    RoundingScope scope(w.mode.round64);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(std::ldexp(as_double(a[l]), int32_t(b[l])));
  }
  settle_nans64(out.v, a);
  result_f64(w, i, out.v);
}
void v_frexp_mant_f64(Wave &w, const Instruction &i) {
  unary(w, i, [](double a) {
    int exponent;
    return std::isfinite(a) ? std::frexp(a, &exponent) : a;
  });
}
void v_frexp_exp_i32_f64(Wave &w, const Instruction &i) {
  Lanes64 ta;
  Lanes out;
  const uint64_t *a = source_f64(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    int exponent = 0;
    if (std::isfinite(as_double(a[l]))) std::frexp(as_double(a[l]), &exponent);
    out.v[l] = uint32_t(exponent);
  }
  write32(w, i, out.v);
}

}  // namespace

void register_vop_f64(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kFloat>);
  UNARY(X)
  BINARY(X)
#undef X
#define X(name) r.select(Op::name, bind_checked<name, kFloat>);
  X(v_fract_f64)
  X(v_fma_f64)
  X(v_fmac_f64)
  X(v_min_f64)
  X(v_max_f64)
  X(v_ldexp_f64)
  X(v_frexp_mant_f64)
#undef X
  r.select(Op::v_frexp_exp_i32_f64, bind_checked<v_frexp_exp_i32_f64, kNegAbs>);
}

}  // namespace turbo_sim
