// SPDX-License-Identifier: MIT
//
// RMSNorm and LayerNorm forward, with an optional residual.
//
//   s    = round(x + residual)                     [rows, dim], dtype of x; s = x and not written without a residual
//   mean = LayerNorm: mean(s), RMSNorm: 0          [rows], float32; written by LayerNorm
//   rstd = 1 / sqrt(mean((s - mean)^2) + eps)      [rows], float32
//   y    = round((s - mean) * rstd * (offset + gamma) + beta)
//                                                  [rows, dim], dtype of x; gamma and beta [dim] of their own dtypes or
//                                                  absent; RMSNorm has no beta
//
// float32 arithmetic, one rounding per stored element, sums in a fixed order. The variance is a mean of squares of
// centred values, never a difference of two large sums. Memory-bound: x (and residual) in, y (and s) out, 2 or 4
// accesses of the row; gamma and beta stay in the caches. NaN and infinity go where the formula sends them.
#pragma once

#include "norm_device.h"

namespace turbo_norm_act {

template <class T>
struct ForwardRow {
  const global<T> *x, *residual;
  global<T> *y, *s;

  __device__ ForwardRow(const NormForward &a, long long row)
      : x((const global<T> *)a.x + row * a.x_stride),
        residual(a.residual ? (const global<T> *)a.residual + row * a.residual_stride : nullptr),
        y((global<T> *)a.y + row * a.dim),
        s((global<T> *)a.s + row * a.dim) {}
};

// Rounded before it is used: the backward starts from the s that is stored.
template <class T, int N>
TURBO_DEVICE vec<T, N> add(vec<T, N> x, vec<T, N> residual) {
  return from_float<T, N>(to_float<T, N>(x) + to_float<T, N>(residual));
}

template <bool Center, class T, int N>
TURBO_DEVICE void write_y(const NormForward &a, global<T> *y, int at, vec<T, N> s, float mean, float rstd) {
  const vec<float, N> g = gamma_factor<N>(a.gamma, a.gamma_type, a.gamma_offset, at);
  vec<float, N> value = to_float<T, N>(s);
  if constexpr (Center) value -= mean;
  value = value * rstd * g;
  if constexpr (Center) {
    if (a.beta != nullptr) value += parameter<N>(a.beta, a.beta_type, at);
  }
  store<N>(y + at, from_float<T, N>(value));
}

// Returns rstd; `squares` is the row's sum of (s - mean)^2. The work-item with the row's first element writes.
template <bool Center>
TURBO_DEVICE float write_statistics(const NormForward &a, long long row, int thread, float mean, float squares) {
  const float rstd = rsqrt(squares / a.dim + a.eps);
  if (thread == 0) {
    a.rstd[row] = rstd;
    if constexpr (Center) a.mean[row] = mean;
  }
  return rstd;
}

// --- a row in registers ----------------------------------------------------------------------------------------------

template <bool Center, class T, int RowThreads, int Chunks>
TURBO_DEVICE void forward_in_registers(const NormForward &a) {
  constexpr int N = kVectorOf<T>;
  __shared__ typename BlockReduce<RowThreads>::Slots slots;
  unsigned call = 0;
  for (long long row = first_row<RowThreads>(); row < a.rows; row += (long long)a.blocks * kRowsPerBlock<RowThreads>) {
    const int thread = thread_of_row<Center>(thread_in_row<RowThreads>());
    const ForwardRow<T> p(a, row);
    vec<T, N> kept[Chunks];
    load_row<RowThreads>(kept, p.x, thread, a.dim);
    if (p.residual != nullptr) {
      // All loads before the first store: the compiler must assume that s overlaps what is still to be read, and one
      // chunk would wait for the other.
      vec<T, N> added[Chunks];
      load_row<RowThreads>(added, p.residual, thread, a.dim);
#pragma unroll
      for (int c = 0; c < Chunks; ++c) {
        const int at = (c * RowThreads + thread) * N;
        kept[c] = add<T, N>(kept[c], added[c]);
        if (at < a.dim) store<N>(p.s + at, kept[c]);
      }
    }
    float mean = 0.0f;
    if constexpr (Center) {
#pragma unroll
      for (int c = 0; c < Chunks; ++c) mean += sum<N>(to_float<T, N>(kept[c]));
      mean = row_sum<RowThreads>(mean, slots, call++) / a.dim;
    }
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if constexpr (Center) {
        forget<T, N>(kept[c]);
        const vec<float, N> s = to_float<T, N>(kept[c]) - mean;
        const int at = (c * RowThreads + thread) * N;
        if (at < a.dim) squares = dot<N>(s, s, squares);
      } else {  // what lies past the row's end is 0
        const vec<float, N> s = to_float<T, N>(kept[c]);
        squares = dot<N>(s, s, squares);
      }
    }
    squares = row_sum<RowThreads>(squares, slots, call++);
    const float rstd = write_statistics<Center>(a, row, thread, mean, squares);
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      forget<T, N>(kept[c]);
      if (at < a.dim) write_y<Center, T, N>(a, p.y, at, kept[c], mean, rstd);
    }
  }
}

// --- a row of any length, read twice ---------------------------------------------------------------------------------

// Mean and sum of squared distances from it of what a work-item has read, kept up access by access (Welford, Chan): the
// row is read once for both, and large values of one sign cost no precision.
struct Moments {
  float accesses, mean, squares;

  // N more values: their own mean and squares, joined with those so far by Chan's formula. It wants 1 / accesses, for
  // which v_rcp_f32 is good: an ulp of the weight is an ulp of what the mean moves by.
  template <int N>
  TURBO_MEMBER void add(vec<float, N> values) {
    const float own_mean = sum<N>(values) * (1.0f / N);
    const vec<float, N> distances = values - own_mean;
    const float weight = __builtin_amdgcn_rcpf(accesses + 1.0f), delta = own_mean - mean;
    squares = dot<N>(distances, distances, squares) + delta * delta * (accesses * weight * N);
    mean += delta * weight;
    accesses += 1.0f;
  }
};

template <bool Center, class T, int N>
TURBO_DEVICE void forward_loop(const NormForward &a) {
  __shared__ typename BlockReduce<kLoopThreads>::Slots slots;
  unsigned call = 0;
  for (long long row = block_index(); row < a.rows; row += a.blocks) {
    const ForwardRow<T> p(a, row);
    Moments moments = {};
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N) {
      vec<T, N> value = load<N>(p.x + at);
      if (p.residual != nullptr) {
        value = add<T, N>(value, load<N>(p.residual + at));
        store<N>(p.s + at, value);
      }
      const vec<float, N> s = to_float<T, N>(value);
      if constexpr (Center) {
        moments.add<N>(s);
      } else {
        moments.squares = dot<N>(s, s, moments.squares);
      }
    }
    float mean = 0.0f;
    if constexpr (Center) {  // Chan's formula for all work-items at once
      const float count = moments.accesses * N;
      mean = row_sum<kLoopThreads>(count * moments.mean, slots, call++) / a.dim;
      const float delta = moments.mean - mean;
      moments.squares += count * delta * delta;
    }
    const float squares = row_sum<kLoopThreads>(moments.squares, slots, call++);
    const float rstd = write_statistics<Center>(a, row, thread_index(), mean, squares);
    // Each work-item reads back what it wrote itself, so s needs no fence.
    const global<T> *s = p.residual != nullptr ? p.s : p.x;
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N)
      write_y<Center, T, N>(a, p.y, at, load<N>(s + at), mean, rstd);
  }
}

}  // namespace turbo_norm_act

// --- the kernels of the table ----------------------------------------------------------------------------------------

using namespace turbo_norm_act;

// 4 waves a SIMD, so 128 registers a lane: what a work-group of 1024 needs to be launched at all, and enough waves to
// hide the latency of memory for the smaller ones.
#define TURBO_NORM_FORWARD_REGISTERS(norm, center, type, T, threads, chunks)                            \
  TURBO_KERNEL(kThreads<threads>, 4) void norm##_forward_##type##_##threads##x##chunks(NormForward a) { \
    forward_in_registers<center, T, threads, chunks>(a);                                                \
  }
#define TURBO_NORM_FORWARD_OF_TYPE(norm, center, type, T)                                 \
  TURBO_NORM_FORWARD_TABLE(TURBO_NORM_FORWARD_REGISTERS, norm, center, type, T)           \
  TURBO_KERNEL(kLoopThreads, 4) void norm##_forward_##type##_loop_vector(NormForward a) { \
    forward_loop<center, T, kVectorOf<T>>(a);                                             \
  }                                                                                       \
  TURBO_KERNEL(kLoopThreads, 4) void norm##_forward_##type##_loop_scalar(NormForward a) { \
    forward_loop<center, T, 1>(a);                                                        \
  }
