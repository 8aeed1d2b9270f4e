// SPDX-License-Identifier: MIT
//
// From accumulators to C: bias and old C added in float32, one rounding, edges cut.
//
// A lane of a wave has sets of 16 adjacent columns of a row: 16-byte stores. With fragments of 16 rows, the four lanes of a
// row write 128 adjacent bytes of 16-bit elements.
#pragma once

#include "turbo/gemm/pipeline.h"
#include "turbo/vec.h"

namespace turbo::gemm {

using Accumulator = f32x4[4];  // 16 columns of a row

// Where this lane's part of C lies, in the tile: accumulator f is row + rows_before(f), columns from `column` +
// columns_before(f) on.
template <class T>
struct LanePosition {
  int row, column;
  explicit TURBO_METHOD LanePosition(int wave) {
    const int lane = lane_index();
    row = wave / T::waves_n * (T::fragments * 16) + lane % T::edge;
    column = wave % T::waves_n * 64 + lane / T::edge * T::edge;
  }
  static TURBO_METHOD constexpr int rows_before(int f) { return f / T::row_parts * T::edge; }
  static TURBO_METHOD constexpr int columns_before(int f) { return f % T::row_parts * 16; }
};

TURBO_DEVICE int least(int x, int y) { return x < y ? x : y; }

// Dequantisation of whole rows and columns: total[m][n] a_scale[m] b_scale[n]. A stride of 0: one scale for all.
template <class T>
TURBO_DEVICE void scale_tile(const GemmArgs &args, TilePosition tile, int wave, Accumulator (&total)[T::fragments]) {
  const LanePosition<T> lane(wave);
  const auto *a_scale = (const global<float> *)args.a_scale, *b_scale = (const global<float> *)args.b_scale;
#pragma unroll
  for (int part = 0; part < T::row_parts; ++part) {
    Accumulator columns;
#pragma unroll
    for (int e = 0; e < 16; ++e)
      columns[e / 4][e % 4] =
          b_scale[least(tile.n + lane.column + lane.columns_before(part) + e, args.n - 1) * args.b_scale_stride];
#pragma unroll
    for (int f = part; f < T::fragments; f += T::row_parts) {
      const float row = a_scale[least(tile.m + lane.row + lane.rows_before(f), args.m - 1) * args.a_scale_stride];
#pragma unroll
      for (int j = 0; j < 4; ++j) total[f][j] *= columns[j] * row;
    }
  }
}

// --- 16 adjacent columns of a row: 16-byte accesses ------------------------------------------------------------------

constexpr int kNowhere = int(0x80000000);  // offset beyond any buffer: loads give 0, stores are dropped

// Type of C: turbo_dtype, the same for the whole grid. `call` gets a value of the type.
template <class Call>
TURBO_DEVICE void with_type(int type, Call call) {
  if (type == 0) call(float{});
  if (type == 1) call(fp16{});
  if (type == 2) call(bf16{});
}

// `left` of the columns are there, a multiple of what an access holds; `offset` of the first in bytes.
template <class C>
TURBO_DEVICE void write_columns(Accumulator &x, Buffer c, int offset, int left, bool accumulate) {
  constexpr int N = kVectorOf<C>;
  const auto at = [&](int first) { return first < left ? offset + first * int(sizeof(C)) : kNowhere; };
  if (accumulate) {
#pragma unroll
    for (int first = 0; first < 16; first += N) {
      const vec<float, N> old = to_float<C, N>(turbo::load<C, N>(c, at(first)));
#pragma unroll
      for (int e = 0; e < N; ++e) x[(first + e) / 4][(first + e) % 4] += old[e];
    }
  }
#pragma unroll
  for (int first = 0; first < 16; first += N) {
    vec<float, N> value;
#pragma unroll
    for (int e = 0; e < N; ++e) value[e] = x[(first + e) / 4][(first + e) % 4];
    turbo::store<C, N>(from_float<C, N>(value), c, at(first));
  }
}

// --- 16 rows, element by element: for a C that is not aligned --------------------------------------------------------

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

// A wave's part of LDS, which the main loop does not need any more: an accumulator of each lane, 16 rows of 64 floats
// (edge 32: 32 rows of 32), of which chunks of four are swizzled against conflicts.
constexpr int kScratchBytes = 16 * 64 * 4;

template <int Width>
TURBO_DEVICE int scratch_at(int row, int column) {
  return row * Width + swizzle<Width / 4>(row, column / 4) * 4 + column % 4;
}

// Through LDS, so that a store of the wave is 16 adjacent elements of each row, or more. `offset`: of this lane's first
// element; `rows`: of what follows, that are there; both of lane % Width.
template <class T>
TURBO_DEVICE void write_elements(const Accumulator &x, local<float> *scratch, Buffer c, int offset, int row_bytes,
                                 int rows, int type, bool accumulate) {
  constexpr int width = 64 / T::row_parts;
  const int lane = lane_index();
  order();
#pragma unroll
  for (int j = 0; j < 4; ++j) store<4>(scratch + scratch_at<width>(lane % T::edge, lane / T::edge * 16 + 4 * j), x[j]);
  order();  // the LDS instructions of a wave are in order
#pragma unroll 1
  for (int row = T::row_parts == 1 ? 0 : lane / width; row < rows; row += T::row_parts) {
    float value = scratch[scratch_at<width>(row, lane % width)];
    with_type(type, [&](auto zero) {
      using C = decltype(zero);
      if (accumulate) value += to_float(load_one<C>(c, offset));
      store_one<C>(from_float<C>(value), c, offset);
    });
    offset += T::row_parts * row_bytes;
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
  for (int j = 0; j < 4; ++j) values[j] = f32x4{};
  if (args.bias == nullptr) return;
  if (args.bias_type == 0) read_bias<float>(values, args.bias, first, args.n);
  if (args.bias_type == 1) read_bias<fp16>(values, args.bias, first, args.n);
  if (args.bias_type == 2) read_bias<bf16>(values, args.bias, first, args.n);
}

// --- the tile --------------------------------------------------------------------------------------------------------

// `total` is A B^T, in float32. `lds` is free from here on.
template <class T, int LdsBytes>
TURBO_DEVICE void write_tile(const GemmArgs &args, TilePosition tile, int wave,
                             const Accumulator (&total)[T::fragments], unsigned char (&lds)[LdsBytes]) {
  static_assert(LdsBytes >= T::waves * kScratchBytes, "");
  const LanePosition<T> lane(wave);
  const int rows = least(args.m - tile.m, T::m), columns = least(args.n - tile.n, T::n);
  const int bytes = args.c_type == 0 ? 4 : 2;  // of an element of C
  const int row_bytes = int(args.c_stride) * bytes;
  const Buffer c = make_buffer((global<unsigned char> *)args.c + (tile.m * args.c_stride + tile.n) * bytes,
                               unsigned((rows - 1) * row_bytes + columns * bytes));
  const int wave_row = wave / T::waves_n * (T::fragments * 16);
  auto *scratch = (local<float> *)((local<unsigned char> *)lds + wave * kScratchBytes);
#pragma unroll
  for (int part = 0; part < T::row_parts; ++part) {
    const int first = lane.column + lane.columns_before(part);
    Accumulator bias;
    read_bias(bias, args, tile.n + first);
    // Element by element: a column a lane, `width` of them in a row.
    constexpr int width = 64 / T::row_parts;
    const int element = lane_index() % width, up = T::row_parts == 1 ? 0 : lane_index() / width;
    const int column = wave % T::waves_n * 64 + element / 16 * T::edge + part * 16 + element % 16;
#pragma unroll
    for (int f = part; f < T::fragments; f += T::row_parts) {
      const int row = lane.rows_before(f);
      int offset = (lane.row + row) * row_bytes + first * bytes;
      int left = lane.row + row < rows ? columns - first : 0;
      // Row by row: otherwise the offsets of all rows are computed first, and kept in registers that there are not.
      order();
      asm volatile("" : "+v"(offset), "+v"(left));
      Accumulator x;
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = total[f][j] + bias[j];
      if (args.vector) {
        with_type(args.c_type, [&](auto zero) { write_columns<decltype(zero)>(x, c, offset, left, args.accumulate); });
      } else {
        const int at = column < columns ? (wave_row + row + up) * row_bytes + column * bytes : kNowhere;
        write_elements<T>(x, scratch, c, at, column < columns ? row_bytes : 0, least(rows - wave_row - row, T::edge),
                          args.c_type, args.accumulate);
      }
    }
  }
}

// Zeros in place of the tile, by all work-items. Bits of 0.0 in every type.
template <class T>
TURBO_DEVICE void write_zeros(const GemmArgs &args, TilePosition tile) {
  const int rows = least(args.m - tile.m, T::m), columns = least(args.n - tile.n, T::n);
  const int bytes = args.c_type == 0 ? 4 : 2;  // of an element of C
  const int row_bytes = int(args.c_stride) * bytes;
  const Buffer c = make_buffer((global<unsigned char> *)args.c + (tile.m * args.c_stride + tile.n) * bytes,
                               unsigned((rows - 1) * row_bytes + columns * bytes));
  const int each = args.vector ? 16 : bytes;  // of a store
  const int per_row = T::n * bytes / each;    // a power of two
  float zero;
  asm volatile("v_mov_b32 %0, 0" : "=v"(zero));  // else registers are zeros in the main loop too
#pragma unroll 1
  for (int i = thread_index(); i < rows * per_row; i += T::threads) {
    const int at = (i & (per_row - 1)) * each,
              offset = at < columns * bytes ? (i >> __builtin_ctz(unsigned(per_row))) * row_bytes + at : kNowhere;
    if (each == 16) store<float, 4>(f32x4{zero, zero, zero, zero}, c, offset);
    if (each == 4) store_one(zero, c, offset);
    if (each == 2) store_one(bf16{}, c, offset);
  }
}

}  // namespace turbo::gemm
