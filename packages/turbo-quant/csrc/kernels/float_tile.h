// SPDX-License-Identifier: MIT
//
// Float scales by tiles of 128 x 128 elements that stay in registers between amax and payload.
//
//   blocks    BLOCKWISE: 1 x 128 pieces of rows, 128 x 1 of columns, both, or 128 x 128 tiles; x is read once
//   amax      the maxima of TENSORWISE (one a work-group) and of ROWWISE columns (one a column): a first pass
//   scaled    the second pass: scales from those maxima, payload
//
//   amax = max |x| over the block;  scale = fp8_max / max(amax, floor);  scale_inv = 1 / scale
//   q = round_to_fp8(clamp(x scale))                           float32, each step rounded once; see turbo_quant.h
//
// A work-item has 8 adjacent columns of 8 rows: 16 lanes read 256 bytes of a row of 16-bit elements with one
// instruction and write 128 bytes of its payload. Maxima are integers (quant_device.h), so equal inputs give equal
// bits.
#pragma once

#include "float_device.h"

namespace turbo_quant {

constexpr int kColumnLanes = 16, kRowLanes = kThreads / kColumnLanes;  // work-items along a row, and along a column
constexpr int kPerLane = kTile / kColumnLanes;                         // columns of a work-item
constexpr int kRowSteps = kTile / kRowLanes;                           // rows of a work-item, kRowLanes apart
constexpr int kWaves = kThreads / kWaveSize;

template <class T>
struct FloatTile {
  using M = Magnitude<T>;
  using Maxima = vec<M, kPerLane>;
  static constexpr int words = kPerLane * int(sizeof(M)) / 4;
  using Words = vec<unsigned, words>;

  const Source &source;
  TileIndex index;
  TileRows rows;
  long long column;   // first of the work-item's columns
  long long columns;  // how many there are from it on; 0 or less: none
  int lane_row;
  vec<T, kPerLane> x[kRowSteps];

  TURBO_MEMBER FloatTile(const Source &s, unsigned tile) : source(s), index(s, tile), rows(s, index.row) {
    lane_row = thread_index() / kColumnLanes;
    column = (long long)index.column * kTile + thread_index() % kColumnLanes * kPerLane;
    columns = s.columns - column;
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      const int row = row_of(i);
      const long long count = row < rows.count ? columns : 0;
      x[i] = load_some<kPerLane>(element<T>(s, index.batch, rows.source + row, column), s.column_stride, count,
                                 s.vector != 0);
    }
  }

  TURBO_MEMBER int row_of(int step) const { return step * kRowLanes + lane_row; }

  // max |x| of each of the work-item's columns, in its rows.
  TURBO_MEMBER Maxima column_maxima() const {
    Maxima m = magnitude<T, kPerLane>(x[0]);
#pragma unroll
    for (int i = 1; i < kRowSteps; ++i) m = __builtin_elementwise_max(m, magnitude<T, kPerLane>(x[i]));
    return m;
  }

  // max |x| of row `step` within the tile, as bits of a float, in all lanes of the row.
  TURBO_MEMBER unsigned row_maximum(int step) const {
    return float_bits<T>(
        M(lanes_max<kColumnLanes>(turbo_quant::largest<M, kPerLane>(magnitude<T, kPerLane>(x[step])))));
  }

  // max |x| of the wave's part of the tile.
  TURBO_MEMBER unsigned wave_maximum() const {
    return float_bits<T>(M(lanes_max<kWaveSize>(turbo_quant::largest<M, kPerLane>(column_maxima()))));
  }

  using ColumnSlots = Words[kWaves][kColumnLanes];

  // Each wave's column maxima into `slots`; a barrier later, column_maximum() reads them.
  TURBO_MEMBER void share_column_maxima(ColumnSlots &slots) const {
    Words w = bits<Words>(column_maxima());
#pragma unroll
    for (int i = 0; i < words; ++i) {
      w[i] = join<16>(w[i]);
      w[i] = join<32>(w[i]);
    }
    if (lane_index() < kColumnLanes) slots[wave_index()][lane_index()] = w;
  }

  // Two magnitudes of 16 bits, or one of 32, and those of lane ^ Mask.
  template <int Mask>
  TURBO_MEMBER static unsigned join(unsigned w) {
    using Pair = vec<M, 4 / sizeof(M)>;
    return bits<unsigned>(__builtin_elementwise_max(bits<Pair>(w), bits<Pair>(across<Mask>(w))));
  }

