// SPDX-License-Identifier: MIT
//
// Sums by columns, for the gradients of a norm's parameters: a work-group has 64 columns (one wave wide, so a wave
// reads 256 consecutive bytes of float32) and four waves, which share the terms of the sums.
#pragma once

#include "norm_device.h"

namespace turbo_norm_act {

constexpr int kSumWaves = kSumThreads / kWaveSize;

// Each wave's sums become the work-group's, in the order of the waves.
template <int Values>
TURBO_DEVICE void add_waves(float (&sums)[Values]) {
  __shared__ float slots[Values][kSumWaves][kSumColumns];
#pragma unroll
  for (int i = 0; i < Values; ++i) slots[i][wave_index()][lane_index()] = sums[i];
  barrier();
#pragma unroll
  for (int i = 0; i < Values; ++i) {
    sums[i] = slots[i][0][lane_index()];
#pragma unroll
    for (int w = 1; w < kSumWaves; ++w) sums[i] += slots[i][w][lane_index()];
  }
}

}  // namespace turbo_norm_act
