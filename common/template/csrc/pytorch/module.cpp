// SPDX-License-Identifier: MIT
//
// turbo_template.pytorch._C: the C interface, for Python; see turbo/module.h and turbo/arguments.h.
#include "turbo/module.h"
#include "turbo/arguments.h"

#include "turbo_template.h"

TURBO_FIELDS(turbo_scale_rows_forward_args, x, x_stride, scale, residual, residual_stride, y, rows, dim, dtype,
             scale_dtype);
TURBO_FIELDS(turbo_scale_rows_backward_args, dy, dy_stride, x, x_stride, scale, dx, dscale, rows, dim, dtype,
             scale_dtype);

PYBIND11_MODULE(_C, m) {
  TURBO_BIND_LIBRARY(m, turbo_template);
  turbo::bind_launch(m, "scale_rows_forward", turbo_scale_rows_forward);
  turbo::bind_launch(m, "scale_rows_backward", turbo_scale_rows_backward);
}
