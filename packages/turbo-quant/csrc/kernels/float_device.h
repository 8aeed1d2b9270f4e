// SPDX-License-Identifier: MIT
//
// Float scales: from the bits of amax to scale and scale_inv, and from elements to payload.
#pragma once

#include "quant_device.h"
#include "quant_formats.h"

namespace turbo_quant {

constexpr float kFloor = 1e-12f, kFloorBlockwise = 1e-4f;

struct Scale {
  float scale;      // NaN where the block is not finite
  float scale_inv;  // likewise

  // Divisions are correctly rounded (v_div_scale, v_div_fmas, v_div_fixup).
  template <class F>
  TURBO_MEMBER static Scale of(unsigned amax, float floor) {
    const float scale = F::largest / __builtin_fmaxf(bits<float>(amax), floor);
    const float nan = __builtin_nanf("");
    return amax >= kInfinity ? Scale{nan, nan} : Scale{scale, 1.0f / scale};
  }
};

// Payload of N elements with their scales: zeros where a scale is NaN.
template <class F, class T, int N>
TURBO_DEVICE vec<unsigned, N / 4> quantize(vec<T, N> x, vec<float, N> scale) {
  const vec<float, N> value = to_float<T, N>(x) * scale;
  vec<unsigned, N / 4> packed;
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    vec<float, 4> four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = scale[i + j] == scale[i + j] ? value[i + j] : 0.0f;
    packed[i / 4] = encode4<F>(four);
  }
  return packed;
}

template <int N>
TURBO_DEVICE vec<float, N> spread(float x) {
  vec<float, N> all;
#pragma unroll
  for (int i = 0; i < N; ++i) all[i] = x;
  return all;
}

// The first `count` of the codes in `packed`.
template <int N>
TURBO_DEVICE void store_codes(global<unsigned char> *p, vec<unsigned, N / 4> packed, long long count, bool vector) {
  if (vector && count >= N) {
    store<N / 4>((global<unsigned> *)p, packed);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) p[i] = (unsigned char)(packed[i / 4] >> i % 4 * 8);
    }
  }
}

}  // namespace turbo_quant
