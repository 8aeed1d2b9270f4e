// SPDX-License-Identifier: MIT
//
// RMSNorm backward: dx with the direct gradient of s added, and the float32 partial sums of dgamma.
//
//   h  = s * rstd,  w = dy * (offset + gamma)                      s [rows, dim], rstd [rows] of the forward
//   dx = round((w - h * mean(w * h)) * rstd + ds)                  [rows, dim], dtype of s; ds optional
//   partial[p, d] = sum of dy * h over the rows of work-group p    [blocks, dim] float32
//   dgamma[d] = round(sum over p of partial[p, d])                 [dim], dtype of gamma; a second kernel
//
// Work-group p takes rows p, p + blocks, ... and keeps its sums of dgamma in registers, so dgamma costs blocks * dim
// floats of traffic and not a second pass over dy and s. No atomics: every sum has a fixed order, and results are
// equal bit for bit.
#include "rmsnorm_device.h"

namespace turbo_norm_act {

template <class T>
struct BackwardRow {
  const global<T> *dy, *ds, *s;
  global<T> *dx;

  __device__ BackwardRow(const RmsnormBackward &a, long long row)
      : dy((const global<T> *)a.dy + row * a.dy_stride),
        ds(a.ds ? (const global<T> *)a.ds + row * a.ds_stride : nullptr),
        s((const global<T> *)a.s + row * a.s_stride),
        dx((global<T> *)a.dx + row * a.dim) {}
};

// w = dy * (offset + gamma)
template <int N>
TURBO_DEVICE vec<float, N> weighted(const RmsnormBackward &a, vec<float, N> dy, int at) {
  return dy * gamma_factor<N>(a.gamma, a.gamma_type, a.gamma_offset, at);
}

// `mean` is mean(w * h) of the row.
template <class T, int N>
TURBO_DEVICE void write_dx(const RmsnormBackward &a, const BackwardRow<T> &p, int at, vec<float, N> dy, vec<float, N> h,
                           float mean, float rstd) {
  vec<float, N> dx = (weighted<N>(a, dy, at) - h * mean) * rstd;
  if (p.ds != nullptr) dx += to_float<T, N>(load<N>(p.ds + at));
  store<N>(p.dx + at, from_float<T, N>(dx));
}

// --- partial sums of dgamma ------------------------------------------------------------------------------------------

// The sums of this work-group to its line of `partial`. Where each wave had rows of its own (RowThreads = 64), the
// waves add theirs one after the other in LDS, so that a line stands for the whole work-group.
template <int N, int RowThreads, int Chunks>
TURBO_DEVICE void write_partial(const RmsnormBackward &a, const vec<float, N> (&dgamma)[Chunks], int thread) {
  global<float> *line = a.partial + (long long)block_index() * a.dim;
  if constexpr (RowThreads != kWaveSize) {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      if (at < a.dim) store_floats<N>(line + at, dgamma[c]);
    }
  } else {
    __shared__ vec<float, N> total[Chunks][kWaveSize];
    for (int wave = 0; wave < kRowsPerWaveBlock; ++wave) {
      if (wave == wave_index()) {
#pragma unroll
        for (int c = 0; c < Chunks; ++c) total[c][thread] = wave == 0 ? dgamma[c] : total[c][thread] + dgamma[c];
      }
      barrier();
    }
    // Wave w writes the chunks w, w + 4, ...
    for (int c = wave_index(); c < Chunks; c += kRowsPerWaveBlock) {
      const int at = (c * kWaveSize + thread) * N;
      if (at < a.dim) store_floats<N>(line + at, total[c][thread]);
    }
  }
}

// --- a row in registers ----------------------------------------------------------------------------------------------

template <class T, int RowThreads, int Chunks>
TURBO_DEVICE void backward_in_registers(const RmsnormBackward &a) {
  constexpr int N = kVectorOf<T>;
  __shared__ typename BlockReduce<RowThreads>::Slots slots;
  const int thread = thread_in_row<RowThreads>();
  vec<float, N> dgamma[Chunks] = {};
  unsigned call = 0;
  for (long long row = first_row<RowThreads>(); row < a.rows; row += (long long)a.blocks * kRowsPerBlock<RowThreads>) {
    const BackwardRow<T> p(a, row);
    vec<T, N> dy[Chunks], s[Chunks];
    load_row<RowThreads>(dy, p.dy, thread, a.dim);
    load_row<RowThreads>(s, p.s, thread, a.dim);
    const float rstd = a.rstd[row];
    float mean = 0.0f;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      if (at < a.dim) {
        const vec<float, N> dy_c = to_float<T, N>(dy[c]), h = to_float<T, N>(s[c]) * rstd;
        dgamma[c] += dy_c * h;
        mean = dot<N>(weighted<N>(a, dy_c, at), h, mean);
      }
    }
    mean = row_sum<RowThreads>(mean, slots, call++) / a.dim;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      forget<T, N>(dy[c]);
      forget<T, N>(s[c]);
      if (at < a.dim) write_dx<T, N>(a, p, at, to_float<T, N>(dy[c]), to_float<T, N>(s[c]) * rstd, mean, rstd);
    }
  }
  if (a.partial != nullptr) write_partial<N, RowThreads, Chunks>(a, dgamma, thread);
}

// --- a row of any length, read twice ---------------------------------------------------------------------------------

