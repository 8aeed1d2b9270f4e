// SPDX-License-Identifier: MIT
//
// Grouped FP8 GEMM, scales of the whole tensor, or of rows: turbo/gemm/fp8.h.
#include "grouped_gemm_kernel.h"
#include "turbo/gemm/fp8.h"

namespace turbo_grouped_gemm {

#define TURBO_FP8_PAIR(_, a, b) TURBO_GEMM_TILES(TURBO_GROUPED_FP8_KERNEL, row, a, b)
TURBO_GEMM_FP8_PAIRS(TURBO_FP8_PAIR, _)

}  // namespace turbo_grouped_gemm
