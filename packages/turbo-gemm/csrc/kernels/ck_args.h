// SPDX-License-Identifier: MIT
//
// What the host launcher and the device code of the composable-kernel GEMMs (csrc/ck) share. Plain C++, seen by both
// compilers.
#pragma once

namespace turbo_gemm {

// C[m][n] = sum over k of A[m][k] B[n][k], dequantised; one struct by value is a kernel's argument segment.
struct CkGemmArgs {
  const void *a;  // e4m3, rows of a_stride bytes
  const void *b;
  const float *a_scale;  // row kernel: [m]; block kernel: [m, ceil(k / 128)]
  const float *b_scale;  // row kernel: [n]; block kernel: [ceil(n / 128), ceil(k / 128)]
  void *c;               // bf16, rows of c_stride elements
  int m, n, k;
  int a_stride, b_stride, c_stride;
};
static_assert(sizeof(CkGemmArgs) == 64, "the layout is part of the interface between two compilers");

// Tile and work-group of both kernels.
constexpr int kCkTile = 128;
constexpr int kCkThreads = 256;

}  // namespace turbo_gemm
