// SPDX-License-Identifier: MIT
//
// scale_rows, forward and backward.
//
//   y[r, d]   = round(x[r, d] * scale[r] + residual[r, d])    x, residual, y [rows, dim] of one dtype; residual optional
//   dx[r, d]  = round(dy[r, d] * scale[r])                    dy, dx [rows, dim] of that dtype; dx optional
//   dscale[r] = round(sum over d of dy[r, d] * x[r, d])       scale, dscale [rows] of a dtype of their own; optional
//
// float32 arithmetic, one rounding per stored element. Memory-bound. A wave has a row: 64 lanes move 1 KiB with one
// access, so rows of 1 KiB and more keep whole cache lines busy, and the sum of a row needs no LDS. A lane adds up its
// own columns first, then the wave by DPP: the order is fixed, and results are equal bit for bit.
#include "scale_rows_args.h"
#include "turbo/abi.h"
#include "turbo/vec.h"
#include "turbo/wave.h"

namespace turbo_template {

using namespace turbo;

// The type is an argument, not a template parameter: one scalar branch a row, and a third of the kernels.
TURBO_DEVICE float load_scale(global<const void> *scale, int type, long long row) {
  if (type == TURBO_BFLOAT16) return to_float(((global<const bf16> *)scale)[row]);
  if (type == TURBO_FLOAT16) return to_float(((global<const fp16> *)scale)[row]);
  return ((global<const float> *)scale)[row];
}

TURBO_DEVICE void store_scale(global<void> *scale, int type, long long row, float value) {
  if (type == TURBO_BFLOAT16) ((global<bf16> *)scale)[row] = from_float<bf16>(value);
  if (type == TURBO_FLOAT16) ((global<fp16> *)scale)[row] = from_float<fp16>(value);
  if (type == TURBO_FLOAT32) ((global<float> *)scale)[row] = value;
}

// First row of this wave; the next one is blocks * kRowsPerBlock further.
TURBO_DEVICE long long first_row() { return (long long)block_index() * kRowsPerBlock + wave_index(); }

// N elements an access: a whole one of 16 bytes, or 1 where rows do not begin on 16 bytes.
template <class T, int N>
TURBO_DEVICE void forward(const ScaleRowsForward &a) {
  for (long long row = first_row(); row < a.rows; row += (long long)a.blocks * kRowsPerBlock) {
    const global<T> *x = (const global<T> *)a.x + row * a.x_stride;
    const global<T> *residual = (const global<T> *)a.residual + row * a.residual_stride;
    global<T> *y = (global<T> *)a.y + row * a.dim;
    const float scale = load_scale(a.scale, a.scale_type, row);
    for (long long at = lane_index() * N; at < a.dim; at += kWaveSize * N) {
      vec<float, N> value = to_float<T, N>(load<N>(x + at)) * scale;
      if (a.residual != nullptr) value += to_float<T, N>(load<N>(residual + at));
      store<N>(y + at, from_float<T, N>(value));
    }
  }
}

template <class T, int N>
TURBO_DEVICE void backward(const ScaleRowsBackward &a) {
  for (long long row = first_row(); row < a.rows; row += (long long)a.blocks * kRowsPerBlock) {
    const global<T> *dy = (const global<T> *)a.dy + row * a.dy_stride;
    const global<T> *x = (const global<T> *)a.x + row * a.x_stride;
    global<T> *dx = (global<T> *)a.dx + row * a.dim;
    const float scale = load_scale(a.scale, a.scale_type, row);
    float sum = 0.0f;
    for (long long at = lane_index() * N; at < a.dim; at += kWaveSize * N) {
      const vec<float, N> gradient = to_float<T, N>(load<N>(dy + at));
      if (a.dscale != nullptr) sum = dot<N>(gradient, to_float<T, N>(load<N>(x + at)), sum);
      if (a.dx != nullptr) store<N>(dx + at, from_float<T, N>(gradient * scale));
    }
    if (a.dscale == nullptr) continue;
    sum = wave_sum(sum);  // every lane is active: the loop over rows is uniform
    if (lane_index() == 0) store_scale(a.dscale, a.scale_type, row, sum);
  }
}

}  // namespace turbo_template

using namespace turbo_template;

#define KERNELS(type, T)                                                                                      \
  TURBO_KERNEL(kThreads, 8) void scale_rows_forward_##type##_vector(ScaleRowsForward a) {                     \
    forward<T, kVectorOf<T>>(a);                                                                              \
  }                                                                                                           \
  TURBO_KERNEL(kThreads, 8) void scale_rows_forward_##type##_scalar(ScaleRowsForward a) { forward<T, 1>(a); } \
  TURBO_KERNEL(kThreads, 8) void scale_rows_backward_##type##_vector(ScaleRowsBackward a) {                   \
    backward<T, kVectorOf<T>>(a);                                                                             \
  }                                                                                                           \
  TURBO_KERNEL(kThreads, 8) void scale_rows_backward_##type##_scalar(ScaleRowsBackward a) { backward<T, 1>(a); }

KERNELS(bf16, bf16)
KERNELS(fp16, fp16)
KERNELS(fp32, float)
