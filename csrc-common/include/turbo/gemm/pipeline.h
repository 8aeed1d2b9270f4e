// SPDX-License-Identifier: MIT
//
// The main loop that all quantised GEMMs share: tiles of A and B go from memory to LDS without registers, waves read
// fragments and multiply. turbo-gemm's NOTES-gemm.md has the arithmetic behind the choices.
//
// Stage: kStageBytes of each row of the tile, along K. Two stages alternate in LDS. With 8 waves there are two groups of
// four, one wave of each on every SIMD, and the second runs half a stage behind the first:
//
//   interval      2t             2t + 1         2t + 2         2t + 3          s_barrier between intervals
//   leading       read t         multiply t     read t + 1     multiply t + 1
//   following     multiply t-1   read t         multiply t     read t + 1
//
// so the matrix unit of a SIMD always has a wave that multiplies. Stage t + 2 goes to where stage t was; the following
// group's `read t` is the last use of that, so all waves ask for it in interval 2t + 2 and wait for it to have landed at
// the end of 2t + 3: two intervals, in which nothing waits. With 4 waves there is one group, and the compute unit has room
// for a second work-group instead.
#pragma once

#include "turbo/buffer.h"
#include "turbo/gemm/args.h"
#include "turbo/lds.h"
#include "turbo/lds_dma.h"
#include "turbo/mfma.h"
#include "turbo/xcd.h"

namespace turbo::gemm {

// Bytes of a row in a stage, and what one LDS-DMA instruction moves per lane. LDS: (256 + 256) rows in two stages are
// 128 KiB of gfx950's 160 and all 64 KiB of gfx942.
#if defined(__gfx950__)
constexpr int kStageBytes = 128;
#else
constexpr int kStageBytes = 64;
#endif
constexpr int kDmaBytes = kLdsDmaMaxBytes;
constexpr int kChunks = kStageBytes / 16;               // 16-byte chunks of a row in a stage: a lane's LDS access
constexpr int kDmaRows = 64 * kDmaBytes / kStageBytes;  // rows that an LDS-DMA instruction of a wave fills

// A wave's part is 16 Fragments rows of 64 columns, in matrix instructions of Edge x Edge, 16 or 32. A lane has of it
// `fragments` times 16 adjacent columns of a row.
template <int WavesM, int WavesN, int Fragments, int Edge = 16>
struct Tile {
  static constexpr int waves_m = WavesM, waves_n = WavesN, fragments = Fragments, edge = Edge;
  static constexpr int waves = WavesM * WavesN, threads = waves * kWaveSize;
  static constexpr int m = WavesM * Fragments * 16, n = WavesN * 64;
  static constexpr int lane_groups = 64 / Edge;       // of Edge lanes, that have the same columns
  static constexpr int column_fragments = 64 / Edge;  // of the wave's 64 columns
  static constexpr int row_fragments = Fragments * 16 / Edge;
  static constexpr int row_parts = Edge / 16;  // times 16 columns of one row that a lane has
  static constexpr bool two_groups = waves == 8;
};

// Where everything is in LDS.
template <class T>
struct LdsLayout {
  static constexpr int a(int stage) { return stage * T::m * kStageBytes; }
  static constexpr int b(int stage) { return 2 * T::m * kStageBytes + stage * T::n * kStageBytes; }
  static constexpr int end = 2 * (T::m + T::n) * kStageBytes;
};

// --- rows ------------------------------------------------------------------------------------------------------------

// Row of B, in the tile, that is row r of its LDS image. Rows are permuted within 64 so that a lane ends up with adjacent
// columns of C: of fragment f it has rows 4 q + s (edge 32: 8 q + 4 g + s), which are D's register s (4 q + s) in lane
// group q (g), and they are columns 16 q + 4 f + s (32 g + 16 f + 4 q + s).
// Linear in the bits of r: row_of_b(x + y) = row_of_b(x) + row_of_b(y) where x and y have no bit in common.
template <int Edge>
TURBO_DEVICE constexpr int row_of_b(int r) {
  const int s = r & 3;
  if (Edge == 16) return (r & ~63) + 16 * (r >> 2 & 3) + 4 * (r >> 4 & 3) + s;
  return (r & ~63) + 32 * (r >> 2 & 1) + 16 * (r >> 5 & 1) + 4 * (r >> 3 & 3) + s;
}

// The chunk of a row that is stored at `position` of row r, and the other way round. Two rows (gfx950: of 128 bytes, 64
// banks; gfx942: of 64 bytes, 32 banks) take all banks once, and r / 2 changes the order: the 16 rows of a fragment read
// at the same chunk, or 4 rows of it at any 4 lanes groups, meet each bank once.
TURBO_DEVICE int swizzle_rows(int r, int position) { return position ^ (r >> 1 & (kChunks - 1)); }

// --- memory to LDS ---------------------------------------------------------------------------------------------------

// One operand's rows of the tile, as this wave fetches them: A's in order, B's permuted for fragments of Edge.
constexpr int kInOrder = 0;
template <int Rows, int Waves, int Edge>
struct Fetcher {
  static constexpr int count = Rows / (kDmaRows * Waves);  // instructions a stage
  Descriptor from;
  int offset;      // of this lane in the first instruction
  int position;    // its place in the row, bytes
  int row_stride;  // bytes

