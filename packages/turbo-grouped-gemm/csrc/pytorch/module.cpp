// SPDX-License-Identifier: MIT
//
// turbo_grouped_gemm.pytorch._C: the C interface, for Python; see turbo/module.h and turbo/arguments.h.
#include "turbo/module.h"
#include "turbo/arguments.h"

#include "turbo_grouped_gemm.h"

TURBO_FIELDS(turbo_gemm_operand, data, stride, scale, scale_stride, scale_step, scale_rows);
TURBO_FIELDS(turbo_gemm_output, data, stride, bias, dtype, bias_dtype, accumulate);
TURBO_FIELDS(turbo_groups, count, lens, offs, lens_bits, offs_bits);
TURBO_FIELDS(turbo_grouped_gemm_problem, a, b, c, m, n, k, groups, b_group, a_scale_group, b_scale_group, bias_group,
             c_group, tile, compute_units, most_units, counter);
TURBO_FIELDS(turbo_grouped_gemm_mx_args, problem, format_a, format_b);
TURBO_FIELDS(turbo_grouped_gemm_fp8_args, problem, dtype_a, dtype_b, block);
TURBO_FIELDS(turbo_grouped_gemm_half_args, problem, dtype);

PYBIND11_MODULE(_C, m) {
  TURBO_BIND_LIBRARY(m, turbo_grouped_gemm);
  m.attr("TILE_CHOSEN") = int(TURBO_GEMM_TILE_CHOSEN);
  m.attr("TILE_LARGE") = int(TURBO_GEMM_TILE_LARGE);
  m.attr("TILE_SMALL") = int(TURBO_GEMM_TILE_SMALL);
  turbo::bind_launch(m, "grouped_gemm_mx", turbo_grouped_gemm_mx);
  turbo::bind_launch(m, "grouped_gemm_fp8", turbo_grouped_gemm_fp8);
  turbo::bind_launch(m, "grouped_gemm_half", turbo_grouped_gemm_half);
}
