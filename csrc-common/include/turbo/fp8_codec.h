// SPDX-License-Identifier: MIT
//
// The four FP8 encodings in plain C++, for device and host alike: what the hardware of an architecture does not
// convert, and the definition that its conversions are tested against.
//
//                 exponent  mantissa  bias   largest   infinity   NaN         zero
//   e4m3          4         3          7       448     none       0x7f, 0xff  +0, -0      OCP (torch float8_e4m3fn)
//   e5m2          5         2         15     57344     0x7c       0x7d-0x7f   +0, -0      OCP (torch float8_e5m2)
//   e4m3_fnuz     4         3          8       240     none       0x80        +0          torch float8_e4m3fnuz
//   e5m2_fnuz     5         2         16     57344     none       0x80        +0          torch float8_e5m2fnuz
//
// gfx942's matrix units and conversions take the FNUZ encodings, gfx950's the OCP ones. The same byte in both is a
// factor of 2 apart, so a mistake here is wrong numbers and no error.
#pragma once

#if defined(__HIP__)
#include "turbo/arch.h"
#define TURBO_CODEC TURBO_DEVICE
#else
#define TURBO_CODEC static inline
#endif

namespace turbo {

template <int Mantissa, int Bias, bool Fnuz>
struct Fp8 {
  static constexpr int mantissa = Mantissa;
  static constexpr int bias = Bias;
  static constexpr bool fnuz = Fnuz;
  static constexpr bool has_infinity = !Fnuz && Mantissa == 2;
  static constexpr unsigned infinity_code = 0x7c;  // where there is one
  static constexpr unsigned nan_code = Fnuz ? 0x80 : 0x7f;
  static constexpr unsigned largest_code = Fnuz ? 0x7f : Mantissa == 2 ? 0x7b : 0x7e;
  static constexpr float largest = Mantissa == 2 ? 57344.0f : Fnuz ? 240.0f : 448.0f;
};

using fp8_e4m3 = Fp8<3, 7, false>;
using fp8_e5m2 = Fp8<2, 15, false>;
using fp8_e4m3_fnuz = Fp8<3, 8, true>;
using fp8_e5m2_fnuz = Fp8<2, 16, true>;

// The code of x, rounded to nearest even. Beyond the largest value: that value with Saturate (infinity too), else
// infinity where the encoding has it, else NaN (as torch casts). NaN stays NaN in both.
template <class F, bool Saturate>
TURBO_CODEC unsigned encode_fp8(float x) {
  const unsigned all = __builtin_bit_cast(unsigned, x);
  const unsigned sign = all >> 24 & 0x80, magnitude = all & 0x7fffffff;
  if (magnitude > 0x7f800000) return F::nan_code | (F::fnuz ? 0 : sign);
  constexpr int dropped = 23 - F::mantissa;  // mantissa bits of a float that do not fit
  constexpr unsigned smallest_normal = unsigned(128 - F::bias) << 23;
  unsigned code;
  if (magnitude >= smallest_normal) {
    // Half of the last place, less one where that place is even, is added before the cut: round to nearest even. A
    // carry out of the mantissa moves into the exponent, which is what it means.
    const unsigned odd = magnitude >> dropped & 1;
    const unsigned rounded = magnitude + (1u << (dropped - 1)) - 1 + odd;
    code = (rounded >> dropped) - (unsigned(127 - F::bias) << F::mantissa);
  } else {
    // Subnormal: adding a power of two whose last place is the step of the subnormals makes the adder round.
    const float power = __builtin_bit_cast(float, unsigned(127 + 24 - F::bias - F::mantissa) << 23);
    code = __builtin_bit_cast(unsigned, __builtin_bit_cast(float, magnitude) + power) -
           __builtin_bit_cast(unsigned, power);
  }
  if (code > F::largest_code) {
    if (Saturate) {
      code = F::largest_code;
    } else if (F::has_infinity) {
      code = F::infinity_code;
    } else {
      return F::nan_code | (F::fnuz ? 0 : sign);
    }
  }
  if (F::fnuz && code == 0) return 0;  // there is no -0
  return code | sign;
}

template <class F>
TURBO_CODEC float decode_fp8(unsigned code) {
  const unsigned sign = (code & 0x80) << 24, magnitude = code & 0x7f;
  const float nan = __builtin_bit_cast(float, 0x7fc00000u);
  if (F::fnuz && code == F::nan_code) return nan;
  if (!F::fnuz && F::mantissa == 3 && magnitude == F::nan_code) return nan;
  if (F::has_infinity && magnitude >= F::infinity_code) {
    return magnitude == F::infinity_code ? __builtin_bit_cast(float, sign | 0x7f800000u) : nan;
  }
  if (magnitude >> F::mantissa == 0) {
    // subnormal: magnitude steps of 2^(1 - bias - mantissa)
    const float step = __builtin_bit_cast(float, unsigned(128 - F::bias - F::mantissa) << 23);
    const float value = float(int(magnitude)) * step;
    return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, value) | sign);
  }
  return __builtin_bit_cast(float, sign | ((magnitude << (23 - F::mantissa)) + (unsigned(127 - F::bias) << 23)));
}

}  // namespace turbo
