// SPDX-License-Identifier: MIT
//
// turbo_quant.pytorch._C: the C interface, for Python; see turbo/module.h. Arguments are in the order of the structs.
#include "turbo/module.h"

#include <pybind11/stl.h>

#include <array>

#include "turbo_quant.h"

namespace {

using turbo::Address;
using turbo::pointer;

using Triple = std::array<int64_t, 3>;

void copy(const Triple &from, int64_t (&to)[3]) {
  for (int i = 0; i < 3; ++i) to[i] = from[size_t(i)];
}

int quantize_float(Address x, const Triple &strides, const Triple &size, int x_dtype, int out_dtype, int granularity,
                   int block_size, bool tile, Address row, Address row_scale_inv, Address column,
                   Address column_scale_inv, Address group_offs, Address group_offs_padded, int64_t groups,
                   Address scratch, int device, Address stream) {
  turbo_quantize_float_args args{};
  args.x = pointer(x);
  copy(strides, args.strides);
  copy(size, args.size);
  args.x_dtype = static_cast<turbo_dtype>(x_dtype);
  args.out_dtype = static_cast<turbo_dtype>(out_dtype);
  args.granularity = static_cast<turbo_granularity>(granularity);
  args.block_size = block_size;
  args.tile = tile;
  args.row = pointer(row);
  args.row_scale_inv = pointer<float>(row_scale_inv);
  args.column = pointer(column);
  args.column_scale_inv = pointer<float>(column_scale_inv);
  args.group_offs = pointer<const int64_t>(group_offs);
  args.group_offs_padded = pointer<const int64_t>(group_offs_padded);
  args.groups = groups;
  args.scratch = pointer<uint32_t>(scratch);
  return turbo_quantize_float(&args, device, pointer(stream));
}

int64_t quantize_float_scratch(int granularity, int64_t batches, int64_t columns, bool column) {
  return turbo_quantize_float_scratch(static_cast<turbo_granularity>(granularity), batches, columns, column);
}

int quantize_mx(Address x, const Triple &strides, const Triple &size, int x_dtype, int format, Address row,
                Address row_scale, int row_flags, Address column, Address column_scale, int column_flags, int sign_mask,
                Address rng, Address group_offs, Address group_offs_padded, int64_t groups, int device,
                Address stream) {
  turbo_quantize_mx_args args{};
  args.x = pointer(x);
  copy(strides, args.strides);
  copy(size, args.size);
  args.x_dtype = static_cast<turbo_dtype>(x_dtype);
  args.format = static_cast<turbo_mx_format>(format);
  args.row = {pointer(row), pointer<uint8_t>(row_scale), row_flags};
  args.column = {pointer(column), pointer<uint8_t>(column_scale), column_flags};
  args.sign_mask = sign_mask;
  args.rng = pointer<const int64_t>(rng);
  args.group_offs = pointer<const int64_t>(group_offs);
  args.group_offs_padded = pointer<const int64_t>(group_offs_padded);
  args.groups = groups;
  return turbo_quantize_mx(&args, device, pointer(stream));
}

int dequantize_float(Address q, const Triple &strides, const Triple &size, Address scale_inv, int q_dtype,
                     int granularity, int64_t block_size, int axis, Address out, int out_dtype, int device,
                     Address stream) {
  turbo_dequantize_float_args args{};
  args.q = pointer(q);
  copy(strides, args.strides);
  copy(size, args.size);
  args.scale_inv = pointer<const float>(scale_inv);
  args.q_dtype = static_cast<turbo_dtype>(q_dtype);
  args.granularity = static_cast<turbo_granularity>(granularity);
  args.block_size = block_size;
  args.axis = axis;
  args.out = pointer(out);
  args.out_dtype = static_cast<turbo_dtype>(out_dtype);
  return turbo_dequantize_float(&args, device, pointer(stream));
}

int dequantize_mx(Address q, const Triple &strides, const Triple &size, Address scale, int format, int64_t wanted,
                  bool transpose, bool rht, int sign_mask, Address out, int out_dtype, int device, Address stream) {
  turbo_dequantize_mx_args args{};
  args.q = pointer(q);
  copy(strides, args.strides);
  copy(size, args.size);
  args.scale = pointer<const uint8_t>(scale);
  args.format = static_cast<turbo_mx_format>(format);
  args.wanted = wanted;
  args.transpose = transpose;
  args.rht = rht;
  args.sign_mask = sign_mask;
  args.out = pointer(out);
  args.out_dtype = static_cast<turbo_dtype>(out_dtype);
  return turbo_dequantize_mx(&args, device, pointer(stream));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  using turbo::release;
  TURBO_BIND_LIBRARY(m, turbo_quant);
  m.attr("TENSORWISE") = int(TURBO_TENSORWISE);
  m.attr("ROWWISE") = int(TURBO_ROWWISE);
  m.attr("BLOCKWISE") = int(TURBO_BLOCKWISE);
  m.attr("BLOCK") = TURBO_QUANT_BLOCK;
  m.attr("MX_FORMATS") =
      pybind11::dict(pybind11::arg("e4m3") = int(TURBO_MX_E4M3), pybind11::arg("e5m2") = int(TURBO_MX_E5M2),
                     pybind11::arg("e2m1") = int(TURBO_MX_E2M1));
  m.attr("MX_TILE") = int(TURBO_MX_TILE);
  m.attr("MX_RHT") = int(TURBO_MX_RHT);
  m.attr("MX_STOCHASTIC") = int(TURBO_MX_STOCHASTIC);
  m.attr("MX_SHUFFLE_SCALE") = int(TURBO_MX_SHUFFLE_SCALE);
  m.attr("MX_SHUFFLE_OUT") = int(TURBO_MX_SHUFFLE_OUT);
  m.def("quantize_float", &quantize_float, release());
  m.def("quantize_float_scratch", &quantize_float_scratch);
  m.def("quantize_mx", &quantize_mx, release());
  m.def("dequantize_float", &dequantize_float, release());
  m.def("dequantize_mx", &dequantize_mx, release());
}
