// SPDX-License-Identifier: MIT
//
// turbo_gemm.pytorch._C: the C interface, for Python; see turbo/module.h and turbo/arguments.h.
#include "turbo/module.h"
#include "turbo/arguments.h"

#include "turbo_gemm.h"

TURBO_FIELDS(turbo_gemm_operand, data, stride, scale, scale_stride, scale_step, scale_rows);
TURBO_FIELDS(turbo_gemm_output, data, stride, bias, dtype, bias_dtype, accumulate);
TURBO_FIELDS(turbo_gemm_mx_args, a, b, c, m, n, k, format_a, format_b, tile, compute_units);
TURBO_FIELDS(turbo_gemm_fp8_args, a, b, c, m, n, k, dtype_a, dtype_b, block, tile, compute_units);
TURBO_FIELDS(turbo_gemm_ck_operand, data, stride, scale);
TURBO_FIELDS(turbo_gemm_ck_args, a, b, c, m, n, k, block);

PYBIND11_MODULE(_C, m) {
  TURBO_BIND_LIBRARY(m, turbo_gemm);
  m.attr("TILE_CHOSEN") = int(TURBO_GEMM_TILE_CHOSEN);
  m.attr("TILE_LARGE") = int(TURBO_GEMM_TILE_LARGE);
  m.attr("TILE_SMALL") = int(TURBO_GEMM_TILE_SMALL);
  turbo::bind_launch(m, "gemm_mx", turbo_gemm_mx);
  turbo::bind_launch(m, "gemm_fp8", turbo_gemm_fp8);
  turbo::bind_launch(m, "gemm_ck", turbo_gemm_ck);
  m.def("check_ck", &turbo::check<turbo_gemm_ck_check>, turbo::release());
}
