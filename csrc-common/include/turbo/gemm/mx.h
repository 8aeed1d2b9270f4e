// SPDX-License-Identifier: MIT
//
// MXFP8 and MXFP4 GEMM with scaled matrix instructions.
//
//   C[m][n] = round( sum over k of a[m][k] 2^(sa[m][k/32] - 127) * b[n][k] 2^(sb[n][k/32] - 127) + bias[n] + C[m][n] )
//
//   A [m, k], B [n, k]         e4m3, e5m2 (1 byte) or e2m1 (2 to a byte, the first in the low nibble); k a multiple of 128
//   sa [m, k/32], sb [n, k/32]  E8M0 bytes; 255 is NaN
//   bias [n]                    fp32, fp16, bf16, or absent
//   C [m, n]                    fp32, fp16, bf16; added to when `accumulate`
//
// v_mfma_scale_f32_16x16x128_f8f6f4, float32 accumulation in the order of k, one rounding. Deterministic. The main loop is
// pipeline.h; here is what is particular to MX: the order of K in the operands, and the scales.
#pragma once

#include "turbo/gemm/epilogue.h"

namespace turbo::gemm {

// The formats' names in a kernel's: e4m3, e5m2, e2m1.
constexpr MxType mx_e4m3 = MxType::fp8, mx_e5m2 = MxType::bf8, mx_e2m1 = MxType::fp4;

// A stage, 128 bytes of a row, is 128 k of 8 bits or 256 k of 4. Lane group g of an instruction has
//   8 bits   chunks g and 4 + g of the stage, and the scale of block g (turbo/mfma.h)
//   4 bits   in instruction h = 0, 1: one block of 32, one chunk. Block 2 g + h, so that the two scale bytes of a lane are
//            adjacent; chunk 2 g + h is stored at place g + 4 h, so that LDS is read at the same places as for 8 bits.
template <MxType FormatA, MxType FormatB, class T>
struct MxLoop {
  static constexpr bool fp4 = FormatA == MxType::fp4;
  static_assert(fp4 == (FormatB == MxType::fp4), "e2m1 goes with itself");
  static_assert(T::m / 64 + T::n / 64 == T::waves, "each wave fetches the scales of 64 rows");

  // Scales: 16 bytes of a row at a time, which serve 4 stages of 8 bits or 2 of 4. Two such sets alternate in LDS; rows of A,
  // then rows of B.
  static constexpr int scale_stages = fp4 ? 2 : 4, stage_scales = 16 / scale_stages;
  static constexpr int set_bytes = (T::m + T::n) * 16;
  static constexpr int lds_bytes = LdsLayout<T>::end + 2 * set_bytes;

  int wave, lds_start, dma_start;  // start of the work-group's LDS; of this wave's DMA into it
  int row_bytes, stages;
  Fetcher<T::m, T::waves, kInOrder> a;
  Fetcher<T::n, T::waves, T::edge> b;
  Descriptor scale;
  int scale_offset, scale_to;
  const local<unsigned char> *a_at[2], *b_at[2], *a_scale_at, *b_scale_at;  // of this lane
  mx_operand a_part[T::fragments], b_part[T::column_fragments];
  int a_scale[T::fragments], b_scale[T::column_fragments];
  Accumulator total[T::fragments] = {};

  static TURBO_METHOD int chunk_at(int place) { return fp4 ? 2 * (place & 3) + (place >> 2) : place; }

  TURBO_METHOD MxLoop(const GemmArgs &args, TilePosition tile, local<unsigned char> *memory)
      : wave(kept_wave_index()),
        lds_start(int(reinterpret_cast<unsigned long>(memory))),
        dma_start(lds_start + dma_start_of(wave)),
        row_bytes(args.row_bytes),
        stages((args.row_bytes + kStageBytes - 1) / kStageBytes),
        a(args.a + tile.m * args.a_stride, args.a_stride, args.m - tile.m, args.row_bytes, wave, chunk_at),
        b(args.b + tile.n * args.b_stride, args.b_stride, args.n - tile.n, args.row_bytes, wave, chunk_at) {
    const int lane = lane_index(), row = lane % 16, group = lane / 16;
    // Scales: the first waves fetch those of A, the others of B.
    const bool is_a = wave < T::m / 64;
    const int part = is_a ? wave : wave - T::m / 64;
    const long long stride = is_a ? args.a_scale_stride : args.b_scale_stride;
    const auto *first = (const global<unsigned char> *)(is_a ? args.a_scale : args.b_scale);
    const int begin = is_a ? tile.m : tile.n, rows = least((is_a ? args.m : args.n) - begin, is_a ? T::m : T::n);
    scale = describe(first + begin * stride, unsigned((rows - 1) * stride + row_bytes / (fp4 ? 16 : 32)));
    scale_offset = (part * 64 + (is_a ? lane : row_of_b<T::edge>(lane))) * int(stride);
    scale_to = lds_start + LdsLayout<T>::end + wave * 64 * 16;
    // Reads: row `row` of each fragment.
    const int a_row = wave / T::waves_n * (T::fragments * 16) + row, b_row = wave % T::waves_n * 64 + row;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = swizzle_rows(row, group + 4 * h) * 16;
      a_at[h] = memory + LdsLayout<T>::a(0) + a_row * kStageBytes + place;
      b_at[h] = memory + LdsLayout<T>::b(0) + b_row * kStageBytes + place;
    }
    const auto *set = memory + LdsLayout<T>::end + group * (fp4 ? 2 : 1);
    a_scale_at = set + a_row * 16;
    b_scale_at = set + (T::m + b_row) * 16;
  }

