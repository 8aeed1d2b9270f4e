// SPDX-License-Identifier: MIT
//
// What the host launcher and the device code of scale_rows share: the argument structs.
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

namespace turbo_template {

// y = x * scale + residual
struct ScaleRowsForward {
  TURBO_GLOBAL(const void) x;
  TURBO_GLOBAL(const void) scale;
  TURBO_GLOBAL(const void) residual;  // null: nothing is added
  TURBO_GLOBAL(void) y;
  long long rows;
  long long dim;
  long long x_stride;  // elements from row to row; y is contiguous
  long long residual_stride;
  int scale_type;   // turbo_dtype
  unsigned blocks;  // work-groups launched
};

// dx = dy * scale and dscale = sum of dy * x over a row
struct ScaleRowsBackward {
  TURBO_GLOBAL(const void) dy;
  TURBO_GLOBAL(const void) x;
  TURBO_GLOBAL(const void) scale;
  TURBO_GLOBAL(void) dx;      // null: not wanted
  TURBO_GLOBAL(void) dscale;  // null: not wanted, and x is not read
  long long rows;
  long long dim;
  long long dy_stride;
  long long x_stride;
  int scale_type;  // of scale and dscale
  unsigned blocks;
};

constexpr int kThreads = 256;     // of a work-group
constexpr int kRowsPerBlock = 4;  // under way in a work-group: one a wave

}  // namespace turbo_template
