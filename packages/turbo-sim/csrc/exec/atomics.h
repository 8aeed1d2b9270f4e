// SPDX-License-Identifier: MIT
// What an atomic writes: new value from (memory, first data operand, second data operand). Shared by LDS, buffer and
// flat. Float atomics round to nearest even and keep subnormals.
#pragma once

#include "numerics/formats.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace turbo_sim::atomics {

template <class T>
using Next = T (*)(T mem, T a, T b);

template <class T>
T swap(T, T a, T) {
  return a;
}
template <class T>
T add(T m, T a, T) {
  return m + a;
}
template <class T>
T sub(T m, T a, T) {
  return m - a;
}
template <class T>
T rsub(T m, T a, T) {
  return a - m;
}
template <class T>
T umin(T m, T a, T) {
  return a < m ? a : m;
}
template <class T>
T umax(T m, T a, T) {
  return a > m ? a : m;
}
template <class T>
T smin(T m, T a, T) {
  return std::make_signed_t<T>(a) < std::make_signed_t<T>(m) ? a : m;
}
template <class T>
T smax(T m, T a, T) {
  return std::make_signed_t<T>(a) > std::make_signed_t<T>(m) ? a : m;
}
template <class T>
T bit_and(T m, T a, T) {
  return m & a;
}
template <class T>
T bit_or(T m, T a, T) {
  return m | a;
}
template <class T>
T bit_xor(T m, T a, T) {
  return m ^ a;
}
template <class T>
T inc(T m, T a, T) {
  return m >= a ? 0 : m + 1;
}
template <class T>
T dec(T m, T a, T) {
  return m == 0 || m > a ? a : m - 1;
}

/// VMEM order of operands: new value, then what to compare with.
template <class T>
T cmpswap(T m, T value, T compare) {
  return m == compare ? value : m;
}
/// DS order: what to compare with, then the new value.
template <class T>
T cmpst(T m, T compare, T value) {
  return m == compare ? value : m;
}
template <class T>
T mskor(T m, T mask, T value) {
  return (m & ~mask) | value;
}
template <class T>
T wrap(T m, T a, T b) {
  return m >= a ? m - a : m + b;
}

template <class T>
using FloatOf = std::conditional_t<sizeof(T) == 4, float, double>;
template <class T>
FloatOf<T> as_float(T bits) {
  return std::bit_cast<FloatOf<T>>(bits);
}
template <class T>
T as_bits(FloatOf<T> v) {
  return std::bit_cast<T>(v);
}

template <class T>
T fadd(T m, T a, T) {
  return as_bits<T>(as_float<T>(m) + as_float<T>(a));
}
template <class T>
T fmin(T m, T a, T) {
  return as_bits<T>(std::fmin(as_float<T>(a), as_float<T>(m)));
}
template <class T>
T fmax(T m, T a, T) {
  return as_bits<T>(std::fmax(as_float<T>(a), as_float<T>(m)));
}
template <class T>
T fcmpst(T m, T compare, T value) {
  return as_float<T>(m) == as_float<T>(compare) ? value : m;
}

inline uint32_t pk_add_f16(uint32_t m, uint32_t a, uint32_t) {
  const uint32_t low = f32_to_f16(f16_to_f32(m & 0xffff) + f16_to_f32(a & 0xffff));
  return low | f32_to_f16(f16_to_f32(m >> 16) + f16_to_f32(a >> 16)) << 16;
}
inline uint32_t pk_add_bf16(uint32_t m, uint32_t a, uint32_t) {
  const uint32_t low = f32_to_bf16(bf16_to_f32(m & 0xffff) + bf16_to_f32(a & 0xffff));
  return low | f32_to_bf16(bf16_to_f32(m >> 16) + bf16_to_f32(a >> 16)) << 16;
}

}  // namespace turbo_sim::atomics
