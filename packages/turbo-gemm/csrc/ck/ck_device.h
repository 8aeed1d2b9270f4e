// SPDX-License-Identifier: MIT
//
// Composable kernel's device code without its host code: a kernel of our own takes plain arguments, makes CK's problem
// description on the device and calls CK's main function. So neither CK's host classes nor the HIP run time's launch
// syntax are needed, and a launch is like that of any kernel here.
#pragma once

// gfx942's matrix units take FNUZ, CK's default; gfx950's OCP.
#if defined(__gfx950__)
#define CK_USE_OCP_FP8 1
#endif

#include <iostream>

#include "../kernels/ck_args.h"

#include "ck/ck.hpp"
// in this order: the headers below do not include what they need
#include "ck/tensor_operation/gpu/device/tensor_layout.hpp"

#include "ck/tensor_operation/gpu/device/device_base.hpp"

#include "ck/tensor_operation/gpu/device/gemm_specialization.hpp"
#include "ck/tensor_operation/gpu/element/element_wise_operation.hpp"

#include "ck/tensor_operation/gpu/grid/gridwise_gemm_xdl_cshuffle_v3_multi_d.hpp"
// Its problem description has a constructor that is declared for the host alone, though nothing in it is.
#pragma clang force_cuda_host_device begin
#include "ck/tensor_operation/gpu/grid/gridwise_gemm_xdl_cshuffle_v3_multi_d_ab_scale.hpp"
#pragma clang force_cuda_host_device end

// What HIP's headers take from the device library ockl, so that no bitcode needs to be linked.
extern "C" {
__device__ __attribute__((always_inline)) size_t __ockl_get_group_id(unsigned dimension) {
  return dimension == 0   ? __builtin_amdgcn_workgroup_id_x()
         : dimension == 1 ? __builtin_amdgcn_workgroup_id_y()
                          : __builtin_amdgcn_workgroup_id_z();
}
__device__ __attribute__((always_inline)) size_t __ockl_get_local_id(unsigned dimension) {
  return dimension == 0   ? __builtin_amdgcn_workitem_id_x()
         : dimension == 1 ? __builtin_amdgcn_workitem_id_y()
                          : __builtin_amdgcn_workitem_id_z();
}
__device__ __attribute__((always_inline)) unsigned __ockl_mul_hi_u32(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long>(a) * b >> 32);
}
}

namespace turbo_gemm {

using Row = ck::tensor_layout::gemm::RowMajor;
using Column = ck::tensor_layout::gemm::ColumnMajor;
using Plain = ck::tensor_operation::element_wise::PassThrough;
using fp8 = ck::f8_t;
using bf16 = ck::bhalf_t;

template <ck::index_t... Values>
using S = ck::Sequence<Values...>;

constexpr auto kPadded = ck::tensor_operation::device::GemmSpecialization::MNKPadding;
constexpr auto kScheduler = ck::BlockGemmPipelineScheduler::Intrawave;
constexpr auto kPipeline = ck::BlockGemmPipelineVersion::v1;  // the one that takes any number of K blocks
constexpr auto kStore = ck::InMemoryDataOperationEnum::Set;

#define TURBO_CK_KERNEL extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(kCkThreads, kCkThreads)))

}  // namespace turbo_gemm
