// SPDX-License-Identifier: MIT
//
// The grouped kernels: a work-group computes tiles of C, one after the other, each by the loop of the dense kernels.
//
//   rows      C[r] = A[r] B[g]^T (+ bias[g])     for each row r of group g; rows of no group become zeros
//   columns   C[g] = A_g B_g^T (+ C[g])          A_g, B_g: columns of group g
//
// Formats, scales, precision and determinism are those of turbo/gemm/fp8.h and turbo/gemm/mx.h.
#pragma once

#include "groups.h"
#include "turbo/gemm/epilogue.h"

namespace turbo_grouped_gemm {

template <class P>
TURBO_DEVICE void move_by(P &pointer, const Steps &steps, long long group, long long row) {
  if (pointer != nullptr) pointer = (P)((const global<unsigned char> *)pointer + group * steps.group + row * steps.row);
}

// The GEMM of a group.
TURBO_DEVICE GemmArgs gemm_of(const GroupedGemmArgs &args, const Place &place, int tile_m) {
  GemmArgs gemm = args.gemm;
  const long long group = place.group, row = place.first;
  if (place.group == kNoGroup) {
    gemm.row_bytes = 0;
    gemm.bias = nullptr;
    move_by(gemm.c, args.c, 0, row);
  } else {
    move_by(gemm.a, args.a, group, row);
    move_by(gemm.b, args.b, group, row);
    move_by(gemm.a_scale, args.a_scale, group, row);
    move_by(gemm.b_scale, args.b_scale, group, row);
    move_by(gemm.bias, args.bias, group, row);
    move_by(gemm.c, args.c, group, row);
  }
  if (args.lens == nullptr) {
    gemm.row_bytes = int(place.size * 128 >> args.pack_shift);
  } else {
    gemm.m = int(place.size);
    gemm.tiles_m = int((place.size + unsigned(tile_m) - 1) / unsigned(tile_m));
  }
  return gemm;
}

// The kernel's arguments, read again: over the main loop they would take the scalar registers that it needs.
TURBO_DEVICE const GroupedGemmArgs &arguments() {
  auto *segment = __builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(segment));
  return *(const GroupedGemmArgs *)segment;
}

// The tile after `at`: each work-group has its own, or takes one that none has yet. `memory` is free, and is so again.
TURBO_DEVICE unsigned next_tile(unsigned at, unsigned char *memory) {
  const GroupedGemmArgs &args = arguments();
  const unsigned work_groups = unsigned(args.work_groups);
  if (args.counter == nullptr) return at + work_groups;
  auto *slot = (local<unsigned> *)(local<unsigned char> *)memory;
  if (thread_index() == 0) *slot = __hip_atomic_fetch_add(args.counter, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  barrier();
  const unsigned taken = uniform(*slot);
  barrier();
  return work_groups + taken;
}

template <class Product>
TURBO_DEVICE void grouped_gemm() {
  using T = typename Product::T;
  __shared__ __attribute__((aligned(16))) unsigned char memory[Product::Loop::lds_bytes];
#pragma unroll 1
  for (unsigned at = xcd_order(unsigned(arguments().work_groups));; at = next_tile(at, memory)) {
    const GroupedGemmArgs &args = arguments();
    const Place place = args.lens == nullptr ? place_in_columns(args, at) : place_in_rows<T::m>(args, at);
    if (place.group == kNoTile) break;
    const GemmArgs gemm = gemm_of(args, place, T::m);
    const TilePosition tile = tile_position(place.tile, gemm.tiles_m, gemm.tiles_n, T::m, T::n);
    if (gemm.row_bytes == 0) {
      if (!gemm.accumulate) write_zeros<T>(gemm, tile);
      continue;
    }
    Product::tile([&] { return gemm_of(arguments(), place, T::m); }, tile, memory);
    wait_lds();  // the next tile takes the same LDS
    bare_barrier();
  }
}

#define TURBO_GROUPED_FP8_KERNEL(kind, a, b, tile, waves_m, waves_n, fragments)                                \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void grouped_gemm_fp8_##kind##_##a##_##b##_##tile(GroupedGemmArgs) { \
    grouped_gemm<Fp8Product<Format::a, Format::b, waves_m, waves_n, fragments, Scales::kind>>();               \
  }
#define TURBO_GROUPED_MX_KERNEL(a, b, tile, waves_m, waves_n, fragments)                             \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void grouped_gemm_mx_##a##_##b##_##tile(GroupedGemmArgs) { \
    grouped_gemm<MxProduct<mx_##a, mx_##b, waves_m, waves_n, fragments>>();                          \
  }

}  // namespace turbo_grouped_gemm
