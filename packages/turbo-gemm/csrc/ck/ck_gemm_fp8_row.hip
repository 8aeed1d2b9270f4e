// SPDX-License-Identifier: MIT
//
// C[m][n] = round(a_scale[m] * b_scale[n] * sum over k of A[m][k] B[n][k]), e4m3 to bf16, by composable kernel.
//
//   A [m, k], B [n, k] e4m3; a_scale [m], b_scale [n] float32; C [m, n] bf16; k a multiple of 16, n of 8. float32 sums.
#include "ck_device.h"

namespace turbo_gemm {

constexpr int kDepth = 64;  // k of a tile

using RowGemm = ck::GridwiseGemmMultiD_xdl_cshuffle_v3<
    Row, Column, ck::Tuple<Row, Column>, Row,               // A, B, (b_scale, a_scale), C
    fp8, fp8, float, float, ck::Tuple<float, float>, bf16,  //
    Plain, Plain, ck::tensor_operation::element_wise::MultiplyMultiply, kPadded, kCkThreads, kCkTile, kCkTile, kDepth,
    16, 16, 32, 32, 2, 2,                                      // 32x32 instructions, 2 x 2 of them a wave
    S<4, 64, 1>, S<1, 0, 2>, S<1, 0, 2>, 2, 16, 16, false, 0,  // A to LDS: 16 bytes a work-item
    S<4, 64, 1>, S<1, 0, 2>, S<1, 0, 2>, 2, 16, 16, false, 0,  // B
    1, 1, S<1, 32, 1, 8>, S<8, 8, 1>,                          // C: 8 elements a work-item
    kScheduler, kPipeline, fp8, fp8, fp8, fp8>;

template <bool Loop>
__device__ void row_gemm(const CkGemmArgs &args, char *lds) {
  const RowGemm::Problem problem(args.m, args.n, args.k, args.a_stride, args.b_stride, std::array<ck::index_t, 2>{0, 0},
                                 args.c_stride, 1);
  RowGemm::DsGridPointer scales;
  scales(ck::Number<0>{}) = args.b_scale;
  scales(ck::Number<1>{}) = args.a_scale;
  RowGemm::template Run<Loop, kStore, ck::TailNumber::Full>(
      static_cast<const fp8 *>(args.a), static_cast<const fp8 *>(args.b), scales, static_cast<bf16 *>(args.c), lds,
      problem, Plain{}, Plain{}, ck::tensor_operation::element_wise::MultiplyMultiply{});
}

TURBO_CK_KERNEL void ck_gemm_fp8_row(CkGemmArgs args) {
  __shared__ char lds[RowGemm::GetSharedMemoryNumberOfByte()];
  if (args.k > kDepth) {
    row_gemm<true>(args, lds);
  } else {
    row_gemm<false>(args, lds);
  }
}

}  // namespace turbo_gemm
