// SPDX-License-Identifier: MIT
// The three helpers of a correctly rounded division: v_div_scale brings numerator and denominator into range,
// v_div_fmas undoes the scaling in the last step, v_div_fixup puts the special cases right.
#include "exec/vop_float.h"

namespace turbo_sim {
namespace {

struct F32 {
  using Bits = uint32_t;
  using Value = float;
  using L = Lanes;
  static constexpr int kExponentShift = 23, kExponentMask = 0xFF, kBias = 127;
  static constexpr int kFarApart = 96, kScale = 64, kTinyNumerator = 23, kUnderflow = -150;
  static constexpr Bits kQuiet = 0x400000u, kMadeNaN = 0xFFC00000u, kSign = 0x80000000u, kInfinity = 0x7F800000u;
  static const Bits *source(const Wave &w, const Instruction &i, unsigned n, L &t) { return source_f32(w, i, n, t); }
  static void settle(Bits *o, const Bits *a, const Bits *b, const Bits *c) { settle_nans32(o, a, b, c); }
  static void result(Wave &w, const Instruction &i, Bits *v) { result_f32(w, i, v); }
  static uint8_t rounding(const Wave &w) { return w.mode.round32; }
};
struct F64 {
  using Bits = uint64_t;
  using Value = double;
  using L = Lanes64;
  static constexpr int kExponentShift = 52, kExponentMask = 0x7FF, kBias = 1023;
  static constexpr int kFarApart = 768, kScale = 128, kTinyNumerator = 53, kUnderflow = -1075;
  static constexpr Bits kQuiet = 1ull << 51, kMadeNaN = 0xFFF8000000000000ull, kSign = 1ull << 63,
                        kInfinity = 0x7FF0000000000000ull;
  static const Bits *source(const Wave &w, const Instruction &i, unsigned n, L &t) { return source_f64(w, i, n, t); }
  static void settle(Bits *o, const Bits *a, const Bits *b, const Bits *c) { settle_nans64(o, a, b, c); }
  static void result(Wave &w, const Instruction &i, Bits *v) { result_f64(w, i, v); }
  static uint8_t rounding(const Wave &w) { return w.mode.round64; }
};

// a * b + c times 2^scale, rounded once: the result of a scaled division may be subnormal.
float scaled_fma(float a, float b, float c, int scale) {
  const double p = double(a) * b, s = p + c, t = s - p;
  const double error = (p - (s - t)) + (double(c) - t);
  const uint64_t bits = as_bits(s);
  const bool outward = (error > 0.0) == (s > 0.0);
  const bool lossy = error != 0.0 && std::isfinite(s) && !(bits & 1);  // round to odd: the error shows in the last bit
  return float(std::ldexp(as_double(lossy ? (outward ? bits | 1 : bits - 1) : bits), scale));
}
double scaled_fma(double a, double b, double c, int scale) {
#ifdef __SIZEOF_FLOAT128__
  using Wide = __float128;
#else
  using Wide = long double;
#endif
  return double((Wide(a) * Wide(b) + Wide(c)) * Wide(std::ldexp(1.0, scale)));
}

template <class T>
int exponent(typename T::Bits bits) {
  return int(bits >> T::kExponentShift) & T::kExponentMask;
}
template <class T>
bool is_denormal(typename T::Bits bits) {
  return exponent<T>(bits) == 0 && (bits & (T::kSign - 1)) != 0;
}

// src0 is the operand to scale (the numerator or the denominator), src1 the denominator, src2 the numerator. The flag
// (sdst) tells v_div_fmas that the quotient will come out scaled.
template <class T>
void div_scale(Wave &w, const Instruction &i) {
  using Bits = typename T::Bits;
  using Value = typename T::Value;
  typename T::L ta, tb, tc, out;
  const Bits *a = T::source(w, i, 0, ta), *b = T::source(w, i, 1, tb), *c = T::source(w, i, 2, tc);
  uint64_t flags = 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    const Value x = std::bit_cast<Value>(a[l]), d = std::bit_cast<Value>(b[l]), n = std::bit_cast<Value>(c[l]);
    const Bits reciprocal = std::bit_cast<Bits>(Value(1) / d), quotient = std::bit_cast<Bits>(n / d);
    const bool is_denominator = x == d, is_numerator = x == n;
    Value r = x;
    bool flag = false;
    if (n == 0 || d == 0) {
      r = std::bit_cast<Value>(T::kInfinity | T::kQuiet);
    } else if (exponent<T>(c[l]) - exponent<T>(b[l]) >= T::kFarApart) {
      flag = true;  // the quotient is close to overflow
      if (is_denominator) r = std::ldexp(x, T::kScale);
    } else if (is_denormal<T>(b[l])) {
      r = std::ldexp(x, T::kScale);
    } else if (is_denormal<T>(reciprocal) && is_denormal<T>(quotient)) {
      flag = true;
      if (is_denominator) r = std::ldexp(x, -T::kScale);  // public text scales up, which would overflow
    } else if (is_denormal<T>(reciprocal)) {
      r = std::ldexp(x, -T::kScale);
    } else if (is_denormal<T>(quotient)) {
      flag = true;
      if (is_numerator) r = std::ldexp(x, T::kScale);
    } else if (exponent<T>(c[l]) <= T::kTinyNumerator) {
      r = std::ldexp(x, T::kScale);
    }
    out.v[l] = std::bit_cast<Bits>(r);
    flags |= uint64_t(flag) << l;
  }
  flags &= w.exec();
  T::result(w, i, out.v);
  write_lane_mask(w, i.sdst, flags);
}

// fma, scaled back where VCC has the lane's flag. A scaled quotient above 2 came from the overflow side.
template <class T>
void div_fmas(Wave &w, const Instruction &i) {
  using Bits = typename T::Bits;
  using Value = typename T::Value;
  typename T::L ta, tb, tc, out;
  const Bits *a = T::source(w, i, 0, ta), *b = T::source(w, i, 1, tb), *c = T::source(w, i, 2, tc);
  const uint64_t vcc = w.vcc();
  {
    RoundingScope scope(T::rounding(w));
    for (unsigned l = 0; l < kLanes; ++l) {
      const Value x = std::bit_cast<Value>(a[l]), y = std::bit_cast<Value>(b[l]), z = std::bit_cast<Value>(c[l]);
      const int scale = exponent<T>(c[l]) > T::kBias ? T::kScale : -T::kScale;
      out.v[l] = std::bit_cast<Bits>(vcc >> l & 1 ? scaled_fma(x, y, z, scale) : std::fma(x, y, z));
    }
  }
  T::settle(out.v, a, b, c);
  T::result(w, i, out.v);
}

// src0 is the quotient, src1 the denominator, src2 the numerator.
template <class T>
void div_fixup(Wave &w, const Instruction &i) {
  using Bits = typename T::Bits;
  typename T::L ta, tb, tc, out;
  const Bits *a = T::source(w, i, 0, ta), *b = T::source(w, i, 1, tb), *c = T::source(w, i, 2, tc);
  constexpr Bits kMagnitude = T::kSign - 1;
  for (unsigned l = 0; l < kLanes; ++l) {
    const Bits sign = (b[l] ^ c[l]) & T::kSign, d = b[l] & kMagnitude, n = c[l] & kMagnitude;
    const bool nan_n = n > T::kInfinity, nan_d = d > T::kInfinity;
    Bits r;
    if (nan_n)
      r = c[l] | T::kQuiet;
    else if (nan_d)
      r = b[l] | T::kQuiet;
    else if ((d == 0 && n == 0) || (d == T::kInfinity && n == T::kInfinity))
      r = T::kMadeNaN;
    else if (d == 0 || n == T::kInfinity)
      r = sign | T::kInfinity;
    else if (d == T::kInfinity || n == 0)
      r = sign;
    else if (exponent<T>(n) - exponent<T>(d) < T::kUnderflow)
      r = sign;  // below half of the smallest subnormal
    else if ((a[l] & kMagnitude) > T::kInfinity)
      r = sign | T::kInfinity;  // inf - inf on the way: the quotient overflows
    else
      r = sign | (a[l] & kMagnitude);
    out.v[l] = r;
  }
  T::result(w, i, out.v);
}

// f16: no scaling exists, the division itself is done in f32. VOP3 only, so the register's upper half is kept.
void v_div_fixup_f16(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = source_f16(w, i, 1, tb), *c = source_f16(w, i, 2, tc);
  constexpr uint32_t kMagnitude = 0x7FFF, kInfinity = 0x7C00, kQuiet = 0x200;
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint32_t sign = (b[l] ^ c[l]) & 0x8000, d = b[l] & kMagnitude, n = c[l] & kMagnitude;
    uint32_t r = sign | (a[l] & kMagnitude);
    if (d == kInfinity || n == 0) r = sign;
    if (d == 0 || n == kInfinity) r = sign | kInfinity;
    if ((d == 0 && n == 0) || (d == kInfinity && n == kInfinity)) r = 0xFE00;
    if (d > kInfinity) r = b[l] | kQuiet;
    if (n > kInfinity) r = c[l] | kQuiet;
    out.v[l] = r & 0xFFFF;
  }
  result_f16(w, i, out.v, true);
}

}  // namespace

void register_vop_div(Registry &r) {
  r.select(Op::v_div_scale_f32, bind_checked<div_scale<F32>, kNegAbs>);
  r.select(Op::v_div_scale_f64, bind_checked<div_scale<F64>, kNegAbs>);
  r.select(Op::v_div_fmas_f32, bind_checked<div_fmas<F32>, kFloat>);
  r.select(Op::v_div_fmas_f64, bind_checked<div_fmas<F64>, kFloat>);
  r.select(Op::v_div_fixup_f32, bind_checked<div_fixup<F32>, kFloat>);
  r.select(Op::v_div_fixup_f64, bind_checked<div_fixup<F64>, kFloat>);
  r.select(Op::v_div_fixup_f16, bind_checked<v_div_fixup_f16, kFloat | kOpSel>);
}

}  // namespace turbo_sim
