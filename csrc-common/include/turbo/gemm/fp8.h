// SPDX-License-Identifier: MIT
//
// FP8 GEMM with float32 scales: of the tensor, of rows, or of blocks along K; and GEMM of 16 bits, without scales.
//
//   16 bits       C[m][n] = round( (sum over k of a[m][k] b[n][k]) + bias[n] + C[m][n] )
//   tensor, row   C[m][n] = round( (sum over k of a[m][k] b[n][k]) * (sa[m] * sb[n]) + bias[n] + C[m][n] )
//   block         C[m][n] = round( sum over kb of (sum over k in block kb of a[m][k] b[n][k]) * (sa[m][kb] * sb[n][kb])
//                                  + bias[n] + C[m][n] )
//
//   A [m, k], B [n, k]   e4m3 or e5m2 in the architecture's encoding (FNUZ on gfx942, OCP on gfx950); k a multiple of 16
//                        or both bf16, or both fp16; k a multiple of 8
//   sa, sb               float32 factors that dequantise. block: of 128 k, of one row or of 128 rows
//   bias [n]             fp32, fp16, bf16, or absent
//   C [m, n]             fp32, fp16, bf16; added to when `accumulate`
//
// float32 accumulation in the order of k, one rounding. Deterministic. The main loop is pipeline.h.
// gfx942: v_mfma_f32_16x16x32_{fp8,bf8}_{fp8,bf8}; gfx950: v_mfma_f32_16x16x128_f8f6f4 and, for blocks,
// v_mfma_f32_32x32x64_f8f6f4, twice as fast. 16 bits: v_mfma_f32_16x16x16_{bf16,f16}; gfx950: v_mfma_f32_16x16x32_*.
#pragma once

#include "turbo/gemm/epilogue.h"

