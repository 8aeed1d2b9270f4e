// SPDX-License-Identifier: MIT
//
// Host launchers of RMSNorm and LayerNorm: check the arguments, choose the kernel from the table, launch.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "norm_args.h"
#include "turbo/check.h"
#include "turbo/kernels.h"
#include "turbo/library.h"
#include "turbo_norm_act.h"

namespace turbo_norm_act {
namespace {

using turbo::fail;
using turbo::is_float;
using turbo::Kernel;
using turbo::kFloatBytes;
using turbo::kFloatTypes;
using turbo::Target;

// --- kernels ---------------------------------------------------------------------------------------------------------

constexpr int kAccessBytes = 16;

struct TableKernel {
  int threads;  // of a row
  int chunks;
  Kernel kernel;

  int64_t row_bytes() const { return int64_t{kAccessBytes} * threads * chunks; }
  int rows_per_block() const { return threads == 64 ? kRowsPerWaveBlock : 1; }
};

constexpr unsigned block_threads(int row_threads) {
  return row_threads == 64 ? 64u * kRowsPerWaveBlock : unsigned(row_threads);
}

#define ENTRY(object, type, threads, chunks) \
  {threads, chunks, Kernel(#object, #object "_" #type "_" #threads "x" #chunks, block_threads(threads))},

const TableKernel rmsnorm_forward_fp32[] = {TURBO_NORM_FORWARD_TABLE(ENTRY, rmsnorm_forward, fp32)};
const TableKernel rmsnorm_forward_fp16[] = {TURBO_NORM_FORWARD_TABLE(ENTRY, rmsnorm_forward, fp16)};
const TableKernel rmsnorm_forward_bf16[] = {TURBO_NORM_FORWARD_TABLE(ENTRY, rmsnorm_forward, bf16)};
const TableKernel layernorm_forward_fp32[] = {TURBO_NORM_FORWARD_TABLE(ENTRY, layernorm_forward, fp32)};
const TableKernel layernorm_forward_fp16[] = {TURBO_NORM_FORWARD_TABLE(ENTRY, layernorm_forward, fp16)};
const TableKernel layernorm_forward_bf16[] = {TURBO_NORM_FORWARD_TABLE(ENTRY, layernorm_forward, bf16)};
const TableKernel rmsnorm_backward_fp32[] = {TURBO_RMSNORM_BACKWARD_TABLE(ENTRY, rmsnorm_backward, fp32)};
const TableKernel rmsnorm_backward_fp16[] = {TURBO_RMSNORM_BACKWARD_TABLE(ENTRY, rmsnorm_backward, fp16)};
const TableKernel rmsnorm_backward_bf16[] = {TURBO_RMSNORM_BACKWARD_TABLE(ENTRY, rmsnorm_backward, bf16)};
const TableKernel layernorm_backward_fp32[] = {TURBO_LAYERNORM_32_BACKWARD_TABLE(ENTRY, layernorm_backward, fp32)};
const TableKernel layernorm_backward_fp16[] = {TURBO_LAYERNORM_16_BACKWARD_TABLE(ENTRY, layernorm_backward, fp16)};
const TableKernel layernorm_backward_bf16[] = {TURBO_LAYERNORM_16_BACKWARD_TABLE(ENTRY, layernorm_backward, bf16)};

// The kernels of one direction and element type.
struct Kernels {
  const TableKernel *begin, *end;
  Kernel loop[2];  // scalar, vector

  // The first line whose kernel holds the row in registers; null when none does.
  const TableKernel *fitting(int64_t row_bytes) const {
    const TableKernel *line = begin;
    while (line != end && row_bytes > line->row_bytes()) ++line;
    return line != end ? line : nullptr;
  }
};

#define KERNELS(norm, direction, type)                                                              \
  {                                                                                                 \
    std::begin(norm##_##direction##_##type), std::end(norm##_##direction##_##type), {               \
      Kernel(#norm "_" #direction, #norm "_" #direction "_" #type "_loop_scalar", kLoopThreads),    \
          Kernel(#norm "_" #direction, #norm "_" #direction "_" #type "_loop_vector", kLoopThreads) \
    }                                                                                               \
  }
#define PARTIAL(norm, type) Kernel(#norm "_backward", #norm "_parameter_partial_" #type, kSumThreads)
#define NORM(norm, center)                                                                               \
  {                                                                                                      \
    #norm "_forward", #norm "_backward", center,                                                         \
        {KERNELS(norm, forward, fp32), KERNELS(norm, forward, fp16), KERNELS(norm, forward, bf16)},      \
        {KERNELS(norm, backward, fp32), KERNELS(norm, backward, fp16), KERNELS(norm, backward, bf16)}, { \
      PARTIAL(norm, fp32), PARTIAL(norm, fp16), PARTIAL(norm, bf16)                                      \
    }                                                                                                    \
  }

struct Norm {
  const char *forward_name, *backward_name;  // in messages
  bool center;
  Kernels forward[kFloatTypes], backward[kFloatTypes];
  Kernel parameter_partial[kFloatTypes];
};

const Norm rmsnorm NORM(rmsnorm, false);
const Norm layernorm NORM(layernorm, true);
const Kernel parameter_sum("norm_parameter_sum", "norm_parameter_sum", kSumThreads);

// --- launch shapes ---------------------------------------------------------------------------------------------------

// A grid may have 2^32 work-items a dimension; kernels loop where there are more rows than that allows.
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

unsigned blocks_for(int64_t rows, int rows_per_block) {
  return unsigned(std::min(turbo::ceil_div(rows, rows_per_block), kMaxBlocks));
}

// Work-groups of the backward, each with a line of the partial sums: enough to fill 304 compute units at the occupancy
// of the table's kernels, few enough that the lines cost little beside dy, s and dx.
//   rows of up to 16 KiB (work-groups of 256)  1024
//   rows of up to 64 KiB (1024)                 512
//   longer rows                                  64: the columns alone give enough work-groups
constexpr int64_t partials_limit(int64_t row_bytes) {
  return row_bytes <= 16384 ? 1024 : row_bytes <= 65536 ? 512 : 64;
}

unsigned column_blocks(int64_t dim) { return unsigned(turbo::ceil_div(dim, kSumColumns)); }

// --- checks ----------------------------------------------------------------------------------------------------------

// Indices within a row are 32 bits, and the kernels by columns have 4 work-items a column of a grid of less than 2^32.
constexpr int64_t kMaxDim = int64_t{1} << 29;

turbo_status check_shape(const char *op, int64_t rows, int64_t dim, int dtype) {
  if (rows < 0) return fail(TURBO_ERROR_ARGUMENT, "%s: rows is %lld", op, (long long)rows);
  if (dim < 1 || dim > kMaxDim) {
    return fail(TURBO_ERROR_ARGUMENT, "%s: dim is %lld; accepted are 1 to 2**29", op, (long long)dim);
  }
  if (!is_float(dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: dtype is %d, no turbo_dtype", op, dtype);
  return TURBO_OK;
}

// The type of a parameter or of its gradient matters where there is one.
turbo_status check_parameter(const char *op, const char *name, const void *parameter, int type) {
  if (parameter == nullptr || is_float(type)) return TURBO_OK;
  return fail(TURBO_ERROR_ARGUMENT, "%s: %s is %d, no turbo_dtype", op, name, type);
}

bool aligned(const void *pointer) { return turbo::aligned(pointer, kAccessBytes); }
bool aligned(int64_t elements, int64_t element_bytes) { return elements * element_bytes % kAccessBytes == 0; }

// --- forward ---------------------------------------------------------------------------------------------------------

turbo_status forward(const Norm &norm, const turbo_norm_forward_args *a, int device, void *stream) {
  const char *op = norm.forward_name;
  TURBO_RETURN_IF_FAILED(check_shape(op, a->rows, a->dim, a->dtype));
  TURBO_RETURN_IF_FAILED(check_parameter(op, "gamma_dtype", a->gamma, a->gamma_dtype));
  TURBO_RETURN_IF_FAILED(check_parameter(op, "beta_dtype", a->beta, a->beta_dtype));
  if (!norm.center) {
    TURBO_REFUSE(op, a->beta, "beta");
    TURBO_REFUSE(op, a->mean, "mean");
  }
  if (a->rows == 0) return TURBO_OK;
  TURBO_REQUIRE(op, a->x, "x");
  TURBO_REQUIRE(op, a->y, "y");
  TURBO_REQUIRE(op, a->rstd, "rstd");
  if (norm.center) TURBO_REQUIRE(op, a->mean, "mean");
  if (a->residual != nullptr) TURBO_REQUIRE(op, a->s, "s");

  NormForward kernel_args{a->x,
                          a->residual,
                          a->gamma,
                          a->y,
                          a->s,
                          a->rstd,
                          a->rows,
                          a->x_stride,
                          a->residual_stride,
                          int(a->dim),
                          a->gamma_dtype,
                          a->eps,
                          a->gamma != nullptr && a->zero_centered ? 1.0f : 0.0f,
                          0,
                          a->beta_dtype,
                          a->beta,
                          a->mean};
  const int64_t bytes = kFloatBytes[a->dtype];
  bool vector = aligned(a->x) && aligned(a->y) && aligned(a->gamma) && aligned(a->beta) && aligned(a->dim, bytes) &&
                aligned(a->x_stride, bytes);
  if (a->residual != nullptr)
    vector = vector && aligned(a->residual) && aligned(a->s) && aligned(a->residual_stride, bytes);

  const Kernels &kernels = norm.forward[a->dtype];
  const TableKernel *line = vector ? kernels.fitting(a->dim * bytes) : nullptr;
  kernel_args.blocks = blocks_for(a->rows, line != nullptr ? line->rows_per_block() : 1);
  const Kernel &kernel = line != nullptr ? line->kernel : kernels.loop[vector];
  return kernel.launch({device, stream}, {kernel_args.blocks}, kernel_args);
}

// --- backward --------------------------------------------------------------------------------------------------------

// dx and, where wanted, the partial sums of dgamma and dbeta.
turbo_status backward_rows(const Norm &norm, const turbo_norm_backward_args *a, int64_t partials, Target target) {
  const char *op = norm.backward_name;
  const bool parameters = a->dgamma != nullptr || a->dbeta != nullptr;
  TURBO_REQUIRE(op, a->dy, "dy");
  TURBO_REQUIRE(op, a->s, "s");
  TURBO_REQUIRE(op, a->rstd, "rstd");
  TURBO_REQUIRE(op, a->dx, "dx");
  if (norm.center) TURBO_REQUIRE(op, a->mean, "mean");
  if (a->dgamma != nullptr) TURBO_REQUIRE(op, a->gamma, "gamma");
  if (parameters) {
    TURBO_REQUIRE(op, a->partial, "partial");
    if (a->partials != partials)
      return fail(TURBO_ERROR_ARGUMENT, "%s: partials is %lld; turbo_norm_backward_partials says %lld", op,
                  (long long)a->partials, (long long)partials);
  }
  float *dbeta_partial = a->dgamma != nullptr ? a->partial + partials * a->dim : a->partial;
  NormBackward kernel_args{a->dy,
                           a->ds,
                           a->s,
                           a->gamma,
                           a->rstd,
                           a->dx,
                           a->dgamma != nullptr ? a->partial : nullptr,
                           a->rows,
                           a->dy_stride,
                           a->ds_stride,
                           a->s_stride,
                           int(a->dim),
                           a->gamma_dtype,
                           a->gamma != nullptr && a->zero_centered ? 1.0f : 0.0f,
                           0,
                           a->mean,
                           a->dbeta != nullptr ? dbeta_partial : nullptr};
  const int64_t bytes = kFloatBytes[a->dtype];
  bool vector = aligned(a->dy) && aligned(a->s) && aligned(a->dx) && aligned(a->gamma) && aligned(a->dim, bytes) &&
                aligned(a->dy_stride, bytes) && aligned(a->s_stride, bytes);
  if (parameters) vector = vector && aligned(a->partial);
  if (a->ds != nullptr) vector = vector && aligned(a->ds) && aligned(a->ds_stride, bytes);

  const Kernels &kernels = norm.backward[a->dtype];
  if (const TableKernel *line = vector ? kernels.fitting(a->dim * bytes) : nullptr) {
    kernel_args.blocks = unsigned(partials);
    return line->kernel.launch(target, {kernel_args.blocks}, kernel_args);
  }
  kernel_args.blocks = blocks_for(a->rows, 1);
  TURBO_RETURN_IF_FAILED(kernels.loop[vector].launch(target, {kernel_args.blocks}, kernel_args));
  if (!parameters) return TURBO_OK;
  kernel_args.blocks = unsigned(partials);
  return norm.parameter_partial[a->dtype].launch(target, {column_blocks(a->dim), kernel_args.blocks}, kernel_args);
}

turbo_status backward(const Norm &norm, const turbo_norm_backward_args *a, int device, void *stream) {
  const char *op = norm.backward_name;
  TURBO_RETURN_IF_FAILED(check_shape(op, a->rows, a->dim, a->dtype));
  TURBO_RETURN_IF_FAILED(check_parameter(op, "gamma_dtype", a->gamma, a->gamma_dtype));
  TURBO_RETURN_IF_FAILED(check_parameter(op, "gamma_dtype", a->dgamma, a->gamma_dtype));
  TURBO_RETURN_IF_FAILED(check_parameter(op, "beta_dtype", a->dbeta, a->beta_dtype));
  if (!norm.center) {
    TURBO_REFUSE(op, a->mean, "mean");
    TURBO_REFUSE(op, a->dbeta, "dbeta");
  }
  const int64_t partials = turbo_norm_backward_partials(a->rows, a->dim, a->dtype);
  const Target target{device, stream};
  if (a->rows > 0) TURBO_RETURN_IF_FAILED(backward_rows(norm, a, partials, target));
  // No rows: the sum over no partial lines writes zeros.
  NormParameterSum sum_args{a->partial, a->dgamma, a->dbeta, int(partials), int(a->dim), a->gamma_dtype, a->beta_dtype};
  unsigned gradients = 2;
  if (a->dgamma == nullptr) {
    sum_args.gradient = a->dbeta;
    sum_args.type = a->beta_dtype;
  }
  if (a->dgamma == nullptr || a->dbeta == nullptr) gradients = a->dgamma != nullptr || a->dbeta != nullptr ? 1 : 0;
  return parameter_sum.launch(target, {column_blocks(a->dim), gradients}, sum_args);
}

}  // namespace
}  // namespace turbo_norm_act

using namespace turbo_norm_act;

// --- the C interface -------------------------------------------------------------------------------------------------

TURBO_DEFINE_LIBRARY_FUNCTIONS(turbo_norm_act, TURBO_NORM_ACT_ABI_VERSION, parameter_sum.object())

turbo_status turbo_rmsnorm_forward(const turbo_norm_forward_args *args, int device, void *stream) {
  return forward(rmsnorm, args, device, stream);
}
turbo_status turbo_rmsnorm_backward(const turbo_norm_backward_args *args, int device, void *stream) {
  return backward(rmsnorm, args, device, stream);
}
turbo_status turbo_layernorm_forward(const turbo_norm_forward_args *args, int device, void *stream) {
  return forward(layernorm, args, device, stream);
}
turbo_status turbo_layernorm_backward(const turbo_norm_backward_args *args, int device, void *stream) {
  return backward(layernorm, args, device, stream);
}

int64_t turbo_norm_backward_partials(int64_t rows, int64_t dim, turbo_dtype dtype) {
  if (rows <= 0 || dim <= 0 || !is_float(dtype)) return 0;
  const int64_t row_bytes = dim * kFloatBytes[dtype];
  // Rows per work-group do not depend on the norm: where the tables differ, a work-group has one.
  const TableKernel *line = rmsnorm.backward[dtype].fitting(row_bytes);
  const int rows_per_block = line != nullptr ? line->rows_per_block() : 1;
  return std::min<int64_t>(blocks_for(rows, rows_per_block), partials_limit(row_bytes));
}
