// SPDX-License-Identifier: MIT
//
// turbo_attention.pytorch._C: the C interface, for Python; see turbo/module.h. Arguments are in the order of the struct.
#include "turbo/module.h"

#include <pybind11/stl.h>

#include <array>
#include <utility>

#include "turbo_attention.h"

namespace {

using turbo::Address;
using turbo::pointer;

using Tensor = std::pair<Address, std::array<int64_t, 3>>;

turbo_attention_tensor tensor(const Tensor &x) { return {pointer(x.first), {x.second[0], x.second[1], x.second[2]}}; }

int attention_forward(const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &out, Address lse,
                      Address lse_low, const std::array<int64_t, 2> &lse_strides, int64_t batches, int64_t sq,
                      int64_t sk, int64_t heads, int64_t key_heads, int64_t head_dim, int dtype, float softmax_scale,
                      bool causal, int device, Address stream) {
  turbo_attention_forward_args args{};
  args.q = tensor(q);
  args.k = tensor(k);
  args.v = tensor(v);
  args.out = tensor(out);
  args.lse = pointer<float>(lse);
  args.lse_low = pointer<float>(lse_low);
  args.lse_strides[0] = lse_strides[0];
  args.lse_strides[1] = lse_strides[1];
  args.batches = batches;
  args.sq = sq;
  args.sk = sk;
  args.heads = heads;
  args.key_heads = key_heads;
  args.head_dim = head_dim;
  args.dtype = static_cast<turbo_dtype>(dtype);
  args.softmax_scale = softmax_scale;
  args.causal = causal;
  return turbo_attention_forward(&args, device, pointer(stream));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  using turbo::release;
  TURBO_BIND_LIBRARY(m, turbo_attention);
  m.def("attention_forward", &attention_forward, release());
}
