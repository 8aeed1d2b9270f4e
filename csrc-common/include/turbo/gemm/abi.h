/* SPDX-License-Identifier: MIT
 *
 * Operands and results as the C interfaces of all GEMM libraries take them. Plain C.
 */
#ifndef TURBO_GEMM_ABI_H
#define TURBO_GEMM_ABI_H

#include <stdint.h>

#include "turbo/abi.h"

/* One operand, rows along M (of A) or N (of B), K adjacent within a row. */
typedef struct {
  const void *data;  /* 16-byte aligned */
  int64_t stride;    /* bytes from row to row, a multiple of 16 */
  const void *scale; /* E8M0 bytes (MX) or float32 factors that dequantise */
  int64_t
      scale_stride;   /* from row to row of scales; MX: bytes, a multiple of 4; else floats, 0 for one of the tensor */
  int64_t scale_step; /* from K block to K block, floats; blockwise only */
  int scale_rows;     /* rows that share scales: 1 or 128; 128 only blockwise */
} turbo_gemm_operand;

/* What becomes of A B^T: + bias[n], + C[m][n] when `accumulate`, rounded once to dtype. */
typedef struct {
  void *data;             /* [m, n] */
  int64_t stride;         /* elements from row to row */
  const void *bias;       /* [n] or NULL */
  turbo_dtype dtype;      /* float32, float16 or bfloat16 */
  turbo_dtype bias_dtype; /* likewise; any where bias is NULL */
  int accumulate;
} turbo_gemm_output;

/* Rows and columns of C that a work-group computes: large is 256 x 256 (256 x 128 with blocks), small 128 x 128. */
typedef enum { TURBO_GEMM_TILE_CHOSEN = 0, TURBO_GEMM_TILE_LARGE = 1, TURBO_GEMM_TILE_SMALL = 2 } turbo_gemm_tile;

#endif
