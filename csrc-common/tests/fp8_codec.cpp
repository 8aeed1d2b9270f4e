// SPDX-License-Identifier: MIT
//
// The codec of turbo/fp8_codec.h over arrays, for a test on the host.
#include "turbo/fp8_codec.h"

using namespace turbo;

template <class F>
void encode(const float *x, unsigned char *code, long count, bool saturate) {
  for (long i = 0; i < count; ++i)
    code[i] = (unsigned char)(saturate ? encode_fp8<F, true>(x[i]) : encode_fp8<F, false>(x[i]));
}

template <class F>
void decode(const unsigned char *code, float *x, long count) {
  for (long i = 0; i < count; ++i) x[i] = decode_fp8<F>(code[i]);
}

#define CODEC(name)                                                                              \
  extern "C" void encode_##name(const float *x, unsigned char *code, long count, int saturate) { \
    encode<fp8_##name>(x, code, count, saturate);                                                \
  }                                                                                              \
  extern "C" void decode_##name(const unsigned char *code, float *x, long count) { decode<fp8_##name>(code, x, count); }
CODEC(e4m3)
CODEC(e5m2)
CODEC(e4m3_fnuz)
CODEC(e5m2_fnuz)
