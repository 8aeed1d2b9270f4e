// SPDX-License-Identifier: MIT
//
// A tile in LDS that is written along its rows and read along its columns (or the other way round), without bank
// conflicts.
//
// 128 rows of 256 bytes: 128 columns of 16-bit elements or 64 of 32-bit ones. A *piece* is 16 consecutive elements of a
// row, or of a column: half a block of 32, and what one Hadamard rotation takes. A work-item has `pieces` of them at a
// time:
//
//   by rows      piece v of row r: lanes run along v, then r; wave w has rows 32 w to 32 w + 31
//   by columns   piece u (rows 16 u to 16 u + 15) of E = 8 / sizeof(T) adjacent columns, one ds_read_b64 a row; lanes
//                run along u (8 of them, so that 8 lanes store what is adjacent in the transposed copy), then along
//                columns
//
// A row has 16 slots of 16 bytes. Slot i of piece v of row r lies at
//
//   16-bit elements   ((i ^ r) & 1) * 8 + (v ^ (r / 16))
//   32-bit elements   ((i ^ r / 2) & 1) * 8 + (((i / 2 ^ r) & 1) * 4 + v) ^ (r / 16)
//
// so that lanes that are served together hit each bank once: 8 lanes of ds_write_b128 on gfx942 (32 banks) differ in v
// and r, 16 lanes of ds_read_b64 in r / 16 and the half of a slot; on gfx950 (64 banks) it is 16 and 32 lanes, which
// differ in one bit more.
#pragma once

#include "quant_device.h"

namespace turbo_quant {

constexpr int kPiece16 = 16;  // elements of a piece
constexpr int kLdsRowBytes = 256;
constexpr int kTileWaves = kLdsBytes < 4 * kTile * kLdsRowBytes ? 2 : 4;  // waves a SIMD that the tile's 32 KiB allow

template <class T>
struct LdsTile {
  static constexpr int size = int(sizeof(T));
  static constexpr int columns = kLdsRowBytes / size;
  static constexpr int row_pieces = columns / kPiece16;     // of a row: 8 or 4
  static constexpr int wave_rows = kWaveSize / row_pieces;  // rows that a wave has at a time: 8 or 16
  static constexpr int pieces = 32 / wave_rows;             // of a work-item: 4 or 2
  static constexpr int chunk = 8 / size;                    // columns of a work-item, E above: as many
  using Piece = vec<T, kPiece16>;
  using Chunk = vec<T, chunk>;
  using Bytes = unsigned char[kTile * kLdsRowBytes];
  static_assert(chunk == pieces, "a work-item has as many pieces by columns as by rows");

  // --- by rows
  TURBO_MEMBER static int row_piece() { return lane_index() % row_pieces; }
  TURBO_MEMBER static int row(int step) { return wave_index() * 32 + step * wave_rows + lane_index() / row_pieces; }

  // --- by columns
  TURBO_MEMBER static int column_piece() { return lane_index() % 8; }
  TURBO_MEMBER static int column() { return (wave_index() * 8 + lane_index() / 8) * chunk; }  // the first of E

  TURBO_MEMBER static int slot(int row, int piece, int i) {
    if constexpr (size == 2) {
      return ((i ^ row) & 1) * 8 + (piece ^ (row / 16));
    } else {
      return ((i ^ row / 2) & 1) * 8 + ((((i / 2 ^ row) & 1) * 4 + piece) ^ (row / 16));
    }
  }

  TURBO_MEMBER static void write_row(unsigned char *lds, int row, int piece, Piece x) {
    using Slot = vec<T, 16 / size>;
#pragma unroll
    for (int i = 0; i < size; ++i) {
      Slot part;
#pragma unroll
      for (int j = 0; j < 16 / size; ++j) part[j] = x[i * (16 / size) + j];
      *reinterpret_cast<Slot *>(&lds[row * kLdsRowBytes + slot(row, piece, i) * 16]) = part;
    }
  }

  // Elements (row 16 u + k, columns column() to column() + E - 1) of the work-item's u and all k.
  TURBO_MEMBER static void read_columns(const unsigned char *lds, Chunk (&x)[kPiece16]) {
    const int u = column_piece(), byte = column() * size;
    const int piece = byte / (kPiece16 * size), i = byte / 16 % size, half = byte / 8 % 2;
#pragma unroll
    for (int k = 0; k < kPiece16; ++k) {
      const int at = (u * kPiece16 + k) * kLdsRowBytes + slot(u * kPiece16 + k, piece, i) * 16 + half * 8;
      x[k] = *reinterpret_cast<const Chunk *>(&lds[at]);
    }
  }
};

}  // namespace turbo_quant
