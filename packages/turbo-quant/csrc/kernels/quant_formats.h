// SPDX-License-Identifier: MIT
//
// From float32 to the codes of FP8 and FP4 and back, of finite numbers: blocks with NaN or infinity are dealt with
// before.
//
// Codes are those of fp8_codec.h, and of e2m1 in the same way: mantissa 1, bias 1, no NaN and no infinity, sign in bit
// 3. What an architecture converts itself takes its instructions; for the rest, about eight of the vector ALU:
//
//   e = the exponent of |v|, that of the smallest normal number at least
//   n = |v| in units of the last place there, rounded by an addition: |v| + 2^(e + 23 - mantissa) has n in its low bits
//   code = ((e + bias - 1) << mantissa) + n, since a carry out of the mantissa is what an exponent more means
#pragma once

#include "turbo/fp8.h"

namespace turbo_quant {

using namespace turbo;

struct e2m1 {
  static constexpr int mantissa = 1;
  static constexpr int bias = 1;
  static constexpr bool fnuz = false;
  static constexpr unsigned largest_code = 7;
  static constexpr float largest = 6.0f;
};

template <class F>
constexpr bool kIsFp4 = F::mantissa == 1;

// Whether the architecture's own conversions write and read F.
#if defined(__gfx950__)
template <class F>
constexpr bool kIsNative = !F::fnuz;
#else
template <class F>
constexpr bool kIsNative = F::fnuz;
#endif

// Bits of 2^e (biased, in place) for the binade of |v|, or of the smallest normal number of F.
template <class F>
TURBO_DEVICE unsigned exponent_bits(unsigned magnitude) {
  return __builtin_elementwise_max(magnitude & 0x7f800000u, unsigned(128 - F::bias) << 23);
}

// The code of n units of the last place in the binade of `exponent`, saturating, with the sign of v.
template <class F>
TURBO_DEVICE unsigned assemble(unsigned v, unsigned exponent, unsigned n) {
  unsigned code = n + (exponent >> (23 - F::mantissa)) - (unsigned(128 - F::bias) << F::mantissa);
  code = __builtin_elementwise_min(code, F::largest_code);
  const unsigned sign = kIsFp4<F> ? v >> 28 & 8u : v >> 24 & 0x80u;
  if constexpr (F::fnuz) return code == 0 ? 0 : code | sign;
  return code | sign;
}

// To nearest even.
template <class F>
TURBO_DEVICE unsigned encode_nearest(float value) {
  const unsigned v = bits<unsigned>(value), magnitude = v & 0x7fffffffu;
  const unsigned exponent = exponent_bits<F>(magnitude);
  const float power = bits<float>(exponent + (unsigned(23 - F::mantissa) << 23));
  const unsigned n = bits<unsigned>(bits<float>(magnitude) + power) - bits<unsigned>(power);
  return assemble<F>(v, exponent, n);
}

// Up where `word`, 24 bits of it as a fraction, is less than what is cut off.
template <class F>
TURBO_DEVICE unsigned encode_stochastic(float value, unsigned word) {
  const unsigned v = bits<unsigned>(value), magnitude = v & 0x7fffffffu;
  const unsigned exponent = exponent_bits<F>(magnitude);
  const float units = bits<float>(magnitude) * bits<float>((unsigned(254 + F::mantissa) << 23) - exponent);
  const float whole = __builtin_floorf(units);
  const float fraction = float(word >> 8) * 0x1p-24f;
  return assemble<F>(v, exponent, unsigned(whole) + (fraction < units - whole ? 1u : 0u));
}

// Codes of four floats, FP8: one a byte.
template <class F>
TURBO_DEVICE unsigned encode4(vec<float, 4> v) {
  if constexpr (kIsNative<F>) {
    // Clamped first: the instructions saturate only when MODE.FP16_OVFL is set, which a kernel here does not rely on.
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __builtin_amdgcn_fmed3f(v[i], -F::largest, F::largest);
    int packed = 0;
    if constexpr (F::mantissa == 3) {
      packed = __builtin_amdgcn_cvt_pk_fp8_f32(v[0], v[1], packed, false);
      packed = __builtin_amdgcn_cvt_pk_fp8_f32(v[2], v[3], packed, true);
    } else {
      packed = __builtin_amdgcn_cvt_pk_bf8_f32(v[0], v[1], packed, false);
      packed = __builtin_amdgcn_cvt_pk_bf8_f32(v[2], v[3], packed, true);
    }
    return unsigned(packed);
  } else {
    return encode_nearest<F>(v[0]) | encode_nearest<F>(v[1]) << 8 | encode_nearest<F>(v[2]) << 16 |
           encode_nearest<F>(v[3]) << 24;
  }
}

// Codes of eight floats, e2m1: element 0 in the lowest four bits.
TURBO_DEVICE unsigned encode_fp4x8(vec<float, 8> v) {
#if defined(__gfx950__)
  // Values are below 7, so nothing is rounded beyond the largest: see block_scale in mx_block.h.
  unsigned packed = 0;
  packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[0], v[1], 1.0f, 0);
  packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[2], v[3], 1.0f, 1);
  packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[4], v[5], 1.0f, 2);
  packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[6], v[7], 1.0f, 3);
  return packed;
#else
  unsigned packed = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) packed |= encode_nearest<e2m1>(v[i]) << 4 * i;
  return packed;
#endif
}

// Values of four FP8 codes; NaN and infinity as the encoding has them.
template <class F>
TURBO_DEVICE vec<float, 4> decode4(unsigned packed) {
  return decode_fp8x4<F>(packed);
}

// Values of eight e2m1 codes. The three bits of magnitude, placed in a float as its lowest exponent bits and highest
// mantissa bit, are the value times 2^-126, the subnormal one included.
TURBO_DEVICE vec<float, 8> decode_fp4x8(unsigned packed) {
  vec<float, 8> v;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const unsigned code = packed >> 4 * i;
    v[i] = bits<float>((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
  }
  return v;
}

}  // namespace turbo_quant
