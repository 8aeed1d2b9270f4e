// SPDX-License-Identifier: MIT
//
// What the host launcher and the device code of the quantised GEMMs share: the argument struct, tiles, tables of kernels.
//
// A kernel takes one struct by value, so the struct is its argument segment byte for byte; plain C++, seen by both
// compilers. The device sees pointers to global memory, the host plain ones.
#pragma once

#if defined(__HIP__)
#include "turbo/types.h"
#define TURBO_GLOBAL(T) ::turbo::global<T> *
#else
#define TURBO_GLOBAL(T) T *
#endif

namespace turbo::gemm {

// C[m][n] = sum over k of A[m][k] B[n][k], with the scales of the kernel; + bias[n]; + C[m][n] when `accumulate`.
struct GemmArgs {
  TURBO_GLOBAL(const unsigned char) a;  // rows of a_stride bytes, 16-byte aligned
  TURBO_GLOBAL(const unsigned char) b;
  TURBO_GLOBAL(const void) a_scale;  // bytes E8M0 [m, row_bytes scales] for MX, else float32
  TURBO_GLOBAL(const void) b_scale;
  TURBO_GLOBAL(const void) bias;  // [n] of bias_type, or null
  TURBO_GLOBAL(void) c;           // rows of c_stride elements
  long long a_stride;
  long long b_stride;
  long long a_scale_stride;  // from row to row: bytes for MX, else floats; 0 for one scale
  long long b_scale_stride;
  long long a_scale_step;  // from K block to K block, floats; blockwise
  long long b_scale_step;
  long long c_stride;
  int m, n;
  int row_bytes;      // of A and B: K elements
  int a_scale_shift;  // scale row of row m is m >> shift: 0, or 7 for tiles of 128
  int b_scale_shift;
  int c_type;      // turbo_dtype
  int bias_type;   // turbo_dtype
  int accumulate;  // C is added
  int vector;      // n, c and c_stride allow 16-byte accesses of C
  int tiles_m, tiles_n;
};
static_assert(sizeof(GemmArgs) == 152, "the layout is part of the interface between two compilers");

// --- tiles -----------------------------------------------------------------------------------------------------------
//
// X(..., name, waves along m, waves along n, fragments of 16 rows along m); a wave has 64 columns. 8 waves take turns in
// two groups (pipeline.h); 4 waves leave room for a second work-group on the compute unit, which does the same.
#define TURBO_GEMM_TILES(X, ...)   \
  X(__VA_ARGS__, 256x256, 2, 4, 8) \
  X(__VA_ARGS__, 128x128, 2, 2, 4)

// A wave accumulates 64 columns x 16 rows per fragment, 16 registers each. Blockwise kernels have the sum of the current K
// block beside the total: at most 4 fragments. On gfx942 two of their 128x128 work-groups would not fit into LDS.
#define TURBO_GEMM_BLOCK_TILES(X, ...) \
  X(__VA_ARGS__, 256x128, 4, 2, 4)     \
  X(__VA_ARGS__, 128x128, 4, 2, 2)

// X(..., format of A, format of B): e4m3 and e5m2 in any pair, e2m1 with itself.
#define TURBO_GEMM_FP8_PAIRS(X, ...) \
  X(__VA_ARGS__, e4m3, e4m3)         \
  X(__VA_ARGS__, e4m3, e5m2)         \
  X(__VA_ARGS__, e5m2, e4m3)         \
  X(__VA_ARGS__, e5m2, e5m2)
#define TURBO_GEMM_MX_PAIRS(X, ...)    \
  TURBO_GEMM_FP8_PAIRS(X, __VA_ARGS__) \
  X(__VA_ARGS__, e2m1, e2m1)

}  // namespace turbo::gemm
