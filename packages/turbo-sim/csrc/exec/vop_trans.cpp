// SPDX-License-Identifier: MIT
// Transcendental instructions. Hardware approximates within about 1 ulp; here they are computed in double and rounded
// once, so they are as good as or better than the hardware. MODE's rounding does not apply.
//
// f32 forms do not handle subnormals, whatever MODE says: subnormal inputs count as zero and subnormal results become
// zero. (That is why compilers scale around v_exp, v_log, v_rcp, v_rsq and v_sqrt where they need subnormals.)
#include "exec/vop_float.h"
#include "numerics/formats.h"

namespace turbo_sim {
namespace {

constexpr double kTau = 6.283185307179586476925286766559;

// Reciprocal square root and root of negatives are NaN, of -0: -infinity and -0.
inline double rsq(double x) { return 1.0 / std::sqrt(x); }
// The argument counts revolutions; it is reduced exactly before the multiplication. Hardware gives sin 0 and cos 1
// beyond +-256 revolutions.
inline double sin_turns(double x) {
  if (std::fabs(x) > 256.0 && std::isfinite(x)) return 0.0;
  const double f = x - std::floor(x);
  return x == 0.0 ? x : f == 0.5 || f == 0.0 ? 0.0 : std::sin(kTau * f);
}
inline double cos_turns(double x) {
  if (std::fabs(x) > 256.0 && std::isfinite(x)) return 1.0;
  const double f = x - std::floor(x);
  return f == 0.25 || f == 0.75 ? 0.0 : std::cos(kTau * f);
}
// "Legacy" forms are the same functions with an older accuracy.
#define FUNCTIONS(X)    \
  X(exp, std::exp2(x))  \
  X(log, std::log2(x))  \
  X(rcp, 1.0 / x)       \
  X(rsq, rsq(x))        \
  X(sqrt, std::sqrt(x)) \
  X(sin, sin_turns(x))  \
  X(cos, cos_turns(x))

template <class F>
inline void trans32(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = srcf32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    const float x = as_float(flush32(a[l]));
    out.v[l] = flush32(as_bits(float(f(double(x)))));
  }
  settle_nans32(out.v, a);
  result_f32(w, i, out.v);
}

template <class F>
inline void trans16(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = source_f16(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double r = f(double(f16_to_f32(a[l])));
    out.v[l] = r != r ? ((a[l] & 0x7FFF) > 0x7C00 ? a[l] | 0x200 : 0x7E00u)
                      : encode(r, kF16, Round::nearest_even, w.mode.fp16_ovfl ? Overflow::clamp : Overflow::ieee);
  }
  result_f16(w, i, out.v, false);
}

template <class F>
inline void trans64(Wave &w, const Instruction &i, F f) {
  Lanes64 ta, out;
  const uint64_t *a = source_f64(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(f(as_double(a[l])));
  settle_nans64(out.v, a);
  result_f64(w, i, out.v);
}

#define X(name, expr)                                  \
  void v_##name##_f32(Wave &w, const Instruction &i) { \
    trans32(w, i, [](double x) { return expr; });      \
  }                                                    \
  void v_##name##_f16(Wave &w, const Instruction &i) { \
    trans16(w, i, [](double x) { return expr; });      \
  }
FUNCTIONS(X)
#undef X

void v_rcp_f64(Wave &w, const Instruction &i) {
  trans64(w, i, [](double x) { return 1.0 / x; });
}
void v_rsq_f64(Wave &w, const Instruction &i) { trans64(w, i, rsq); }
void v_sqrt_f64(Wave &w, const Instruction &i) {
  trans64(w, i, [](double x) { return std::sqrt(x); });
}

}  // namespace

void register_vop_trans(Registry &r) {
#define X(name, expr)                                                 \
  r.select(Op::v_##name##_f32, bind_checked<v_##name##_f32, kFloat>); \
  r.select(Op::v_##name##_f16, bind_checked<v_##name##_f16, kFloat>);
  FUNCTIONS(X)
#undef X
  r.select(Op::v_rcp_iflag_f32, bind_checked<v_rcp_f32, kFloat>);  // differs in the exception flag only
  r.select(Op::v_exp_legacy_f32, bind_checked<v_exp_f32, kFloat>);
  r.select(Op::v_log_legacy_f32, bind_checked<v_log_f32, kFloat>);
  r.select(Op::v_rcp_f64, bind_checked<v_rcp_f64, kFloat>);
  r.select(Op::v_rsq_f64, bind_checked<v_rsq_f64, kFloat>);
  r.select(Op::v_sqrt_f64, bind_checked<v_sqrt_f64, kFloat>);
}

}  // namespace turbo_sim
