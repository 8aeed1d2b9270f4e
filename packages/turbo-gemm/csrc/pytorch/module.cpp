// SPDX-License-Identifier: MIT
//
// turbo_gemm.pytorch._C: the C interface, for Python; see turbo/module.h.
#include "turbo/module.h"

#include <tuple>

#include "turbo_gemm.h"

namespace {

using turbo::Address;
using turbo::pointer;

// The members of turbo_gemm_operand and turbo_gemm_output, in their order.
using Operand = std::tuple<Address, int64_t, Address, int64_t, int64_t, int>;
using Output = std::tuple<Address, int64_t, Address, int, int, bool>;

turbo_gemm_operand operand(const Operand &x) {
  const auto &[data, stride, scale, scale_stride, scale_step, scale_rows] = x;
  return {pointer(data), stride, pointer(scale), scale_stride, scale_step, scale_rows};
}

turbo_gemm_output output(const Output &x) {
  const auto &[data, stride, bias, dtype, bias_dtype, accumulate] = x;
  return {pointer(data), stride, pointer(bias), static_cast<turbo_dtype>(dtype), static_cast<turbo_dtype>(bias_dtype),
          accumulate};
}

int gemm_mx(const Operand &a, const Operand &b, const Output &c, int64_t m, int64_t n, int64_t k, int format_a,
            int format_b, int tile, int device, Address stream) {
  const turbo_gemm_operand a_args = operand(a), b_args = operand(b);
  const turbo_gemm_output c_args = output(c);
  return turbo_gemm_mx(&a_args, &b_args, &c_args, m, n, k, static_cast<turbo_gemm_format>(format_a),
                       static_cast<turbo_gemm_format>(format_b), static_cast<turbo_gemm_tile>(tile), device,
                       pointer(stream));
}

int gemm_fp8(const Operand &a, const Operand &b, const Output &c, int64_t m, int64_t n, int64_t k, int dtype_a,
             int dtype_b, int block, int tile, int device, Address stream) {
  const turbo_gemm_operand a_args = operand(a), b_args = operand(b);
  const turbo_gemm_output c_args = output(c);
  return turbo_gemm_fp8(&a_args, &b_args, &c_args, m, n, k, static_cast<turbo_dtype>(dtype_a),
                        static_cast<turbo_dtype>(dtype_b), block, static_cast<turbo_gemm_tile>(tile), device,
                        pointer(stream));
}

using CkOperand = std::tuple<Address, int64_t, Address>;

int gemm_ck(const CkOperand &a, const CkOperand &b, Address c, int64_t m, int64_t n, int64_t k, int block, int device,
            Address stream) {
  const auto operand = [](const CkOperand &x) {
    return turbo_gemm_ck_operand{pointer(std::get<0>(x)), std::get<1>(x), pointer<const float>(std::get<2>(x))};
  };
  const turbo_gemm_ck_operand a_args = operand(a), b_args = operand(b);
  return turbo_gemm_ck(&a_args, &b_args, pointer(c), m, n, k, block, device, pointer(stream));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  using turbo::release;
  TURBO_BIND_LIBRARY(m, turbo_gemm);
  m.attr("E4M3") = int(TURBO_GEMM_E4M3);
  m.attr("E5M2") = int(TURBO_GEMM_E5M2);
  m.attr("E2M1") = int(TURBO_GEMM_E2M1);
  m.attr("TILE_CHOSEN") = int(TURBO_GEMM_TILE_CHOSEN);
  m.attr("TILE_LARGE") = int(TURBO_GEMM_TILE_LARGE);
  m.attr("TILE_SMALL") = int(TURBO_GEMM_TILE_SMALL);
  m.def("gemm_mx", &gemm_mx, release());
  m.def("gemm_fp8", &gemm_fp8, release());
  m.def("gemm_ck", &gemm_ck, release());
  m.def("check_ck", &turbo::check<turbo_gemm_ck_check>, release());
}
