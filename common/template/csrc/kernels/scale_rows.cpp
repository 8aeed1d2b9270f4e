// SPDX-License-Identifier: MIT
//
// Host launchers of scale_rows: check the arguments, choose the kernel, launch.
#include <algorithm>
#include <cstdint>

#include "scale_rows_args.h"
#include "turbo/check.h"
#include "turbo/kernels.h"
#include "turbo/library.h"
#include "turbo_template.h"

namespace turbo_template {
namespace {

using turbo::fail;
using turbo::Kernel;
using turbo::kFloatBytes;
using turbo::kFloatTypes;

// --- kernels ---------------------------------------------------------------------------------------------------------

constexpr int kAccessBytes = 16;

// Of one direction and element type: single elements, and accesses of 16 bytes.
using Pair = Kernel[2];

#define PAIR(direction, type)                                                    \
  {Kernel("scale_rows", "scale_rows_" #direction "_" #type "_scalar", kThreads), \
   Kernel("scale_rows", "scale_rows_" #direction "_" #type "_vector", kThreads)}

const Pair forward_kernels[kFloatTypes] = {PAIR(forward, fp32), PAIR(forward, fp16), PAIR(forward, bf16)};
const Pair backward_kernels[kFloatTypes] = {PAIR(backward, fp32), PAIR(backward, fp16), PAIR(backward, bf16)};

// A grid may have 2^32 work-items a dimension; kernels loop where there are more rows than that allows.
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

unsigned blocks_for(int64_t rows) { return unsigned(std::min(turbo::ceil_div(rows, kRowsPerBlock), kMaxBlocks)); }

// --- checks ----------------------------------------------------------------------------------------------------------

turbo_status check_shape(const char *op, int64_t rows, int64_t dim, int dtype, int scale_dtype) {
  if (rows < 0) return fail(TURBO_ERROR_ARGUMENT, "%s: rows is %lld", op, (long long)rows);
  if (dim < 1) return fail(TURBO_ERROR_ARGUMENT, "%s: dim is %lld; at least 1 is accepted", op, (long long)dim);
  if (!turbo::is_float(dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: dtype is %d, no turbo_dtype", op, dtype);
  if (!turbo::is_float(scale_dtype))
    return fail(TURBO_ERROR_ARGUMENT, "%s: scale_dtype is %d, no turbo_dtype", op, scale_dtype);
  return TURBO_OK;
}

// Whether every row begins on 16 bytes; NULL does.
bool aligned(const void *pointer, int64_t stride, int64_t element_bytes) {
  return turbo::aligned(pointer, kAccessBytes) && stride * element_bytes % kAccessBytes == 0;
}

}  // namespace
}  // namespace turbo_template

using namespace turbo_template;

// --- the C interface -------------------------------------------------------------------------------------------------

TURBO_DEFINE_LIBRARY_FUNCTIONS(turbo_template, TURBO_TEMPLATE_ABI_VERSION, "scale_rows")

turbo_status turbo_scale_rows_forward(const turbo_scale_rows_forward_args *a, int device, void *stream) {
  const char *op = "scale_rows_forward";
  TURBO_RETURN_IF_FAILED(check_shape(op, a->rows, a->dim, a->dtype, a->scale_dtype));
  if (a->rows == 0) return TURBO_OK;
  TURBO_REQUIRE(op, a->x, "x");
  TURBO_REQUIRE(op, a->scale, "scale");
  TURBO_REQUIRE(op, a->y, "y");
  const int64_t bytes = kFloatBytes[a->dtype];
  const bool vector = aligned(a->x, a->x_stride, bytes) && aligned(a->residual, a->residual_stride, bytes) &&
                      aligned(a->y, a->dim, bytes);
  const ScaleRowsForward arguments{a->x,   a->scale,    a->residual,        a->y,           a->rows,
                                   a->dim, a->x_stride, a->residual_stride, a->scale_dtype, blocks_for(a->rows)};
  return forward_kernels[a->dtype][vector].launch({device, stream}, {arguments.blocks}, arguments);
}

turbo_status turbo_scale_rows_backward(const turbo_scale_rows_backward_args *a, int device, void *stream) {
  const char *op = "scale_rows_backward";
  TURBO_RETURN_IF_FAILED(check_shape(op, a->rows, a->dim, a->dtype, a->scale_dtype));
  if (a->rows == 0 || (a->dx == nullptr && a->dscale == nullptr)) return TURBO_OK;
  TURBO_REQUIRE(op, a->dy, "dy");
  TURBO_REQUIRE(op, a->scale, "scale");
  if (a->dscale != nullptr) TURBO_REQUIRE(op, a->x, "x");
  const int64_t bytes = kFloatBytes[a->dtype];
  const bool vector = aligned(a->dy, a->dy_stride, bytes) && aligned(a->x, a->x_stride, bytes) &&
                      aligned(a->dx, a->dim, bytes) && a->dim * bytes % kAccessBytes == 0;
  const ScaleRowsBackward arguments{a->dy,  a->x,         a->scale,    a->dx,          a->dscale,          a->rows,
                                    a->dim, a->dy_stride, a->x_stride, a->scale_dtype, blocks_for(a->rows)};
  return backward_kernels[a->dtype][vector].launch({device, stream}, {arguments.blocks}, arguments);
}
