/* SPDX-License-Identifier: MIT
 *
 * C interface of libturbo_attention_kernels.so: attention for AMD Instinct gfx942 and gfx950.
 *
 * Free of any framework: pointers, sizes, a device index and a stream. The library links neither ROCm nor torch; it
 * finds libamdhip64 at the first call that needs it (order: TURBO_HIP_LIBRARY, one already in the process,
 * ROCM_HOME/lib, the loader's search) and its code objects beside itself.
 *
 * Every function returns a turbo_status; turbo_attention_last_error() has the text of the calling thread's last failure.
 * Launches are asynchronous on the given stream, allocate nothing and synchronise nothing, so they can be captured into
 * a graph once each kernel has run on its device (the first run loads the code object). Any thread may call anything,
 * except where a function says otherwise.
 */
#ifndef TURBO_ATTENTION_H
#define TURBO_ATTENTION_H

#include <stdint.h>

#include "turbo/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TURBO_ATTENTION_ABI_VERSION 2
TURBO_LIBRARY_FUNCTIONS(turbo_attention)

/* A tensor [batches, rows, heads, head_dim], its last dimension adjacent. */
typedef struct {
  void *data;         /* 16-byte aligned; read only, except of out */
  int64_t strides[3]; /* elements, of batch, row and head: multiples of 8, not negative; of a row at most 2**23 */
} turbo_attention_tensor;

/* out = softmax(softmax_scale q k^T) v and lse + lse_low, the natural logarithm of the softmax's denominator: lse is the
 * nearest float, lse_low what is left. Causal: query i sees the keys up to i + sk - sq. A query that sees no key has out 0,
 * lse -inf and lse_low 0. */
typedef struct {
  turbo_attention_tensor q, k, v, out;
  float *lse, *lse_low;   /* [batches, heads, sq], the last dimension adjacent */
  int64_t lse_strides[2]; /* of batch and head */
  int64_t batches, sq, sk;
  int64_t heads, key_heads; /* of q and out; of k and v: a divisor */
  int64_t head_dim;         /* 64 or 128 */
  turbo_dtype dtype;        /* of q, k, v and out: float16 or bfloat16 */
  float softmax_scale;
  int causal;
} turbo_attention_forward_args;

TURBO_API turbo_status turbo_attention_forward(const turbo_attention_forward_args *args, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif
