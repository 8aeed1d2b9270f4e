// SPDX-License-Identifier: MIT
#include "float_tile.h"

using namespace turbo_quant;

#define TURBO_QUANTIZE_BLOCKS(type, T, code, F) \
  TURBO_KERNEL(kThreads, 4) void quantize_blocks_##type##_##code(QuantizeFloat a) { quantize_blocks<T, F>(a); }
#define TURBO_QUANTIZE_BLOCKS_OF_TYPE(type, T)             \
  TURBO_QUANTIZE_BLOCKS(type, T, e4m3, fp8_e4m3)           \
  TURBO_QUANTIZE_BLOCKS(type, T, e5m2, fp8_e5m2)           \
  TURBO_QUANTIZE_BLOCKS(type, T, e4m3_fnuz, fp8_e4m3_fnuz) \
  TURBO_QUANTIZE_BLOCKS(type, T, e5m2_fnuz, fp8_e5m2_fnuz)

TURBO_QUANTIZE_BLOCKS_OF_TYPE(fp32, float)
TURBO_QUANTIZE_BLOCKS_OF_TYPE(fp16, fp16)
TURBO_QUANTIZE_BLOCKS_OF_TYPE(bf16, bf16)
