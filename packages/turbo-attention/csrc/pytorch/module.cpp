// SPDX-License-Identifier: MIT
//
// turbo_attention.pytorch._C: the C interface, for Python; see turbo/module.h and turbo/arguments.h.
#include "turbo/module.h"
#include "turbo/arguments.h"

#include "turbo_attention.h"

TURBO_FIELDS(turbo_attention_tensor, data, strides);
TURBO_FIELDS(turbo_attention_forward_args, q, k, v, out, lse, lse_low, lse_strides, batches, sq, sk, heads, key_heads,
             head_dim, dtype, softmax_scale, causal);

PYBIND11_MODULE(_C, m) {
  TURBO_BIND_LIBRARY(m, turbo_attention);
  turbo::bind_launch(m, "attention_forward", turbo_attention_forward);
}
