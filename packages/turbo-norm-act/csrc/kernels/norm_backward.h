// SPDX-License-Identifier: MIT
//
// RMSNorm and LayerNorm backward: dx with the direct gradient of s added, and float32 partial sums of dgamma, dbeta.
//
//   h  = (s - mean) * rstd, w = dy * (offset + gamma)              s [rows, dim]; mean, rstd [rows] of the forward
//   dx = round((w - h * mean(w * h) - mean(w)) * rstd + ds)        [rows, dim], dtype of s; ds optional
//   dgamma_partial[p, d] = sum of dy * h over the rows of work-group p         [blocks, dim] float32
//   dbeta_partial[p, d]  = sum of dy over those rows                           likewise
//
// RMSNorm has no mean, no mean(w) and no dbeta. The sum over p is norm_parameter_sum.hip.
//
// Work-group p takes rows p, p + blocks, ... and keeps its sums in registers, so dgamma and dbeta cost blocks * dim
// floats of traffic each and not a second pass over dy and s. No atomics: every sum has a fixed order, and results are
// equal bit for bit.
#pragma once

#include "norm_columns.h"

namespace turbo_norm_act {

template <class T>
struct BackwardRow {
  const global<T> *dy, *ds, *s;
  global<T> *dx;

  __device__ BackwardRow(const NormBackward &a, long long row)
      : dy((const global<T> *)a.dy + row * a.dy_stride),
        ds(a.ds ? (const global<T> *)a.ds + row * a.ds_stride : nullptr),
        s((const global<T> *)a.s + row * a.s_stride),
        dx((global<T> *)a.dx + row * a.dim) {}
};

// w = dy * (offset + gamma)
template <int N>
TURBO_DEVICE vec<float, N> weighted(const NormBackward &a, vec<float, N> dy, int at) {
  return dy * gamma_factor<N>(a.gamma, a.gamma_type, a.gamma_offset, at);
}

// h = (s - mean) * rstd
template <bool Center, class T, int N>
TURBO_DEVICE vec<float, N> normalized(vec<T, N> s, float mean, float rstd) {
  if constexpr (Center) return (to_float<T, N>(s) - mean) * rstd;
  return to_float<T, N>(s) * rstd;
}

// A row's mean and rstd.
template <bool Center>
struct Statistics {
  float mean = 0.0f, rstd;

  TURBO_MEMBER Statistics(const NormBackward &a, long long row) : rstd(a.rstd[row]) {
    if constexpr (Center) mean = a.mean[row];
  }
};

// What dx needs of the whole row: the sums, then the means, of w * h and w. RMSNorm has but the first.
template <bool Center>
struct RowMeans {
  float wh = 0.0f, w = 0.0f;

  template <int N>
  TURBO_MEMBER void add(vec<float, N> weighted, vec<float, N> h) {
    wh = dot<N>(weighted, h, wh);
    if constexpr (Center) w += sum<N>(weighted);
  }

  template <int RowThreads>
  TURBO_MEMBER void finish(typename BlockReduce<RowThreads>::Slots &slots, unsigned &call, int dim) {
    wh = row_sum<RowThreads>(wh, slots, call++) / dim;
    if constexpr (Center) w = row_sum<RowThreads>(w, slots, call++) / dim;
  }
};

template <bool Center, class T, int N>
TURBO_DEVICE void write_dx(const NormBackward &a, const BackwardRow<T> &p, int at, vec<float, N> dy, vec<float, N> h,
                           const RowMeans<Center> &means, float rstd) {
  vec<float, N> dx = weighted<N>(a, dy, at) - h * means.wh;
  if constexpr (Center) dx -= means.w;
  dx *= rstd;
  if (p.ds != nullptr) dx += to_float<T, N>(load<N>(p.ds + at));
  store<N>(p.dx + at, from_float<T, N>(dx));
}

// --- partial sums of dgamma and dbeta --------------------------------------------------------------------------------

// The sums of this work-group to its line of `partial`. Where each wave had rows of its own (RowThreads = 64), the
// waves add theirs one after the other in LDS, so that a line stands for the whole work-group.
template <int N, int RowThreads, int Chunks>
TURBO_DEVICE void write_partial(global<float> *partial, int dim, const vec<float, N> (&sums)[Chunks], int thread) {
  global<float> *line = partial + (long long)block_index() * dim;
  if constexpr (RowThreads != kWaveSize) {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      if (at < dim) store_floats<N>(line + at, sums[c]);
    }
  } else {
    __shared__ vec<float, N> total[Chunks][kWaveSize];
    for (int wave = 0; wave < kRowsPerWaveBlock; ++wave) {
      if (wave == wave_index()) {
#pragma unroll
        for (int c = 0; c < Chunks; ++c) total[c][thread] = wave == 0 ? sums[c] : total[c][thread] + sums[c];
      }
      barrier();
    }
    // Wave w writes the chunks w, w + 4, ...
    for (int c = wave_index(); c < Chunks; c += kRowsPerWaveBlock) {
      const int at = (c * kWaveSize + thread) * N;
      if (at < dim) store_floats<N>(line + at, total[c][thread]);
    }
  }
}

// --- a row in registers ----------------------------------------------------------------------------------------------

template <bool Center, class T, int RowThreads, int Chunks>
TURBO_DEVICE void backward_in_registers(const NormBackward &a) {
  constexpr int N = kVectorOf<T>;
  __shared__ typename BlockReduce<RowThreads>::Slots slots;
  vec<float, N> dgamma[Chunks] = {};
  vec<float, N> dbeta[Chunks] = {};  // of RMSNorm: never used, and gone
  unsigned call = 0;
  for (long long row = first_row<RowThreads>(); row < a.rows; row += (long long)a.blocks * kRowsPerBlock<RowThreads>) {
    const int thread = thread_of_row<Center>(thread_in_row<RowThreads>());
    const BackwardRow<T> p(a, row);
    vec<T, N> dy[Chunks], s[Chunks];
    load_row<RowThreads>(dy, p.dy, thread, a.dim);
    load_row<RowThreads>(s, p.s, thread, a.dim);
    const Statistics<Center> stats(a, row);
    RowMeans<Center> means;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      if (at < a.dim) {
        const vec<float, N> dy_c = to_float<T, N>(dy[c]), h = normalized<Center, T, N>(s[c], stats.mean, stats.rstd);
        dgamma[c] += dy_c * h;
        if constexpr (Center) dbeta[c] += dy_c;
        means.template add<N>(weighted<N>(a, dy_c, at), h);
      }
    }
    means.template finish<RowThreads>(slots, call, a.dim);
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      forget<T, N>(dy[c]);
      forget<T, N>(s[c]);
      if (at < a.dim) {
        const vec<float, N> h = normalized<Center, T, N>(s[c], stats.mean, stats.rstd);
        write_dx<Center, T, N>(a, p, at, to_float<T, N>(dy[c]), h, means, stats.rstd);
      }
    }
  }
  if (a.dgamma_partial != nullptr)
    write_partial<N, RowThreads, Chunks>(a.dgamma_partial, a.dim, dgamma, thread_in_row<RowThreads>());
  if constexpr (Center) {
    if (a.dbeta_partial != nullptr) {
      if constexpr (RowThreads == kWaveSize) barrier();  // the LDS of dgamma has been read
      write_partial<N, RowThreads, Chunks>(a.dbeta_partial, a.dim, dbeta, thread_in_row<RowThreads>());
    }
  }
}

// --- a row of any length, read twice ---------------------------------------------------------------------------------

