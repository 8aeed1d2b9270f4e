// SPDX-License-Identifier: MIT
//
// MXFP8 and MXFP4 GEMM with scaled matrix instructions: turbo/gemm/mx.h.
#include "gemm_kernel.h"
#include "turbo/gemm/mx.h"

namespace turbo_gemm {

#define TURBO_MX_PAIR(_, a, b) TURBO_GEMM_TILES(TURBO_MX_KERNEL, a, b)
TURBO_GEMM_MX_PAIRS(TURBO_MX_PAIR, _)

}  // namespace turbo_gemm
