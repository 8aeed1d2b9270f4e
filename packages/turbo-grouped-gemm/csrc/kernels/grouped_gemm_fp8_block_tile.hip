// SPDX-License-Identifier: MIT
//
// Grouped FP8 GEMM, scales of blocks of 128 along K of each row of A, and of 128 x 128 of B: turbo/gemm/fp8.h.
#include "grouped_gemm_kernel.h"
#include "turbo/gemm/fp8.h"

namespace turbo_grouped_gemm {

#define TURBO_FP8_PAIR(_, a, b) TURBO_GEMM_BLOCK_TILES(TURBO_GROUPED_FP8_KERNEL, block_tile, a, b)
TURBO_GEMM_FP8_PAIRS(TURBO_FP8_PAIR, _)

}  // namespace turbo_grouped_gemm
