/* SPDX-License-Identifier: MIT
 *
 * C interface of libturbo_gemm_kernels.so: GEMM of quantised operands for AMD Instinct gfx942 and gfx950.
 *
 * Free of any framework: pointers, sizes, a device index and a stream. The library links neither ROCm nor torch; it
 * finds libamdhip64 at the first call that needs it (order: TURBO_HIP_LIBRARY, one already in the process,
 * ROCM_HOME/lib, the loader's search) and its code objects beside itself.
 *
 * Every function returns a turbo_status; turbo_gemm_last_error() has the text of the calling thread's last failure.
 * Launches are asynchronous on the given stream, allocate nothing and synchronise nothing, so they can be captured into
 * a graph once each kernel has run on its device (the first run loads the code object). Any thread may call anything,
 * except where a function says otherwise.
 */
#ifndef TURBO_GEMM_H
#define TURBO_GEMM_H

#include <stdint.h>

#include "turbo/gemm/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TURBO_GEMM_ABI_VERSION 2
TURBO_LIBRARY_FUNCTIONS(turbo_gemm)

/* C = A B^T of MX operands, on gfx950. 8-bit formats in any pair, e2m1 with itself. */
typedef struct {
  turbo_gemm_operand a, b; /* scales [m, k/32] and [n, k/32], of which 255 is NaN */
  turbo_gemm_output c;
  int64_t m, n, k; /* k a multiple of 128 */
  turbo_mx_format format_a, format_b;
  turbo_gemm_tile tile;
  int compute_units; /* of the device: a chosen tile depends on it */
} turbo_gemm_mx_args;

TURBO_API turbo_status turbo_gemm_mx(const turbo_gemm_mx_args *args, int device, void *stream);

/* C = A B^T of FP8 operands in the device's encoding: FNUZ on gfx942, OCP on gfx950. */
typedef struct {
  turbo_gemm_operand a, b;
  turbo_gemm_output c;
  int64_t m, n, k; /* k a multiple of 16 */
  turbo_dtype dtype_a, dtype_b;
  int block; /* 0: scales of the tensor or of rows, applied to the finished sums; 128: of each 128 k, applied in float32
                to the sum over these */
  turbo_gemm_tile tile;
  int compute_units; /* of the device: a chosen tile depends on it */
} turbo_gemm_fp8_args;

TURBO_API turbo_status turbo_gemm_fp8(const turbo_gemm_fp8_args *args, int device, void *stream);

/* The same by composable kernel, where the library was built with TURBO_BUILD_CK=1: e4m3 in the device's encoding to a
 * contiguous bf16 C, n a multiple of 8.
 *   block = 0    a_scale [m], b_scale [n]
 *   block = 128  a_scale [m, ceil(k / 128)], b_scale [ceil(n / 128), ceil(k / 128)] */
typedef struct {
  const void *data;   /* 16-byte aligned, K adjacent */
  int64_t stride;     /* bytes from row to row, a multiple of 16 */
  const float *scale; /* contiguous */
} turbo_gemm_ck_operand;

typedef struct {
  turbo_gemm_ck_operand a, b;
  void *c;
  int64_t m, n, k;
  int block;
} turbo_gemm_ck_args;

TURBO_API turbo_status turbo_gemm_ck(const turbo_gemm_ck_args *args, int device, void *stream);

/* TURBO_OK when turbo_gemm_ck can run on the device. */
TURBO_API turbo_status turbo_gemm_ck_check(int device);

#ifdef __cplusplus
}
#endif

#endif
