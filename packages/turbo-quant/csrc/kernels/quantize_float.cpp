// SPDX-License-Identifier: MIT
//
// Host launchers of float scales: check the arguments, choose the kernels, launch.
#include <algorithm>
#include <iterator>

#include "launch.h"
#include "turbo/library.h"

namespace turbo_quant {
namespace {

const Kernel blocks[kFloatTypes][kCodes] = TURBO_BY_TYPE_AND_CODE("quantize_blocks", "quantize_blocks", "", kThreads);
const Kernel tensor_amax[kFloatTypes] = TURBO_BY_TYPE("quantize_scaled", "tensor_amax", "");
const Kernel column_amax[kFloatTypes] = TURBO_BY_TYPE("quantize_scaled", "column_amax", "");
const Kernel tensors[kFloatTypes][kCodes] = TURBO_BY_TYPE_AND_CODE("quantize_scaled", "quantize_tensor", "", kThreads);
const Kernel columns[kFloatTypes][kCodes] = TURBO_BY_TYPE_AND_CODE("quantize_scaled", "quantize_columns", "", kThreads);

constexpr unsigned block_threads(int row_threads) {
  return row_threads == 64 ? 64u * kRowsPerWaveBlock : unsigned(row_threads);
}

struct RowKernels {
  int threads, chunks;
  Kernel kernels[kFloatTypes][kCodes];
};

#define ENTRY(object, threads, chunks) \
  {threads, chunks, TURBO_BY_TYPE_AND_CODE(#object, #object, "_" #threads "x" #chunks, block_threads(threads))},
const RowKernels row_table[] = {TURBO_QUANTIZE_ROWS_TABLE(ENTRY, quantize_rows)};
const Kernel row_loops[2][kFloatTypes][kCodes] = {
    TURBO_BY_TYPE_AND_CODE("quantize_rows", "quantize_rows", "_loop_scalar", kThreads),
    TURBO_BY_TYPE_AND_CODE("quantize_rows", "quantize_rows", "_loop_vector", kThreads)};

const char *const op = "quantize_float";

// Work-groups of kernels that loop: enough to fill 304 compute units several times.
constexpr unsigned kMaxRowBlocks = 1u << 20;
constexpr unsigned kMaxTensorBlocks = 4096;

turbo_status check(const turbo_quantize_float_args *a) {
  TURBO_RETURN_IF_FAILED(check_size(op, a->size));
  if (!is_float(a->x_dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: x_dtype is %d", op, a->x_dtype);
  if (!is_code(a->out_dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: out_dtype is %d, no FP8 type", op, a->out_dtype);
  if (a->granularity < TURBO_TENSORWISE || a->granularity > TURBO_BLOCKWISE)
    return fail(TURBO_ERROR_ARGUMENT, "%s: granularity is %d", op, a->granularity);
  const bool blockwise = a->granularity == TURBO_BLOCKWISE;
  if (blockwise && a->block_size != TURBO_QUANT_BLOCK)
    return fail(TURBO_ERROR_ARGUMENT, "%s: block_size is %d; %d is accepted", op, a->block_size, TURBO_QUANT_BLOCK);
  if (a->granularity == TURBO_TENSORWISE && a->column != nullptr)
    return fail(TURBO_ERROR_ARGUMENT, "%s: there is no column copy with a scale for the tensor", op);
  if (a->tile && (!blockwise || a->row == nullptr || a->column != nullptr))
    return fail(TURBO_ERROR_ARGUMENT, "%s: tile is for BLOCKWISE and the row copy alone", op);
  if (a->group_offs != nullptr && (!blockwise || a->tile))
    return fail(TURBO_ERROR_ARGUMENT, "%s: groups are for BLOCKWISE without tile", op);
  if (empty(a->size)) return TURBO_OK;
  TURBO_REQUIRE(op, a->x, "x");
  if (a->row != nullptr) TURBO_REQUIRE(op, a->row_scale_inv, "row_scale_inv");
  if (a->column != nullptr) TURBO_REQUIRE(op, a->column_scale_inv, "column_scale_inv");
  if (!aligned(a->row, 8) || !aligned(a->column, 8))
    return fail(TURBO_ERROR_ARGUMENT, "%s: a payload is not aligned to 8 bytes", op);
  if (turbo_quantize_float_scratch(a->granularity, a->size[0], a->size[2], a->column != nullptr) > 0)
    TURBO_REQUIRE(op, a->scratch, "scratch");
  return TURBO_OK;
}

turbo_status quantize_rows(const turbo_quantize_float_args *a, QuantizeFloat args, Target target) {
  const int64_t bytes = kFloatBytes[a->x_dtype], row_bytes = a->size[2] * bytes;
  const int code = a->out_dtype - TURBO_FLOAT8_E4M3;
  // whole accesses of x, whole words of payload
  const bool vector = args.source.vector && row_bytes % 16 == 0 && aligned(a->row, 16);
  for (const RowKernels &line : row_table) {
    if (!vector || row_bytes > int64_t{16} * line.threads * line.chunks) continue;
    const int64_t rows_a_block = line.threads == 64 ? kRowsPerWaveBlock : 1;
    args.blocks = unsigned(std::min<int64_t>(ceil_div(args.all_rows, rows_a_block), kMaxRowBlocks));
    return line.kernels[a->x_dtype][code].launch(target, {args.blocks}, args);
  }
  args.blocks = unsigned(std::min<int64_t>(args.all_rows, kMaxRowBlocks));
  return row_loops[vector][a->x_dtype][code].launch(target, {args.blocks}, args);
}

turbo_status quantize(const turbo_quantize_float_args *a, Target target) {
  TURBO_RETURN_IF_FAILED(check(a));
  if (empty(a->size)) return TURBO_OK;
  QuantizeFloat args{};
  args.column_rows = a->size[1] + (a->group_offs != nullptr ? a->groups * kTile : 0);
  TURBO_RETURN_IF_FAILED(
      make_source(op, a->x, a->strides, a->size, args.column_rows, a->size[2], kTile, args.source, args.tiles));
  TURBO_RETURN_IF_FAILED(add_groups(op, a->group_offs, a->group_offs_padded, a->groups, a->size[0], args.source));
  args.source.vector = rows_are_vectors(a->x, a->strides, a->size, kFloatBytes[a->x_dtype], 16);
  args.row = a->row;
  args.row_scale = a->row_scale_inv;
  args.column = a->column;
  args.column_scale = a->column_scale_inv;
  args.amax = a->scratch;
  args.all_rows = a->size[0] * a->size[1];
  args.tile = a->tile;
  const int type = a->x_dtype, code = a->out_dtype - TURBO_FLOAT8_E4M3;

  if (a->granularity == TURBO_BLOCKWISE) {
    if (a->row == nullptr && a->column == nullptr) return TURBO_OK;
    return blocks[type][code].launch(target, {args.tiles}, args);
  }
  if (a->granularity == TURBO_TENSORWISE) {
    if (a->row == nullptr) return TURBO_OK;
    args.partials = args.blocks = std::min(args.tiles, unsigned(kMaxPartials));
    TURBO_RETURN_IF_FAILED(tensor_amax[type].launch(target, {args.blocks}, args));
    args.blocks = std::min(args.tiles, kMaxTensorBlocks);
    return tensors[type][code].launch(target, {args.blocks}, args);
  }
  if (a->row != nullptr) TURBO_RETURN_IF_FAILED(quantize_rows(a, args, target));
  if (a->column == nullptr) return TURBO_OK;
  TURBO_RETURN_IF_FAILED(column_amax[type].launch(target, {args.tiles}, args));
  return columns[type][code].launch(target, {args.tiles}, args);
}

}  // namespace
}  // namespace turbo_quant

using namespace turbo_quant;

TURBO_DEFINE_LIBRARY_FUNCTIONS(turbo_quant, TURBO_QUANT_ABI_VERSION, tensor_amax[0].object())

turbo_status turbo_quantize_float(const turbo_quantize_float_args *args, int device, void *stream) {
  return quantize(args, {device, stream});
}

int64_t turbo_quantize_float_scratch(turbo_granularity granularity, int64_t batches, int64_t columns, int column) {
  if (granularity == TURBO_TENSORWISE) return kMaxPartials;
  return granularity == TURBO_ROWWISE && column ? batches * columns : 0;
}
