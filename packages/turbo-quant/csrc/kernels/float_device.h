// SPDX-License-Identifier: MIT
//
// Float scales: from the bits of amax to scale and scale_inv, and from elements to payload.
#pragma once

#include "quant_device.h"
#include "quant_formats.h"

namespace turbo_quant {

struct Scale {
  float scale;      // NaN where the block is not finite
  float scale_inv;  // likewise

  // Divisions are correctly rounded (v_div_scale, v_div_fmas, v_div_fixup). The floor's scale is 2^125.
  template <class F>
  TURBO_MEMBER static Scale of(unsigned amax) {
    constexpr float floor = F::largest * 0x1p-125f;
    const float scale = F::largest / __builtin_fmaxf(bits<float>(amax), floor);
    const float nan = __builtin_nanf("");
    return amax >= kInfinity ? Scale{nan, nan} : Scale{scale, 1.0f / scale};
  }
};

// What N elements of a row are multiplied by, and which of their codes stay: none where a scale is NaN.
template <int N>
struct Scales {
  vec<float, N> scale;
  vec<unsigned, N / 4> keep;  // a mask, a byte a code

  // One for all.
  TURBO_MEMBER static Scales of(float scale) {
    Scales s;
#pragma unroll
    for (int i = 0; i < N; ++i) s.scale[i] = scale;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) s.keep[i] = scale == scale ? 0xffffffffu : 0;
    return s;
  }

  // One each.
  TURBO_MEMBER static Scales of(vec<float, N> scale) {
    Scales s{scale, {}};
#pragma unroll
    for (int i = 0; i < N; ++i) s.keep[i / 4] |= scale[i] == scale[i] ? 0xffu << i % 4 * 8 : 0;
    return s;
  }
};

template <class F, class T, int N>
TURBO_DEVICE vec<unsigned, N / 4> quantize(vec<T, N> x, const Scales<N> &scales) {
  const vec<float, N> value = to_float<T, N>(x) * scales.scale;
  vec<unsigned, N / 4> packed;
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    packed[i / 4] = encode4<F>(vec<float, 4>{value[i], value[i + 1], value[i + 2], value[i + 3]});
  }
  return packed & scales.keep;
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
