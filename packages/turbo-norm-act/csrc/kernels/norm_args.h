// SPDX-License-Identifier: MIT
//
// What the host launchers and the device code of RMSNorm and LayerNorm share: argument structs, the table of kernels.
//
// A kernel takes one struct by value, so the struct is its argument segment byte for byte; plain C++, seen by both
// compilers. The device sees pointers to global memory, the host plain ones.
#pragma once

#if defined(__HIP__)
#include "turbo/types.h"
#define TURBO_GLOBAL(T) ::turbo::global<T> *
#else
#define TURBO_GLOBAL(T) T *
#endif

namespace turbo_norm_act {

// s = x + residual;  rstd = 1 / sqrt(mean((s - mean)^2) + eps);  y = (s - mean) * rstd * (gamma_offset + gamma) + beta
//
// One struct for both norms: RMSNorm's kernels, where mean and beta are 0, do not read the last three members.
struct NormForward {
  TURBO_GLOBAL(const void) x;
  TURBO_GLOBAL(const void) residual;  // null: s is x, and is not written
  TURBO_GLOBAL(const void) gamma;     // null: a factor of 1
  TURBO_GLOBAL(void) y;
  TURBO_GLOBAL(void) s;
  TURBO_GLOBAL(float) rstd;
  long long rows;
  long long x_stride;  // elements from row to row; y and s are contiguous
  long long residual_stride;
  int dim;
  int gamma_type;  // turbo_dtype
  float eps;
  float gamma_offset;  // 1 when gamma is zero-centred, else 0
  unsigned blocks;     // work-groups launched
  int beta_type;
  TURBO_GLOBAL(const void) beta;  // null: nothing is added
  TURBO_GLOBAL(float) mean;
};

// With h = (s - mean) * rstd and w = dy * (gamma_offset + gamma):
//   dx = (w - h * mean(w * h) - mean(w)) * rstd + ds             (RMSNorm: without mean and mean(w))
//   dgamma_partial[p] = sum of dy * h, dbeta_partial[p] = sum of dy, over the rows that work-group p takes
struct NormBackward {
  TURBO_GLOBAL(const void) dy;
  TURBO_GLOBAL(const void) ds;  // null: no gradient reaches s directly
  TURBO_GLOBAL(const void) s;
  TURBO_GLOBAL(const void) gamma;
  TURBO_GLOBAL(const float) rstd;
  TURBO_GLOBAL(void) dx;
  TURBO_GLOBAL(float) dgamma_partial;  // [blocks, dim]; null: nobody wants dgamma
  long long rows;
  long long dy_stride;
  long long ds_stride;
  long long s_stride;
  int dim;
  int gamma_type;
  float gamma_offset;
  unsigned blocks;
  TURBO_GLOBAL(const float) mean;     // LayerNorm
  TURBO_GLOBAL(float) dbeta_partial;  // LayerNorm; as dgamma_partial
};

// gradient[d] = sum over p of partial[p][d]; the second gradient's lines follow those of the first
struct NormParameterSum {
  TURBO_GLOBAL(const float) partial;
  TURBO_GLOBAL(void) gradient;
  TURBO_GLOBAL(void) second_gradient;
  int partials;
  int dim;
  int type;
  int second_type;
};

// The layouts are part of the interface between two compilers.
static_assert(sizeof(NormForward) == 112 && sizeof(NormBackward) == 120 && sizeof(NormParameterSum) == 40, "");

// --- the table -------------------------------------------------------------------------------------------------------
//
// X(..., threads, chunks), where ... is what the table's user gives it: kernels that keep a whole row in registers,
// `threads` work-items a row and `chunks` accesses of 16 bytes each; a row of up to 16 * threads * chunks bytes fits.
// The launcher takes the first line that fits.
//
//    64: a wave a row, four rows a work-group: no LDS, no barrier, and small rows still fill the machine
//   256: four waves, one on each SIMD of a compute unit; 2 to 4 chunks in flight a lane hide the latency of memory
//  1024: all that one work-group can have; 16 waves are the most that can share a row
//
// A longer row, or one whose rows are not all 16-byte aligned, takes the `loop` kernels: they read it a second time.
// These limits are by register count; they have not been timed on a card.
#define TURBO_NORM_FORWARD_TABLE(X, ...)                         \
  X(__VA_ARGS__, 64, 1)   /* 1 KiB:   512 elements of 16 bits */ \
  X(__VA_ARGS__, 64, 2)   /* 2 KiB:  1024 */                     \
  X(__VA_ARGS__, 64, 4)   /* 4 KiB:  2048 */                     \
  X(__VA_ARGS__, 256, 2)  /* 8 KiB:  4096 */                     \
  X(__VA_ARGS__, 256, 4)  /* 16 KiB: 8192 */                     \
  X(__VA_ARGS__, 1024, 2) /* 32 KiB: 16384 */                    \
  X(__VA_ARGS__, 1024, 4) /* 64 KiB: 32768 */                    \
  X(__VA_ARGS__, 1024, 8) /* 128 KiB: 65536 */

// The backward keeps two rows and the float32 sums of dgamma: 16 registers a chunk of 16-bit elements and, at 1024
// work-items, 128 in all. Eight chunks do not fit. With LayerNorm's sums of dbeta it is 24 a chunk, and four do not
// fit either; of float32 elements, half as many to a chunk, it is 16.
#define TURBO_LAYERNORM_16_BACKWARD_TABLE(X, ...) \
  X(__VA_ARGS__, 64, 1)                           \
  X(__VA_ARGS__, 64, 2)                           \
  X(__VA_ARGS__, 64, 4)                           \
  X(__VA_ARGS__, 256, 2)                          \
  X(__VA_ARGS__, 256, 4)                          \
  X(__VA_ARGS__, 1024, 2)
#define TURBO_RMSNORM_BACKWARD_TABLE(X, ...)        \
  TURBO_LAYERNORM_16_BACKWARD_TABLE(X, __VA_ARGS__) \
  X(__VA_ARGS__, 1024, 4)
#define TURBO_LAYERNORM_32_BACKWARD_TABLE TURBO_RMSNORM_BACKWARD_TABLE

constexpr int kLoopThreads = 256;     // of a loop kernel, a row a work-group
constexpr int kSumColumns = 64;       // columns a work-group of the kernels by columns: one wave wide
constexpr int kSumThreads = 256;      // of those
constexpr int kRowsPerWaveBlock = 4;  // rows a work-group when a wave has a row

}  // namespace turbo_norm_act
