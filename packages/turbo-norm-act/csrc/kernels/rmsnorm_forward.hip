// SPDX-License-Identifier: MIT
//
// RMSNorm forward, with an optional residual.
//
//   s    = round(x + residual)                [rows, dim], dtype of x; s = x and not written when there is no residual
//   rstd = 1 / sqrt(mean(s^2) + eps)          [rows], float32
//   y    = round(s * rstd * (offset + gamma)) [rows, dim], dtype of x; gamma [dim] of its own dtype or absent
//
// float32 arithmetic, one rounding per stored element, sums in a fixed order. Memory-bound: x (and residual) in, y
// (and s) out, 2 or 4 accesses of the row; gamma stays in the caches. NaN and infinity go where the formula sends
// them.
#include "rmsnorm_device.h"

namespace turbo_norm_act {

template <class T>
struct ForwardRow {
  const global<T> *x, *residual;
  global<T> *y, *s;

  __device__ ForwardRow(const RmsnormForward &a, long long row)
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

template <class T, int N>
TURBO_DEVICE void write_y(const RmsnormForward &a, global<T> *y, int at, vec<T, N> s, float rstd) {
  const vec<float, N> g = gamma_factor<N>(a.gamma, a.gamma_type, a.gamma_offset, at);
  store<N>(y + at, from_float<T, N>(to_float<T, N>(s) * rstd * g));
}

// --- a row in registers ----------------------------------------------------------------------------------------------

template <class T, int RowThreads, int Chunks>
TURBO_DEVICE void forward_in_registers(const RmsnormForward &a) {
  constexpr int N = kVectorOf<T>;
  __shared__ typename BlockReduce<RowThreads>::Slots slots;
  const int thread = thread_in_row<RowThreads>();
  unsigned call = 0;
  for (long long row = first_row<RowThreads>(); row < a.rows; row += (long long)a.blocks * kRowsPerBlock<RowThreads>) {
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
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const vec<float, N> s = to_float<T, N>(kept[c]);
      squares = dot<N>(s, s, squares);
    }
    squares = row_sum<RowThreads>(squares, slots, call++);
    const float rstd = rsqrt(squares / a.dim + a.eps);
    if (thread == 0) a.rstd[row] = rstd;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      forget<T, N>(kept[c]);
      if (at < a.dim) write_y<T, N>(a, p.y, at, kept[c], rstd);
    }
  }
}

// --- a row of any length, read twice ---------------------------------------------------------------------------------

template <class T, int N>
TURBO_DEVICE void forward_loop(const RmsnormForward &a) {
  __shared__ typename BlockReduce<kLoopThreads>::Slots slots;
  unsigned call = 0;
  for (long long row = block_index(); row < a.rows; row += a.blocks) {
    const ForwardRow<T> p(a, row);
    float squares = 0.0f;
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N) {
      vec<T, N> value = load<N>(p.x + at);
      if (p.residual != nullptr) {
        value = add<T, N>(value, load<N>(p.residual + at));
        store<N>(p.s + at, value);
      }
      const vec<float, N> s = to_float<T, N>(value);
      squares = dot<N>(s, s, squares);
    }
    squares = row_sum<kLoopThreads>(squares, slots, call++);
    const float rstd = rsqrt(squares / a.dim + a.eps);
    if (thread_index() == 0) a.rstd[row] = rstd;
    // Each work-item reads back what it wrote itself, so s needs no fence.
    const global<T> *s = p.residual != nullptr ? p.s : p.x;
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N)
      write_y<T, N>(a, p.y, at, load<N>(s + at), rstd);
  }
}

}  // namespace turbo_norm_act

// --- the kernels of the table ----------------------------------------------------------------------------------------

using namespace turbo_norm_act;

// 4 waves a SIMD, so 128 registers a lane: what a work-group of 1024 needs to be launched at all, and enough waves to
// hide the latency of memory for the smaller ones.
#define REGISTERS(type, T, threads, chunks)                                                                 \
  TURBO_KERNEL(kThreads<threads>, 4) void rmsnorm_forward_##type##_##threads##x##chunks(RmsnormForward a) { \
    forward_in_registers<T, threads, chunks>(a);                                                            \
  }
#define LOOPS(type, T)                                                                        \
  TURBO_KERNEL(kLoopThreads, 4) void rmsnorm_forward_##type##_loop_vector(RmsnormForward a) { \
    forward_loop<T, kVectorOf<T>>(a);                                                         \
  }                                                                                           \
  TURBO_KERNEL(kLoopThreads, 4) void rmsnorm_forward_##type##_loop_scalar(RmsnormForward a) { forward_loop<T, 1>(a); }

#define BF16(threads, chunks) REGISTERS(bf16, bf16, threads, chunks)
#define FP16(threads, chunks) REGISTERS(fp16, fp16, threads, chunks)
#define FP32(threads, chunks) REGISTERS(fp32, float, threads, chunks)
TURBO_RMSNORM_FORWARD_TABLE(BF16)
TURBO_RMSNORM_FORWARD_TABLE(FP16)
TURBO_RMSNORM_FORWARD_TABLE(FP32)
LOOPS(bf16, bf16)
LOOPS(fp16, fp16)
LOOPS(fp32, float)
