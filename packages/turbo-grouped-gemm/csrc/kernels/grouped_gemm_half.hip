// SPDX-License-Identifier: MIT
//
// Grouped GEMM of 16 bits: turbo/gemm/fp8.h.
#include "grouped_gemm_kernel.h"
#include "turbo/gemm/fp8.h"

namespace turbo_grouped_gemm {

#define TURBO_HALF_KERNEL(a, b, tile, waves_m, waves_n, fragments)                                     \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void grouped_gemm_half_##a##_##b##_##tile(GroupedGemmArgs) { \
    grouped_gemm<Fp8Product<Format::a, Format::b, waves_m, waves_n, fragments, Scales::none>>();       \
  }
TURBO_GEMM_TILES(TURBO_HALF_KERNEL, fp16, fp16)
TURBO_GEMM_TILES(TURBO_HALF_KERNEL, bf16, bf16)

}  // namespace turbo_grouped_gemm
