// SPDX-License-Identifier: MIT
//
// From accumulators to C: bias and old C added in float32, one rounding, edges cut.
//
// A lane of a wave has, of each fragment of 16 rows, one row and 16 adjacent columns: 16-byte stores, and the four lanes
// of a row write 128 adjacent bytes of 16-bit elements.
#pragma once

#include "gemm_pipeline.h"
#include "turbo/vec.h"

namespace turbo_gemm {

using Accumulator = f32x4[kColumnFragments];  // of one fragment of rows: 16 columns of this lane

// Where this lane's part of C lies: row + 16 f for fragment f, columns column ... column + 15.
template <class T>
struct LanePosition {
  int row, column;  // in the tile
  TURBO_METHOD LanePosition() {
    const int wave = wave_index(), lane = lane_index();
    row = wave / T::waves_n * (T::fragments * 16) + lane % 16;
    column = wave % T::waves_n * 64 + lane / 16 * 16;
  }
};

TURBO_DEVICE int least(int x, int y) { return x < y ? x : y; }

// Dequantisation of whole rows and columns: total[m][n] a_scale[m] b_scale[n]. A stride of 0: one scale for all.
template <class T>
TURBO_DEVICE void scale_tile(const GemmArgs &args, TilePosition tile, Accumulator (&total)[T::fragments]) {
  const LanePosition<T> lane;
  const auto *a_scale = (const global<float> *)args.a_scale, *b_scale = (const global<float> *)args.b_scale;
  Accumulator columns;
#pragma unroll
  for (int e = 0; e < 16; ++e)
    columns[e / 4][e % 4] = b_scale[least(tile.n + lane.column + e, args.n - 1) * args.b_scale_stride];
#pragma unroll
  for (int f = 0; f < T::fragments; ++f) {
    const float row = a_scale[least(tile.m + lane.row + 16 * f, args.m - 1) * args.a_scale_stride];
#pragma unroll
    for (int j = 0; j < kColumnFragments; ++j) total[f][j] *= columns[j] * row;
  }
}

// --- 16 adjacent columns of a row ------------------------------------------------------------------------------------

constexpr int kNowhere = int(0x80000000);  // offset beyond any buffer: loads give 0, stores are dropped

template <class C>
TURBO_DEVICE C load_one(Buffer c, int offset) {
  if constexpr (sizeof(C) == 4) return bits<C>(__builtin_amdgcn_raw_buffer_load_b32(c, offset, 0, 0));
  if constexpr (sizeof(C) == 2) return bits<C>(__builtin_amdgcn_raw_buffer_load_b16(c, offset, 0, 0));
}

template <class C>
TURBO_DEVICE void store_one(C x, Buffer c, int offset) {
  if constexpr (sizeof(C) == 4) __builtin_amdgcn_raw_buffer_store_b32(bits<unsigned>(x), c, offset, 0, 0);
  if constexpr (sizeof(C) == 2) __builtin_amdgcn_raw_buffer_store_b16(bits<unsigned short>(x), c, offset, 0, 0);
}

// `left` of the columns are there; `offset` of the first in bytes.
template <class C, bool Vector>
TURBO_DEVICE void add_row(Accumulator &x, Buffer c, int offset, int left) {
  constexpr int N = Vector ? kVectorOf<C> : 1;
#pragma unroll
  for (int first = 0; first < 16; first += N) {
    const int at = first < left ? offset + first * int(sizeof(C)) : kNowhere;
    if constexpr (Vector) {
      const vec<float, N> old = to_float<C, N>(turbo::load<C, N>(c, at));
#pragma unroll
      for (int e = 0; e < N; ++e) x[(first + e) / 4][(first + e) % 4] += old[e];
    } else {
      x[first / 4][first % 4] += to_float(load_one<C>(c, at));
    }
  }
}

template <class C, bool Vector>
TURBO_DEVICE void store_row(const Accumulator &x, Buffer c, int offset, int left) {
  constexpr int N = Vector ? kVectorOf<C> : 1;
#pragma unroll
  for (int first = 0; first < 16; first += N) {
    const int at = first < left ? offset + first * int(sizeof(C)) : kNowhere;
    if constexpr (Vector) {
      vec<float, N> value;
#pragma unroll
      for (int e = 0; e < N; ++e) value[e] = x[(first + e) / 4][(first + e) % 4];
      turbo::store<C, N>(from_float<C, N>(value), c, at);
    } else {
      store_one<C>(from_float<C>(x[first / 4][first % 4]), c, at);
    }
  }
}

// --- bias ------------------------------------------------------------------------------------------------------------

template <class B>
TURBO_DEVICE void read_bias(Accumulator &values, const global<void> *bias, int first, int n) {
#pragma unroll
  for (int e = 0; e < 16; ++e) values[e / 4][e % 4] = to_float(((const global<B> *)bias)[least(first + e, n - 1)]);
}

// Bias of the 16 columns from `first` on; zeros without one.
TURBO_DEVICE void read_bias(Accumulator &values, const GemmArgs &args, int first) {
#pragma unroll
  for (int j = 0; j < kColumnFragments; ++j) values[j] = f32x4{};
  if (args.bias == nullptr) return;
  if (args.bias_type == 0) read_bias<float>(values, args.bias, first, args.n);
  if (args.bias_type == 1) read_bias<fp16>(values, args.bias, first, args.n);
  if (args.bias_type == 2) read_bias<bf16>(values, args.bias, first, args.n);
}

// --- the tile --------------------------------------------------------------------------------------------------------

template <class C, class T, bool Vector>
TURBO_DEVICE void write_rows(const GemmArgs &args, TilePosition tile, const Accumulator (&total)[T::fragments],
                             const Accumulator &bias) {
  const LanePosition<T> lane;
  const int rows = least(args.m - tile.m, T::m), columns = least(args.n - tile.n, T::n);
  const int row_bytes = int(args.c_stride * int(sizeof(C)));
  const Buffer c = make_buffer((global<C> *)args.c + tile.m * args.c_stride + tile.n,
                               unsigned((rows - 1) * row_bytes + columns * int(sizeof(C))));
  const int first = lane.row * row_bytes + lane.column * int(sizeof(C));
#pragma unroll
  for (int f = 0; f < T::fragments; ++f) {
    int offset = first + 16 * f * row_bytes, left = lane.row + 16 * f < rows ? columns - lane.column : 0;
    // Row by row: otherwise the offsets of all rows are computed first, and kept in registers that there are not.
    order();
    asm volatile("" : "+v"(offset), "+v"(left));
    Accumulator x;
#pragma unroll
    for (int j = 0; j < kColumnFragments; ++j) x[j] = total[f][j] + bias[j];
    if (args.accumulate) add_row<C, Vector>(x, c, offset, left);
    store_row<C, Vector>(x, c, offset, left);
  }
}

// `total` is A B^T, in float32.
template <class C, class T>
TURBO_DEVICE void write_tile(const GemmArgs &args, TilePosition tile, const Accumulator (&total)[T::fragments]) {
  Accumulator bias;
  read_bias(bias, args, tile.n + LanePosition<T>().column);
  if (args.vector) {
    write_rows<C, T, true>(args, tile, total, bias);
  } else {
    write_rows<C, T, false>(args, tile, total, bias);
  }
}

}  // namespace turbo_gemm
