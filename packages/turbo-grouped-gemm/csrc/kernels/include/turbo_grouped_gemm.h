/* SPDX-License-Identifier: MIT
 *
 * C interface of libturbo_grouped_gemm_kernels.so: a GEMM of quantised or 16-bit operands for each of several groups,
 * for AMD Instinct gfx942 and gfx950.
 *
 * Free of any framework: pointers, sizes, a device index and a stream. The library links neither ROCm nor torch; it
 * finds libamdhip64 at the first call that needs it (order: TURBO_HIP_LIBRARY, one already in the process,
 * ROCM_HOME/lib, the loader's search) and its code objects beside itself.
 *
 * Every function returns a turbo_status; turbo_grouped_gemm_last_error() has the text of the calling thread's last
 * failure. Launches are asynchronous on the given stream, allocate nothing and synchronise nothing, so they can be
 * captured into a graph once each kernel has run on its device (the first run loads the code object). Any thread may
 * call anything, except where a function says otherwise.
 */
#ifndef TURBO_GROUPED_GEMM_H
#define TURBO_GROUPED_GEMM_H

#include <stdint.h>

#include "turbo/gemm/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TURBO_GROUPED_GEMM_ABI_VERSION 1
TURBO_LIBRARY_FUNCTIONS(turbo_grouped_gemm)

/* Where the groups lie, on the device; the host never reads it. Values outside of the rows or columns that there are are
 * cut off. */
typedef struct {
  int64_t count;
  const void *lens; /* [count]; NULL: groups are columns */
  const void *offs; /* [count + 1], ascending; NULL: groups lie one after the other from row 0 on */
  int lens_bits;    /* of a value, 32 or 64 */
  int offs_bits;
} turbo_groups;

/* With lens, groups are rows:
 *   C[r] = A[r] B[g]^T (+ bias[g])  for the rows r of group g, offs[g] to offs[g] + lens[g] - 1; other rows become zeros
 *   A [m, k], B [count, n, k], C [m, n]
 * else they are columns, offs[g] to offs[g + 1] - 1, of a multiple of 128:
 *   C[g] = A[:, g] B[:, g]^T        (+ C[g] when `accumulate`)
 *   A [m, k], B [n, k], C [count, m, n]; no bias
 *
 * ..._group is from group to group: bytes of b, scales, elements of c and bias. 0 where all groups share. */
typedef struct {
  turbo_gemm_operand a, b;
  turbo_gemm_output c;
  int64_t m, n, k;
  turbo_groups groups;
  int64_t b_group, a_scale_group, b_scale_group, bias_group, c_group;
  turbo_gemm_tile tile;
  int compute_units; /* of the device */
  int most_units;    /* to use; 0: all */
  unsigned *counter; /* on the device and 0: work-groups take the next tile from it; NULL: each has its tiles */
} turbo_grouped_gemm_problem;

/* MX operands, on gfx950. 8-bit formats in any pair, e2m1 with itself; scales are bytes [.., k/32], k a multiple of 128. */
typedef struct {
  turbo_grouped_gemm_problem problem;
  turbo_mx_format format_a, format_b;
} turbo_grouped_gemm_mx_args;

TURBO_API turbo_status turbo_grouped_gemm_mx(const turbo_grouped_gemm_mx_args *args, int device, void *stream);

/* FP8 operands in the device's encoding: FNUZ on gfx942, OCP on gfx950. k a multiple of 16 (groups of columns: 128). */
typedef struct {
  turbo_grouped_gemm_problem problem;
  turbo_dtype dtype_a, dtype_b;
  int block; /* 0: scales of the tensor or of rows, applied to the finished sums; 128: of each 128 k, applied in float32
                to the sum over these */
} turbo_grouped_gemm_fp8_args;

TURBO_API turbo_status turbo_grouped_gemm_fp8(const turbo_grouped_gemm_fp8_args *args, int device, void *stream);

/* Operands of 16 bits, both bfloat16 or both float16, without scales; k a multiple of 8. Groups of rows. */
typedef struct {
  turbo_grouped_gemm_problem problem;
  turbo_dtype dtype;
} turbo_grouped_gemm_half_args;

TURBO_API turbo_status turbo_grouped_gemm_half(const turbo_grouped_gemm_half_args *args, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif
