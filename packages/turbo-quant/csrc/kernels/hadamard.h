// SPDX-License-Identifier: MIT
//
// The 16-point Hadamard rotation: y = H x / 4 in Sylvester order, butterflies of stride 1, 2, 4, 8, each (a, b)
// becoming (a + b, a - b) in float32; H H = 16, so it is its own inverse.
#pragma once

#include "turbo/types.h"

namespace turbo_quant {

using namespace turbo;

TURBO_DEVICE vec<float, 16> hadamard(vec<float, 16> x) {
#pragma unroll
  for (int stride = 1; stride < 16; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i & stride) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  return x * 0.25f;
}

// Element i negated where bit i of the mask is set; the mask is uniform, so its bits are scalars.
TURBO_DEVICE vec<float, 16> flip_signs(vec<float, 16> x, int mask) {
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = bits<float>(bits<unsigned>(x[i]) ^ (unsigned(mask) << (31 - i) & 0x80000000u));
  return x;
}

}  // namespace turbo_quant