namespace turbo::gemm {

// --- one fragment: the stage's bytes of 16 or 32 rows ----------------------------------------------------------------

enum class Format { e4m3, e5m2, bf16, fp16 };

// Of 64 / Edge lane groups, group g has chunks g, 64 / Edge + g ...: 16 bytes each, in the order of K.
template <int Edge>
using Fragment = vec<int, 4 * (kChunks * Edge / 64)>;
template <int Edge>
using Sums = vec<float, Edge * Edge / 64>;

template <int I>
TURBO_DEVICE vec<int, 8> half_of(vec<int, 16> x) {
  return __builtin_shufflevector(x, x, I, I + 1, I + 2, I + 3, I + 4, I + 5, I + 6, I + 7);
}

// 16 bits: 8 k of each 16 bytes of a lane.
template <Format F>
TURBO_DEVICE f32x4 multiply_halves(Fragment<16> a, Fragment<16> b, f32x4 c) {
  constexpr int pieces = sizeof(a) / 16;
#pragma unroll
  for (int p = 0; p < pieces; ++p) {
    const vec<int, 4> x = {a[4 * p], a[4 * p + 1], a[4 * p + 2], a[4 * p + 3]};
    const vec<int, 4> y = {b[4 * p], b[4 * p + 1], b[4 * p + 2], b[4 * p + 3]};
    if constexpr (F == Format::bf16) c = mfma_f32_16x16x32_bf16(bits<vec<bf16, 8>>(x), bits<vec<bf16, 8>>(y), c);
    if constexpr (F == Format::fp16) c = mfma_f32_16x16x32_fp16(bits<vec<fp16, 8>>(x), bits<vec<fp16, 8>>(y), c);
  }
  return c;
}

template <int Edge, Format A, Format B>
TURBO_DEVICE Sums<Edge> multiply_bytes(Fragment<Edge> a, Fragment<Edge> b, Sums<Edge> c) {
#if defined(__gfx950__)
  // 128 k at once, or twice 64. With constant scales of 0 the compiler takes the instruction that has none.
  constexpr MxType x = A == Format::e4m3 ? MxType::fp8 : MxType::bf8, y = B == Format::e4m3 ? MxType::fp8 : MxType::bf8;
  if constexpr (Edge == 16) {
    return mfma_scale_f32_16x16x128<x, y>(a, b, c, 0, 0);
  } else {
    c = mfma_scale_f32_32x32x64<x, y>(half_of<0>(a), half_of<0>(b), c, 0, 0);
    return mfma_scale_f32_32x32x64<x, y>(half_of<8>(a), half_of<8>(b), c, 0, 0);
  }
#else
  // 64 k: the first and the second 8 bytes of each lane one after the other, the same k in A and B.
  static_assert(Edge == 16, "");
  const auto multiply_32 = [](long x, long y, f32x4 z) {
    if constexpr (A == Format::e4m3) {
      return B == Format::e4m3 ? mfma_f32_16x16x32_fp8_fp8(x, y, z) : mfma_f32_16x16x32_fp8_bf8(x, y, z);
    } else {
      return B == Format::e4m3 ? mfma_f32_16x16x32_bf8_fp8(x, y, z) : mfma_f32_16x16x32_bf8_bf8(x, y, z);
    }
  };
  const auto x = bits<vec<long, 2>>(a), y = bits<vec<long, 2>>(b);
  return multiply_32(x[1], y[1], multiply_32(x[0], y[0], c));
#endif
}

template <int Edge, Format A, Format B>
TURBO_DEVICE Sums<Edge> multiply_fragment(Fragment<Edge> a, Fragment<Edge> b, Sums<Edge> c) {
  if constexpr (A == Format::bf16 || A == Format::fp16) {
    static_assert(A == B && Edge == 16, "");
    return multiply_halves<A>(a, b, c);
  } else {
    return multiply_bytes<Edge, A, B>(a, b, c);
  }
}

// --- the loop --------------------------------------------------------------------------------------------------------

// What has a scale of its own. none: nothing, of 16 bits. row: a row of A and of B. block_row: of each block of K, a row of A and of B. block_tile:
// of each block of K, a row of A and 128 rows of B, which are all that a tile of C needs.
enum class Scales { none, row, block_row, block_tile };

constexpr int kBlock = 128;                         // k that share a scale
constexpr int kBlockStages = kBlock / kStageBytes;  // gfx942: 2, gfx950: 1

// Blockwise: the sum over a K block is in `part`, and is scaled and added to `total` while the wave reads the next block:
// the vector ALU works then beside the matrix unit, which the other group has. One element at a time, since packed f32
// instructions do not run beside matrix instructions (turbo-gemm's NOTES-gemm.md).
template <Format FormatA, Format FormatB, class T, Scales Kind>
struct Fp8Loop {
  static constexpr bool blockwise = Kind == Scales::block_row || Kind == Scales::block_tile;
  static constexpr int pieces = kChunks / T::lane_groups;  // of 16 bytes, that a lane has of a fragment
  static constexpr int per_fragment = T::edge * T::edge / 64;
  // Scales of a K block in LDS, in the stage with which the block begins: a float for each row of A, then of B.
  static constexpr int slots = blockwise ? 2 / kBlockStages : 0;
  static constexpr int scales = (T::m + T::n) * 4;
  static constexpr int lds_bytes = LdsLayout<T>::end + slots * scales;
  static_assert(T::n == 128 || Kind != Scales::block_tile, "one scale of B for a tile");
  static_assert(T::m / 64 + T::n / 64 <= T::waves || !blockwise, "each wave fetches the scales of 64 rows");
  static constexpr bool begins_block(int stage) { return blockwise && stage % kBlockStages == 0; }
  // Where a block is two stages, scales of half of the rows are multiplied in the read of the second: the first has no more
  // vector instructions then than fit beside the other group's matrix instructions.
  static constexpr int early = Kind == Scales::block_row ? (kBlockStages - 1) * T::fragments / 2 : 0;

  int wave, lds_start, dma_start;  // start of the work-group's LDS; of this wave's DMA into it
  int row_bytes, stages;
  Fetcher<T::m, T::waves, kInOrder> a;
  Fetcher<T::n, T::waves, T::edge> b;
  const global<unsigned char> *scale;  // of this wave's first row; advanced from block to block
  long long scale_step;                // bytes
  int scale_offset, scale_to;
  bool fetches_scales;
  const local<unsigned char> *a_at[pieces], *b_at[pieces], *a_scale_at, *b_scale_at;  // of this lane
  Fragment<T::edge> a_part[T::row_fragments], b_part[T::column_fragments];
  float a_scale[T::row_fragments] = {};
  f32x4 b_scale[4 * T::row_parts] = {};  // block_tile: one, the first
  float early_scale[early ? early : 1][16] = {};
  Sums<T::edge> part[T::row_fragments][T::column_fragments] = {};  // scales of rows: all of K
  Accumulator total[T::fragments] = {};

  static TURBO_METHOD int in_place(int place) { return place; }

  TURBO_METHOD Fp8Loop(const GemmArgs &args, TilePosition tile, local<unsigned char> *memory)
      : wave(kept_wave_index()),
        lds_start(int(reinterpret_cast<unsigned long>(memory))),
        dma_start(lds_start + dma_start_of(wave)),
        row_bytes(args.row_bytes),
        stages((args.row_bytes + kStageBytes - 1) / kStageBytes),
        a(args.a + tile.m * args.a_stride, args.a_stride, args.m - tile.m, args.row_bytes, wave, in_place),
        b(args.b + tile.n * args.b_stride, args.b_stride, args.n - tile.n, args.row_bytes, wave, in_place) {
    const int lane = lane_index(), row = lane % T::edge, group = lane / T::edge;
    const int a_row = wave / T::waves_n * (T::fragments * 16) + row, b_row = wave % T::waves_n * 64 + row;
#pragma unroll
    for (int p = 0; p < pieces; ++p) {
      const int place = swizzle_rows(row, group + T::lane_groups * p) * 16;
      a_at[p] = memory + LdsLayout<T>::a(0) + a_row * kStageBytes + place;
      b_at[p] = memory + LdsLayout<T>::b(0) + b_row * kStageBytes + place;
    }
    if constexpr (blockwise) {
      const bool is_a = wave < T::m / 64;
      const int begin = is_a ? tile.m : tile.n, rows = least((is_a ? args.m : args.n) - begin, is_a ? T::m : T::n);
      const int mine = (is_a ? wave : wave - T::m / 64) * 64 + lane,
                shift = is_a ? args.a_scale_shift : args.b_scale_shift;
      const long long stride = (is_a ? args.a_scale_stride : args.b_scale_stride) * 4;
      scale = (const global<unsigned char> *)(is_a ? args.a_scale : args.b_scale) + (begin >> shift) * stride;
      scale_step = (is_a ? args.a_scale_step : args.b_scale_step) * 4;
      scale_offset = (least(mine, rows - 1) >> shift) * int(stride);
      fetches_scales = wave < T::m / 64 + T::n / 64;
      scale_to = lds_start + LdsLayout<T>::end + wave * 256;  // B's follow A's
      a_scale_at = memory + LdsLayout<T>::end + a_row * 4;
      b_scale_at = memory + LdsLayout<T>::end + T::m * 4 + (wave % T::waves_n * 64 + group * T::edge) * 4;
      // Opaque: what is added fits into an LDS instruction, but not together with where scales begin.
      asm("" : "+v"(a_scale_at), "+v"(b_scale_at));
    }
  }

  template <int Stage>
  TURBO_METHOD void fetch(int t) {
    const int at = t * kStageBytes;
    a.template operator()<true>(at, row_bytes, dma_start + LdsLayout<T>::a(Stage));
    b.template operator()<true>(at, row_bytes, dma_start + LdsLayout<T>::b(Stage));
    if constexpr (begins_block(Stage)) {
      if (fetches_scales) {
        const Descriptor from = describe(scale + t / kBlockStages * scale_step, 0x7fffffff);
        turbo::fetch_to_lds<4>(from, scale_offset, scale_to + Stage * scales);
      }
    }
  }

  static TURBO_METHOD Fragment<T::edge> read_part(const local<unsigned char> *const (&at)[pieces], int offset) {
    Fragment<T::edge> x;
#pragma unroll
    for (int p = 0; p < pieces; ++p) {
      const vec<int, 4> piece = *reinterpret_cast<const local<vec<int, 4>> *>(at[p] + offset);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * p + i] = piece[i];
    }
    return x;
  }

  template <int Stage>
  TURBO_METHOD void read(int) {
#pragma unroll
    for (int j = 0; j < T::column_fragments; ++j)
      b_part[j] = read_part(b_at, (Stage * T::n + j * T::edge) * kStageBytes);
#pragma unroll
    for (int f = 0; f < T::row_fragments; ++f) a_part[f] = read_part(a_at, (Stage * T::m + f * T::edge) * kStageBytes);
    if constexpr (begins_block(Stage)) {
      add_part();
#pragma unroll
      for (int f = 0; f < T::row_fragments; ++f)
        a_scale[f] = *reinterpret_cast<const local<float> *>(a_scale_at + Stage * scales + f * T::edge * 4);
      if constexpr (Kind == Scales::block_tile) {
        b_scale[0][0] = *reinterpret_cast<const local<float> *>(b_scale_at + Stage * scales);
      } else {
#pragma unroll
        for (int j = 0; j < 4 * T::row_parts; ++j)
          b_scale[j] = *reinterpret_cast<const local<f32x4> *>(b_scale_at + Stage * scales + j * 16);
      }
    } else {
      multiply_early_scales();
    }
  }

