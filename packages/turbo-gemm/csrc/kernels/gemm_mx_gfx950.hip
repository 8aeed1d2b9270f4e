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
// v_mfma_scale_f32_16x16x128_f8f6f4, float32 accumulation in the order of k, one rounding. Deterministic. The pipeline is
// gemm_pipeline.h; here is what is particular to MX: the order of K in the operands, and the scales.
#include "gemm_epilogue.h"

namespace turbo_gemm {

constexpr MxType e4m3 = MxType::fp8, e5m2 = MxType::bf8, e2m1 = MxType::fp4;
using fp32 = float;

// A stage, 128 bytes of a row, is 128 k of 8 bits or 256 k of 4. Lane group g of an instruction has
//   8 bits   chunks g and 4 + g of the stage, and the scale of block g (turbo/mfma.h)
//   4 bits   in instruction h = 0, 1: one block of 32, one chunk. Block 2 g + h, so that the two scale bytes of a lane are
//            adjacent; chunk 2 g + h is stored at place g + 4 h, so that LDS is read at the same places as for 8 bits.
template <MxType FormatA, MxType FormatB, class T>
struct MxLoop {
  static constexpr bool fp4 = FormatA == MxType::fp4;
  static_assert(fp4 == (FormatB == MxType::fp4), "e2m1 goes with itself");
  static_assert(T::m / 64 + T::n / 64 == T::waves, "each wave fetches the scales of 64 rows");

  // Scales in LDS: 4 bytes a row, and a second such plane for the second 128 k of 4 bits, 16 banks further on, so that
  // lane groups 0, 1 and 2, 3 read different banks.
  static constexpr int planes = fp4 ? 2 : 1;
  static constexpr int plane_a = T::m * 4 + 64, plane_b = T::n * 4 + 64;
  static constexpr int scales = planes * (plane_a + plane_b);  // bytes of a stage
  static constexpr int scales_a(int stage) { return LdsLayout<T>::end + stage * scales; }
  static constexpr int scales_b(int stage) { return scales_a(stage) + planes * plane_a; }
  static constexpr int lds_bytes = LdsLayout<T>::end + 2 * scales;

  int lds_start;
  int row_bytes, stages;
  Fetcher<T::m, T::waves, false> a;
  Fetcher<T::n, T::waves, true> b;
  Descriptor scale;
  int scale_offset, scale_to, scale_plane;
  const local<unsigned char> *a_at[2], *b_at[2], *a_scale_at, *b_scale_at;  // of this lane
  mx_operand a_part[T::fragments], b_part[kColumnFragments];
  int a_scale[T::fragments], b_scale[kColumnFragments];
  Accumulator total[T::fragments] = {};

  static TURBO_METHOD int chunk_at(int place) { return fp4 ? 2 * (place & 3) + (place >> 2) : place; }

  TURBO_METHOD MxLoop(const GemmArgs &args, TilePosition tile, local<unsigned char> *memory)
      : lds_start(int(reinterpret_cast<unsigned long>(memory))),
        row_bytes(args.row_bytes),
        stages((args.row_bytes + kStageBytes - 1) / kStageBytes),
        a(args.a + tile.m * args.a_stride, args.a_stride, args.m - tile.m, args.row_bytes, chunk_at),
        b(args.b + tile.n * args.b_stride, args.b_stride, args.n - tile.n, args.row_bytes, chunk_at) {
    const int wave = wave_index(), lane = lane_index(), row = lane % 16, group = lane / 16;
    // Scales: the first waves fetch those of A, the others of B.
    const bool is_a = wave < T::m / 64;
    const int part = is_a ? wave : wave - T::m / 64;
    const long long stride = is_a ? args.a_scale_stride : args.b_scale_stride;
    const auto *first = (const global<unsigned char> *)(is_a ? args.a_scale : args.b_scale);
    const int begin = is_a ? tile.m : tile.n, rows = least((is_a ? args.m : args.n) - begin, is_a ? T::m : T::n);
    scale = describe(first + begin * stride, unsigned((rows - 1) * stride + row_bytes / (fp4 ? 16 : 32)));
    scale_offset = (part * 64 + (is_a ? lane : row_of_b(lane))) * int(stride);
    scale_to = lds_start + (is_a ? scales_a(0) : scales_b(0)) + part * 256;
    scale_plane = is_a ? plane_a : plane_b;
    // Reads: row `row` of each fragment.
    const int a_row = wave / T::waves_n * (T::fragments * 16) + row, b_row = wave % T::waves_n * 64 + row;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = swizzle_rows(row, group + 4 * h) * 16;
      a_at[h] = memory + LdsLayout<T>::a(0) + a_row * kStageBytes + place;
      b_at[h] = memory + LdsLayout<T>::b(0) + b_row * kStageBytes + place;
    }
    const int a_byte = fp4 ? group / 2 * plane_a + group % 2 * 2 : group;
    const int b_byte = fp4 ? group / 2 * plane_b + group % 2 * 2 : group;
    a_scale_at = memory + scales_a(0) + a_row * 4 + a_byte;
    b_scale_at = memory + scales_b(0) + b_row * 4 + b_byte;
  }