  static TURBO_METHOD constexpr int row_of(int r) { return Edge == kInOrder ? r : row_of_b<Edge>(r); }

  // order_of(p) is the chunk that is wanted at place p.
  template <class Order>
  TURBO_METHOD Fetcher(const global<unsigned char> *tile, long long stride, int rows, int row_bytes, int wave,
                       Order order_of)
      : from(describe(tile, unsigned(stride * ((rows < Rows ? rows : Rows) - 1) + row_bytes))),
        row_stride(int(stride)) {
    const int byte = lane_index() * kDmaBytes;
    const int row = wave * kDmaRows + byte / kStageBytes;
    position = order_of(swizzle_rows(row, byte % kStageBytes / 16)) * 16 + byte % 16;
    offset = row_of(row) * row_stride + position;
  }

  // Bytes [at, at + kStageBytes) of each row to `to`, where this wave's first instruction writes. Masked: bytes from
  // `row_bytes` on become 0. Stages come in order, so that the last one's mask can stay.
  template <bool Masked>
  TURBO_METHOD void operator()(int at, int row_bytes, int to) {
    if (Masked && at + kStageBytes > row_bytes) {
      if (position >= row_bytes - at) offset = int(0x80000000);  // beyond any size that a descriptor has here
      asm volatile("" : "+v"(offset));                           // else every stage computes the mask
    }
    asm volatile("" : "+s"(to));  // else a register for each i is kept over the loop
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int row = i * Waves * kDmaRows;
      int further = row_of(row) * row_stride + at;
      asm("" : "+s"(further));  // not before it is needed, likewise
      if (further > from[2]) further = from[2];
      fetch_to_lds<kDmaBytes>(from, offset, further, to + row * kStageBytes);
    }
  }
};

// Opaque, or wave_index() is computed from the lane's index again and again, in the loop too.
TURBO_DEVICE int kept_wave_index() {
  int wave = wave_index();
  asm volatile("" : "+s"(wave));
  return wave;
}

// Where the first DMA instruction of a wave writes, if the tile's rows begin at 0.
TURBO_DEVICE int dma_start_of(int wave) { return wave * kDmaRows * kStageBytes; }

// --- the loop --------------------------------------------------------------------------------------------------------

// One stage. Loop has fetch<Stage>(t), read<Stage>(t) and multiply<Stage>(t), where Stage is t % 2, and arrived(t), called
// when what was read is in its registers, or may be waited for. `leading` is a scalar: a branch on it is one s_cbranch.
template <bool TwoGroups, int Stage, class Loop>
TURBO_DEVICE void step(Loop &loop, bool leading, int t, int stages) {
  if (leading && t + 1 < stages) loop.template fetch<1 - Stage>(t + 1);
  loop.template read<Stage>(t);
  if constexpr (TwoGroups) wait_lds();
  loop.arrived(t);
  if constexpr (TwoGroups) {
    if (!leading) wait_fetched();
    bare_barrier();
    if (!leading && t + 2 < stages) loop.template fetch<Stage>(t + 2);
    __builtin_amdgcn_s_setprio(1);  // the reading wave of this SIMD takes the issue slots that are left
  }
  loop.template multiply<Stage>(t);
  if constexpr (TwoGroups) __builtin_amdgcn_s_setprio(0);
  if (leading) wait_fetched();
  bare_barrier();
}

template <class T, class Loop>
TURBO_DEVICE void run(Loop &loop) {
  const int stages = loop.stages;
  const bool leading = !T::two_groups || loop.wave < 4;
  loop.template fetch<0>(0);
  wait_fetched();
  bare_barrier();
  if (!leading) {
    if (stages > 1) loop.template fetch<1>(1);
    bare_barrier();
  }
  for (int t = 0;; t += 2) {
    step<T::two_groups, 0>(loop, leading, t, stages);
    if (t + 1 == stages) break;
    step<T::two_groups, 1>(loop, leading, t + 1, stages);
    if (t + 2 == stages) break;
  }
  if (T::two_groups && leading) bare_barrier();  // both groups arrive equally often
}

// --- where in C ------------------------------------------------------------------------------------------------------

struct TilePosition {
  int m, n;  // first row and column
};

// Tile number `at` of C, in bands of 8 tiles of m that go through all of n, so that what one reads the next finds in its L2.
TURBO_DEVICE TilePosition tile_position(unsigned at, int tiles_m, int tiles_n, int tile_m, int tile_n) {
  constexpr unsigned band = 8;
  const unsigned per_band = band * unsigned(tiles_n), first = at / per_band * band, within = at % per_band;
  const unsigned height = unsigned(tiles_m) - first < band ? unsigned(tiles_m) - first : band;
  return {int(first + within % height) * tile_m, int(within / height) * tile_n};
}

// Tile of this work-group: each XCD gets a run of adjacent tiles.
TURBO_DEVICE TilePosition tile_position(int tiles_m, int tiles_n, int tile_m, int tile_n) {
  return tile_position(xcd_order(unsigned(tiles_m) * unsigned(tiles_n)), tiles_m, tiles_n, tile_m, tile_n);
}

}  // namespace turbo::gemm
