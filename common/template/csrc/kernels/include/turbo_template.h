/* SPDX-License-Identifier: MIT
 *
 * C interface of libturbo_template_kernels.so: template kernels for AMD Instinct gfx942 and gfx950.
 *
 * Free of any framework: pointers, sizes, a device index and a stream. Every function returns a turbo_status;
 * turbo_template_last_error() has the text of the calling thread's last failure. Launches are asynchronous on the given
 * stream, allocate nothing and synchronise nothing. Any thread may call anything.
 */
#ifndef TURBO_TEMPLATE_H
#define TURBO_TEMPLATE_H

#include <stdint.h>

#include "turbo/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TURBO_TEMPLATE_ABI_VERSION 1
TURBO_LIBRARY_FUNCTIONS(turbo_template)

/* y[r, d] = x[r, d] * scale[r] + residual[r, d], in float32, rounded once.
 *
 * Elements of a row are adjacent; strides from row to row are in elements and may be anything, 0 included. Fastest when
 * all pointers, dim and all strides are multiples of 16 bytes. */
typedef struct {
  const void *x; /* [rows, dim] */
  int64_t x_stride;
  const void *scale;    /* [rows] */
  const void *residual; /* [rows, dim] or NULL: nothing is added */
  int64_t residual_stride;
  void *y; /* [rows, dim], contiguous */
  int64_t rows;
  int64_t dim;
  turbo_dtype dtype; /* of x, residual, y */
  turbo_dtype scale_dtype;
} turbo_scale_rows_forward_args;

TURBO_API turbo_status turbo_scale_rows_forward(const turbo_scale_rows_forward_args *args, int device, void *stream);

/* dx[r, d] = dy[r, d] * scale[r] and dscale[r] = sum over d of dy[r, d] * x[r, d], a float32 sum in a fixed order: equal
 * inputs give equal bits. */
typedef struct {
  const void *dy; /* [rows, dim] */
  int64_t dy_stride;
  const void *x; /* [rows, dim]; may be NULL where dscale is */
  int64_t x_stride;
  const void *scale; /* [rows] */
  void *dx;          /* [rows, dim], contiguous, or NULL: not wanted */
  void *dscale;      /* [rows], or NULL: not wanted */
  int64_t rows;
  int64_t dim;
  turbo_dtype dtype;       /* of dy, x, dx */
  turbo_dtype scale_dtype; /* of scale, dscale */
} turbo_scale_rows_backward_args;

TURBO_API turbo_status turbo_scale_rows_backward(const turbo_scale_rows_backward_args *args, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif
