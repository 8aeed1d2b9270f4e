// SPDX-License-Identifier: MIT
//
// ROWWISE, a scale a row: a row stays in registers between amax and payload, so x is read once.
//
//   amax = max |x[r]|;  scale = fp8_max / max(amax, floor);  scale_inv = 1 / scale;  q = round_to_fp8(x scale)
//
// x [B, R, C] of any row stride; q [B, R, C] contiguous; scale_inv [B, R], float32.
#pragma once

#include "float_device.h"

namespace turbo_quant {

// The largest of the row's work-items, in all of them. One barrier a call, calls alternate between two sets of slots: a
// wave that is already in the next call cannot overwrite what a slow one still reads.
template <int RowThreads>
TURBO_DEVICE unsigned row_max(unsigned m, unsigned (&slots)[2][RowThreads / kWaveSize], unsigned call) {
  m = lanes_max<kWaveSize>(m);
  if constexpr (RowThreads > kWaveSize) {
    unsigned *set = slots[call % 2];
    if (lane_index() == 0) set[wave_index()] = m;
    barrier();
    m = set[0];
#pragma unroll
    for (int w = 1; w < RowThreads / kWaveSize; ++w) m = __builtin_elementwise_max(m, set[w]);
  }
  return m;
}

template <class T>
TURBO_DEVICE const global<T> *row_of(const Source &s, long long row) {
  if (row < s.rows) return element<T>(s, 0, row, 0);  // a 64-bit division is a hundred instructions
  return element<T>(s, row / s.rows, row % s.rows, 0);
}

template <class T, class F, int RowThreads, int Chunks>
TURBO_DEVICE void quantize_rows(const QuantizeFloat &a) {
  using M = Magnitude<T>;
  constexpr int N = kVectorOf<T>;
  constexpr int rows_a_block = RowThreads == kWaveSize ? kRowsPerWaveBlock : 1;
  __shared__ unsigned slots[2][RowThreads / kWaveSize];
  const Source &s = a.source;
  const long long rows = a.all_rows;
  const int thread = thread_index() % RowThreads;
  unsigned call = 0;
  for (long long row = (long long)block_index() * rows_a_block + (rows_a_block > 1 ? wave_index() : 0); row < rows;
       row += (long long)a.blocks * rows_a_block) {
    const global<T> *x = row_of<T>(s, row);
    vec<T, N> kept[Chunks];
    vec<M, N> m = {};
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      kept[c] = vec<T, N>{};
      if (at < s.columns) kept[c] = load<N>(x + at);
      m = __builtin_elementwise_max(m, magnitude<T, N>(kept[c]));
    }
    const unsigned amax = row_max<RowThreads>(float_bits<T>(largest<M, N>(m)), slots, call++);
    const Scale scale = Scale::of<F>(amax);
    if (thread == 0) a.row_scale[row] = scale.scale_inv;
    global<unsigned char> *q = (global<unsigned char> *)a.row + row * s.columns;
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      const int at = (c * RowThreads + thread) * N;
      if (at < s.columns)
        store<N / 4>((global<unsigned> *)(q + at), quantize<F, T, N>(kept[c], Scales<N>::of(scale.scale)));
    }
  }
}

// Rows of any length and stride, read twice.
template <class T, class F, bool Vector>
TURBO_DEVICE void quantize_rows_loop(const QuantizeFloat &a) {
  using M = Magnitude<T>;
  constexpr int N = kVectorOf<T>;
  __shared__ unsigned slots[2][kThreads / kWaveSize];
  const Source &s = a.source;
  const long long rows = a.all_rows;
  unsigned call = 0;
  for (long long row = block_index(); row < rows; row += a.blocks) {
    const global<T> *x = row_of<T>(s, row);
    vec<M, N> m = {};
    for (long long at = thread_index() * N; at < s.columns; at += kThreads * N) {
      const vec<T, N> value = load_some<N>(x + at * s.column_stride, s.column_stride, s.columns - at, Vector);
      m = __builtin_elementwise_max(m, magnitude<T, N>(value));
    }
    const unsigned amax = row_max<kThreads>(float_bits<T>(largest<M, N>(m)), slots, call++);
    const Scale scale = Scale::of<F>(amax);
    if (thread_index() == 0) a.row_scale[row] = scale.scale_inv;
    global<unsigned char> *q = (global<unsigned char> *)a.row + row * s.columns;
    for (long long at = thread_index() * N; at < s.columns; at += kThreads * N) {
      const vec<T, N> value = load_some<N>(x + at * s.column_stride, s.column_stride, s.columns - at, Vector);
      store_codes<N>(q + at, quantize<F, T, N>(value, Scales<N>::of(scale.scale)), s.columns - at, Vector);
    }
  }
}

}  // namespace turbo_quant
