// SPDX-License-Identifier: MIT
//
// FP8 GEMM, scales of blocks of 128 along K of each row of A and of B: turbo/gemm/fp8.h. A may have one for 128 rows.
#include "gemm_kernel.h"
#include "turbo/gemm/fp8.h"

namespace turbo_gemm {

#define TURBO_FP8_PAIR(_, a, b) TURBO_GEMM_BLOCK_TILES(TURBO_FP8_KERNEL, block_row, a, b)
TURBO_GEMM_FP8_PAIRS(TURBO_FP8_PAIR, _)

}  // namespace turbo_gemm