template <bool Center, class T, int N>
TURBO_DEVICE void backward_loop(const NormBackward &a) {
  __shared__ typename BlockReduce<kLoopThreads>::Slots slots;
  unsigned call = 0;
  for (long long row = block_index(); row < a.rows; row += a.blocks) {
    const BackwardRow<T> p(a, row);
    const Statistics<Center> stats(a, row);
    RowMeans<Center> means;
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N) {
      const vec<float, N> dy = to_float<T, N>(load<N>(p.dy + at));
      const vec<float, N> h = normalized<Center, T, N>(load<N>(p.s + at), stats.mean, stats.rstd);
      means.template add<N>(weighted<N>(a, dy, at), h);
    }
    means.template finish<kLoopThreads>(slots, call, a.dim);
    for (int at = thread_index() * N; at < a.dim; at += kLoopThreads * N) {
      const vec<float, N> dy = to_float<T, N>(load<N>(p.dy + at));
      const vec<float, N> h = normalized<Center, T, N>(load<N>(p.s + at), stats.mean, stats.rstd);
      write_dx<Center, T, N>(a, p, at, dy, h, means, stats.rstd);
    }
  }
}

// --- dgamma and dbeta by columns -------------------------------------------------------------------------------------

// Partial sums for the loop kernels, whose rows do not fit in registers: dy and s are read once more, by columns. The
// grid is (columns / 64, blocks); its second index is the line of the partial sums.
template <bool Center, class T>
TURBO_DEVICE void parameter_partial(const NormBackward &a) {
  const int column = (int)block_index() * kSumColumns + lane_index();
  float sums[Center ? 2 : 1] = {};
  if (column < a.dim) {
    for (long long row = block_index_y() + (long long)wave_index() * a.blocks; row < a.rows;
         row += (long long)a.blocks * kSumWaves) {
      const BackwardRow<T> p(a, row);
      const Statistics<Center> stats(a, row);
      const float dy = to_float(p.dy[column]);
      const vec<float, 1> h = normalized<Center, T, 1>(load<1>(p.s + column), stats.mean, stats.rstd);
      sums[0] = __builtin_fmaf(dy, h[0], sums[0]);
      if constexpr (Center) sums[1] += dy;
    }
  }
  add_waves(sums);
  if (wave_index() != 0 || column >= a.dim) return;
  const long long to = (long long)block_index_y() * a.dim + column;
  if constexpr (Center) {
    if (a.dgamma_partial != nullptr) a.dgamma_partial[to] = sums[0];
    if (a.dbeta_partial != nullptr) a.dbeta_partial[to] = sums[1];
  } else {
    a.dgamma_partial[to] = sums[0];
  }
}

}  // namespace turbo_norm_act

// --- the kernels of the table ----------------------------------------------------------------------------------------

using namespace turbo_norm_act;

// 4 waves a SIMD, 128 registers a lane, for the work-groups of 1024; 3 waves, 168 registers, for the others.
#define TURBO_NORM_BACKWARD_REGISTERS(norm, center, type, T, threads, chunks) \
  TURBO_KERNEL(kThreads<threads>, (threads == 1024 ? 4 : 3))                  \
  void norm##_backward_##type##_##threads##x##chunks(NormBackward a) {        \
    backward_in_registers<center, T, threads, chunks>(a);                     \
  }
#define TURBO_NORM_BACKWARD_OF_TYPE(norm, center, type, T, TABLE)                           \
  TABLE(TURBO_NORM_BACKWARD_REGISTERS, norm, center, type, T)                               \
  TURBO_KERNEL(kLoopThreads, 4) void norm##_backward_##type##_loop_vector(NormBackward a) { \
    backward_loop<center, T, kVectorOf<T>>(a);                                              \
  }                                                                                         \
  TURBO_KERNEL(kLoopThreads, 4) void norm##_backward_##type##_loop_scalar(NormBackward a) { \
    backward_loop<center, T, 1>(a);                                                         \
  }                                                                                         \
  TURBO_KERNEL(kSumThreads, 4) void norm##_parameter_partial_##type(NormBackward a) { parameter_partial<center, T>(a); }
