// SPDX-License-Identifier: MIT
//
// turbo_norm_act.pytorch._C: the C interface, for Python; see turbo/module.h and turbo/arguments.h.
#include "turbo/module.h"
#include "turbo/arguments.h"

#include "turbo_norm_act.h"

TURBO_FIELDS(turbo_norm_forward_args, x, x_stride, residual, residual_stride, gamma, beta, y, s, mean, rstd, rows, dim,
             dtype, gamma_dtype, beta_dtype, eps, zero_centered);
TURBO_FIELDS(turbo_norm_backward_args, dy, dy_stride, ds, ds_stride, s, s_stride, gamma, mean, rstd, dx, dgamma, dbeta,
             partial, partials, rows, dim, dtype, gamma_dtype, beta_dtype, zero_centered);

namespace {

int64_t norm_backward_partials(int64_t rows, int64_t dim, int dtype) {
  return turbo_norm_backward_partials(rows, dim, static_cast<turbo_dtype>(dtype));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  TURBO_BIND_LIBRARY(m, turbo_norm_act);
  turbo::bind_launch(m, "rmsnorm_forward", turbo_rmsnorm_forward);
  turbo::bind_launch(m, "rmsnorm_backward", turbo_rmsnorm_backward);
  turbo::bind_launch(m, "layernorm_forward", turbo_layernorm_forward);
  turbo::bind_launch(m, "layernorm_backward", turbo_layernorm_backward);
  m.def("norm_backward_partials", &norm_backward_partials);
}
