// SPDX-License-Identifier: MIT
//
// Element types and their conversions. Arithmetic is in float32; a 16-bit element is rounded once, when it is stored.
//
// The types are clang's own (__bf16, _Float16), so a conversion is a cast and the compiler picks the instruction:
//   float -> bf16   round to nearest even: v_cvt_pk_bf16_f32 on gfx950; a carry trick of four v_* on gfx942
//   float -> fp16   v_cvt_f16_f32 (MODE.round, nearest even by default)
//   bf16  -> float  a shift by 16 bits
//   fp16  -> float  v_cvt_f32_f16
// NaN stays NaN and infinity stays infinity; a float beyond the largest fp16 becomes infinity.
#pragma once

#include "turbo/arch.h"

namespace turbo {

using bf16 = __bf16;
using fp16 = _Float16;

// N elements of T in consecutive registers.
template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

// Memory spaces. A pointer that says `global` is read with global_load_*, which waits on vmcnt alone; an unqualified
// one may need flat_load_*, which occupies the LDS counter (lgkmcnt) too. Pointers inside a kernel's argument struct
// are not qualified by the compiler, hence this alias.
template <class T>
using global = T __attribute__((address_space(1)));
template <class T>
using local = T __attribute__((address_space(3)));

template <class T, int N>
TURBO_DEVICE vec<float, N> to_float(vec<T, N> x) {
  return __builtin_convertvector(x, vec<float, N>);
}

template <class T, int N>
TURBO_DEVICE vec<T, N> from_float(vec<float, N> x) {
  return __builtin_convertvector(x, vec<T, N>);
}

TURBO_DEVICE float to_float(bf16 x) { return static_cast<float>(x); }
TURBO_DEVICE float to_float(fp16 x) { return static_cast<float>(x); }
TURBO_DEVICE float to_float(float x) { return x; }

template <class T>
TURBO_DEVICE T from_float(float x) {
  return static_cast<T>(x);
}

// Bits of one type seen as another of the same size; costs nothing.
template <class To, class From>
TURBO_DEVICE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits() changes the type, not the size");
  return __builtin_bit_cast(To, x);
}

// Tells the optimiser that x may have changed; no instruction. What is computed from x after this is computed again, where
// it would otherwise be kept in registers from before: a row of 16-bit elements kept as it is takes half of the registers
// of the same row kept as floats.
template <class T, int N>
TURBO_DEVICE void forget(vec<T, N> &x) {
  auto raw = bits<vec<int, N * sizeof(T) / 4>>(x);
  asm volatile("" : "+v"(raw));
  x = bits<vec<T, N>>(raw);
}

// 1 / sqrt(x) for x >= 0, within 2 ulp, subnormal x included; 0 gives inf, inf gives 0, NaN stays. v_rsq_f32 reads a
// subnormal as 0, so such an x is scaled by 2^100 first and the result by its root, 2^50.
TURBO_DEVICE float rsqrt(float x) {
  const bool tiny = x < 0x1p-100f;
  const float root = __builtin_amdgcn_rsqf(tiny ? x * 0x1p100f : x);
  return tiny ? root * 0x1p50f : root;
}

}  // namespace turbo
