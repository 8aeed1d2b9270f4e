// SPDX-License-Identifier: MIT
//
// x = q scale_inv, in float32, rounded once to the type of x.
//
// q [B, R, C] of any strides, FP8; scale_inv float32, one for the tensor, a row, a column, or a block of them; x [B, R,
// C] contiguous. A work-group has 128 x 128 elements, a work-item 8 adjacent ones of 8 rows. Memory-bound.
#include "float_device.h"
#include "float_tile.h"

using namespace turbo_quant;

// n / d; blocks of one are the common case and need no division.
TURBO_DEVICE unsigned quotient(unsigned n, unsigned d) { return d == 1 ? n : n / d; }

template <class T, class F>
TURBO_DEVICE void dequantize_float(const DequantizeFloat &a) {
  const Source &s = a.source;
  const TileIndex index(s, block_index());
  const long long column = (long long)index.column * kTile + thread_index() % kColumnLanes * kPerLane;
  const long long count = s.columns - column;
  if (count <= 0) return;
  const bool vector = s.vector && s.columns % kPerLane == 0;
  const bool one_scale = a.block_columns % kPerLane == 0;  // for the 8 columns of a work-item
  unsigned scale_column[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) scale_column[j] = one_scale && j > 0 ? 0 : quotient(column + j, a.block_columns);
#pragma unroll
  for (int i = 0; i < kRowSteps; ++i) {
    const long long row = (long long)index.row * kTile + i * kRowLanes + thread_index() / kColumnLanes;
    if (row >= s.rows) continue;
    const auto codes =
        load_some<kPerLane>(element<unsigned char>(s, index.batch, row, column), s.column_stride, count, s.vector != 0);
    const auto packed = bits<vec<unsigned, 2>>(codes);
    const vec<float, 4> low = decode4<F>(packed[0]), high = decode4<F>(packed[1]);
    vec<float, kPerLane> x = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    const global<const float> *scale =
        a.scale + index.batch * a.scale_batch + quotient(row, a.block_rows) * a.scale_row;
    if (one_scale) {
      x *= scale[scale_column[0]];
    } else {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) x[j] *= j < count ? scale[scale_column[j]] : 0.0f;
    }
    store_some<kPerLane>((global<T> *)a.out + (index.batch * s.rows + row) * s.columns + column,
                         from_float<T, kPerLane>(x), count, vector);
  }
}

#define TURBO_DEQUANTIZE_FLOAT(type, T, code, F) \
  TURBO_KERNEL(kThreads, 4) void dequantize_float_##type##_##code(DequantizeFloat a) { dequantize_float<T, F>(a); }
#define TURBO_DEQUANTIZE_FLOAT_OF_TYPE(type, T)             \
  TURBO_DEQUANTIZE_FLOAT(type, T, e4m3, fp8_e4m3)           \
  TURBO_DEQUANTIZE_FLOAT(type, T, e5m2, fp8_e5m2)           \
  TURBO_DEQUANTIZE_FLOAT(type, T, e4m3_fnuz, fp8_e4m3_fnuz) \
  TURBO_DEQUANTIZE_FLOAT(type, T, e5m2_fnuz, fp8_e5m2_fnuz)

TURBO_DEQUANTIZE_FLOAT_OF_TYPE(fp32, float)
TURBO_DEQUANTIZE_FLOAT_OF_TYPE(fp16, fp16)
TURBO_DEQUANTIZE_FLOAT_OF_TYPE(bf16, bf16)
