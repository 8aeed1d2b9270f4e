// SPDX-License-Identifier: MIT
//
// Matrix instructions of a wave: D = A B + C with A [M, K], B [K, N], C and D [M, N] float32, spread over 64 lanes.
//
// Names are the instructions': mfma_f32_<M>x<N>x<K>_<type>. Layouts, for lane l (verified in products with an
// independent reference; r is the register, E the elements a lane holds):
//
//            A: lane l has            B: lane l has            C, D: register r of lane l is
//   16x16    row l % 16               column l % 16            row 4 * (l / 16) + r,                     column l % 16
//   32x32    row l % 32               column l % 32            row 8 * (r / 4) + 4 * (l / 32) + r % 4,   column l % 32
//
// along K, lane group g = l / 16 (or l / 32) has the E adjacent elements k = E * g ... E * g + E - 1. A and B have
// the same order, so a kernel may permute K as it likes as long as it permutes both.
#pragma once

#include "turbo/types.h"

namespace turbo {

using f32x4 = vec<float, 4>;
using f32x16 = vec<float, 16>;

namespace detail {
// The gfx942 builtins for bf16 take shorts.
using s16x4 = short __attribute__((ext_vector_type(4)));

template <int First, class T>
TURBO_DEVICE vec<T, 4> half_of(vec<T, 8> x) {
  return __builtin_shufflevector(x, x, First, First + 1, First + 2, First + 3);
}
}  // namespace detail

// --- float32: E = 1, full precision ----------------------------------------------------------------------------------

TURBO_DEVICE f32x4 mfma_f32_16x16x4_f32(float a, float b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
}
TURBO_DEVICE f32x16 mfma_f32_32x32x2_f32(float a, float b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, 0, 0, 0);
}

// --- 16 bits, E = 4: both architectures ------------------------------------------------------------------------------

TURBO_DEVICE f32x4 mfma_f32_16x16x16_bf16(vec<bf16, 4> a, vec<bf16, 4> b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits<detail::s16x4>(a), bits<detail::s16x4>(b), c, 0, 0, 0);
}
TURBO_DEVICE f32x4 mfma_f32_16x16x16_fp16(vec<fp16, 4> a, vec<fp16, 4> b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
}
TURBO_DEVICE f32x16 mfma_f32_32x32x8_bf16(vec<bf16, 4> a, vec<bf16, 4> b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(bits<detail::s16x4>(a), bits<detail::s16x4>(b), c, 0, 0, 0);
}
TURBO_DEVICE f32x16 mfma_f32_32x32x8_fp16(vec<fp16, 4> a, vec<fp16, 4> b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
}

// --- 16 bits, E = 8 --------------------------------------------------------------------------------------------------
// gfx950 has them, at twice the rate of those above. gfx942 does the first and the second four elements of each lane
// one after the other: other k in each step, the same k in all.

TURBO_DEVICE f32x4 mfma_f32_16x16x32_bf16(vec<bf16, 8> a, vec<bf16, 8> b, f32x4 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
#else
  c = mfma_f32_16x16x16_bf16(detail::half_of<0>(a), detail::half_of<0>(b), c);
  return mfma_f32_16x16x16_bf16(detail::half_of<4>(a), detail::half_of<4>(b), c);
#endif
}
TURBO_DEVICE f32x4 mfma_f32_16x16x32_fp16(vec<fp16, 8> a, vec<fp16, 8> b, f32x4 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
#else
  c = mfma_f32_16x16x16_fp16(detail::half_of<0>(a), detail::half_of<0>(b), c);
  return mfma_f32_16x16x16_fp16(detail::half_of<4>(a), detail::half_of<4>(b), c);
#endif
}
TURBO_DEVICE f32x16 mfma_f32_32x32x16_bf16(vec<bf16, 8> a, vec<bf16, 8> b, f32x16 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0);
#else
  c = mfma_f32_32x32x8_bf16(detail::half_of<0>(a), detail::half_of<0>(b), c);
  return mfma_f32_32x32x8_bf16(detail::half_of<4>(a), detail::half_of<4>(b), c);
#endif
}
TURBO_DEVICE f32x16 mfma_f32_32x32x16_fp16(vec<fp16, 8> a, vec<fp16, 8> b, f32x16 c) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0);
#else
  c = mfma_f32_32x32x8_fp16(detail::half_of<0>(a), detail::half_of<0>(b), c);
  return mfma_f32_32x32x8_fp16(detail::half_of<4>(a), detail::half_of<4>(b), c);
#endif
}

// --- 8 bits, E = 8 bytes in 64 bits ----------------------------------------------------------------------------------
// fp8 is e4m3 and bf8 e5m2, in the architecture's encoding (turbo/fp8.h: FNUZ on gfx942, OCP on gfx950).

#define TURBO_MFMA_FP8(a_type, b_type)                                                  \
  TURBO_DEVICE f32x4 mfma_f32_16x16x32_##a_type##_##b_type(long a, long b, f32x4 c) {   \
    return __builtin_amdgcn_mfma_f32_16x16x32_##a_type##_##b_type(a, b, c, 0, 0, 0);    \
  }                                                                                     \
  TURBO_DEVICE f32x16 mfma_f32_32x32x16_##a_type##_##b_type(long a, long b, f32x16 c) { \
    return __builtin_amdgcn_mfma_f32_32x32x16_##a_type##_##b_type(a, b, c, 0, 0, 0);    \
  }
TURBO_MFMA_FP8(fp8, fp8)
TURBO_MFMA_FP8(fp8, bf8)
TURBO_MFMA_FP8(bf8, fp8)
TURBO_MFMA_FP8(bf8, bf8)
#undef TURBO_MFMA_FP8

// --- 8, 6 and 4 bits with block scales (gfx950) ----------------------------------------------------------------------
//
// mfma_scale_f32_16x16x128 and _32x32x64: each block of 32 along K has a scale 2^(s - 127), s an e8m0 byte.
// Operands are 32 bytes a lane. With g = l / 16 (or l / 32):
//   fp8, bf8   bytes 0-15 are k = 16 * g + i, bytes 16-31 are k = K / 2 + 16 * g + i: the K order is split
//   fp4        32 adjacent k = 32 * g + i in the first 16 bytes, low nibble first; the other 16 bytes are unused
// Scale: the selected byte of lane l is that of row (column) l % 16 (l % 32) and of block g; for 8-bit types that is
// not the block which the lane's own bytes come from.
#if defined(__gfx950__)
enum class MxType { fp8 = 0, bf8 = 1, fp6 = 2, bf6 = 3, fp4 = 4 };
using mx_operand = vec<int, 8>;

// ByteA and ByteB choose the scale byte (0 to 3) in scale_a and scale_b.
template <MxType A, MxType B, int ByteA = 0, int ByteB = 0>
TURBO_DEVICE f32x4 mfma_scale_f32_16x16x128(mx_operand a, mx_operand b, f32x4 c, int scale_a, int scale_b) {
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a, b, c, int(A), int(B), ByteA, scale_a, ByteB, scale_b);
}
template <MxType A, MxType B, int ByteA = 0, int ByteB = 0>
TURBO_DEVICE f32x16 mfma_scale_f32_32x32x64(mx_operand a, mx_operand b, f32x16 c, int scale_a, int scale_b) {
  return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a, b, c, int(A), int(B), ByteA, scale_a, ByteB, scale_b);
}
#endif

}  // namespace turbo
