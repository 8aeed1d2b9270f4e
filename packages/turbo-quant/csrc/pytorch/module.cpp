// SPDX-License-Identifier: MIT
//
// turbo_quant.pytorch._C: the C interface, for Python; see turbo/module.h and turbo/arguments.h.
#include "turbo/module.h"
#include "turbo/arguments.h"

#include "turbo_quant.h"

TURBO_FIELDS(turbo_quantize_float_args, x, strides, size, x_dtype, out_dtype, granularity, block_size, tile, row,
             row_scale_inv, column, column_scale_inv, group_offs, group_offs_padded, groups, scratch);
TURBO_FIELDS(turbo_mx_copy, payload, scale, flags);
TURBO_FIELDS(turbo_quantize_mx_args, x, strides, size, x_dtype, format, row, column, sign_mask, rng, group_offs,
             group_offs_padded, groups);
TURBO_FIELDS(turbo_dequantize_float_args, q, strides, size, scale_inv, q_dtype, granularity, block_size, axis, out,
             out_dtype);
TURBO_FIELDS(turbo_dequantize_mx_args, q, strides, size, scale, format, wanted, transpose, rht, sign_mask, out,
             out_dtype);

namespace {

int64_t quantize_float_scratch(int granularity, int64_t batches, int64_t columns, bool column) {
  return turbo_quantize_float_scratch(static_cast<turbo_granularity>(granularity), batches, columns, column);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  TURBO_BIND_LIBRARY(m, turbo_quant);
  m.attr("TENSORWISE") = int(TURBO_TENSORWISE);
  m.attr("ROWWISE") = int(TURBO_ROWWISE);
  m.attr("BLOCKWISE") = int(TURBO_BLOCKWISE);
  m.attr("BLOCK") = TURBO_QUANT_BLOCK;
  m.attr("MX_TILE") = int(TURBO_MX_TILE);
  m.attr("MX_RHT") = int(TURBO_MX_RHT);
  m.attr("MX_STOCHASTIC") = int(TURBO_MX_STOCHASTIC);
  m.attr("MX_SHUFFLE_SCALE") = int(TURBO_MX_SHUFFLE_SCALE);
  m.attr("MX_SHUFFLE_OUT") = int(TURBO_MX_SHUFFLE_OUT);
  turbo::bind_launch(m, "quantize_float", turbo_quantize_float);
  m.def("quantize_float_scratch", &quantize_float_scratch);
  turbo::bind_launch(m, "quantize_mx", turbo_quantize_mx);
  turbo::bind_launch(m, "dequantize_float", turbo_dequantize_float);
  turbo::bind_launch(m, "dequantize_mx", turbo_dequantize_mx);
}
