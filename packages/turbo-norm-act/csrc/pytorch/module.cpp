// SPDX-License-Identifier: MIT
//
// turbo_norm_act.pytorch._C: the C interface, for Python; see turbo/module.h.
#include "turbo/module.h"

#include "turbo_norm_act.h"

namespace {

using turbo::Address;
using turbo::pointer;

// Function is turbo_rmsnorm_forward or turbo_layernorm_forward.
template <auto Function>
int norm_forward(Address x, int64_t x_stride, Address residual, int64_t residual_stride, Address gamma, Address beta,
                 Address y, Address s, Address mean, Address rstd, int64_t rows, int64_t dim, int dtype,
                 int gamma_dtype, int beta_dtype, float eps, bool zero_centered, int device, Address stream) {
  const turbo_norm_forward_args args{pointer(x),
                                     x_stride,
                                     pointer(residual),
                                     residual_stride,
                                     pointer(gamma),
                                     pointer(beta),
                                     pointer(y),
                                     pointer(s),
                                     pointer<float>(mean),
                                     pointer<float>(rstd),
                                     rows,
                                     dim,
                                     static_cast<turbo_dtype>(dtype),
                                     static_cast<turbo_dtype>(gamma_dtype),
                                     static_cast<turbo_dtype>(beta_dtype),
                                     eps,
                                     zero_centered};
  return Function(&args, device, pointer(stream));
}

template <auto Function>
int norm_backward(Address dy, int64_t dy_stride, Address ds, int64_t ds_stride, Address s, int64_t s_stride,
                  Address gamma, Address mean, Address rstd, Address dx, Address dgamma, Address dbeta, Address partial,
                  int64_t partials, int64_t rows, int64_t dim, int dtype, int gamma_dtype, int beta_dtype,
                  bool zero_centered, int device, Address stream) {
  const turbo_norm_backward_args args{pointer(dy),
                                      dy_stride,
                                      pointer(ds),
                                      ds_stride,
                                      pointer(s),
                                      s_stride,
                                      pointer(gamma),
                                      pointer<float>(mean),
                                      pointer<float>(rstd),
                                      pointer(dx),
                                      pointer(dgamma),
                                      pointer(dbeta),
                                      pointer<float>(partial),
                                      partials,
                                      rows,
                                      dim,
                                      static_cast<turbo_dtype>(dtype),
                                      static_cast<turbo_dtype>(gamma_dtype),
                                      static_cast<turbo_dtype>(beta_dtype),
                                      zero_centered};
  return Function(&args, device, pointer(stream));
}

int64_t norm_backward_partials(int64_t rows, int64_t dim, int dtype) {
  return turbo_norm_backward_partials(rows, dim, static_cast<turbo_dtype>(dtype));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  using turbo::release;
  TURBO_BIND_LIBRARY(m, turbo_norm_act);
  m.def("rmsnorm_forward", &norm_forward<turbo_rmsnorm_forward>, release());
  m.def("rmsnorm_backward", &norm_backward<turbo_rmsnorm_backward>, release());
  m.def("layernorm_forward", &norm_forward<turbo_layernorm_forward>, release());
  m.def("layernorm_backward", &norm_backward<turbo_layernorm_backward>, release());
  m.def("norm_backward_partials", &norm_backward_partials);
}
