// SPDX-License-Identifier: MIT
//
// What the host launcher and the device code of the attention share: the argument struct, tiles, the table of kernels.
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

namespace turbo_attention {

constexpr int kWaves = 8;
constexpr int kWaveRows = 32;                  // queries of a wave
constexpr int kTileRows = kWaves * kWaveRows;  // queries of a work-group
constexpr int kTileKeys = 64;                  // keys of a step

// Strides in bytes; the last dimension is adjacent. Rows of q, k, v and out begin on 16 bytes.
struct Strides {
  long long batch, row, head;
};

struct ForwardArgs {
  TURBO_GLOBAL(const unsigned char) q;  // [batches, sq, heads, D]
  TURBO_GLOBAL(const unsigned char) k;  // [batches, sk, heads / group, D]
  TURBO_GLOBAL(const unsigned char) v;  // likewise
  TURBO_GLOBAL(unsigned char) out;      // like q
  TURBO_GLOBAL(float) lse;              // [batches, heads, sq], the last adjacent
  TURBO_GLOBAL(float) lse_low;          // likewise
  Strides q_strides, k_strides, v_strides, out_strides;
  long long lse_batch, lse_head;  // elements
  int sq, sk;
  int heads, group;  // query heads, and how many of them share a key head
  int tiles;         // ceil(sq / kTileRows)
  int work;          // work-groups: batches x heads x tiles
  float scale;       // |softmax_scale| log2(e), not below 2^-100
  int negative;      // softmax_scale is below 0
};
static_assert(sizeof(ForwardArgs) == 192, "the layout is part of the interface between two compilers");

// X(type, head dim, mask)
#define TURBO_ATTENTION_KERNELS(X) \
  X(bf16, 64, full)                \
  X(bf16, 64, causal)              \
  X(bf16, 128, full) X(bf16, 128, causal) X(fp16, 64, full) X(fp16, 64, causal) X(fp16, 128, full) X(fp16, 128, causal)

}  // namespace turbo_attention
