// SPDX-License-Identifier: MIT
#include "numerics/formats.h"

#include <cmath>

namespace turbo_sim {

namespace {

// A finite positive double as significand * 2^exponent with a 53-bit integer significand.
struct Parts {
  uint64_t significand;
  int exponent;
};

Parts split(double magnitude) {
  const uint64_t bits = std::bit_cast<uint64_t>(magnitude);
  const int field = int(bits >> 52);
  const uint64_t fraction = bits & ((uint64_t(1) << 52) - 1);
  if (field == 0) return {fraction, -1074};
  return {fraction | (uint64_t(1) << 52), field - 1075};
}

// significand >> shift, rounded. Shifts of 64 and more leave only the sticky bit.
uint64_t shift_rounded(uint64_t significand, int shift, Round round, bool negative) {
  if (shift <= 0) return significand << -shift;
  if (shift > 62) {
    significand = significand != 0;
    shift = 2;
  }
  const uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((uint64_t(1) << shift) - 1);
  const uint64_t half = uint64_t(1) << (shift - 1);
  bool up = false;
  switch (round) {
    case Round::nearest_even: up = rest > half || (rest == half && (kept & 1)); break;
    case Round::plus_infinity: up = rest != 0 && !negative; break;
    case Round::minus_infinity: up = rest != 0 && negative; break;
    case Round::toward_zero: break;
  }
  return kept + up;
}

// Exponent of the result's last bit for a magnitude: that of the normal range, or the subnormals' fixed one.
int last_bit_exponent(const Parts &parts, const FloatFormat &format) {
  const int top = parts.significand == 0 ? -2000 : parts.exponent + 63 - std::countl_zero(parts.significand);
  const int smallest_normal = 1 - format.bias;
  return (top < smallest_normal ? smallest_normal : top) - format.mantissa_bits;
}

// Joins a rounded integer (in units of 2^last) to a code; a carry into the next binade works out by itself.
uint64_t assemble(uint64_t units, int last, const FloatFormat &format) {
  if (units < (uint64_t(1) << format.mantissa_bits)) return units;  // subnormal or zero
  const int field = last + format.mantissa_bits + format.bias;      // of a significand 1.xxx
  return (uint64_t(field - 1) << format.mantissa_bits) + units;
}

uint32_t special_input(double value, const FloatFormat &format, uint32_t sign, Overflow overflow) {
  if (value != value) {
    if (format.specials == Specials::fnuz) return format.nan_code();
    if (format.mantissa_bits >= 7) {  // f16 and bf16: the quiet NaN keeps sign and leading payload
      const uint64_t payload = std::bit_cast<uint64_t>(value) & ((uint64_t(1) << 52) - 1);
      return sign | format.nan_code() | uint32_t(payload >> (52 - format.mantissa_bits));
    }
    return sign | format.nan_code();
  }
  if (overflow == Overflow::clamp_all || format.specials == Specials::none) return sign | format.max_code();
  if (format.specials == Specials::ieee) return sign | format.infinity_code();
  return format.specials == Specials::fnuz ? format.nan_code() : sign | format.nan_code();
}

uint32_t overflowed(const FloatFormat &format, uint32_t sign, Round round, Overflow overflow) {
  if (overflow != Overflow::ieee || format.specials == Specials::none) return sign | format.max_code();
  const bool negative = sign != 0;
  const bool to_max = round == Round::toward_zero || (round == Round::plus_infinity && negative) ||
                      (round == Round::minus_infinity && !negative);
  if (to_max) return sign | format.max_code();
  if (format.specials == Specials::ieee) return sign | format.infinity_code();
  return format.specials == Specials::fnuz ? format.nan_code() : sign | format.nan_code();
}

uint32_t finish(uint64_t code, const FloatFormat &format, uint32_t sign, Round round, Overflow overflow) {
  if (code > format.max_code()) return overflowed(format, sign, round, overflow);
  if (code == 0 && format.specials == Specials::fnuz) return 0;  // there is no negative zero
  return sign | uint32_t(code);
}

}  // namespace

float decode(uint32_t code, const FloatFormat &format) {
  const bool negative = (code & format.sign_bit()) != 0;
  const uint32_t magnitude = code & (format.sign_bit() - 1);
  const uint32_t sign = negative ? 0x80000000u : 0;
  if (format.specials == Specials::ieee && magnitude >= format.infinity_code()) {
    const uint32_t payload = (magnitude - format.infinity_code()) << (23 - format.mantissa_bits);
    return std::bit_cast<float>(sign | 0x7F800000u | payload);
  }
  if (format.specials == Specials::fn && magnitude == format.nan_code())
    return std::bit_cast<float>(sign | 0x7FC00000u);
  if (format.specials == Specials::fnuz && code == format.nan_code()) return std::bit_cast<float>(0x7FC00000u);
  const uint32_t field = magnitude >> format.mantissa_bits;
  const uint32_t fraction = magnitude & ((1u << format.mantissa_bits) - 1);
  const uint32_t significand = field == 0 ? fraction : fraction | (1u << format.mantissa_bits);
  const int exponent = (field == 0 ? 1 : int(field)) - format.bias - format.mantissa_bits;
  const float value = std::ldexp(float(significand), exponent);
  return negative ? -value : value;
}

uint32_t encode(double value, const FloatFormat &format, Round round, Overflow overflow) {
  const bool negative = std::signbit(value);
  const uint32_t sign = negative ? format.sign_bit() : 0;
  if (!std::isfinite(value)) return special_input(value, format, sign, overflow);
  const Parts parts = split(std::fabs(value));
  const int last = last_bit_exponent(parts, format);
  const uint64_t units = shift_rounded(parts.significand, last - parts.exponent, round, negative);
  return finish(assemble(units, last, format), format, sign, round, overflow);
}

uint32_t encode_stochastic(double value, const FloatFormat &format, uint32_t noise, int noise_bits, Overflow overflow) {
  const uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  if (!std::isfinite(value)) return special_input(value, format, sign, overflow);
  const Parts parts = split(std::fabs(value));
  const int last = last_bit_exponent(parts, format);
  const uint64_t fine = shift_rounded(parts.significand, last - noise_bits - parts.exponent, Round::toward_zero, false);
  const uint64_t units = (fine + (noise & ((uint64_t(1) << noise_bits) - 1))) >> noise_bits;
  return finish(assemble(units, last, format), format, sign, Round::nearest_even, overflow);
}

const std::array<float, 256> &decode_table(const FloatFormat &format) {
  auto build = [](const FloatFormat &f) {
    std::array<float, 256> table{};
    for (uint32_t code = 0; code < 256; ++code) table[code] = decode(code & ((f.sign_bit() << 1) - 1), f);
    return table;
  };
  static const std::array<float, 256> e4m3 = build(kE4M3), e5m2 = build(kE5M2), e4m3fnuz = build(kE4M3FNUZ),
                                      e5m2fnuz = build(kE5M2FNUZ), e2m3 = build(kE2M3), e3m2 = build(kE3M2),
                                      e2m1 = build(kE2M1);
  switch (format.exponent_bits * 10 + format.mantissa_bits) {
    case 43: return format.specials == Specials::fn ? e4m3 : e4m3fnuz;
    case 52: return format.specials == Specials::ieee ? e5m2 : e5m2fnuz;
    case 23: return e2m3;
    case 32: return e3m2;
    default: return e2m1;
  }
}

}  // namespace turbo_sim
