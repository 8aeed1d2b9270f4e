// SPDX-License-Identifier: MIT
//
// Pieces that the forward and the backward kernels of RMSNorm and LayerNorm share. A template's `Center` says which:
// LayerNorm subtracts the mean of the row and adds beta.
#pragma once

#include "norm_args.h"
#include "turbo/abi.h"
#include "turbo/vec.h"
#include "turbo/wave.h"

namespace turbo_norm_act {

using namespace turbo;

// TURBO_DEVICE of a member function.
#define TURBO_MEMBER __device__ __attribute__((always_inline))

// Work-groups of 256 hold four rows when a row has one wave, else a work-group has one row.
template <int RowThreads>
constexpr int kThreads = RowThreads == kWaveSize ? kWaveSize * kRowsPerWaveBlock : RowThreads;
template <int RowThreads>
constexpr int kRowsPerBlock = RowThreads == kWaveSize ? kRowsPerWaveBlock : 1;

template <int RowThreads>
TURBO_DEVICE int thread_in_row() {
  return RowThreads == kWaveSize ? lane_index() : thread_index();
}

// First row of this work-item; the next one is blocks * kRowsPerBlock further. Uniform over a wave.
template <int RowThreads>
TURBO_DEVICE long long first_row() {
  return RowThreads == kWaveSize ? (long long)block_index() * kRowsPerWaveBlock + wave_index()
                                 : (long long)block_index();
}

// thread_in_row for one row. To LayerNorm's kernels it is a new value in each row: what follows from it, such as the
// addresses of gamma and beta in each type and chunk, would else be kept in registers from row to row, and spill.
template <bool Center>
TURBO_DEVICE int thread_of_row(int thread) {
  if constexpr (Center) asm volatile("" : "+v"(thread));
  return thread;
}

template <int RowThreads>
TURBO_DEVICE float row_sum(float x, typename BlockReduce<RowThreads>::Slots &slots, unsigned call) {
  return BlockReduce<RowThreads>::template apply<Sum>(x, slots, call);
}

template <int N, class T>
TURBO_DEVICE vec<float, N> load_as_float(global<const void> *p, int at) {
  return to_float<T, N>(load<N>((global<const T> *)p + at));
}

// The chunks of a row that belong to this work-item, all loads under way together; zero past the row's end.
template <int RowThreads, class T, int N, int Chunks>
TURBO_DEVICE void load_row(vec<T, N> (&to)[Chunks], const global<T> *row, int thread, int dim) {
#pragma unroll
  for (int c = 0; c < Chunks; ++c) {
    const int at = (c * RowThreads + thread) * N;
    to[c] = at < dim ? load<N>(row + at) : vec<T, N>(0);
  }
}

// N consecutive floats: 16 bytes an access.
template <int N>
TURBO_DEVICE void store_floats(global<float> *p, vec<float, N> x) {
  if constexpr (N == 8) {
    // Named first: to clang 19 the shuffle is a vector of another kind, which a template does not match.
    const vec<float, 4> low = __builtin_shufflevector(x, x, 0, 1, 2, 3);
    const vec<float, 4> high = __builtin_shufflevector(x, x, 4, 5, 6, 7);
    store<4>(p, low);
    store<4>(p + 4, high);
  } else {
    store<N>(p, x);
  }
}

// gamma or beta at [at .. at+N). Its type is an argument, not a template parameter: the branch is scalar and costs
// nothing beside a load, and the number of kernels stays a fourth.
template <int N>
TURBO_DEVICE vec<float, N> parameter(global<const void> *values, int type, int at) {
  if (type == TURBO_BFLOAT16) return load_as_float<N, bf16>(values, at);
  if (type == TURBO_FLOAT16) return load_as_float<N, fp16>(values, at);
  if constexpr (N == 8) {  // 32 bytes: two accesses
    const auto *p = (global<const float> *)values + at;
    return __builtin_shufflevector(load<4>(p), load<4>(p + 4), 0, 1, 2, 3, 4, 5, 6, 7);
  } else {
    return load<N>((global<const float> *)values + at);
  }
}

// The factor that gamma[at .. at+N) is.
template <int N>
TURBO_DEVICE vec<float, N> gamma_factor(global<const void> *gamma, int type, float offset, int at) {
  if (gamma == nullptr) return vec<float, N>(1.0f);
  return parameter<N>(gamma, type, at) + offset;
}

}  // namespace turbo_norm_act
