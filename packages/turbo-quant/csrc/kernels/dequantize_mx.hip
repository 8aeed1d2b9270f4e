// SPDX-License-Identifier: MIT
//
// x = q * 2^(byte - 127), rotated back where it was rotated, rounded once to the type of x.
//
// q [B, L, Kp] of any strides (e2m1: Kp / 2 bytes), bytes [B, L, Kp / 32]; x [B, L, size], or [B, size, L] transposed,
// is contiguous. A work-group has 128 lines x 128 values (64 of float32); a transposed result goes through LDS
// (mx_tile.h).
#include "hadamard.h"
#include "mx_block.h"
#include "mx_tile.h"

using namespace turbo_quant;

// 2^(byte - 127); NaN for 255.
TURBO_DEVICE float scale_of(unsigned byte) {
  return bits<float>(byte == 0 ? 1u << 22 : byte == kNanByte ? 0x7fc00000u : byte << 23);
}

template <class F>
TURBO_DEVICE vec<float, 16> decode_piece(const DequantizeMx &a, const global<unsigned char> *q, bool vector) {
  constexpr int n = kPieceBytes<F>;
  const vec<unsigned char, n> codes = load_some<n>(q, a.byte_stride, n, vector);
  const auto packed = bits<vec<unsigned, n / 4>>(codes);
  vec<float, 16> x;
#pragma unroll
  for (int i = 0; i < n / 4; ++i) {
    if constexpr (kIsFp4<F>) {
      const vec<float, 8> part = decode_fp4x8(packed[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[8 * i + j] = part[j];
    } else {
      const vec<float, 4> part = decode4<F>(packed[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[4 * i + j] = part[j];
    }
  }
  return x;
}

template <class T, class F>
TURBO_DEVICE void dequantize_mx(const DequantizeMx &a) {
  using Tile = LdsTile<T>;
  __shared__ alignas(16) typename Tile::Bytes lds;
  const unsigned column_tile = block_index() % a.column_tiles, rest = block_index() / a.column_tiles;
  const long long batch = rest / a.line_tiles, first_line = (long long)(rest % a.line_tiles) * kTile;
  const long long first_column = (long long)column_tile * Tile::columns;
  const int v = Tile::row_piece();
  global<T> *out = (global<T> *)a.out + batch * a.lines * a.size;
  const bool vector = (a.transpose ? a.lines : a.size) % kVectorOf<T> == 0;

#pragma unroll
  for (int i = 0; i < Tile::pieces; ++i) {
    const long long line = first_line + Tile::row(i), column = first_column + v * kPiece16;
    vec<T, 16> x = {};
    if (line < a.lines && column < a.size) {
      const long long byte = column * kPieceBytes<F> / 16;
      const global<unsigned char> *q = a.q + batch * a.batch_stride + line * a.line_stride + byte * a.byte_stride;
      const unsigned scale = a.scale[(batch * a.lines + line) * (a.length / 32) + column / 32];
      vec<float, 16> value = decode_piece<F>(a, q, a.vector != 0) * scale_of(scale);
      if (a.rht) value = flip_signs(hadamard(value), a.sign_mask);
      x = from_float<T, 16>(value);
      if (!a.transpose) store_some<kPiece16>(out + line * a.size + column, x, a.size - column, vector);
    }
    if (a.transpose) Tile::write_row(lds, Tile::row(i), v, x);
  }
  if (!a.transpose) return;
  barrier();
  typename Tile::Chunk chunks[kPiece16];
  Tile::read_columns(lds, chunks);
#pragma unroll
  for (int j = 0; j < Tile::chunk; ++j) {
    vec<T, 16> x;
#pragma unroll
    for (int k = 0; k < kPiece16; ++k) x[k] = chunks[k][j];
    const long long column = first_column + Tile::column() + j, line = first_line + Tile::column_piece() * kPiece16;
    if (column < a.size) store_some<kPiece16>(out + column * a.lines + line, x, a.lines - line, vector);
  }
}

#define TURBO_DEQUANTIZE_MX(type, T, format, F) \
  TURBO_KERNEL(kThreads, kTileWaves) void dequantize_mx_##format##_##type(DequantizeMx a) { dequantize_mx<T, F>(a); }
#define TURBO_DEQUANTIZE_MX_OF_TYPE(type, T)   \
  TURBO_DEQUANTIZE_MX(type, T, e4m3, fp8_e4m3) \
  TURBO_DEQUANTIZE_MX(type, T, e5m2, fp8_e5m2) \
  TURBO_DEQUANTIZE_MX(type, T, e2m1, e2m1)

TURBO_DEQUANTIZE_MX_OF_TYPE(fp32, float)
TURBO_DEQUANTIZE_MX_OF_TYPE(fp16, fp16)
TURBO_DEQUANTIZE_MX_OF_TYPE(bf16, bf16)
