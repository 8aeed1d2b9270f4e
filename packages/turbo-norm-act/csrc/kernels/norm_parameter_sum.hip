// SPDX-License-Identifier: MIT
//
// The second step of the gradients of a norm's parameters: dgamma[d] = round(sum over p of partial[p, d]), and dbeta
// likewise.
#include "norm_columns.h"

namespace turbo_norm_act {

// The grid is (columns / 64, gradients).
TURBO_DEVICE void parameter_sum(const NormParameterSum &a) {
  const int column = (int)block_index() * kSumColumns + lane_index();
  const int which = (int)block_index_y();
  const global<float> *partial = a.partial + (long long)which * a.partials * a.dim;
  float sums[1] = {0.0f};
  if (column < a.dim) {
    for (int p = wave_index(); p < a.partials; p += kSumWaves) sums[0] += partial[(long long)p * a.dim + column];
  }
  add_waves(sums);
  if (wave_index() != 0 || column >= a.dim) return;
  global<void> *gradient = which == 0 ? a.gradient : a.second_gradient;
  const int type = which == 0 ? a.type : a.second_type;
  if (type == TURBO_BFLOAT16) ((global<bf16> *)gradient)[column] = from_float<bf16>(sums[0]);
  if (type == TURBO_FLOAT16) ((global<fp16> *)gradient)[column] = from_float<fp16>(sums[0]);
  if (type == TURBO_FLOAT32) ((global<float> *)gradient)[column] = sums[0];
}

}  // namespace turbo_norm_act

using namespace turbo_norm_act;

TURBO_KERNEL(kSumThreads, 4) void norm_parameter_sum(NormParameterSum a) { parameter_sum(a); }
