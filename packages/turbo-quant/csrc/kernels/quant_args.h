// SPDX-License-Identifier: MIT
//
// What the host launchers and the device code share: argument structs, tiles, flags.
//
// A kernel takes one struct by value, so the struct is its argument segment byte for byte; plain C++, seen by both
// compilers. The device sees pointers to global memory, the host plain ones. Shape letters as in turbo_quant.h: a
// source of B x R x C elements with any strides.
#pragma once

#if defined(__HIP__)
#include "turbo/types.h"
#define TURBO_GLOBAL(T) ::turbo::global<T> *
#else
#define TURBO_GLOBAL(T) T *
#endif

namespace turbo_quant {

constexpr int kThreads = 256;  // of every kernel but the long rows': four waves, one on each SIMD of a compute unit
constexpr int kTile = 128;     // rows and columns of a tile: the block of BLOCKWISE, the padding of MX
constexpr int kMaxPartials = 1024;  // partial maxima of a tensor, one a work-group of the first pass

// The source, and the grid of tiles that work-groups take one by one: columns fastest, then rows, then batches.
struct Source {
  TURBO_GLOBAL(const void) x;
  long long batch_stride, row_stride, column_stride;  // elements
  long long rows, columns;
  unsigned row_tiles, column_tiles;  // row_tiles: of the column copy where there are groups
  int vector;                        // rows can be read with 16-byte accesses
  int groups;
  TURBO_GLOBAL(const long long) group_offs;         // [groups + 1]; null: no groups
  TURBO_GLOBAL(const long long) group_offs_padded;  // [groups + 1]
};

// scale = fp8_max / max(amax, floor);  scale_inv = 1 / scale;  q = round_to_fp8(x scale)
struct QuantizeFloat {
  Source source;
  TURBO_GLOBAL(void) row;  // null: not wanted. Payloads are [B, R, C] (column: column_rows rows), contiguous
  TURBO_GLOBAL(float) row_scale;
  TURBO_GLOBAL(void) column;
  TURBO_GLOBAL(float) column_scale;
  TURBO_GLOBAL(unsigned) amax;  // maxima of a first pass, as bits
  long long column_rows;        // of the column copy: R, or R and the padding of the groups
  long long all_rows;           // B R
  unsigned tiles;               // in all batches
  unsigned blocks;              // work-groups launched
  unsigned partials;            // a tensor's: how many maxima there are
  int tile;                     // BLOCKWISE: row's scales are of tiles
};

constexpr int kMxTile = 1, kMxRht = 2, kMxStochastic = 4, kMxShuffleScale = 8, kMxShuffleOut = 16;  // MxCopy::flags

// One copy: `lines` lines of `length` elements (a multiple of 128), blocks of 32 along them.
struct MxCopy {
  TURBO_GLOBAL(unsigned char) payload;  // null: not wanted
  TURBO_GLOBAL(unsigned char) scale;
  long long lines, length;
  long long scale_batch;  // bytes of scales of a batch
  int scale_pitch;        // bytes of scales of a line
  int flags;
};

struct QuantizeMx {
  Source source;
  MxCopy row, column;
  TURBO_GLOBAL(const long long) rng;  // seed and offset
  int sign_mask;
  int unused;
};

// x = q scale_inv[b scale_batch + (r / block_rows) scale_row + c / block_columns]
struct DequantizeFloat {
  Source source;  // q, bytes; no groups
  TURBO_GLOBAL(const float) scale;
  TURBO_GLOBAL(void) out;  // [B, R, C], contiguous
  long long scale_batch, scale_row;
  unsigned block_rows, block_columns;
};

// x = q 2^(byte - 127), for lines of blocks; transposed: the result is [B, size, lines]
struct DequantizeMx {
  TURBO_GLOBAL(const unsigned char) q;
  TURBO_GLOBAL(const unsigned char) scale;  // [B, lines, length / 32], contiguous
  TURBO_GLOBAL(void) out;
  long long batch_stride, line_stride, byte_stride;  // of q, in bytes
  long long lines, length, size;
  unsigned line_tiles, column_tiles;
  int vector;
  int transpose;
  int rht;
  int sign_mask;
};

// The layouts are part of the interface between two compilers.
static_assert(sizeof(Source) == 80 && sizeof(QuantizeFloat) == 152 && sizeof(MxCopy) == 48, "");
static_assert(sizeof(QuantizeMx) == 192 && sizeof(DequantizeFloat) == 120 && sizeof(DequantizeMx) == 96, "");

// --- ROWWISE rows in registers ---------------------------------------------------------------------------------------
//
// X(..., threads, chunks): `threads` work-items a row, `chunks` accesses of 16 bytes each; a row of up to
// 16 * threads * chunks bytes fits, and the launcher takes the first line that fits. Longer rows and those that cannot
// be read with 16-byte accesses are read twice (`loop`). By register count; not timed on a card.
//
//    64: a wave a row, four rows a work-group: no LDS and no barrier
//   256, 1024: a row a work-group
#define TURBO_QUANTIZE_ROWS_TABLE(X, ...)                        \
  X(__VA_ARGS__, 64, 1)   /* 1 KiB:   512 elements of 16 bits */ \
  X(__VA_ARGS__, 64, 4)   /* 4 KiB:  2048 */                     \
  X(__VA_ARGS__, 256, 4)  /* 16 KiB: 8192 */                     \
  X(__VA_ARGS__, 1024, 4) /* 64 KiB: 32768 */

constexpr int kRowsPerWaveBlock = 4;  // rows a work-group when a wave has a row

}  // namespace turbo_quant
