// SPDX-License-Identifier: MIT
// Lane functions that several floating-point files share.
#pragma once

#include "exec/valu.h"

namespace turbo_sim {

/// Round to an integer, ties to even, whatever the host's rounding mode is.
inline float round_half_even(float x) {
  const float t = std::trunc(x), r = std::fabs(x - t);
  const bool odd = std::fabs(t) < 16777216.0f && (int32_t(std::fabs(t) < 16777216.0f ? t : 0.0f) & 1);
  const bool away = r > 0.5f || (r == 0.5f && odd);
  return std::copysign(std::fabs(t) + (away ? 1.0f : 0.0f), x);
}
inline double round_half_even(double x) {
  const double t = std::trunc(x), r = std::fabs(x - t);
  const bool small = std::fabs(t) < 4503599627370496.0;
  const bool odd = small && (int64_t(small ? t : 0.0) & 1);
  const bool away = r > 0.5 || (r == 0.5 && odd);
  return std::copysign(std::fabs(t) + (away ? 1.0 : 0.0), x);
}

// minNum and maxNum on bits. -0 counts as less than +0. A NaN loses to a number; in IEEE mode a signalling NaN wins and
// becomes quiet.
template <class Bits, class Value, bool MAX, Bits QUIET>
struct Select {
  bool ieee;
  explicit Select(bool mode_ieee) : ieee(mode_ieee) {}
  Bits operator()(Bits a, Bits b) const {
    const Value x = std::bit_cast<Value>(a), y = std::bit_cast<Value>(b);
    const bool nan_a = x != x, nan_b = y != y;
    Bits r = (MAX ? x > y : x < y) ? a : b;
    const Bits equal = MAX ? (a & b) : (a | b);  // the same bits, or the two zeros
    r = x == y ? equal : r;
    r = nan_b ? a : r;
    r = nan_a ? b : r;
    const bool signal_b = ieee && nan_b && !(b & QUIET), signal_a = ieee && nan_a && !(a & QUIET);
    r = signal_b ? (b | QUIET) : r;
    r = signal_a ? (a | QUIET) : r;
    return r;
  }
};
using Min32 = Select<uint32_t, float, false, 0x400000u>;
using Max32 = Select<uint32_t, float, true, 0x400000u>;
using Min64 = Select<uint64_t, double, false, 1ull << 51>;
using Max64 = Select<uint64_t, double, true, 1ull << 51>;

}  // namespace turbo_sim