  TURBO_MEMBER static unsigned column_maximum(const ColumnSlots &slots, int column) {
    M m = 0;
#pragma unroll
    for (int w = 0; w < kWaves; ++w) {
      const M *wave = reinterpret_cast<const M *>(&slots[w][0]);
      m = __builtin_elementwise_max(m, wave[column]);
    }
    return float_bits<T>(m);
  }
};

// Scales of the tile's columns in LDS: lanes read 4 of their 8 columns at a time, 16 lanes what is adjacent.
struct ColumnScales {
  float value[2][kColumnLanes][4];

  TURBO_MEMBER void set(int column, float scale) {
    value[column % kPerLane / 4][column / kPerLane][column % 4] = scale;
  }

  TURBO_MEMBER Scales<kPerLane> of_lane() const {
    vec<float, kPerLane> scales;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) scales[j] = value[j / 4][thread_index() % kColumnLanes][j % 4];
    return Scales<kPerLane>::of(scales);
  }
};

// The payload of a tile, with the scales of each row as `scales_of` (step) says.
template <class F, class T, class ScalesOf>
TURBO_DEVICE void store_tile(const FloatTile<T> &t, global<void> *payload, long long first_row, long long rows_of_batch,
                             int count, ScalesOf scales_of) {
  const long long columns = t.source.columns;
  const bool vector = columns % kPerLane == 0;
#pragma unroll
  for (int i = 0; i < kRowSteps; ++i) {
    const int row = t.row_of(i);
    if (row >= count) continue;
    global<unsigned char> *p =
        (global<unsigned char> *)payload + (t.index.batch * rows_of_batch + first_row + row) * columns + t.column;
    store_codes<kPerLane>(p, quantize<F, T, kPerLane>(t.x[i], scales_of(i)), t.columns, vector);
  }
}

// --- BLOCKWISE -------------------------------------------------------------------------------------------------------

// Work-items 0 to 127 make the scales of the tile's columns, 128 to 255 those of its rows: one division each.
template <class T, class F>
TURBO_DEVICE void quantize_blocks(const QuantizeFloat &a) {
  __shared__ unsigned row_maxima[kTile];
  __shared__ float row_scales[kTile];
  __shared__ alignas(16) ColumnScales column_scales;
  __shared__ typename FloatTile<T>::ColumnSlots slots;
  const FloatTile<T> t(a.source, block_index());
  const int thread = thread_index();
  const long long columns = a.source.columns;

  if (a.row != nullptr && !a.tile) {
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      const unsigned m = t.row_maximum(i);
      if (thread % kColumnLanes == 0) row_maxima[t.row_of(i)] = m;
    }
  }
  if (a.column != nullptr || a.tile) t.share_column_maxima(slots);
  barrier();

  if (a.tile) {
    // All work-items make the one scale: the largest of the columns' maxima.
    const unsigned m = FloatTile<T>::column_maximum(slots, thread % kTile);
    const unsigned wave_m = lanes_max<kWaveSize>(m);  // of 64 columns
    if (lane_index() == 0) row_maxima[wave_index()] = wave_m;
    barrier();
    const Scale scale = Scale::of<F>(__builtin_elementwise_max(row_maxima[0], row_maxima[1]));
    if (thread == 0)
      a.row_scale[(t.index.batch * a.source.row_tiles + t.index.row) * a.source.column_tiles + t.index.column] =
          scale.scale_inv;
    store_tile<F>(t, a.row, t.rows.source, a.source.rows, t.rows.count,
                  [&](int) { return Scales<kPerLane>::of(scale.scale); });
    return;
  }

  const long long first = (long long)t.index.row * kTile;  // of the column copy's rows
  const long long column_rows = a.column_rows - first < kTile ? a.column_rows - first : kTile;
  if (thread < kTile) {
    const long long c = (long long)t.index.column * kTile + thread;
    if (a.column != nullptr) {
      const Scale scale = Scale::of<F>(FloatTile<T>::column_maximum(slots, thread));
      column_scales.set(thread, t.rows.grouped ? scale.scale : __builtin_nanf(""));
      if (c < columns)
        a.column_scale[(t.index.batch * a.source.row_tiles + t.index.row) * columns + c] =
            t.rows.grouped ? scale.scale_inv : 0.0f;
    }
  } else if (a.row != nullptr) {
    const int row = thread - kTile;
    const Scale scale = Scale::of<F>(row_maxima[row]);
    row_scales[row] = scale.scale;
    if (row < t.rows.count)
      a.row_scale[(t.index.batch * a.source.rows + t.rows.source + row) * a.source.column_tiles + t.index.column] =
          scale.scale_inv;
  }
  barrier();

  if (a.row != nullptr) {
    store_tile<F>(t, a.row, t.rows.source, a.source.rows, t.rows.count,
                  [&](int i) { return Scales<kPerLane>::of(row_scales[t.row_of(i)]); });
  }
  if (a.column != nullptr) {
    const Scales<kPerLane> scales = column_scales.of_lane();
    store_tile<F>(t, a.column, first, a.column_rows, int(column_rows), [&](int) { return scales; });
  }
}

