// SPDX-License-Identifier: MIT
//
// turbo_norm_act.pytorch._C: the C interface, for Python. Integers stand for pointers and the stream, so no torch
// header is needed and one build serves every torch. It checks nothing and allocates nothing; both are done by
// turbo_norm_act/pytorch/kernels/native.py. A function returns a turbo_status, and last_error() the text that goes
// with it.
#include <pybind11/pybind11.h>

#include <string>

#include "turbo_norm_act.h"

namespace py = pybind11;

namespace {

using Address = uintptr_t;

template <class T = void>
T *pointer(Address address) {
  return reinterpret_cast<T *>(address);
}

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

int check(int device) { return turbo_norm_act_check(device); }

std::string device_arch(int device) {
  char name[64];
  turbo_norm_act_device_arch(device, name, sizeof name);
  return name;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  // A launch can wait (for a code object to load, or on a full queue), so Python's other threads go on meanwhile.
  using release = py::call_guard<py::gil_scoped_release>;
  m.attr("OK") = int(TURBO_OK);
  m.attr("ERROR_ARGUMENT") = int(TURBO_ERROR_ARGUMENT);
  m.attr("ERROR_NO_RUNTIME") = int(TURBO_ERROR_NO_RUNTIME);
  m.attr("ERROR_NO_KERNEL") = int(TURBO_ERROR_NO_KERNEL);
  m.attr("ERROR_HIP") = int(TURBO_ERROR_HIP);
  m.attr("FLOAT32") = int(TURBO_FLOAT32);
  m.attr("FLOAT16") = int(TURBO_FLOAT16);
  m.attr("BFLOAT16") = int(TURBO_BFLOAT16);
  m.def("abi_version", &turbo_norm_act_abi_version);
  m.def("last_error", &turbo_norm_act_last_error);
  m.def("check", &check, release());
  m.def("device_arch", &device_arch, release());
  m.def("reset", &turbo_norm_act_reset, release());
  m.def("rmsnorm_forward", &norm_forward<turbo_rmsnorm_forward>, release());
  m.def("rmsnorm_backward", &norm_backward<turbo_rmsnorm_backward>, release());
  m.def("layernorm_forward", &norm_forward<turbo_layernorm_forward>, release());
  m.def("layernorm_backward", &norm_backward<turbo_layernorm_backward>, release());
  m.def("norm_backward_partials", &norm_backward_partials);
}
