// SPDX-License-Identifier: MIT
//
// Grouped MXFP8 and MXFP4 GEMM with scaled matrix instructions: turbo/gemm/mx.h.
#include "grouped_gemm_kernel.h"
#include "turbo/gemm/mx.h"

namespace turbo_grouped_gemm {

#define TURBO_MX_PAIR(_, a, b) TURBO_GEMM_TILES(TURBO_GROUPED_MX_KERNEL, a, b)
TURBO_GEMM_MX_PAIRS(TURBO_MX_PAIR, _)

}  // namespace turbo_grouped_gemm
