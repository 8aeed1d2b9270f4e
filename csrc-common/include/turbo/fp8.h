// SPDX-License-Identifier: MIT
//
// FP8 conversions of four elements at a time, packed into 32 bits (element 0 in the lowest byte).
//
// Where the encoding is the architecture's own (FNUZ on gfx942, OCP on gfx950) they are two instructions each way:
//   v_cvt_pk_fp8_f32, v_cvt_pk_bf8_f32   two floats to two bytes, in the low or high half of the result
//   v_cvt_pk_f32_fp8, v_cvt_pk_f32_bf8   and back
// For the other encoding the arithmetic of fp8_codec.h runs on the VALU, about ten instructions an element.
#pragma once

#include "turbo/fp8_codec.h"
#include "turbo/types.h"

namespace turbo {

// The encodings of the matrix units.
#if defined(__gfx950__)
using mfma_fp8 = fp8_e4m3;
using mfma_bf8 = fp8_e5m2;
#else
using mfma_fp8 = fp8_e4m3_fnuz;
using mfma_bf8 = fp8_e5m2_fnuz;
#endif

// x within +- the largest value; NaN stays NaN. v_med3_f32 alone would turn a NaN into a number.
template <class F>
TURBO_DEVICE float clamp_fp8(float x) {
  return x != x ? x : __builtin_amdgcn_fmed3f(x, -F::largest, F::largest);
}

// Codes of four floats, nearest even, saturating.
template <class F>
TURBO_DEVICE unsigned encode_fp8(vec<float, 4> x) {
  if constexpr (F::fnuz == kFp8IsFnuz) {
    // Clamped first: the instructions saturate only when MODE.FP16_OVFL is set, which a kernel here does not rely on.
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = clamp_fp8<F>(x[i]);
    int packed = 0;
    if constexpr (F::mantissa == 3) {
      packed = __builtin_amdgcn_cvt_pk_fp8_f32(x[0], x[1], packed, false);
      packed = __builtin_amdgcn_cvt_pk_fp8_f32(x[2], x[3], packed, true);
    } else {
      packed = __builtin_amdgcn_cvt_pk_bf8_f32(x[0], x[1], packed, false);
      packed = __builtin_amdgcn_cvt_pk_bf8_f32(x[2], x[3], packed, true);
    }
    return static_cast<unsigned>(packed);
  } else {
    unsigned packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed |= encode_fp8<F, true>(x[i]) << 8 * i;
    return packed;
  }
}

template <class F>
TURBO_DEVICE vec<float, 4> decode_fp8x4(unsigned packed) {
  if constexpr (F::fnuz == kFp8IsFnuz) {
    vec<float, 2> low, high;
    if constexpr (F::mantissa == 3) {
      low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(packed), false);
      high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(packed), true);
    } else {
      low = __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<int>(packed), false);
      high = __builtin_amdgcn_cvt_pk_f32_bf8(static_cast<int>(packed), true);
    }
    return __builtin_shufflevector(low, high, 0, 1, 2, 3);
  } else {
    vec<float, 4> x;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = decode_fp8<F>(packed >> 8 * i & 0xff);
    return x;
  }
}

}  // namespace turbo
