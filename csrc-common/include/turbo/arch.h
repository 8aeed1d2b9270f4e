// SPDX-License-Identifier: MIT
//
// Hardware constants of gfx942 (CDNA3) and gfx950 (CDNA4), and the words of a freestanding HIP kernel.
//
// Device code includes no ROCm header: clang's builtins are enough, a file compiles in a tenth of a second, and the
// same source goes through any clang of version 19 or newer, ROCm's own included. The constants have their one home
// here (and in turbo_core/device.py for Python).
#pragma once

// hipcc's implicit wrapper defines these words already.
#ifndef __global__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#endif

// A function of these headers: never a call, so registers and address spaces stay visible to the optimiser.
#define TURBO_DEVICE static __device__ inline __attribute__((always_inline))
// The same for a function that belongs to an object.
#define TURBO_METHOD __device__ inline __attribute__((always_inline))

// TURBO_KERNEL(threads, waves): head of a kernel that is launched with exactly `threads` work-items. `waves` is the
// number of waves per SIMD that must fit at least, which caps the registers at 512 / waves (section "occupancy" below).
#define TURBO_KERNEL(threads, waves) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(waves)))

#if defined(__HIP_DEVICE_COMPILE__) || defined(__AMDGCN__)
#if !defined(__gfx942__) && !defined(__gfx950__)
#error "Turbo's device code is for gfx942 and gfx950"
#endif
#endif

namespace turbo {

// --- one compute unit ------------------------------------------------------------------------------------------------

constexpr int kWaveSize = 64;
constexpr int kSimdsPerCu = 4;
constexpr int kMaxThreads = 1024;  // of one work-group: 16 waves, 4 on each SIMD

// Occupancy: each SIMD has 512 registers per lane for VGPRs and AGPRs together, given out in blocks of 8, to at most
// 8 waves.
constexpr int kVgprsPerSimd = 512;
constexpr int kVgprGranule = 8;
constexpr int kMaxWavesPerSimd = 8;

#if defined(__gfx950__)
constexpr int kLdsBytes = 160 * 1024;
constexpr int kLdsBanks = 64;        // 4 bytes each
constexpr int kLdsDmaMaxBytes = 16;  // per lane of a load that goes from memory to LDS (gfx950: also 12)
constexpr bool kFp8IsFnuz = false;   // encoding of the matrix units and of v_cvt_*_fp8
constexpr bool kHasLdsTranspose = true;
constexpr bool kHasScaledMfma = true;
#else
constexpr int kLdsBytes = 64 * 1024;
constexpr int kLdsBanks = 32;
constexpr int kLdsDmaMaxBytes = 4;
constexpr bool kFp8IsFnuz = true;
constexpr bool kHasLdsTranspose = false;
constexpr bool kHasScaledMfma = false;
#endif

// --- where am I ------------------------------------------------------------------------------------------------------

// A kernel whose work-groups go through several tiles defines TURBO_MANY_TILES: what depends on the thread's index is then
// computed again for each tile, where it would otherwise be kept in registers over all of them.
#if defined(TURBO_MANY_TILES)
TURBO_DEVICE int thread_index() {
  int index = __builtin_amdgcn_workitem_id_x();
  asm volatile("" : "+v"(index));
  __builtin_assume(index >= 0 && index < 1024);  // kMaxThreads
  return index;
}
#else
TURBO_DEVICE int thread_index() { return __builtin_amdgcn_workitem_id_x(); }
#endif
TURBO_DEVICE unsigned block_index() { return __builtin_amdgcn_workgroup_id_x(); }
TURBO_DEVICE unsigned block_index_y() { return __builtin_amdgcn_workgroup_id_y(); }
TURBO_DEVICE unsigned block_index_z() { return __builtin_amdgcn_workgroup_id_z(); }
TURBO_DEVICE int lane_index() { return thread_index() % kWaveSize; }

// Index of the wave in its work-group. v_readfirstlane_b32 tells the compiler that it is uniform, so that what depends
// on it is scalar code and a branch on it costs no EXEC mask.
TURBO_DEVICE int wave_index() { return __builtin_amdgcn_readfirstlane(thread_index() / kWaveSize); }

}  // namespace turbo
