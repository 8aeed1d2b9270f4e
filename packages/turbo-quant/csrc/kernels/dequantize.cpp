// SPDX-License-Identifier: MIT
//
// Host launchers of dequantisation.
#include "launch.h"

namespace turbo_quant {
namespace {

const Kernel float_kernels[kFloatTypes][kCodes] =
    TURBO_BY_TYPE_AND_CODE("dequantize_float", "dequantize_float", "", kThreads);
const Kernel mx_kernels[3][kFloatTypes] = {TURBO_BY_TYPE("dequantize_mx", "dequantize_mx_e4m3", ""),
                                           TURBO_BY_TYPE("dequantize_mx", "dequantize_mx_e5m2", ""),
                                           TURBO_BY_TYPE("dequantize_mx", "dequantize_mx_e2m1", "")};

constexpr unsigned kWhole = 1u << 31;  // a block that no dimension exceeds

turbo_status dequantize_float(const turbo_dequantize_float_args *a, Target target) {
  const char *const op = "dequantize_float";
  TURBO_RETURN_IF_FAILED(check_size(op, a->size));
  if (!is_code(a->q_dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: q_dtype is %d, no FP8 type", op, a->q_dtype);
  if (!is_float(a->out_dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: out_dtype is %d", op, a->out_dtype);
  if (a->granularity < TURBO_TENSORWISE || a->granularity > TURBO_BLOCKWISE || a->axis < 0 || a->axis > 2)
    return fail(TURBO_ERROR_ARGUMENT, "%s: granularity is %d and axis %d", op, a->granularity, a->axis);
  const bool blockwise = a->granularity == TURBO_BLOCKWISE;
  if (blockwise && (a->block_size < 1 || a->block_size >= kMaxSize))
    return fail(TURBO_ERROR_ARGUMENT, "%s: block_size is %lld", op, (long long)a->block_size);
  if (a->granularity == TURBO_ROWWISE && a->axis == 0)
    return fail(TURBO_ERROR_ARGUMENT, "%s: there are no tiles in ROWWISE", op);
  if (empty(a->size)) return TURBO_OK;
  TURBO_REQUIRE(op, a->q, "q");
  TURBO_REQUIRE(op, a->scale_inv, "scale_inv");
  TURBO_REQUIRE(op, a->out, "out");
  if (!aligned(a->out, 16)) return fail(TURBO_ERROR_ARGUMENT, "%s: out is not aligned to 16 bytes", op);
  const auto [B, R, C] = a->size;
  (void)B;
  DequantizeFloat args{};
  unsigned tiles = 0;
  TURBO_RETURN_IF_FAILED(make_source(op, a->q, a->strides, a->size, R, C, kTile, args.source, tiles));
  args.source.vector = rows_are_vectors(a->q, a->strides, a->size, 1, 8);
  args.scale = a->scale_inv;
  args.out = a->out;
  args.block_rows = args.block_columns = kWhole;
  if (a->granularity != TURBO_TENSORWISE) {
    const unsigned block = blockwise ? unsigned(a->block_size) : kWhole;
    args.block_rows = a->axis == 2 ? 1 : block;
    args.block_columns = a->axis == 1 ? 1 : block;
    args.scale_row = ceil_div(C, args.block_columns);
    args.scale_batch = args.scale_row * ceil_div(R, args.block_rows);
  }
  return float_kernels[a->out_dtype][a->q_dtype - TURBO_FLOAT8_E4M3].launch(target, {tiles}, args);
}

turbo_status dequantize_mx(const turbo_dequantize_mx_args *a, Target target) {
  const char *const op = "dequantize_mx";
  TURBO_RETURN_IF_FAILED(check_size(op, a->size));
  if (a->format < TURBO_MX_E4M3 || a->format > TURBO_MX_E2M1)
    return fail(TURBO_ERROR_ARGUMENT, "%s: format is %d", op, a->format);
  if (!is_float(a->out_dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: out_dtype is %d", op, a->out_dtype);
  const auto [B, L, K] = a->size;
  if (K % 32 != 0 || a->wanted < 0 || a->wanted > K)
    return fail(TURBO_ERROR_ARGUMENT, "%s: %lld of %lld values are wanted; lines are whole blocks of 32", op,
                (long long)a->wanted, (long long)K);
  if (empty(a->size) || a->wanted == 0) return TURBO_OK;
  TURBO_REQUIRE(op, a->q, "q");
  TURBO_REQUIRE(op, a->scale, "scale");
  TURBO_REQUIRE(op, a->out, "out");
  if (!aligned(a->out, 16)) return fail(TURBO_ERROR_ARGUMENT, "%s: out is not aligned to 16 bytes", op);
  const int64_t tile_columns = 256 / kFloatBytes[a->out_dtype];
  const int64_t line_tiles = ceil_div(L, kTile), column_tiles = ceil_div(a->wanted, tile_columns);
  if (B * line_tiles * column_tiles > kMaxTiles)
    return fail(TURBO_ERROR_ARGUMENT, "%s: size is %lld x %lld x %lld, more than 2**24 tiles", op, (long long)B,
                (long long)L, (long long)K);
  DequantizeMx args{};
  args.q = static_cast<const unsigned char *>(a->q);
  args.scale = a->scale;
  args.out = a->out;
  args.batch_stride = a->strides[0];
  args.line_stride = a->strides[1];
  args.byte_stride = a->strides[2];
  args.lines = L;
  args.length = K;
  args.size = a->wanted;
  args.line_tiles = unsigned(line_tiles);
  args.column_tiles = unsigned(column_tiles);
  args.vector = rows_are_vectors(a->q, a->strides, a->size, 1, a->format == TURBO_MX_E2M1 ? 8 : 16);
  args.transpose = a->transpose;
  args.rht = a->rht;
  args.sign_mask = a->sign_mask;
  const unsigned tiles = unsigned(B * line_tiles * column_tiles);
  return mx_kernels[a->format][a->out_dtype].launch(target, {tiles}, args);
}

}  // namespace
}  // namespace turbo_quant

turbo_status turbo_dequantize_float(const turbo_dequantize_float_args *args, int device, void *stream) {
  return turbo_quant::dequantize_float(args, {device, stream});
}

turbo_status turbo_dequantize_mx(const turbo_dequantize_mx_args *args, int device, void *stream) {
  return turbo_quant::dequantize_mx(args, {device, stream});
}
