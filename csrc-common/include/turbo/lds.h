// SPDX-License-Identifier: MIT
//
// Local data share (LDS): barriers, waits, bank-conflict-free layouts, transposed reads.
#pragma once

#include "turbo/types.h"

namespace turbo {

// --- order -----------------------------------------------------------------------------------------------------------

// All waves of the work-group arrive; LDS and global writes before it are visible to the group after it. The fences
// become the s_waitcnt that s_barrier needs and keep the compiler from moving accesses across.
TURBO_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// s_waitcnt with vmcnt(N) alone: at most N vector memory operations are still under way. For loads that land in LDS,
// which no register names and the compiler therefore does not wait for. Encoding of gfx9: vmcnt[3:0] in bits 3:0,
// vmcnt[5:4] in bits 15:14, expcnt (7 = ignore) in 6:4, lgkmcnt (15 = ignore) in 11:8.
template <int N>
TURBO_DEVICE void wait_vector_memory() {
  static_assert(N >= 0 && N < 64, "vmcnt has 6 bits");
  __builtin_amdgcn_s_waitcnt((N & 15) | (N >> 4) << 14 | 7 << 4 | 15 << 8);
}

// --- layout ----------------------------------------------------------------------------------------------------------

// Column, in 16-byte chunks, at which chunk `chunk` of row `row` is stored in a tile of ChunksPerRow chunks a row.
// XOR with the row spreads a column over all banks, so that both row-wise writes and column-wise reads are free of
// conflicts; it is its own inverse and costs no padding.
template <int ChunksPerRow>
TURBO_DEVICE int swizzle(int row, int chunk) {
  static_assert((ChunksPerRow & (ChunksPerRow - 1)) == 0, "a power of two");
  return chunk ^ (row & (ChunksPerRow - 1));
}

// --- transposed reads (gfx950) ---------------------------------------------------------------------------------------

// ds_read_b64_tr_b16: within each block of 16 lanes, lane i names with its own address 4 elements in[i][0..4) and gets
//   out[i][j] = in[i / 4 + 4 * j][i % 4]
// that is, 16-bit matrix operands from a tile stored along the other dimension, without a transpose in registers.
// ds_read_b64_tr_b8: likewise out[i][j] = in[i / 8 + 2 * j][i % 8] of 8-bit elements, in 8 bytes.
#if defined(__gfx950__)
TURBO_DEVICE vec<bf16, 4> load_transposed(local<bf16> *p) {
  return __builtin_amdgcn_ds_read_tr16_b64_v4bf16(reinterpret_cast<local<vec<bf16, 4>> *>(p));
}
TURBO_DEVICE vec<fp16, 4> load_transposed(local<fp16> *p) {
  using half4 = __attribute__((__vector_size__(4 * sizeof(__fp16)))) __fp16;  // the builtin's own spelling of fp16
  return bits<vec<fp16, 4>>(__builtin_amdgcn_ds_read_tr16_b64_v4f16(reinterpret_cast<local<half4> *>(p)));
}
TURBO_DEVICE vec<int, 2> load_transposed_bytes(local<unsigned char> *p) {
  return __builtin_amdgcn_ds_read_tr8_b64_v2i32(reinterpret_cast<local<vec<int, 2>> *>(p));
}
#endif

}  // namespace turbo
