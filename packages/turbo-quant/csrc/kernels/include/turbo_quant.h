/* SPDX-License-Identifier: MIT
 *
 * C interface of libturbo_quant_kernels.so: quantisation to FP8, MXFP8 and MXFP4 for AMD Instinct gfx942 and gfx950.
 *
 * Free of any framework: pointers, sizes, a device index and a stream. The library links neither ROCm nor torch; it
 * finds libamdhip64 at the first call that needs it (order: TURBO_HIP_LIBRARY, one already in the process,
 * ROCM_HOME/lib, the loader's search) and its code objects beside itself.
 *
 * Every function returns a turbo_status; turbo_quant_last_error() has the text of the calling thread's last failure.
 * Launches are asynchronous on the given stream, allocate nothing and synchronise nothing, so they can be captured into
 * a graph once each kernel has run on its device (the first run loads the code object). Any thread may call anything,
 * except where a function says otherwise.
 *
 * A source x has B x R x C elements (`size`) of float32, float16 or bfloat16 with any strides, in elements. All
 * arithmetic is in float32, each step rounded once, and equal inputs give equal bits. A block that holds NaN or an
 * infinity has a NaN scale and a payload of zeros.
 */
#ifndef TURBO_QUANT_H
#define TURBO_QUANT_H

#include <stdint.h>

#include "turbo/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TURBO_QUANT_ABI_VERSION 1
TURBO_LIBRARY_FUNCTIONS(turbo_quant)

/* What shares a float32 scale. */
typedef enum {
  TURBO_TENSORWISE = 0,
  TURBO_ROWWISE = 1, /* a row, a column */
  TURBO_BLOCKWISE = 2
} turbo_granularity;

/* The edge of BLOCKWISE blocks that turbo_quantize_float takes. */
#define TURBO_QUANT_BLOCK 128

/* FP8 with float32 scales.
 *
 *   amax      = max |x| over the block
 *   scale     = fp8_max / max(amax, floor)             floor = fp8_max 2^-125
 *   scale_inv = 1 / scale
 *   q         = round_to_fp8(clamp(x scale))           to nearest even
 *
 * Payloads are contiguous [B, R, C], aligned to 8 bytes; any that is NULL is not made. TENSORWISE makes `row`, with one
 * scale.
 *
 * Groups (BLOCKWISE columns, B is 1): the rows [group_offs[g], group_offs[g + 1]) begin at row group_offs_padded[g] of
 * the column copy, which has R + groups * block_size rows, zeros where no group has one. group_offs[0] is 0. */
typedef struct {
  const void *x;
  int64_t strides[3];
  int64_t size[3]; /* B, R, C */
  turbo_dtype x_dtype;
  turbo_dtype out_dtype; /* one of the four FP8 types */
  turbo_granularity granularity;
  int block_size; /* BLOCKWISE: TURBO_QUANT_BLOCK */
  int tile;       /* BLOCKWISE: row's scales are those of tiles, [B, ceil(R / block), ceil(C / block)] */
  void *row;
  float *row_scale_inv; /* TENSORWISE [1], ROWWISE [B, R], BLOCKWISE [B, R, ceil(C / block)] */
  void *column;
  float *column_scale_inv;   /* ROWWISE [B, C], BLOCKWISE [B, ceil(rows of the copy / block), C] */
  const int64_t *group_offs; /* [groups + 1] on the device, or NULL */
  const int64_t *group_offs_padded;
  int64_t groups;
  uint32_t *scratch; /* see turbo_quantize_float_scratch; NULL where it says 0 */
} turbo_quantize_float_args;

TURBO_API turbo_status turbo_quantize_float(const turbo_quantize_float_args *args, int device, void *stream);

/* 32-bit words of scratch memory that a call needs. ROWWISE columns need them to be zeros, TENSORWISE does not. */
TURBO_API int64_t turbo_quantize_float_scratch(turbo_granularity granularity, int64_t batches, int64_t columns,
                                               int column);