  template <int Stage>
  TURBO_METHOD void fetch(int t) const {
    const int at = t * kStageBytes;
    // K of 4 bits may end with half a stage. What follows is the next row's: payload and scales become 0 instead.
    a.template operator()<fp4>(at, row_bytes, lds_start + LdsLayout<T>::a(Stage));
    b.template operator()<fp4>(at, row_bytes, lds_start + LdsLayout<T>::b(Stage));
#pragma unroll
    for (int p = 0; p < planes; ++p) {
      const int begin = (t * planes + p) * 4;
      const int further = p == 1 && at + kStageBytes / 2 >= row_bytes ? kNowhere : begin;
      turbo_gemm::fetch<4>(scale, scale_offset + further, scale_to + Stage * scales + p * scale_plane);
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
  TURBO_METHOD void read(int) {
#pragma unroll
    for (int j = 0; j < kColumnFragments; ++j) {
      b_part[j] = read_part(b_at, Stage * T::n * kStageBytes + j * 16 * kStageBytes);
      b_scale[j] = read_scale(b_scale_at + Stage * scales + j * 64);
    }
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
      a_part[f] = read_part(a_at, Stage * T::m * kStageBytes + f * 16 * kStageBytes);
      a_scale[f] = read_scale(a_scale_at + Stage * scales + f * 64);
    }
  }

  // Zero-extended by the load, and not once more where they are used.
  TURBO_METHOD void arrived() {
#pragma unroll
    for (int &x : a_scale) asm volatile("" : "+v"(x));
#pragma unroll
    for (int &x : b_scale) asm volatile("" : "+v"(x));
  }

  // The first operand gives the rows of D: B, so that a lane has adjacent columns of C.
  template <int Half>
  TURBO_METHOD void multiply_all() {
#pragma unroll
    for (int f = 0; f < T::fragments; ++f) {
#pragma unroll
      for (int j = 0; j < kColumnFragments; ++j) {
        mx_operand x = a_part[f], y = b_part[j];
        if constexpr (Half == 1) {
          x = __builtin_shufflevector(x, x, 4, 5, 6, 7, 4, 5, 6, 7);
          y = __builtin_shufflevector(y, y, 4, 5, 6, 7, 4, 5, 6, 7);
        }
        total[f][j] =
            mfma_scale_f32_16x16x128<FormatB, FormatA, Half, Half>(y, x, total[f][j], b_scale[j], a_scale[f]);
      }
    }
  }

  template <int Stage>
  TURBO_METHOD void multiply(int) {
    multiply_all<0>();
    if constexpr (fp4) multiply_all<1>();
  }
};

template <MxType FormatA, MxType FormatB, class C, class T>
TURBO_DEVICE void gemm_mx(const GemmArgs &args) {
  using Loop = MxLoop<FormatA, FormatB, T>;
  __shared__ __attribute__((aligned(16))) unsigned char memory[Loop::lds_bytes];
  const TilePosition tile = tile_position(args.tiles_m, args.tiles_n, T::m, T::n);
  Loop loop(args, tile, (local<unsigned char> *)memory);
  run<T>(loop, loop.stages);
  write_tile<C, T>(args, tile, loop.total);
}

#define TURBO_MX_KERNEL(a, b, c, tile, waves_m, waves_n, fragments)                                       \
  TURBO_KERNEL(waves_m *waves_n * 64, 2) void gemm_mx_##a##_##b##_##c##_##tile(GemmArgs args) {           \
    gemm_mx<a, b, c, Tile<waves_m, waves_n, fragments>>(args);                                            \
  }
#define TURBO_MX_OUTPUT(a, b, c) TURBO_GEMM_TILES(TURBO_MX_KERNEL, a, b, c)
#define TURBO_MX_PAIR(_, a, b) TURBO_GEMM_OUTPUTS(TURBO_MX_OUTPUT, a, b)
TURBO_GEMM_MX_PAIRS(TURBO_MX_PAIR, _)

}  // namespace turbo_gemm
