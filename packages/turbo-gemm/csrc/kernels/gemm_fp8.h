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

constexpr int kBlock = 128;                         // k that share a scale
constexpr int kBlockStages = kBlock / kStageBytes;  // gfx942: 2, gfx950: 1

// Blockwise: the sum over a K block is scaled and added to `total`. Where a block is one instruction (gfx950), at once.
// Else the sum is in `part` meanwhile, and is added in the next stage's read: the vector ALU is then free, as the other
// group multiplies.
template <Format FormatA, Format FormatB, class T, bool Blockwise>
struct Fp8Loop {
  // Scales of a K block in LDS, in the stage with which the block begins: a float for each row of A, then of B.
  static constexpr int slots = Blockwise ? 2 / kBlockStages : 0;
  static constexpr int scales = (T::m + T::n) * 4;
  static constexpr int lds_bytes = LdsLayout<T>::end + slots * scales;
  static_assert(T::m / 64 + T::n / 64 <= T::waves || !Blockwise, "each wave fetches the scales of 64 rows");
  static constexpr bool has_part = Blockwise && kBlockStages > 1;
  static constexpr bool begins_block(int stage) { return Blockwise && stage % kBlockStages == 0; }

  int lds_start, row_bytes, stages;
  Fetcher<T::m, T::waves, false> a;
  Fetcher<T::n, T::waves, true> b;
  const global<unsigned char> *scale;  // of this wave's first row; advanced from block to block
  long long scale_step;                // bytes
  int scale_offset, scale_to;
  const local<unsigned char> *a_at[kPieces], *b_at[kPieces], *a_scale_at, *b_scale_at;  // of this lane
  Fragment a_part[T::fragments], b_part[kColumnFragments];
  float a_scale[T::fragments] = {};
  Accumulator b_scale = {};
  Accumulator part[has_part ? T::fragments : 1] = {};
  Accumulator total[T::fragments] = {};

  static TURBO_METHOD int in_place(int place) { return place; }

  TURBO_METHOD Fp8Loop(const GemmArgs &args, TilePosition tile, local<unsigned char> *memory)
      : lds_start(int(reinterpret_cast<unsigned long>(memory))),
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
    if constexpr (Blockwise) {
      const bool is_a = wave < T::m / 64;
      const int begin = is_a ? tile.m : tile.n, rows = least((is_a ? args.m : args.n) - begin, is_a ? T::m : T::n);
      const int mine = (is_a ? wave : wave - T::m / 64) * 64 + lane,
                shift = is_a ? args.a_scale_shift : args.b_scale_shift;
      const long long stride = (is_a ? args.a_scale_stride : args.b_scale_stride) * 4;
      scale = (const global<unsigned char> *)(is_a ? args.a_scale : args.b_scale) + (begin >> shift) * stride;
      scale_step = (is_a ? args.a_scale_step : args.b_scale_step) * 4;
      scale_offset = (least(mine, rows - 1) >> shift) * int(stride);
      scale_to = lds_start + LdsLayout<T>::end + wave * 256;  // B's follow A's
      a_scale_at = memory + LdsLayout<T>::end + a_row * 4;
      b_scale_at = memory + LdsLayout<T>::end + T::m * 4 + (wave % T::waves_n * 64 + group * 16) * 4;
    }
  }

  template <int Stage>
  TURBO_METHOD void fetch(int t) const {
    const int at = t * kStageBytes;
    a.template operator()<true>(at, row_bytes, lds_start + LdsLayout<T>::a(Stage));
    b.template operator()<true>(at, row_bytes, lds_start + LdsLayout<T>::b(Stage));
    if constexpr (begins_block(Stage)) {
      if (wave_index() < T::m / 64 + T::n / 64) {
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
#pragma unroll
      for (int j = 0; j < kColumnFragments; ++j)
        b_scale[j] = *reinterpret_cast<const local<f32x4> *>(b_scale_at + Stage * scales + j * 16);
    }
  }

  TURBO_METHOD void arrived(int) {}

  TURBO_METHOD void add_part() {
    if constexpr (has_part) {
      order();
#pragma unroll
      for (int f = 0; f < T::fragments; ++f) {
#pragma unroll
        for (int j = 0; j < kColumnFragments; ++j) total[f][j] += part[f][j] * (b_scale[j] * a_scale[f]);
      }
      order();
    }
  }

  // The first operand gives the rows of D: B, so that a lane has adjacent columns of C.
  template <int Stage>
  TURBO_METHOD void multiply(int) {
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
#pragma unroll
      for (int j = 0; j < kColumnFragments; ++j) {
        f32x4 &sum = has_part ? part[has_part ? f : 0][j] : total[f][j];
        const f32x4 before = begins_block(Stage) ? f32x4{} : sum;
        const f32x4 after = multiply_fragment<FormatB, FormatA>(b_part[j], a_part[f], before);
        if constexpr (Blockwise && !has_part) {
          sum += after * (b_scale[j] * a_scale[f]);
        } else {
          sum = after;
        }
      }
    }
  }
};

// --- kernels ---------------------------------------------------------------------------------------------------------

template <Format FormatA, Format FormatB, class C, class T, bool Blockwise>
TURBO_DEVICE void gemm_fp8(const GemmArgs &args) {
  using Loop = Fp8Loop<FormatA, FormatB, T, Blockwise>;
  __shared__ __attribute__((aligned(16))) unsigned char memory[Loop::lds_bytes];
  const TilePosition tile = tile_position(args.tiles_m, args.tiles_n, T::m, T::n);
  Loop loop(args, tile, (local<unsigned char> *)memory);
  run<T>(loop, loop.stages);
  loop.add_part();
  if constexpr (!Blockwise) scale_tile<T>(args, tile, loop.total);
  write_tile<C, T>(args, tile, loop.total, memory);
}

#define TURBO_FP8_KERNEL(kind, blockwise, a, b, c, tile, waves_m, waves_n, fragments)                      \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void gemm_fp8_##kind##_##a##_##b##_##c##_##tile(GemmArgs args) { \
    gemm_fp8<a, b, c, Tile<waves_m, waves_n, fragments>, blockwise>(args);                                 \
  }

}  // namespace turbo_gemm