template <class T, int N>
TURBO_DEVICE void backward_loop(const RmsnormBackward &a) {
  __shared__ typename BlockReduce<kLoopThreads>::Slots slots;
  unsigned call = 0;
  for (long long row = block_index(); row < a.rows; row += a.blocks) {
    const BackwardRow<T> p(a, row);
    const float rstd = a.rstd[row];
    float mean = 0.0f;
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N) {
      const vec<float, N> dy = to_float<T, N>(load<N>(p.dy + at)), h = to_float<T, N>(load<N>(p.s + at)) * rstd;
      mean = dot<N>(weighted<N>(a, dy, at), h, mean);
    }
    mean = row_sum<kLoopThreads>(mean, slots, call++) / a.dim;
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N) {
      const vec<float, N> dy = to_float<T, N>(load<N>(p.dy + at)), h = to_float<T, N>(load<N>(p.s + at)) * rstd;
      write_dx<T, N>(a, p, at, dy, h, mean, rstd);
    }
  }
}

// --- dgamma by columns -----------------------------------------------------------------------------------------------

// A work-group of dgamma has 64 columns (one wave wide, so a wave reads 256 consecutive bytes) and four waves, which
// share the terms of the sum; the four results are added in LDS.
TURBO_DEVICE float add_waves(float mine) {
  constexpr int waves = kGammaSumThreads / kWaveSize;
  __shared__ float sums[waves][kGammaSumColumns];
  sums[wave_index()][lane_index()] = mine;
  barrier();
  float total = sums[0][lane_index()];
#pragma unroll
  for (int w = 1; w < waves; ++w) total += sums[w][lane_index()];
  return total;
}

// Partial sums for the loop kernels, whose rows do not fit in registers: dy and s are read once more, by columns. The
// grid is (columns / 64, blocks); its second index is the line of `partial`.
template <class T>
TURBO_DEVICE void gamma_partial(const RmsnormBackward &a) {
  const int column = (int)block_index() * kGammaSumColumns + lane_index();
  constexpr int waves = kGammaSumThreads / kWaveSize;
  float sum = 0.0f;
  if (column < a.dim) {
    for (long long row = block_index_y() + (long long)wave_index() * a.blocks; row < a.rows;
         row += (long long)a.blocks * waves) {
      const BackwardRow<T> p(a, row);
      sum = __builtin_fmaf(to_float(p.dy[column]), to_float(p.s[column]) * a.rstd[row], sum);
    }
  }
  sum = add_waves(sum);
  if (wave_index() == 0 && column < a.dim) a.partial[(long long)block_index_y() * a.dim + column] = sum;
}

TURBO_DEVICE void gamma_sum(const RmsnormGammaSum &a) {
  const int column = (int)block_index() * kGammaSumColumns + lane_index();
  constexpr int waves = kGammaSumThreads / kWaveSize;
  float sum = 0.0f;
  if (column < a.dim) {
    for (int p = wave_index(); p < a.partials; p += waves) sum += a.partial[(long long)p * a.dim + column];
  }
  sum = add_waves(sum);
  if (wave_index() != 0 || column >= a.dim) return;
  if (a.gamma_type == TURBO_BFLOAT16) ((global<bf16> *)a.dgamma)[column] = from_float<bf16>(sum);
  if (a.gamma_type == TURBO_FLOAT16) ((global<fp16> *)a.dgamma)[column] = from_float<fp16>(sum);
  if (a.gamma_type == TURBO_FLOAT32) ((global<float> *)a.dgamma)[column] = sum;
}

}  // namespace turbo_norm_act

// --- the kernels of the table ----------------------------------------------------------------------------------------

using namespace turbo_norm_act;

// 4 waves a SIMD, 128 registers a lane, for the work-groups of 1024; 3 waves, 168 registers, for the others.
#define REGISTERS(type, T, threads, chunks)                                \
  TURBO_KERNEL(kThreads<threads>, (threads == 1024 ? 4 : 3))               \
  void rmsnorm_backward_##type##_##threads##x##chunks(RmsnormBackward a) { \
    backward_in_registers<T, threads, chunks>(a);                          \
  }
#define LOOPS(type, T)                                                                          \
  TURBO_KERNEL(kLoopThreads, 4) void rmsnorm_backward_##type##_loop_vector(RmsnormBackward a) { \
    backward_loop<T, kVectorOf<T>>(a);                                                          \
  }                                                                                             \
  TURBO_KERNEL(kLoopThreads, 4) void rmsnorm_backward_##type##_loop_scalar(RmsnormBackward a) { \
    backward_loop<T, 1>(a);                                                                     \
  }                                                                                             \
  TURBO_KERNEL(kGammaSumThreads, 4) void rmsnorm_gamma_partial_##type(RmsnormBackward a) { gamma_partial<T>(a); }

#define BF16(threads, chunks) REGISTERS(bf16, bf16, threads, chunks)
#define FP16(threads, chunks) REGISTERS(fp16, fp16, threads, chunks)
#define FP32(threads, chunks) REGISTERS(fp32, float, threads, chunks)
TURBO_RMSNORM_BACKWARD_TABLE(BF16)
TURBO_RMSNORM_BACKWARD_TABLE(FP16)
TURBO_RMSNORM_BACKWARD_TABLE(FP32)
LOOPS(bf16, bf16)
LOOPS(fp16, fp16)
LOOPS(fp32, float)
TURBO_KERNEL(kGammaSumThreads, 4) void rmsnorm_gamma_sum(RmsnormGammaSum a) { gamma_sum(a); }
