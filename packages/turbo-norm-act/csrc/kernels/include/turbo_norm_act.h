/* SPDX-License-Identifier: MIT
 *
 * C interface of libturbo_norm_act_kernels.so: normalisation kernels for AMD Instinct gfx942 and gfx950.
 *
 * Free of any framework: pointers, sizes, a device index and a stream. The library links neither ROCm nor torch; it
 * finds libamdhip64 at the first call that needs it (order: TURBO_HIP_LIBRARY, one already in the process,
 * ROCM_HOME/lib, the loader's search) and its code objects beside itself.
 *
 * Every function returns a turbo_status; turbo_norm_act_last_error() has the text of the calling thread's last
 * failure. Launches are asynchronous on the given stream, allocate nothing and synchronise nothing, so they can be
 * captured into a graph once each kernel has run on its device (the first run loads the code object). Any thread may
 * call anything, except where a function says otherwise.
 */
#ifndef TURBO_NORM_ACT_H
#define TURBO_NORM_ACT_H

#include <stdint.h>

#include "turbo/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TURBO_NORM_ACT_ABI_VERSION 2
TURBO_LIBRARY_FUNCTIONS(turbo_norm_act)

/* RMSNorm and LayerNorm, forward.
 *
 *   s    = x + residual, rounded to dtype              (s is x when there is no residual)
 *   mean = mean(s) of LayerNorm, 0 of RMSNorm          per row, float32
 *   rstd = 1 / sqrt(mean((s - mean)^2) + eps)          per row, float32
 *   y    = (s - mean) * rstd * gamma + beta            rounded to dtype; gamma + 1 in place of gamma when zero_centered
 *
 * Elements of a row are adjacent; strides from row to row are in elements and may be anything, 0 included. dim is at
 * most 2**29. Fastest when all pointers and strides are multiples of 16 bytes. */
typedef struct {
  const void *x; /* [rows, dim] */
  int64_t x_stride;
  const void *residual; /* [rows, dim] or NULL */
  int64_t residual_stride;
  const void *gamma; /* [dim] or NULL: no scaling, zero_centered is ignored */
  const void *beta;  /* [dim] or NULL: nothing is added; RMSNorm: NULL */
  void *y;           /* [rows, dim], contiguous */
  void *s;           /* [rows, dim], contiguous; written only with a residual, else NULL */
  float *mean;       /* [rows]; RMSNorm: NULL */
  float *rstd;       /* [rows] */
  int64_t rows;
  int64_t dim;
  turbo_dtype dtype;       /* of x, residual, y, s */
  turbo_dtype gamma_dtype; /* of gamma; any where gamma is NULL */
  turbo_dtype beta_dtype;  /* of beta; any where beta is NULL */
  float eps;
  int zero_centered;
} turbo_norm_forward_args;

TURBO_API turbo_status turbo_rmsnorm_forward(const turbo_norm_forward_args *args, int device, void *stream);
TURBO_API turbo_status turbo_layernorm_forward(const turbo_norm_forward_args *args, int device, void *stream);

/* RMSNorm and LayerNorm, backward. With h = (s - mean) * rstd and w = dy * gamma (gamma + 1 when zero_centered):
 *
 *   dx     = (w - h * mean(w * h) - mean(w)) * rstd + ds     rounded to dtype; the gradient of x, and of residual.
 *                                                            RMSNorm: mean is 0, and mean(w) is not subtracted
 *   dgamma = sum over rows of dy * h                         rounded to gamma_dtype
 *   dbeta  = sum over rows of dy                             rounded to beta_dtype
 *
 * Sums are in float32 and in a fixed order: equal inputs give equal bits. `partial` is scratch memory of
 * turbo_norm_backward_partials(...) * dim floats for dgamma and as many for dbeta, each only where it is wanted; they
 * need no clearing. */
typedef struct {
  const void *dy; /* [rows, dim] */
  int64_t dy_stride;
  const void *ds; /* [rows, dim], the direct gradient of s, or NULL */
  int64_t ds_stride;
  const void *s; /* [rows, dim], what the forward normalised */
  int64_t s_stride;
  const void *gamma; /* [dim] or NULL */
  const float *mean; /* [rows], from the forward; RMSNorm: NULL */
  const float *rstd; /* [rows], from the forward */
  void *dx;          /* [rows, dim], contiguous */
  void *dgamma;      /* [dim] or NULL: not wanted */
  void *dbeta;       /* [dim] or NULL: not wanted; RMSNorm: NULL */
  float *partial;    /* may be NULL where neither is wanted */
  int64_t partials;  /* lines in `partial` for each of the two: what turbo_norm_backward_partials said */
  int64_t rows;
  int64_t dim;
  turbo_dtype dtype; /* of dy, ds, s, dx */
  turbo_dtype gamma_dtype;
  turbo_dtype beta_dtype; /* of dbeta; any where dbeta is NULL */
  int zero_centered;
} turbo_norm_backward_args;

TURBO_API turbo_status turbo_rmsnorm_backward(const turbo_norm_backward_args *args, int device, void *stream);
TURBO_API turbo_status turbo_layernorm_backward(const turbo_norm_backward_args *args, int device, void *stream);

/* Lines of `partial` that a backward needs. Depends on nothing but its arguments, so results do not depend on the
 * number of compute units either. */
TURBO_API int64_t turbo_norm_backward_partials(int64_t rows, int64_t dim, turbo_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
