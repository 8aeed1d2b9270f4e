// SPDX-License-Identifier: MIT
//
// FP8 GEMM with float32 scales: of the tensor, of rows, or of blocks along K.
//
//   tensor, row   C[m][n] = round( (sum over k of a[m][k] b[n][k]) * (sa[m] * sb[n]) + bias[n] + C[m][n] )
//   block         C[m][n] = round( sum over kb of (sum over k in block kb of a[m][k] b[n][k]) * (sa[m][kb] * sb[n][kb])
//                                  + bias[n] + C[m][n] )
//
//   A [m, k], B [n, k]   e4m3 or e5m2 in the architecture's encoding (FNUZ on gfx942, OCP on gfx950); k a multiple of 16
//   sa, sb               float32 factors that dequantise. block: of 128 k, of one row or of 128 rows
//   bias [n]             fp32, fp16, bf16, or absent
//   C [m, n]             fp32, fp16, bf16; added to when `accumulate`
//
// float32 accumulation in the order of k, one rounding. Deterministic. The pipeline is gemm_pipeline.h.
// gfx942: v_mfma_f32_16x16x32_{fp8,bf8}_{fp8,bf8}; gfx950: v_mfma_f32_16x16x128_f8f6f4, twice as fast.
#pragma once

#include "gemm_epilogue.h"

namespace turbo_gemm {

using fp32 = float;

// --- one fragment: the stage's bytes of 16 rows ----------------------------------------------------------------------

enum class Format { e4m3, e5m2 };
constexpr Format e4m3 = Format::e4m3, e5m2 = Format::e5m2;

constexpr int kPieces = kChunks / 4;  // of 16 bytes, that a lane has of a fragment
using Fragment = vec<int, 4 * kPieces>;

#if defined(__gfx950__)
constexpr MxType mx_type(Format f) { return f == Format::e4m3 ? MxType::fp8 : MxType::bf8; }

// 128 k at once. With constant scales of 0 the compiler takes the instruction that has none.
template <Format A, Format B>
TURBO_DEVICE f32x4 multiply_fragment(Fragment a, Fragment b, f32x4 c) {
  return mfma_scale_f32_16x16x128<mx_type(A), mx_type(B)>(a, b, c, 0, 0);
}
#else
template <Format A, Format B>
TURBO_DEVICE f32x4 multiply_32(long a, long b, f32x4 c) {
  if constexpr (A == Format::e4m3) {
    return B == Format::e4m3 ? mfma_f32_16x16x32_fp8_fp8(a, b, c) : mfma_f32_16x16x32_fp8_bf8(a, b, c);
  } else {
    return B == Format::e4m3 ? mfma_f32_16x16x32_bf8_fp8(a, b, c) : mfma_f32_16x16x32_bf8_bf8(a, b, c);
  }
}

// 64 k: the first and the second 8 bytes of each lane one after the other, the same k in A and B.
template <Format A, Format B>
TURBO_DEVICE f32x4 multiply_fragment(Fragment a, Fragment b, f32x4 c) {
  const auto x = bits<vec<long, 2>>(a), y = bits<vec<long, 2>>(b);
  return multiply_32<A, B>(x[1], y[1], multiply_32<A, B>(x[0], y[0], c));
}
#endif

// --- the loop --------------------------------------------------------------------------------------------------------

// What has scales of its own: a row of an operand; of a block of K a row of A and of B; of a block of K a row of A and
// the 128 rows of B that a tile needs.
enum class Scales { row, block_row, block_tile };

constexpr int kBlock = 128;                         // k that share a scale
constexpr int kBlockStages = kBlock / kStageBytes;  // gfx942: 2, gfx950: 1

// Blockwise: the sum over a K block is in `part`, and is scaled and added to `total` while the wave reads the next block:
// the vector ALU works then beside the matrix unit, which the other group has. One element at a time, since packed f32
// instructions do not run beside matrix instructions (NOTES-gemm.md).
template <Format FormatA, Format FormatB, class T, Scales Kind>
struct Fp8Loop {
  static constexpr bool blockwise = Kind != Scales::row;
  // Scales of a K block in LDS, in the stage with which the block begins: a float for each row of A, then of B.
  static constexpr int slots = blockwise ? 2 / kBlockStages : 0;
  static constexpr int scales = (T::m + T::n) * 4;
  static constexpr int lds_bytes = LdsLayout<T>::end + slots * scales;
  static_assert(T::m / 64 + T::n / 64 <= T::waves || !blockwise, "each wave fetches the scales of 64 rows");
  static constexpr bool begins_block(int stage) { return blockwise && stage % kBlockStages == 0; }
  // Where a block is two stages, scales of half of the rows are multiplied in the read of the second: the first has no more
  // vector instructions then than fit beside the other group's matrix instructions.
  static constexpr int early = Kind == Scales::block_row ? (kBlockStages - 1) * T::fragments / 2 : 0;

  int lds_start, dma_start;  // of the work-group's LDS; of this wave's DMA into it
  int row_bytes, stages;
  Fetcher<T::m, T::waves, false> a;
  Fetcher<T::n, T::waves, true> b;
  const global<unsigned char> *scale;  // of this wave's first row; advanced from block to block
  long long scale_step;                // bytes
  int scale_offset, scale_to;
  bool fetches_scales;
  const local<unsigned char> *a_at[kPieces], *b_at[kPieces], *a_scale_at, *b_scale_at;  // of this lane
  Fragment a_part[T::fragments], b_part[kColumnFragments];
  float a_scale[T::fragments] = {};
  Accumulator b_scale = {};  // block_tile: one, the first
  float early_scale[early ? early : 1][16] = {};
  Accumulator part[blockwise ? T::fragments : 1] = {};
  Accumulator total[T::fragments] = {};

  static TURBO_METHOD int in_place(int place) { return place; }

  TURBO_METHOD Fp8Loop(const GemmArgs &args, TilePosition tile, local<unsigned char> *memory)
      : lds_start(int(reinterpret_cast<unsigned long>(memory))),
        dma_start(lds_start + wave_dma_start()),
        row_bytes(args.row_bytes),
        stages((args.row_bytes + kStageBytes - 1) / kStageBytes),
        a(args.a + tile.m * args.a_stride, args.a_stride, args.m - tile.m, args.row_bytes, in_place),
        b(args.b + tile.n * args.b_stride, args.b_stride, args.n - tile.n, args.row_bytes, in_place) {
    const int wave = wave_index(), lane = lane_index(), row = lane % 16, group = lane / 16;
    const int a_row = wave / T::waves_n * (T::fragments * 16) + row, b_row = wave % T::waves_n * 64 + row;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int place = swizzle_rows(row, group + 4 * p) * 16;
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
      fetches_scales = dma_start - lds_start < (T::m / 64 + T::n / 64) * kDmaRows * kStageBytes;
      scale_to = lds_start + LdsLayout<T>::end + wave * 256;  // B's follow A's
      a_scale_at = memory + LdsLayout<T>::end + a_row * 4;
      b_scale_at = memory + LdsLayout<T>::end + T::m * 4 + (wave % T::waves_n * 64 + group * 16) * 4;
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
        turbo_gemm::fetch_to_lds<4>(from, scale_offset, scale_to + Stage * scales);
      }
    }
  }

  static TURBO_METHOD Fragment read_part(const local<unsigned char> *const (&at)[kPieces], int offset) {
    Fragment x;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const vec<int, 4> piece = *reinterpret_cast<const local<vec<int, 4>> *>(at[p] + offset);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * p + i] = piece[i];
    }
    return x;
  }

  template <int Stage>
  TURBO_METHOD void read(int) {
#pragma unroll
    for (int j = 0; j < kColumnFragments; ++j)
      b_part[j] = read_part(b_at, Stage * T::n * kStageBytes + j * 16 * kStageBytes);
#pragma unroll
    for (int f = 0; f < T::fragments; ++f)
      a_part[f] = read_part(a_at, Stage * T::m * kStageBytes + f * 16 * kStageBytes);
    if constexpr (begins_block(Stage)) {
      add_part();
#pragma unroll
      for (int f = 0; f < T::fragments; ++f)
        a_scale[f] = *reinterpret_cast<const local<float> *>(a_scale_at + Stage * scales + f * 64);
      if constexpr (Kind == Scales::block_tile) {
        b_scale[0][0] = *reinterpret_cast<const local<float> *>(b_scale_at + Stage * scales);
      } else {
#pragma unroll
        for (int j = 0; j < kColumnFragments; ++j)
          b_scale[j] = *reinterpret_cast<const local<f32x4> *>(b_scale_at + Stage * scales + j * 16);
      }
    } else {
      multiply_early_scales();
    }
  }

  TURBO_METHOD void arrived(int) {}

  TURBO_METHOD void multiply_early_scales() {
#pragma unroll
    for (int f = 0; f < early; ++f) {
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        early_scale[f][e] = b_scale[e / 4][e % 4] * a_scale[f];
        asm volatile("" : "+v"(early_scale[f][e]));  // now, not when the scale is needed
      }
    }
  }

  TURBO_METHOD void add_part() {
    order();
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
      const float row_scale = b_scale[0][0] * a_scale[f];
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        float scale = row_scale;
        if constexpr (Kind == Scales::block_row)
          scale = f < early ? early_scale[early ? f : 0][e] : b_scale[e / 4][e % 4] * a_scale[f];
        float sum = total[f][e / 4][e % 4] + part[f][e / 4][e % 4] * scale;
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
    }
  }

  // The first operand gives the rows of D: B, so that a lane has adjacent columns of C.
  template <int Stage>
  TURBO_METHOD void multiply(int) {
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
#pragma unroll
      for (int j = 0; j < kColumnFragments; ++j) {
        f32x4 &sum = blockwise ? part[blockwise ? f : 0][j] : total[f][j];
        sum = multiply_fragment<FormatB, FormatA>(b_part[j], a_part[f], begins_block(Stage) ? f32x4{} : sum);
      }
    }
  }
};

// --- kernels ---------------------------------------------------------------------------------------------------------

template <Format FormatA, Format FormatB, class C, class T, Scales Kind>
TURBO_DEVICE void gemm_fp8(const GemmArgs &args) {
  using Loop = Fp8Loop<FormatA, FormatB, T, Kind>;
  __shared__ __attribute__((aligned(16))) unsigned char memory[Loop::lds_bytes];
  const TilePosition tile = tile_position(args.tiles_m, args.tiles_n, T::m, T::n);
  Loop loop(args, tile, (local<unsigned char> *)memory);
  run<T>(loop, loop.stages);
  loop.finish();
  if constexpr (Kind == Scales::row) scale_tile<T>(args, tile, loop.total);
  write_tile<C, T>(args, tile, loop.total, memory);
}

#define TURBO_FP8_KERNEL(kind, a, b, c, tile, waves_m, waves_n, fragments)                                 \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void gemm_fp8_##kind##_##a##_##b##_##c##_##tile(GemmArgs args) { \
    gemm_fp8<a, b, c, Tile<waves_m, waves_n, fragments>, Scales::kind>(args);                              \
  }

}  // namespace turbo_gemm
