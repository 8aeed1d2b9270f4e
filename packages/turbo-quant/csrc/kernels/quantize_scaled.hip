// SPDX-License-Identifier: MIT
//
// TENSORWISE and ROWWISE columns: a first pass for the maxima, a second for the payload.
#include "float_tile.h"

using namespace turbo_quant;

#define TURBO_QUANTIZE_SCALED(type, T, code, F)                                                                 \
  TURBO_KERNEL(kThreads, 4) void quantize_tensor_##type##_##code(QuantizeFloat a) { quantize_tensor<T, F>(a); } \
  TURBO_KERNEL(kThreads, 4) void quantize_columns_##type##_##code(QuantizeFloat a) { quantize_columns<T, F>(a); }
#define TURBO_QUANTIZE_SCALED_OF_TYPE(type, T)                                              \
  TURBO_KERNEL(kThreads, 4) void tensor_amax_##type(QuantizeFloat a) { tensor_amax<T>(a); } \
  TURBO_KERNEL(kThreads, 4) void column_amax_##type(QuantizeFloat a) { column_amax<T>(a); } \
  TURBO_QUANTIZE_SCALED(type, T, e4m3, fp8_e4m3)                                            \
  TURBO_QUANTIZE_SCALED(type, T, e5m2, fp8_e5m2)                                            \
  TURBO_QUANTIZE_SCALED(type, T, e4m3_fnuz, fp8_e4m3_fnuz)                                  \
  TURBO_QUANTIZE_SCALED(type, T, e5m2_fnuz, fp8_e5m2_fnuz)

TURBO_QUANTIZE_SCALED_OF_TYPE(fp32, float)
TURBO_QUANTIZE_SCALED_OF_TYPE(fp16, fp16)
TURBO_QUANTIZE_SCALED_OF_TYPE(bf16, bf16)
