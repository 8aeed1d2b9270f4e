// SPDX-License-Identifier: MIT
// f16 arithmetic on lanes: exact intermediate, one rounding as MODE says.
#pragma once

#include "exec/vop_float.h"
#include "numerics/formats.h"

namespace turbo_sim {

/// a * b + c in double with round-to-odd, so that rounding the result to f16 is the only rounding that counts.
/// Sums of f16 products fit 53 bits except for far-apart exponents; the error of the sum then goes to the last bit.
/// `down`: MODE rounds toward -infinity, where an exact zero sum is -0 unless both terms are +0.
inline double f16_fma_exact(float a, float b, float c, bool down) {
  const double p = double(a) * double(b), q = double(c);
  const double s = p + q;
  const bool negative_zero = down && s == 0.0 && (as_bits(p) | as_bits(q)) != 0;
  const double t = s - p;
  const double error = (p - (s - t)) + (q - t);
  const uint64_t bits = as_bits(s);
  const bool lossy = error != 0.0 && s - s == 0.0;  // finite
  const bool outward = (error > 0.0) == (s > 0.0);
  const uint64_t odd = (bits & 1) ? bits : outward ? bits | 1 : bits - 1;
  return negative_zero ? -0.0 : as_double(lossy ? odd : bits);
}

/// a + b exactly, with the same rule for zero.
inline double f16_add_exact(double a, double b, bool down) {
  const double s = a + b;
  return down && s == 0.0 && (as_bits(a) | as_bits(b)) != 0 ? -0.0 : s;
}

/// Exact (or round-to-odd) double to f16, as MODE says.
struct F16Rounding {
  Round round;
  Overflow overflow;
  explicit F16Rounding(const Mode &m)
      : round(Round(m.round64)), overflow(m.fp16_ovfl ? Overflow::clamp : Overflow::ieee) {}
  bool down() const { return round == Round::minus_infinity; }
  uint32_t operator()(double value) const { return encode(value, kF16, round, overflow); }
};
/// The same for round-to-nearest without clamping, without branches.
struct F16Nearest {
  static constexpr bool down() { return false; }
  uint32_t operator()(double value) const {
    // double to float with round-to-odd, then the single rounding to f16.
    const uint64_t bits = as_bits(value);
    const uint64_t rest = bits & ((1ull << 29) - 1);
    const uint64_t kept = bits - rest;
    const float odd = float(as_double(rest ? kept | 1ull << 29 : kept));
    return f32_to_f16(value - value == 0.0 ? odd : float(value));
  }
};
/// Calls f with the rounding that MODE asks for, so that the common one is inlined into the lane loop.
template <class F>
inline void with_f16_rounding(const Mode &m, F f) {
  if (m.round64 == 0 && !m.fp16_ovfl)
    f(F16Nearest{});
  else
    f(F16Rounding(m));
}

/// First NaN among the sources made quiet, or the default NaN.
inline uint32_t settle_nan16(uint32_t r, uint32_t a, uint32_t b, uint32_t c) {
  auto nan = [](uint32_t x) { return (x & 0x7FFF) > 0x7C00; };
  const uint32_t source = nan(a) ? a : nan(b) ? b : nan(c) ? c : 0x7E00u;
  return nan(r) ? (source | 0x200u) & 0xFFFF : r;
}

inline uint32_t f16_min_max(bool max, bool ieee, uint32_t a, uint32_t b) {
  auto nan = [](uint32_t x) { return (x & 0x7FFF) > 0x7C00; };
  const float x = f16_to_f32(a), y = f16_to_f32(b);
  uint32_t r = (max ? x > y : x < y) ? a : b;
  r = x == y ? (max ? a & b : a | b) : r;
  r = nan(b) ? a : r;
  r = nan(a) ? b : r;
  r = ieee && nan(b) && !(b & 0x200) ? b | 0x200 : r;
  r = ieee && nan(a) && !(a & 0x200) ? a | 0x200 : r;
  return r;
}

}  // namespace turbo_sim