  template <int Stage>
  TURBO_METHOD void fetch(int t) {
    const int at = t * kStageBytes;
    // K of 4 bits may end with half a stage. What follows in memory is the next row's: zeros instead.
    a.template operator()<fp4>(at, row_bytes, dma_start + LdsLayout<T>::a(Stage));
    b.template operator()<fp4>(at, row_bytes, dma_start + LdsLayout<T>::b(Stage));
    if (Stage == 0 && t % scale_stages == 0) {
      const int set = t / scale_stages;
      turbo::fetch_to_lds<16>(scale, scale_offset + set * 16, scale_to + set % 2 * set_bytes);
    }
  }

  static TURBO_METHOD int read_scale(const local<unsigned char> *at) {
    return fp4 ? *reinterpret_cast<const local<unsigned short> *>(at) : *at;
  }

  static TURBO_METHOD mx_operand read_part(const local<unsigned char> *const (&at)[2], int offset) {
    const vec<int, 4> low = *reinterpret_cast<const local<vec<int, 4>> *>(at[0] + offset);
    const vec<int, 4> high = *reinterpret_cast<const local<vec<int, 4>> *>(at[1] + offset);
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }

  template <int Stage>
  TURBO_METHOD void read(int t) {
    const int at = t / scale_stages % 2 * set_bytes + t % scale_stages * stage_scales;
#pragma unroll
    for (int j = 0; j < T::column_fragments; ++j) b_scale[j] = read_scale(b_scale_at + at + j * 16 * 16);
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) a_scale[f] = read_scale(a_scale_at + at + f * 16 * 16);
#pragma unroll
    for (int j = 0; j < T::column_fragments; ++j)
      b_part[j] = read_part(b_at, Stage * T::n * kStageBytes + j * 16 * kStageBytes);
#pragma unroll
    for (int f = 0; f < T::fragments; ++f)
      a_part[f] = read_part(a_at, Stage * T::m * kStageBytes + f * 16 * kStageBytes);
  }

  TURBO_METHOD void arrived(int t) {
    // Zero-extended by the load, and not once more where they are used.
    const auto keep = [](int &x) { asm volatile("" : "+v"(x)); };
#pragma unroll
    for (int &x : a_scale) keep(x);
#pragma unroll
    for (int &x : b_scale) keep(x);
    // Of a last half stage the other scales are the next row's: a NaN among them would not go away by a payload of zeros.
    if (fp4 && (t + 1) * kStageBytes > row_bytes) {
      const int mask = lane_index() < 32 ? -1 : 0;  // blocks 2 g and 2 g + 1 of lane groups 2 and 3
#pragma unroll
      for (int &x : a_scale) keep(x &= mask);
#pragma unroll
      for (int &x : b_scale) keep(x &= mask);
    }
  }

  // The first operand gives the rows of D: B, so that a lane has adjacent columns of C.
  template <int Half>
  TURBO_METHOD void multiply_all() {
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
#pragma unroll
      for (int j = 0; j < T::column_fragments; ++j) {
        mx_operand x = a_part[f], y = b_part[j];
        if constexpr (Half == 1) {
          x = __builtin_shufflevector(x, x, 4, 5, 6, 7, 4, 5, 6, 7);
          y = __builtin_shufflevector(y, y, 4, 5, 6, 7, 4, 5, 6, 7);
        }
        total[f][j] = mfma_scale_f32_16x16x128<FormatB, FormatA, Half, Half>(y, x, total[f][j], b_scale[j], a_scale[f]);
      }
    }
  }

  template <int Stage>
  TURBO_METHOD void multiply(int) {
    multiply_all<0>();
    if constexpr (fp4) multiply_all<1>();
  }
};

// --- a tile of C -----------------------------------------------------------------------------------------------------

// One kernel's part: its loop, and the tiles that its work-groups compute. `args_of()` gives the arguments, before the main
// loop and again after it: those of a group would take scalar registers in between.
template <MxType FormatA, MxType FormatB, int WavesM, int WavesN, int Fragments>
struct MxProduct {
  using T = Tile<WavesM, WavesN, Fragments>;
  using Loop = MxLoop<FormatA, FormatB, T>;

  template <class ArgsOf>
  static TURBO_METHOD void tile(ArgsOf args_of, TilePosition at, unsigned char (&memory)[Loop::lds_bytes]) {
    Loop loop(args_of(), at, (local<unsigned char> *)memory);
    run<T>(loop);
    write_tile<T>(args_of(), at, loop.wave, loop.total, memory);
  }
};

}  // namespace turbo::gemm
