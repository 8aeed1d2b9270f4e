// SPDX-License-Identifier: MIT
//
// C[m][n] = round(sum over kb of a_scale[m][kb] * b_scale[n / 128][kb] * sum over k in kb of A[m][k] B[n][k]), e4m3 to
// bf16, by composable kernel.
//
//   A [m, k], B [n, k] e4m3; a_scale [m, ceil(k / 128)], b_scale [ceil(n / 128), ceil(k / 128)] float32, contiguous;
//   C [m, n] bf16; k a multiple of 16, n of 8. float32 sums.
#include "ck_device.h"

namespace turbo_gemm {

constexpr int kDepth = 128;  // k of a tile, and of a block of scales

using BlockGemm = ck::GridwiseGemmMultiD_ABScale_xdl_cshuffle_v3<
    Row, Column, ck::Tuple<>, Row,                             // A, B, nothing, C
    fp8, fp8, float, float, ck::Tuple<>, bf16,                 //
    Plain, Plain, Plain, kPadded,                              //
    kCkThreads, 1, 128, 128,                                   // rows, columns and k of a scale
    kCkTile, kCkTile, kDepth, 16, 16, 32, 32, 2, 2,            // 32x32 instructions, 2 x 2 of them a wave
    S<8, 32, 1>, S<1, 0, 2>, S<1, 0, 2>, 2, 16, 16, false, 0,  // A to LDS: 16 bytes a work-item
    S<8, 32, 1>, S<1, 0, 2>, S<1, 0, 2>, 2, 16, 16, false, 0,  // B
    1, 1, S<1, 32, 1, 8>, S<8>,                                // C: 8 elements a work-item
    kScheduler, kPipeline, fp8, fp8, fp8, fp8>;

template <bool Loop>
__device__ void block_gemm(const CkGemmArgs &args, char *lds) {
  const BlockGemm::Problem problem(args.m, args.n, args.k, args.a_stride, args.b_stride, std::array<ck::index_t, 0>{},
                                   args.c_stride, 1);
  BlockGemm::DsGridPointer nothing;
  BlockGemm::template Run<Loop, kStore, ck::TailNumber::Full>(
      static_cast<const fp8 *>(args.a), static_cast<const fp8 *>(args.b), nothing, static_cast<bf16 *>(args.c),
      args.a_scale, args.b_scale, lds, problem, Plain{}, Plain{}, Plain{});
}

TURBO_CK_KERNEL void ck_gemm_fp8_block(CkGemmArgs args) {
  __shared__ char lds[BlockGemm::GetSharedMemoryNumberOfByte()];
  if (args.k > kDepth) {
    block_gemm<true>(args, lds);
  } else {
    block_gemm<false>(args, lds);
  }
}

}  // namespace turbo_gemm
