// SPDX-License-Identifier: MIT
//
// Buffer resources: a base, a size and hardware bounds checks. Loads beyond the size give 0 and stores are dropped,
// so the edge tile of a matrix needs no mask; offsets are 32 bits, so a resource spans less than 4 GiB.
#pragma once

#include "turbo/types.h"

namespace turbo {

using Buffer = __amdgpu_buffer_rsrc_t;

// Word 3 of the descriptor: DATA_FORMAT = 32 (raw, untyped), no swizzle, stride 0, so `size` counts bytes.
constexpr int kBufferFlags = 0x00027000;

// `base` and `size` must be uniform over the wave: the descriptor lives in four SGPRs.
template <class T>
TURBO_DEVICE Buffer make_buffer(const global<T> *base, unsigned size) {
  return __builtin_amdgcn_make_buffer_rsrc((void *)(const T *)base, 0, static_cast<int>(size), kBufferFlags);
}

// N elements at byte `offset` (per lane) + `base` (uniform, in an SGPR): buffer_load_dword / _dwordx2 / _dwordx4.
template <class T, int N>
TURBO_DEVICE vec<T, N> load(Buffer buffer, int offset, int base = 0) {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "a buffer access here is 4, 8 or 16 bytes");
  if constexpr (bytes == 4) return bits<vec<T, N>>(__builtin_amdgcn_raw_buffer_load_b32(buffer, offset, base, 0));
  if constexpr (bytes == 8) return bits<vec<T, N>>(__builtin_amdgcn_raw_buffer_load_b64(buffer, offset, base, 0));
  if constexpr (bytes == 16) return bits<vec<T, N>>(__builtin_amdgcn_raw_buffer_load_b128(buffer, offset, base, 0));
}

template <class T, int N>
TURBO_DEVICE void store(vec<T, N> x, Buffer buffer, int offset, int base = 0) {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "a buffer access here is 4, 8 or 16 bytes");
  if constexpr (bytes == 4) __builtin_amdgcn_raw_buffer_store_b32(bits<unsigned>(x), buffer, offset, base, 0);
  if constexpr (bytes == 8) __builtin_amdgcn_raw_buffer_store_b64(bits<vec<unsigned, 2>>(x), buffer, offset, base, 0);
  if constexpr (bytes == 16) __builtin_amdgcn_raw_buffer_store_b128(bits<vec<unsigned, 4>>(x), buffer, offset, base, 0);
}

// --- memory to LDS without registers ---------------------------------------------------------------------------------

// buffer_load_dword ... lds (gfx950 also dwordx3, dwordx4): lane i's Bytes go to LDS byte `to` + i * Bytes, where
// `to` is uniform (it travels in M0). The data is there after wait_vector_memory<0>() and, for other waves, a
// barrier.
#if __has_builtin(__builtin_amdgcn_raw_ptr_buffer_load_lds)
#define TURBO_LOAD_TO_LDS __builtin_amdgcn_raw_ptr_buffer_load_lds
#else
// clang 19 and 20 know the intrinsic but not the builtin; an asm label reaches it.
__device__ void raw_ptr_buffer_load_lds(Buffer, local<void> *, unsigned, int, int, int,
                                        int) __asm("llvm.amdgcn.raw.ptr.buffer.load.lds");
#define TURBO_LOAD_TO_LDS raw_ptr_buffer_load_lds
#endif

// The size is a literal in each branch: the builtin wants a constant where it is written, not where it is instantiated.
template <int Bytes>
TURBO_DEVICE void load_to_lds(Buffer buffer, local<void> *to, int offset, int base = 0) {
  static_assert(Bytes == 4 || (Bytes == 16 && kLdsDmaMaxBytes == 16), "4 bytes a lane; 16 on gfx950");
  if constexpr (Bytes == 4) TURBO_LOAD_TO_LDS(buffer, to, 4, offset, base, 0, 0);
#if defined(__gfx950__)
  if constexpr (Bytes == 16) TURBO_LOAD_TO_LDS(buffer, to, 16, offset, base, 0, 0);
#endif
}
#undef TURBO_LOAD_TO_LDS

}  // namespace turbo
