// SPDX-License-Identifier: MIT
//
// Host launchers of RMSNorm: check the arguments, choose the kernel from the table, launch.
#include <algorithm>
#include <cstddef>

#include "rmsnorm_args.h"
#include "turbo/error.h"
#include "turbo/kernels.h"
#include "turbo_norm_act.h"

namespace turbo_norm_act {
namespace {

using turbo::fail;
using turbo::Kernel;
using turbo::Target;

// --- kernels ---------------------------------------------------------------------------------------------------------

constexpr int kAccessBytes = 16;
constexpr int kTypes = 3;  // of turbo_dtype, in its order
constexpr int64_t kElementBytes[kTypes] = {4, 2, 2};

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

#define ENTRY(direction, type, threads, chunks) \
  {threads, chunks,                             \
   Kernel("rmsnorm_" #direction, "rmsnorm_" #direction "_" #type "_" #threads "x" #chunks, block_threads(threads))},
#define FORWARD_FP32(threads, chunks) ENTRY(forward, fp32, threads, chunks)
#define FORWARD_FP16(threads, chunks) ENTRY(forward, fp16, threads, chunks)
#define FORWARD_BF16(threads, chunks) ENTRY(forward, bf16, threads, chunks)
#define BACKWARD_FP32(threads, chunks) ENTRY(backward, fp32, threads, chunks)
#define BACKWARD_FP16(threads, chunks) ENTRY(backward, fp16, threads, chunks)
#define BACKWARD_BF16(threads, chunks) ENTRY(backward, bf16, threads, chunks)

const TableKernel forward_table[kTypes][8] = {{TURBO_RMSNORM_FORWARD_TABLE(FORWARD_FP32)},
                                              {TURBO_RMSNORM_FORWARD_TABLE(FORWARD_FP16)},
                                              {TURBO_RMSNORM_FORWARD_TABLE(FORWARD_BF16)}};
const TableKernel backward_table[kTypes][7] = {{TURBO_RMSNORM_BACKWARD_TABLE(BACKWARD_FP32)},
                                               {TURBO_RMSNORM_BACKWARD_TABLE(BACKWARD_FP16)},
                                               {TURBO_RMSNORM_BACKWARD_TABLE(BACKWARD_BF16)}};

#define LOOPS(direction, type)                                                                  \
  {Kernel("rmsnorm_" #direction, "rmsnorm_" #direction "_" #type "_loop_scalar", kLoopThreads), \
   Kernel("rmsnorm_" #direction, "rmsnorm_" #direction "_" #type "_loop_vector", kLoopThreads)}
const Kernel forward_loop[kTypes][2] = {LOOPS(forward, fp32), LOOPS(forward, fp16), LOOPS(forward, bf16)};
const Kernel backward_loop[kTypes][2] = {LOOPS(backward, fp32), LOOPS(backward, fp16), LOOPS(backward, bf16)};
const Kernel gamma_partial[kTypes] = {Kernel("rmsnorm_backward", "rmsnorm_gamma_partial_fp32", kGammaSumThreads),
                                      Kernel("rmsnorm_backward", "rmsnorm_gamma_partial_fp16", kGammaSumThreads),
                                      Kernel("rmsnorm_backward", "rmsnorm_gamma_partial_bf16", kGammaSumThreads)};
const Kernel gamma_sum("rmsnorm_backward", "rmsnorm_gamma_sum", kGammaSumThreads);

// The first line whose kernel holds the row in registers; null when none does.
template <size_t Lines>
const TableKernel *fitting(const TableKernel (&table)[Lines], int64_t row_bytes) {
  for (const TableKernel &line : table) {
    if (row_bytes <= line.row_bytes()) return &line;
  }
  return nullptr;
}

// --- launch shapes ---------------------------------------------------------------------------------------------------

// A grid may have 2^32 work-items a dimension; kernels loop where there are more rows than that allows.
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

unsigned blocks_for(int64_t rows, int rows_per_block) {
  return unsigned(std::min((rows + rows_per_block - 1) / rows_per_block, kMaxBlocks));
}

// Work-groups of the backward, each with a line of `partial`: enough to fill 304 compute units at the occupancy of
// the table's kernels, few enough that the lines cost little beside dy, s and dx.
//   rows of up to 16 KiB (work-groups of 256)  1024
//   rows of up to 64 KiB (1024)                 512
//   longer rows                                  64: the columns alone give enough work-groups
constexpr int64_t partials_limit(int64_t row_bytes) {
  return row_bytes <= 16384 ? 1024 : row_bytes <= 65536 ? 512 : 64;
}

// --- checks ----------------------------------------------------------------------------------------------------------

// Indices within a row are 32 bits, and the kernels by columns have 4 work-items a column of a grid of less than 2^32.
constexpr int64_t kMaxDim = int64_t{1} << 29;

bool is_type(int type) { return type >= 0 && type < kTypes; }

turbo_status check_shape(const char *op, int64_t rows, int64_t dim, int dtype, const void *gamma, int gamma_dtype) {
  if (rows < 0) return fail(TURBO_ERROR_ARGUMENT, "%s: rows is %lld", op, (long long)rows);
  if (dim < 1 || dim > kMaxDim) {
    return fail(TURBO_ERROR_ARGUMENT, "%s: dim is %lld; accepted are 1 to 2**29", op, (long long)dim);
  }
  if (!is_type(dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: dtype is %d, no turbo_dtype", op, dtype);
  if (gamma != nullptr && !is_type(gamma_dtype))
    return fail(TURBO_ERROR_ARGUMENT, "%s: gamma_dtype is %d, no turbo_dtype", op, gamma_dtype);
  return TURBO_OK;
}

// A required pointer, named in the message.
#define REQUIRE(op, args, member) \
  if ((args)->member == nullptr) return fail(TURBO_ERROR_ARGUMENT, op ": " #member " is NULL")

bool aligned(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer) % kAccessBytes == 0; }
bool aligned(int64_t elements, int64_t element_bytes) { return elements * element_bytes % kAccessBytes == 0; }

}  // namespace
}  // namespace turbo_norm_act

using namespace turbo_norm_act;

// --- the C interface -------------------------------------------------------------------------------------------------

int turbo_norm_act_abi_version(void) { return TURBO_NORM_ACT_ABI_VERSION; }
const char *turbo_norm_act_last_error(void) { return turbo::last_error(); }
turbo_status turbo_norm_act_check(int device) { return turbo::check_device(device, gamma_sum.object()); }
turbo_status turbo_norm_act_device_arch(int device, char *name, int size) {
  return turbo::device_arch(device, name, size);
}
void turbo_norm_act_reset(void) { turbo::reset(); }

turbo_status turbo_rmsnorm_forward(const turbo_rmsnorm_forward_args *a, int device, void *stream) {
  if (const turbo_status status = check_shape("rmsnorm_forward", a->rows, a->dim, a->dtype, a->gamma, a->gamma_dtype))
    return status;
  if (a->rows == 0) return TURBO_OK;
  REQUIRE("rmsnorm_forward", a, x);
  REQUIRE("rmsnorm_forward", a, y);
  REQUIRE("rmsnorm_forward", a, rstd);
  if (a->residual != nullptr) REQUIRE("rmsnorm_forward", a, s);

  RmsnormForward kernel_args{a->x,
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
                             0};
  const int64_t bytes = kElementBytes[a->dtype];
  bool vector =
      aligned(a->x) && aligned(a->y) && aligned(a->gamma) && aligned(a->dim, bytes) && aligned(a->x_stride, bytes);
  if (a->residual != nullptr)
    vector = vector && aligned(a->residual) && aligned(a->s) && aligned(a->residual_stride, bytes);

  const Target target{device, stream};
  const TableKernel *line = vector ? fitting(forward_table[a->dtype], a->dim * bytes) : nullptr;
  kernel_args.blocks = blocks_for(a->rows, line != nullptr ? line->rows_per_block() : 1);
  const Kernel &kernel = line != nullptr ? line->kernel : forward_loop[a->dtype][vector];
  return kernel.launch(target, {kernel_args.blocks}, kernel_args);
}

int64_t turbo_rmsnorm_backward_partials(int64_t rows, int64_t dim, turbo_dtype dtype) {
  if (rows <= 0 || dim <= 0 || !is_type(dtype)) return 0;
  const int64_t row_bytes = dim * kElementBytes[dtype];
  const TableKernel *line = fitting(backward_table[dtype], row_bytes);
  const int rows_per_block = line != nullptr ? line->rows_per_block() : 1;
  return std::min<int64_t>(blocks_for(rows, rows_per_block), partials_limit(row_bytes));
}

turbo_status turbo_rmsnorm_backward(const turbo_rmsnorm_backward_args *a, int device, void *stream) {
  if (const turbo_status status = check_shape("rmsnorm_backward", a->rows, a->dim, a->dtype, a->gamma, a->gamma_dtype))
    return status;
  const int64_t partials = turbo_rmsnorm_backward_partials(a->rows, a->dim, a->dtype);
  const Target target{device, stream};
  if (a->rows > 0) {
    REQUIRE("rmsnorm_backward", a, dy);
    REQUIRE("rmsnorm_backward", a, s);
    REQUIRE("rmsnorm_backward", a, rstd);
    REQUIRE("rmsnorm_backward", a, dx);
    if (a->dgamma != nullptr) {
      REQUIRE("rmsnorm_backward", a, gamma);
      REQUIRE("rmsnorm_backward", a, partial);
      if (a->partials != partials)
        return fail(TURBO_ERROR_ARGUMENT,
                    "rmsnorm_backward: partials is %lld; turbo_rmsnorm_backward_partials says %lld",
                    (long long)a->partials, (long long)partials);
    }
    RmsnormBackward kernel_args{a->dy,
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
                                0};
    const int64_t bytes = kElementBytes[a->dtype];
    bool vector = aligned(a->dy) && aligned(a->s) && aligned(a->dx) && aligned(a->gamma) &&
                  aligned(kernel_args.partial) && aligned(a->dim, bytes) && aligned(a->dy_stride, bytes) &&
                  aligned(a->s_stride, bytes);
    if (a->ds != nullptr) vector = vector && aligned(a->ds) && aligned(a->ds_stride, bytes);

    turbo_status status = TURBO_OK;
    if (const TableKernel *line = vector ? fitting(backward_table[a->dtype], a->dim * bytes) : nullptr) {
      kernel_args.blocks = unsigned(partials);
      status = line->kernel.launch(target, {kernel_args.blocks}, kernel_args);
    } else {
      kernel_args.blocks = blocks_for(a->rows, 1);
      status = backward_loop[a->dtype][vector].launch(target, {kernel_args.blocks}, kernel_args);
      if (status == TURBO_OK && a->dgamma != nullptr) {
        kernel_args.blocks = unsigned(partials);
        const unsigned columns = unsigned((a->dim + kGammaSumColumns - 1) / kGammaSumColumns);
        status = gamma_partial[a->dtype].launch(target, {columns, kernel_args.blocks}, kernel_args);
      }
    }
    if (status != TURBO_OK) return status;
  }
  if (a->dgamma == nullptr) return TURBO_OK;
  // No rows: the sum over no partial lines writes zeros.
  const RmsnormGammaSum sum_args{a->partial, a->dgamma, int(partials), int(a->dim), a->gamma_dtype, 0};
  return gamma_sum.launch(target, {unsigned((a->dim + kGammaSumColumns - 1) / kGammaSumColumns)}, sum_args);
}
