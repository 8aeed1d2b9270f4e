// SPDX-License-Identifier: MIT
//
// What the host launchers and the device code of RMSNorm share: argument structs and the table of kernels.
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

// s = x + residual;  rstd = 1 / sqrt(mean(s^2) + eps);  y = s * rstd * (gamma_offset + gamma)
struct RmsnormForward {
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
  unsigned reserved;
};

// With h = s * rstd and w = dy * (gamma_offset + gamma):
//   dx = (w - h * mean(w * h)) * rstd + ds        partial[p] = sum of dy * h over the rows that work-group p takes
struct RmsnormBackward {
  TURBO_GLOBAL(const void) dy;
  TURBO_GLOBAL(const void) ds;  // null: no gradient reaches s directly
  TURBO_GLOBAL(const void) s;
  TURBO_GLOBAL(const void) gamma;
  TURBO_GLOBAL(const float) rstd;
  TURBO_GLOBAL(void) dx;
  TURBO_GLOBAL(float) partial;  // [blocks, dim]; null: nobody wants dgamma
  long long rows;
  long long dy_stride;
  long long ds_stride;
  long long s_stride;
  int dim;
  int gamma_type;
  float gamma_offset;
  unsigned blocks;
};

// dgamma[d] = sum over p of partial[p][d]
struct RmsnormGammaSum {
  TURBO_GLOBAL(const float) partial;
  TURBO_GLOBAL(void) dgamma;
  int partials;
  int dim;
  int gamma_type;
  int reserved;
};

// The layouts are part of the interface between two compilers.
static_assert(sizeof(RmsnormForward) == 96 && sizeof(RmsnormBackward) == 104 && sizeof(RmsnormGammaSum) == 32, "");

// --- the table -------------------------------------------------------------------------------------------------------
//
// X(threads, chunks): kernels that keep a whole row in registers, `threads` work-items a row and `chunks` accesses of
// 16 bytes each; a row of up to 16 * threads * chunks bytes fits. The launcher takes the first line that fits.
//
//    64: a wave a row, four rows a work-group: no LDS, no barrier, and small rows still fill the machine
//   256: four waves, one on each SIMD of a compute unit; 2 to 4 chunks in flight a lane hide the latency of memory
//  1024: all that one work-group can have; 16 waves are the most that can share a row
//
// A longer row, or one whose rows are not all 16-byte aligned, takes the `loop` kernels: they read it a second time.
// These limits are by register count; they have not been timed on a card.
#define TURBO_RMSNORM_FORWARD_TABLE(X)              \
  X(64, 1)   /* 1 KiB:   512 elements of 16 bits */ \
  X(64, 2)   /* 2 KiB:  1024 */                     \
  X(64, 4)   /* 4 KiB:  2048 */                     \
  X(256, 2)  /* 8 KiB:  4096 */                     \
  X(256, 4)  /* 16 KiB: 8192 */                     \
  X(1024, 2) /* 32 KiB: 16384 */                    \
  X(1024, 4) /* 64 KiB: 32768 */                    \
  X(1024, 8) /* 128 KiB: 65536 */

// The backward keeps two rows and the float32 sums of dgamma: 16 registers a chunk and, at 1024 work-items, 128 in
// all. Eight chunks do not fit.
#define TURBO_RMSNORM_BACKWARD_TABLE(X) \
  X(64, 1)                              \
  X(64, 2)                              \
  X(64, 4)                              \
  X(256, 2)                             \
  X(256, 4)                             \
  X(1024, 2)                            \
  X(1024, 4)

constexpr int kLoopThreads = 256;     // of a loop kernel, a row a work-group
constexpr int kGammaSumColumns = 64;  // columns a work-group of the dgamma kernels: one wave wide
constexpr int kGammaSumThreads = 256;
constexpr int kRowsPerWaveBlock = 4;  // rows a work-group when a wave has a row

}  // namespace turbo_norm_act
