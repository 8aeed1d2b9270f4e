// SPDX-License-Identifier: MIT
//
// MXFP8 and MXFP4 along rows, columns or both, with one read of x.
//
// x [B, R, C] of any strides; row copy [B, R, Cp], column copy [B, C, Rp] (transposed), a scale byte for each 32
// elements along the last dimension; Cp, Rp are rounded up to 128, the padding is zeros. The maths is in mx_block.h.
//
// A work-group has 128 rows x 128 columns (64 of float32). Each work-item loads whole pieces of 16 elements of rows,
// puts them into LDS if columns are wanted, makes the row copy from its registers, and after the one barrier reads
// pieces of columns back (mx_tile.h) for the column copy. Stores are 16 bytes a lane (e2m1: 8), 128 (64) adjacent bytes
// a line.
#pragma once

#include "mx_block.h"
#include "mx_tile.h"

namespace turbo_quant {

TURBO_DEVICE PhiloxKey philox_key(const QuantizeMx &a, bool column) {
  const unsigned long seed = (unsigned long)a.rng[0], offset = (unsigned long)a.rng[1];
  return {unsigned(seed), unsigned(seed >> 32), unsigned(offset), unsigned(offset >> 32) ^ (column ? 1u << 31 : 0u)};
}

// Without Columns, the row copy alone: no LDS, so more waves fit.
template <class T, class F, bool Special, bool Columns>
TURBO_DEVICE void quantize_mx(const QuantizeMx &a) {
  using Tile = LdsTile<T>;
  using M = Magnitude<T>;
  const Source &s = a.source;
  const TileIndex index(s, block_index());
  const TileRows rows(s, index.row);
  const long long first_column = (long long)index.column * Tile::columns;
  const int v = Tile::row_piece();

  // --- load, and hand over to the columns
  typename Tile::Piece x[Tile::pieces];
#pragma unroll
  for (int i = 0; i < Tile::pieces; ++i) {
    const int row = Tile::row(i);
    const long long column = first_column + v * kPiece16;
    const long long count = row < rows.count ? s.columns - column : 0;
    x[i] = load_some<kPiece16>(element<T>(s, index.batch, rows.source + row, column), s.column_stride, count,
                               s.vector != 0);
  }
  unsigned tile_amax = 0;  // of the 32 x 32 tile that the work-item's pieces are part of
  if ((a.row.flags | a.column.flags) & kMxTile) {
    vec<M, kPiece16> m = magnitude<T, kPiece16>(x[0]);
#pragma unroll
    for (int i = 1; i < Tile::pieces; ++i) m = __builtin_elementwise_max(m, magnitude<T, kPiece16>(x[i]));
    tile_amax = float_bits<T>(largest<M, kPiece16>(m));
    tile_amax = lanes_max<2>(tile_amax);
    // over the rows of the wave: lanes of the same pieces, row_pieces apart
    if constexpr (Tile::row_pieces == 4) tile_amax = __builtin_elementwise_max(tile_amax, lane_xor_4(tile_amax));
    tile_amax = __builtin_elementwise_max(tile_amax, dpp_move<kRowRotate8>(tile_amax));
    tile_amax = __builtin_elementwise_max(tile_amax, across<16>(tile_amax));
    tile_amax = __builtin_elementwise_max(tile_amax, across<32>(tile_amax));
  }
  __shared__ alignas(16) unsigned char lds[Columns ? sizeof(typename Tile::Bytes) : 16];
  if (Columns && a.column.payload != nullptr) {
#pragma unroll
    for (int i = 0; i < Tile::pieces; ++i) Tile::write_row(lds, Tile::row(i), v, x[i]);
  }

  // --- the row copy
  if (a.row.payload != nullptr) {
    PhiloxKey key = {};
    if (Special && (a.row.flags & kMxStochastic)) key = philox_key(a, false);
#pragma unroll
    for (int i = 0; i < Tile::pieces; ++i) {
      const int row = Tile::row(i);
      const unsigned amax =
          a.row.flags & kMxTile ? tile_amax : float_bits<T>(largest<M, kPiece16>(magnitude<T, kPiece16>(x[i])));
      const PieceAt at{index.batch, rows.source + row, (long long)index.column * Tile::row_pieces + v};
      quantize_piece<F, Special>(a.row, at, to_float<T, kPiece16>(x[i]), amax, a.sign_mask, key, true,
                                 row < rows.count);
    }
  }

  // --- the column copy
  if (!Columns || a.column.payload == nullptr) return;
  barrier();
  PhiloxKey key = {};
  if (Special && (a.column.flags & kMxStochastic)) key = philox_key(a, true);
  typename Tile::Chunk chunks[kPiece16];
  Tile::read_columns(lds, chunks);
  const int u = Tile::column_piece();
  // Maxima of the 32 x 32 tiles, [4][4], take the place of the elements: with 32 KiB two work-groups fit a gfx942.
  unsigned *tile_maxima = reinterpret_cast<unsigned *>(&lds[0]);
  if (a.column.flags & kMxTile) {
    barrier();
    if (lane_index() < Tile::row_pieces) tile_maxima[wave_index() * 4 + v / 2] = tile_amax;
    barrier();
  }
#pragma unroll
  for (int j = 0; j < Tile::chunk; ++j) {
    typename Tile::Piece piece;
#pragma unroll
    for (int k = 0; k < kPiece16; ++k) piece[k] = chunks[k][j];
    const int column = Tile::column() + j;
    unsigned amax = float_bits<T>(largest<M, kPiece16>(magnitude<T, kPiece16>(piece)));
    if (a.column.flags & kMxTile) amax = tile_maxima[u / 2 * 4 + column / 32];
    const PieceAt at{index.batch, first_column + column, (long long)index.row * (kTile / kPiece16) + u};
    quantize_piece<F, Special>(a.column, at, to_float<T, kPiece16>(piece), amax, a.sign_mask, key, rows.grouped,
                               first_column + column < s.columns);
  }
}

}  // namespace turbo_quant

// `rows` makes the row copy alone; it and `basic` make neither rotations nor stochastic rounding.
#define TURBO_QUANTIZE_MX(type, T, format, F)                               \
  TURBO_KERNEL(turbo_quant::kThreads, 4)                                    \
  void quantize_mx_##format##_##type##_rows(turbo_quant::QuantizeMx a) {    \
    turbo_quant::quantize_mx<T, F, false, false>(a);                        \
  }                                                                         \
  TURBO_KERNEL(turbo_quant::kThreads, turbo_quant::kTileWaves)              \
  void quantize_mx_##format##_##type##_basic(turbo_quant::QuantizeMx a) {   \
    turbo_quant::quantize_mx<T, F, false, true>(a);                         \
  }                                                                         \
  TURBO_KERNEL(turbo_quant::kThreads, turbo_quant::kTileWaves)              \
  void quantize_mx_##format##_##type##_special(turbo_quant::QuantizeMx a) { \
    turbo_quant::quantize_mx<T, F, true, true>(a);                          \
  }
#define TURBO_QUANTIZE_MX_FORMAT(format, F)       \
  TURBO_QUANTIZE_MX(fp32, float, format, F)       \
  TURBO_QUANTIZE_MX(fp16, turbo::fp16, format, F) \
  TURBO_QUANTIZE_MX(bf16, turbo::bf16, format, F)
