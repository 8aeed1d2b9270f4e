// SPDX-License-Identifier: MIT
#include "float_rows.h"

using namespace turbo_quant;

constexpr int block_threads(int row_threads) {
  return row_threads == kWaveSize ? kWaveSize * kRowsPerWaveBlock : row_threads;
}

#define TURBO_QUANTIZE_ROWS(type, T, code, F, threads, chunks)                                                         \
  TURBO_KERNEL(block_threads(threads), 4) void quantize_rows_##type##_##code##_##threads##x##chunks(QuantizeFloat a) { \
    quantize_rows<T, F, threads, chunks>(a);                                                                           \
  }
#define TURBO_QUANTIZE_ROWS_ALL(type, T, code, F)                                               \
  TURBO_QUANTIZE_ROWS_TABLE(TURBO_QUANTIZE_ROWS, type, T, code, F)                              \
  TURBO_KERNEL(kThreads, 4) void quantize_rows_##type##_##code##_loop_vector(QuantizeFloat a) { \
    quantize_rows_loop<T, F, true>(a);                                                          \
  }                                                                                             \
  TURBO_KERNEL(kThreads, 4) void quantize_rows_##type##_##code##_loop_scalar(QuantizeFloat a) { \
    quantize_rows_loop<T, F, false>(a);                                                         \
  }
#define TURBO_QUANTIZE_ROWS_OF_TYPE(type, T)                 \
  TURBO_QUANTIZE_ROWS_ALL(type, T, e4m3, fp8_e4m3)           \
  TURBO_QUANTIZE_ROWS_ALL(type, T, e5m2, fp8_e5m2)           \
  TURBO_QUANTIZE_ROWS_ALL(type, T, e4m3_fnuz, fp8_e4m3_fnuz) \
  TURBO_QUANTIZE_ROWS_ALL(type, T, e5m2_fnuz, fp8_e5m2_fnuz)

TURBO_QUANTIZE_ROWS_OF_TYPE(fp32, float)
TURBO_QUANTIZE_ROWS_OF_TYPE(fp16, fp16)
TURBO_QUANTIZE_ROWS_OF_TYPE(bf16, bf16)