// --- the first pass of TENSORWISE and of ROWWISE columns -------------------------------------------------------------

template <class T>
TURBO_DEVICE void tensor_amax(const QuantizeFloat &a) {
  __shared__ unsigned maxima[kWaves];
  unsigned m = 0;
  for (unsigned tile = block_index(); tile < a.tiles; tile += a.blocks)
    m = __builtin_elementwise_max(m, FloatTile<T>(a.source, tile).wave_maximum());
  if (lane_index() == 0) maxima[wave_index()] = m;
  barrier();
  if (thread_index() == 0) {
#pragma unroll
    for (int w = 0; w < kWaves; ++w) m = __builtin_elementwise_max(m, maxima[w]);
    a.amax[block_index()] = m;
  }
}

// Joined with those of other tiles by an atomic maximum: of integers, so the order does not matter.
template <class T>
TURBO_DEVICE void column_amax(const QuantizeFloat &a) {
  __shared__ typename FloatTile<T>::ColumnSlots slots;
  const FloatTile<T> t(a.source, block_index());
  t.share_column_maxima(slots);
  barrier();
  const long long c = (long long)t.index.column * kTile + thread_index();
  if (thread_index() < kTile && c < a.source.columns) {
    __hip_atomic_fetch_max(a.amax + t.index.batch * a.source.columns + c,
                           FloatTile<T>::column_maximum(slots, thread_index()), __ATOMIC_RELAXED,
                           __HIP_MEMORY_SCOPE_AGENT);
  }
}

// --- the second pass -------------------------------------------------------------------------------------------------

template <class T, class F>
TURBO_DEVICE void quantize_tensor(const QuantizeFloat &a) {
  __shared__ unsigned maxima[kWaves];
  unsigned m = 0;
  for (unsigned i = thread_index(); i < a.partials; i += kThreads) m = __builtin_elementwise_max(m, a.amax[i]);
  m = lanes_max<kWaveSize>(m);
  if (lane_index() == 0) maxima[wave_index()] = m;
  barrier();
#pragma unroll
  for (int w = 0; w < kWaves; ++w) m = __builtin_elementwise_max(m, maxima[w]);
  const Scale scale = Scale::of<F>(m);
  if (block_index() == 0 && thread_index() == 0) *a.row_scale = scale.scale_inv;
  for (unsigned tile = block_index(); tile < a.tiles; tile += a.blocks) {
    const FloatTile<T> t(a.source, tile);
    store_tile<F>(t, a.row, t.rows.source, a.source.rows, t.rows.count,
                  [&](int) { return Scales<kPerLane>::of(scale.scale); });
  }
}

template <class T, class F>
TURBO_DEVICE void quantize_columns(const QuantizeFloat &a) {
  __shared__ alignas(16) ColumnScales column_scales;
  const FloatTile<T> t(a.source, block_index());
  const long long c = (long long)t.index.column * kTile + thread_index();
  if (thread_index() < kTile) column_scales.set(thread_index(), 0.0f);  // beyond the last column
  if (thread_index() < kTile && c < a.source.columns) {
    const long long at = t.index.batch * a.source.columns + c;
    const Scale scale = Scale::of<F>(a.amax[at]);
    column_scales.set(thread_index(), scale.scale);
    if (t.index.row == 0) a.column_scale[at] = scale.scale_inv;
  }
  barrier();
  const Scales<kPerLane> scales = column_scales.of_lane();
  store_tile<F>(t, a.column, t.rows.source, a.source.rows, t.rows.count, [&](int) { return scales; });
}

}  // namespace turbo_quant
