// SPDX-License-Identifier: MIT
//
// Vector loads and stores of 2 to 16 bytes: global_load_ushort / _dword / _dwordx2 / _dwordx4 and their stores for
// pointers to `global`, ds_read_* and ds_write_* for pointers to `local`.
//
// 16 bytes a lane is the widest access, and what a memory-bound kernel should use: a wave then moves 1 KiB with one
// instruction, eight whole 128-byte cache lines. The address must be a multiple of the access; `aligned` tells.
#pragma once

#include "turbo/types.h"

namespace turbo {

constexpr int kMaxAccessBytes = 16;

// Elements of T in one widest access.
template <class T>
constexpr int kVectorOf = kMaxAccessBytes / static_cast<int>(sizeof(T));

template <int N, class T>
constexpr void check_access() {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16,
                "an access is 1, 2, 4, 8 or 16 bytes");
}

// N elements at p[0..N).
template <int N, class T>
TURBO_DEVICE vec<T, N> load(const global<T> *p) {
  check_access<N, T>();
  return *reinterpret_cast<const global<vec<T, N>> *>(p);
}

template <int N, class T>
TURBO_DEVICE void store(global<T> *p, vec<T, N> x) {
  check_access<N, T>();
  *reinterpret_cast<global<vec<T, N>> *>(p) = x;
}

template <int N, class T>
TURBO_DEVICE vec<T, N> load(const local<T> *p) {
  check_access<N, T>();
  return *reinterpret_cast<const local<vec<T, N>> *>(p);
}

template <int N, class T>
TURBO_DEVICE void store(local<T> *p, vec<T, N> x) {
  check_access<N, T>();
  *reinterpret_cast<local<vec<T, N>> *>(p) = x;
}

// Data that no other kernel will read soon: the `nt` bit lets it leave the L2 first.
template <int N, class T>
TURBO_DEVICE vec<T, N> load_streaming(const global<T> *p) {
  check_access<N, T>();
  return __builtin_nontemporal_load(reinterpret_cast<const global<vec<T, N>> *>(p));
}

template <int N, class T>
TURBO_DEVICE void store_streaming(global<T> *p, vec<T, N> x) {
  check_access<N, T>();
  __builtin_nontemporal_store(x, reinterpret_cast<global<vec<T, N>> *>(p));
}

template <class T>
TURBO_DEVICE bool aligned(const global<T> *p, int bytes) {
  return reinterpret_cast<unsigned long>(p) % static_cast<unsigned long>(bytes) == 0;
}

// --- sums over a vector ----------------------------------------------------------------------------------------------

template <int N>
TURBO_DEVICE float sum(vec<float, N> x) {
  float total = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) total += x[i];
  return total;
}

// sum of a[i] * b[i] on top of `total`: N v_fma_f32.
template <int N>
TURBO_DEVICE float dot(vec<float, N> a, vec<float, N> b, float total) {
#pragma unroll
  for (int i = 0; i < N; ++i) total = __builtin_fmaf(a[i], b[i], total);
  return total;
}

}  // namespace turbo