  TURBO_METHOD void arrived(int) {}

  // Of column e of accumulator f.
  TURBO_METHOD float scale_of(int f, int e) const {
    return b_scale[f % T::row_parts * 4 + e / 4][e % 4] * a_scale[f / T::row_parts];
  }

  TURBO_METHOD float part_of(int f, int e) const {
    const int column = f % T::row_parts * 16 + e;
    return part[f / T::row_parts][column / per_fragment][column % per_fragment];
  }

  TURBO_METHOD void multiply_early_scales() {
#pragma unroll
    for (int f = 0; f < early; ++f) {
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        early_scale[f][e] = scale_of(f, e);
        asm volatile("" : "+v"(early_scale[f][e]));  // now, not when the scale is needed
      }
    }
  }

  TURBO_METHOD void add_part() {
    order();
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
      const float row_scale = b_scale[0][0] * a_scale[f / T::row_parts];
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        float scale = row_scale;
        if constexpr (Kind == Scales::block_row) scale = f < early ? early_scale[early ? f : 0][e] : scale_of(f, e);
        float sum = total[f][e / 4][e % 4] + part_of(f, e) * scale;
        asm volatile("" : "+v"(sum));  // now, not when the sum is needed; and not two of them packed
        total[f][e / 4][e % 4] = sum;
      }
    }
    order();
  }

  // After the last stage.
  TURBO_METHOD void finish() {
    if constexpr (blockwise) {
      if (stages % kBlockStages != 0) multiply_early_scales();
      add_part();
    } else {
#pragma unroll
      for (int f = 0; f < T::fragments; ++f) {
#pragma unroll
        for (int e = 0; e < 16; ++e) total[f][e / 4][e % 4] = part_of(f, e);
      }
    }
  }

  // The first operand gives the rows of D: B, so that a lane has adjacent columns of C.
  template <int Stage>
  TURBO_METHOD void multiply(int) {
#pragma unroll
    for (int f = 0; f < T::row_fragments; ++f) {
#pragma unroll
      for (int j = 0; j < T::column_fragments; ++j) {
        const Sums<T::edge> before = begins_block(Stage) ? Sums<T::edge>{} : part[f][j];
        part[f][j] = multiply_fragment<T::edge, FormatB, FormatA>(b_part[j], a_part[f], before);
      }
    }
  }
};

// --- a tile of C -----------------------------------------------------------------------------------------------------

// Matrix instructions of 32 x 32 hold vector instructions half as long, and on gfx950 vector instructions are the limit of
// blocks (turbo-gemm's NOTES-gemm.md).
#if defined(__gfx950__)
constexpr int fragment_edge(Scales kind) { return kind == Scales::none || kind == Scales::row ? 16 : 32; }
#else
constexpr int fragment_edge(Scales) { return 16; }
#endif

// One kernel's part: its loop, and the tiles that its work-groups compute. `args_of()` gives the arguments, before the main
// loop and again after it: those of a group would take scalar registers in between.
template <Format FormatA, Format FormatB, int WavesM, int WavesN, int Fragments, Scales Kind>
struct Fp8Product {
  using T = Tile<WavesM, WavesN, Fragments, fragment_edge(Kind)>;
  using Loop = Fp8Loop<FormatA, FormatB, T, Kind>;

  template <class ArgsOf>
  static TURBO_METHOD void tile(ArgsOf args_of, TilePosition at, unsigned char (&memory)[Loop::lds_bytes]) {
    Loop loop(args_of(), at, (local<unsigned char> *)memory);
    run<T>(loop);
    loop.finish();
    const GemmArgs &args = args_of();
    if constexpr (Kind == Scales::row) scale_tile<T>(args, at, loop.wave, loop.total);
    write_tile<T>(args, at, loop.wave, loop.total, memory);
  }
};

}  // namespace turbo::gemm