/* MX: a power of two, in a byte, for 32 elements along the last dimension of the copy. How a copy is made, or-ed: */
enum {
  TURBO_MX_TILE = 1,          /* one byte for each 32 x 32 tile, repeated for its rows */
  TURBO_MX_RHT = 2,           /* 16-point Hadamard rotation with the signs of sign_mask; not with TILE */
  TURBO_MX_STOCHASTIC = 4,    /* stochastic rounding from rng */
  TURBO_MX_SHUFFLE_SCALE = 8, /* bytes in the order of preshuffled kernels, [B, lines up to 256, bytes up to 8] */
  TURBO_MX_SHUFFLE_OUT = 16   /* payload likewise */
};

typedef struct {
  void *
      payload; /* NULL: not wanted. Contiguous, aligned to 16 bytes; e2m1 two values a byte, the first in the low one */
  uint8_t *scale; /* with SHUFFLE_SCALE its padding is not written */
  int flags;
} turbo_mx_copy;

/*   byte = clamp(((bits of amax + half an ulp of the format) >> 23) - E_max, 0, 254);  255 where amax is not finite
 *   q    = round_to_format(x 2^(127 - byte))           to nearest even or stochastically, saturating
 *
 * row: [B, R, Cp], bytes [B, R, Cp / 32]. column: transposed, [B, C, Rp], [B, C, Rp / 32]. Cp, Rp: rounded up to 128.
 * OCP encodings on both architectures. Random numbers: Philox4x32-10, key seed, counter (i / 4, offset), word i % 4 for
 * element i of a copy; bit 63 of the offset is inverted for the column copy.
 *
 * Groups (B is 1): group g's columns of the column copy begin at group_offs_padded[g], a multiple of 128; the copy has
 * R + groups * 127, rounded up to 128, of them. */
typedef struct {
  const void *x;
  int64_t strides[3];
  int64_t size[3];
  turbo_dtype x_dtype;
  turbo_mx_format format;
  turbo_mx_copy row, column;
  int sign_mask;      /* 16 bits; bit i set: element i of each 16 is negated before the rotation */
  const int64_t *rng; /* [2] on the device: seed and offset; NULL without STOCHASTIC */
  const int64_t *group_offs;
  const int64_t *group_offs_padded;
  int64_t groups;
} turbo_quantize_mx_args;

TURBO_API turbo_status turbo_quantize_mx(const turbo_quantize_mx_args *args, int device, void *stream);

/* x = q scale_inv, rounded once; out is contiguous, aligned to 16 bytes. scale_inv has the shape that
 * turbo_quantize_float gives for row scales (axis 2), column scales (1) or tiles (0), contiguous; any block_size of
 * BLOCKWISE. */
typedef struct {
  const void *q;
  int64_t strides[3];
  int64_t size[3];
  const float *scale_inv;
  turbo_dtype q_dtype;
  turbo_granularity granularity;
  int64_t block_size;
  int axis;
  void *out;
  turbo_dtype out_dtype;
} turbo_dequantize_float_args;

TURBO_API turbo_status turbo_dequantize_float(const turbo_dequantize_float_args *args, int device, void *stream);

/* x = q 2^(byte - 127), with `rht` rotated back, rounded once; out is contiguous, aligned to 16 bytes: [B, L, size],
 * transposed [B, size, L]. q is [B, L, K] (e2m1: [B, L, K / 2] bytes) with strides in bytes, K a multiple of 32; scale
 * [B, L, K / 32], contiguous. */
typedef struct {
  const void *q;
  int64_t strides[3];
  int64_t size[3]; /* B, L, K */
  const uint8_t *scale;
  turbo_mx_format format;
  int64_t wanted; /* `size` of the result: values of each line that are wanted */
  int transpose;
  int rht;
  int sign_mask;
  void *out;
  turbo_dtype out_dtype;
} turbo_dequantize_mx_args;

TURBO_API turbo_status turbo_dequantize_mx(const turbo_dequantize_mx_args *args, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif
