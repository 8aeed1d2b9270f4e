// SPDX-License-Identifier: MIT
// Narrow floating-point formats: decode to float/double and encode with every rounding that the ISA knows.
//
// One description (`FloatFormat`) serves all formats; `decode` and `encode` are exact by construction (integer
// arithmetic on the significand, one rounding). The inline functions at the end are vectorisable fast paths for the
// conversions that kernels run all the time; tests hold them equal to the general ones.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace turbo_sim {

// The codes are those of MODE.FP_ROUND.
enum class Round : uint8_t { nearest_even = 0, plus_infinity = 1, minus_infinity = 2, toward_zero = 3 };

// What the top codes of a format mean.
enum class Specials : uint8_t {
  ieee,  // all-ones exponent: infinity and NaN
  fn,    // no infinity; only the all-ones code is NaN (OCP e4m3)
  fnuz,  // no infinity, no negative zero: the code of "-0" is the only NaN (gfx942's fp8)
  none,  // neither infinity nor NaN (fp6, fp4)
};

// What a value beyond the largest finite number becomes.
enum class Overflow : uint8_t {
  ieee,      // infinity or the largest number, as the rounding mode says; NaN where the format has no infinity
  clamp,     // the largest number (MODE.FP16_OVFL); an infinite f16 input stays infinite
  clamp_all  // the largest number, also for infinite inputs (fp8 under MODE.FP16_OVFL)
};

struct FloatFormat {
  const char *name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Specials specials;

  constexpr int width() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr uint32_t sign_bit() const { return 1u << (width() - 1); }
  // Code of the largest finite magnitude.
  constexpr uint32_t max_code() const {
    const uint32_t all = sign_bit() - 1;
    if (specials == Specials::ieee) return ((all >> mantissa_bits) << mantissa_bits) - 1;
    return specials == Specials::fn ? all - 1 : all;
  }
  constexpr uint32_t infinity_code() const { return max_code() + 1; }  // ieee only
  constexpr uint32_t nan_code() const {
    switch (specials) {
      case Specials::ieee: return infinity_code() | (1u << (mantissa_bits - 1));
      case Specials::fn: return sign_bit() - 1;
      case Specials::fnuz: return sign_bit();
      default: return max_code();
    }
  }
};

inline constexpr FloatFormat kF16{"f16", 5, 10, 15, Specials::ieee};
inline constexpr FloatFormat kBF16{"bf16", 8, 7, 127, Specials::ieee};
inline constexpr FloatFormat kE4M3{"fp8_e4m3fn", 4, 3, 7, Specials::fn};
inline constexpr FloatFormat kE5M2{"fp8_e5m2", 5, 2, 15, Specials::ieee};
inline constexpr FloatFormat kE4M3FNUZ{"fp8_e4m3fnuz", 4, 3, 8, Specials::fnuz};
inline constexpr FloatFormat kE5M2FNUZ{"fp8_e5m2fnuz", 5, 2, 16, Specials::fnuz};
inline constexpr FloatFormat kE2M3{"fp6_e2m3", 2, 3, 1, Specials::none};
inline constexpr FloatFormat kE3M2{"fp6_e3m2", 3, 2, 3, Specials::none};
inline constexpr FloatFormat kE2M1{"fp4_e2m1", 2, 1, 1, Specials::none};

// Value of a code. Exact: every format fits float.
float decode(uint32_t code, const FloatFormat &format);

// Code of a value, rounded once. NaN becomes the format's NaN (for f16 and bf16: quiet, sign and payload kept).
// Formats without infinity and NaN always clamp; their NaN input becomes the largest magnitude (not documented by AMD).
uint32_t encode(double value, const FloatFormat &format, Round round = Round::nearest_even,
                Overflow overflow = Overflow::ieee);

// Stochastic rounding: `noise` (its low `noise_bits` bits) is added below the last kept bit, then truncation.
uint32_t encode_stochastic(double value, const FloatFormat &format, uint32_t noise, int noise_bits,
                           Overflow overflow = Overflow::ieee);

// Scale of an e8m0 byte: 2^(code - 127), NaN for 0xFF.
inline float decode_e8m0(uint32_t code) {
  if (code == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : code << 23);
}

// 256-entry table of a format of at most 8 bits (unused codes repeat).
const std::array<float, 256> &decode_table(const FloatFormat &format);

// ---- fast paths -------------------------------------------------------------------------------------------------

inline float bf16_to_f32(uint32_t code) { return std::bit_cast<float>(code << 16); }

// bf16, round to nearest even; NaN is made quiet, its payload truncated.
inline uint32_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded;
}

// f16 to float, exact, without branches: subnormals are normalised by a float subtraction.
inline float f16_to_f32(uint32_t code) {
  const uint32_t sign = (code & 0x8000u) << 16;
  const uint32_t body = (code & 0x7FFFu) << 13;
  const uint32_t normal = body + (112u << 23);
  const float subnormal = std::bit_cast<float>(body + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const uint32_t special = body + (224u << 23);
  uint32_t bits = body >= (31u << 23) ? special : normal;
  bits = body < (1u << 23) ? std::bit_cast<uint32_t>(subnormal) : bits;
  return std::bit_cast<float>(bits | sign);
}

// float to f16, round to nearest even, without branches.
inline uint32_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 leaves the subnormal result in the low bits, rounded by the addition itself.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  uint32_t code = magnitude < (113u << 23) ? subnormal : normal;
  code = magnitude >= 0x477FF000u ? 0x7C00u : code;  // 65520 and above round to infinity
  code = magnitude > 0x7F800000u ? nan : code;
  return code | sign;
}

// float to f16, toward zero, without branches. Finite values beyond the range become the largest number.
inline uint32_t f32_to_f16_toward_zero(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t normal = (magnitude - (112u << 23)) >> 13;
  const uint32_t exponent = magnitude >> 23;
  const uint32_t shift = exponent >= 113 ? 0 : 126 - exponent;
  const uint32_t subnormal = ((magnitude & 0x7FFFFFu) | 0x800000u) >> (shift > 31 ? 31 : shift);
  const uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  uint32_t code = exponent < 113 ? subnormal : normal;
  code = magnitude >= 0x47800000u ? 0x7BFFu : code;
  code = magnitude == 0x7F800000u ? 0x7C00u : code;
  code = magnitude > 0x7F800000u ? nan : code;
  return code | sign;
}

// float to a format of at most 8 bits, round to nearest even, without branches: the constants once, then lane by lane.
class NarrowEncoder {
 public:
  NarrowEncoder(const FloatFormat &f, Overflow overflow)
      : rebias_(uint32_t(127 - f.bias) << 23),
        shift_(23 - f.mantissa_bits),
        half_((1u << (22 - f.mantissa_bits)) - 1),
        // Adding 2^(last subnormal bit + 23) leaves the rounded subnormal in the low bits.
        magic_(std::bit_cast<float>(uint32_t(127 + 1 - f.bias - f.mantissa_bits + 23) << 23)),
        max_(f.max_code()),
        over_(f.specials == Specials::none || overflow != Overflow::ieee ? f.max_code()
              : f.specials == Specials::ieee                             ? f.infinity_code()
                                                                         : f.nan_code()),
        infinite_(f.specials == Specials::none || overflow == Overflow::clamp_all ? f.max_code()
                  : f.specials == Specials::ieee                                  ? f.infinity_code()
                                                                                  : f.nan_code()),
        nan_(f.nan_code()),
        sign_shift_(32 - f.width()),
        sign_(f.sign_bit()),
        fnuz_(f.specials == Specials::fnuz) {}

  uint32_t operator()(float value) const {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude - rebias_ + half_ + ((magnitude >> shift_) & 1u)) >> shift_;
    const float shifted = std::bit_cast<float>(magnitude) + magic_;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(magic_);
    uint32_t code = magnitude < rebias_ + (1u << 23) ? subnormal : normal;
    code = code > max_ ? over_ : code;
    code = magnitude == 0x7F800000u ? infinite_ : code;
    code = magnitude > 0x7F800000u ? nan_ : code;
    const bool unsigned_code = fnuz_ && (code == 0 || code == nan_);
    return unsigned_code ? code : code | ((bits >> sign_shift_) & sign_);
  }

 private:
  uint32_t rebias_;
  int shift_;
  uint32_t half_;
  float magic_;
  uint32_t max_, over_, infinite_, nan_;
  int sign_shift_;
  uint32_t sign_;
  bool fnuz_;
};

}  // namespace turbo_sim
