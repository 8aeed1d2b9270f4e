// SPDX-License-Identifier: MIT
//
// The dense kernels: a work-group computes one tile of C.
#pragma once

#include "turbo/gemm/pipeline.h"

namespace turbo_gemm {

using namespace turbo;
using namespace turbo::gemm;

template <class Product>
TURBO_DEVICE void gemm(const GemmArgs &args) {
  __shared__ __attribute__((aligned(16))) unsigned char memory[Product::Loop::lds_bytes];
  const TilePosition at = tile_position(args.tiles_m, args.tiles_n, Product::T::m, Product::T::n);
  Product::tile([&]() -> const GemmArgs & { return args; }, at, memory);
}

#define TURBO_FP8_KERNEL(kind, a, b, tile, waves_m, waves_n, fragments)                              \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void gemm_fp8_##kind##_##a##_##b##_##tile(GemmArgs args) { \
    gemm<Fp8Product<Format::a, Format::b, waves_m, waves_n, fragments, Scales::kind>>(args);         \
  }
#define TURBO_MX_KERNEL(a, b, tile, waves_m, waves_n, fragments)                           \
  TURBO_KERNEL(waves_m * waves_n * 64, 2) void gemm_mx_##a##_##b##_##tile(GemmArgs args) { \
    gemm<MxProduct<mx_##a, mx_##b, waves_m, waves_n, fragments>>(args);                    \
  }

}  // namespace turbo_gemm
