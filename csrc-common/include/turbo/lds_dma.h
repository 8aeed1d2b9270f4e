// SPDX-License-Identifier: MIT
//
// Memory to LDS without registers, for kernels that count their own waits: buffer_load_dword(x4) ... lds.
//
// turbo/buffer.h has the builtin. After it the compiler, which sees LDS written under vmcnt, waits for all of it before
// the next LDS read, whatever that reads. A kernel that fetches one tile while it reads another wants these instead:
// the data is there after wait_fetched() and, for other waves, a barrier, and nothing but the kernel takes care of
// that.
#pragma once

#include "turbo/buffer.h"
#include "turbo/lds.h"

namespace turbo {

using Descriptor = vec<int, 4>;

// A buffer resource as four registers: `size` bytes from `base`, reads beyond give 0.
TURBO_DEVICE Descriptor describe(const global<unsigned char> *base, unsigned size) {
  const unsigned long address = reinterpret_cast<unsigned long>(base);
  return {static_cast<int>(address), static_cast<int>(address >> 32 & 0xffff), static_cast<int>(size), kBufferFlags};
}

// Lane i's bytes, at its `offset`, go to LDS byte `to` + Bytes * i. `to` is uniform; s_nop: M0 must be written one wait
// state before. Nothing else in such a kernel may use M0 (it is no clobber that clang takes).
template <int Bytes>
TURBO_DEVICE void fetch_to_lds(Descriptor from, int offset, int to) {
  static_assert(Bytes == 4 || (Bytes == 16 && kLdsDmaMaxBytes == 16), "4 bytes a lane; 16 on gfx950");
  if constexpr (Bytes == 4)
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dword %1, %2, 0 offen lds" ::"s"(to), "v"(offset),
                 "s"(from)
                 : "memory");
#if defined(__gfx950__)
  else
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dwordx4 %1, %2, 0 offen lds" ::"s"(to), "v"(offset),
                 "s"(from)
                 : "memory");
#endif
}

// With a scalar offset `base` beside the lane's, which costs no vector addition. The bounds check subtracts it from the
// size: it must not be larger, or every lane would pass.
template <int Bytes>
TURBO_DEVICE void fetch_to_lds(Descriptor from, int offset, int base, int to) {
  static_assert(Bytes == 4 || (Bytes == 16 && kLdsDmaMaxBytes == 16), "4 bytes a lane; 16 on gfx950");
  if constexpr (Bytes == 4)
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dword %1, %2, %3 offen lds" ::"s"(to), "v"(offset),
                 "s"(from), "s"(base)
                 : "memory");
#if defined(__gfx950__)
  else
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dwordx4 %1, %2, %3 offen lds" ::"s"(to), "v"(offset),
                 "s"(from), "s"(base)
                 : "memory");
#endif
}

// Nothing is moved across, by the compiler at least.
TURBO_DEVICE void order() {
  asm volatile("" ::: "memory");
  __builtin_amdgcn_sched_barrier(0);
}

// s_barrier alone: what must have arrived before it, the kernel has waited for.
TURBO_DEVICE void bare_barrier() {
  order();
  __builtin_amdgcn_s_barrier();
  order();
}

// All of this wave's fetches have landed.
TURBO_DEVICE void wait_fetched() {
  order();
  wait_vector_memory<0>();
  order();
}

// All LDS accesses of this wave are done: s_waitcnt lgkmcnt(0).
TURBO_DEVICE void wait_lds() {
  order();
  __builtin_amdgcn_s_waitcnt(0xc07f);
  order();
}

}  // namespace turbo
