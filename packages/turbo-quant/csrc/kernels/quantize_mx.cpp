// SPDX-License-Identifier: MIT
//
// Host launcher of MX quantisation.
#include "launch.h"

namespace turbo_quant {
namespace {

constexpr int kFormats = 3;  // of turbo_mx_format, in its order

enum Kind { kBasic, kSpecial, kRows, kKinds };

#define BY_KIND(format, type)                                                          \
  {Kernel("quantize_mx_" format, "quantize_mx_" format "_" type "_basic", kThreads),   \
   Kernel("quantize_mx_" format, "quantize_mx_" format "_" type "_special", kThreads), \
   Kernel("quantize_mx_" format, "quantize_mx_" format "_" type "_rows", kThreads)}
#define BY_TYPE(format) {BY_KIND(format, "fp32"), BY_KIND(format, "fp16"), BY_KIND(format, "bf16")}
const Kernel kernels[kFormats][kFloatTypes][kKinds] = {BY_TYPE("e4m3"), BY_TYPE("e5m2"), BY_TYPE("e2m1")};

const char *const op = "quantize_mx";

// The flags go to the kernels as they are.
static_assert(TURBO_MX_TILE == kMxTile && TURBO_MX_RHT == kMxRht && TURBO_MX_STOCHASTIC == kMxStochastic &&
                  TURBO_MX_SHUFFLE_SCALE == kMxShuffleScale && TURBO_MX_SHUFFLE_OUT == kMxShuffleOut,
              "");

turbo_status check_copy(const char *name, const turbo_mx_copy &copy, const int64_t *rng, int64_t lines) {
  if (copy.payload == nullptr) return TURBO_OK;
  if (copy.scale == nullptr) return fail(TURBO_ERROR_ARGUMENT, "%s: %s.scale is NULL", op, name);
  if (!aligned(copy.payload, 16))
    return fail(TURBO_ERROR_ARGUMENT, "%s: %s.payload is not aligned to 16 bytes", op, name);
  if ((copy.flags & TURBO_MX_TILE) && (copy.flags & TURBO_MX_RHT))
    return fail(TURBO_ERROR_ARGUMENT, "%s: %s: a rotation has no 32 x 32 tiles", op, name);
  if ((copy.flags & TURBO_MX_STOCHASTIC) && rng == nullptr)
    return fail(TURBO_ERROR_ARGUMENT, "%s: %s is rounded stochastically, and rng is NULL", op, name);
  if ((copy.flags & TURBO_MX_SHUFFLE_OUT) && lines % 16 != 0)
    return fail(TURBO_ERROR_ARGUMENT, "%s: %s has %lld lines; a shuffled payload needs a multiple of 16", op, name,
                (long long)lines);
  return TURBO_OK;
}

MxCopy make_copy(const turbo_mx_copy &copy, int64_t lines, int64_t length) {
  MxCopy made{};
  if (copy.payload == nullptr) return made;
  int64_t pitch = length / 32, scale_lines = lines;
  if (copy.flags & TURBO_MX_SHUFFLE_SCALE) {
    pitch = ceil_div(pitch, 8) * 8;
    scale_lines = ceil_div(lines, 256) * 256;
  }
  made.payload = static_cast<unsigned char *>(copy.payload);
  made.scale = copy.scale;
  made.lines = lines;
  made.length = length;
  made.scale_batch = scale_lines * pitch;
  made.scale_pitch = int(pitch);
  made.flags = copy.flags;
  return made;
}

// One launch: whatever copies it has share their tiles of x.
turbo_status launch(const turbo_quantize_mx_args *a, const turbo_mx_copy &row, const turbo_mx_copy &column, bool groups,
                    Target target) {
  const auto [B, R, C] = a->size;
  QuantizeMx args{};
  const int64_t Cp = ceil_div(C, kTile) * kTile,
                Rp = ceil_div(R + (groups ? a->groups * (kTile - 1) : 0), kTile) * kTile;
  const int64_t tile_columns = 256 / kFloatBytes[a->x_dtype];
  unsigned tiles = 0;
  TURBO_RETURN_IF_FAILED(make_source(op, a->x, a->strides, a->size, Rp, Cp, tile_columns, args.source, tiles));
  if (groups) TURBO_RETURN_IF_FAILED(add_groups(op, a->group_offs, a->group_offs_padded, a->groups, B, args.source));
  args.source.vector = rows_are_vectors(a->x, a->strides, a->size, kFloatBytes[a->x_dtype], 16);
  args.row = make_copy(row, R, Cp);
  args.column = make_copy(column, C, Rp);
  args.rng = reinterpret_cast<const long long *>(a->rng);
  args.sign_mask = a->sign_mask;
  Kind kind = column.payload != nullptr ? kBasic : kRows;
  if ((args.row.flags | args.column.flags) & (TURBO_MX_RHT | TURBO_MX_STOCHASTIC)) kind = kSpecial;
  return kernels[a->format][a->x_dtype][kind].launch(target, {tiles}, args);
}

turbo_status quantize(const turbo_quantize_mx_args *a, Target target) {
  TURBO_RETURN_IF_FAILED(check_size(op, a->size));
  if (!is_float(a->x_dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: x_dtype is %d", op, a->x_dtype);
  if (a->format < TURBO_MX_E4M3 || a->format > TURBO_MX_E2M1)
    return fail(TURBO_ERROR_ARGUMENT, "%s: format is %d", op, a->format);
  TURBO_RETURN_IF_FAILED(check_copy("row", a->row, a->rng, a->size[1]));
  TURBO_RETURN_IF_FAILED(check_copy("column", a->column, a->rng, a->size[2]));
  const bool row = a->row.payload != nullptr, column = a->column.payload != nullptr;
  if (empty(a->size) || (!row && !column)) return TURBO_OK;
  TURBO_REQUIRE(op, a->x, "x");
  const bool groups = a->group_offs != nullptr && column;
  // Tiles of 32 rows are those of x in the row copy, and each group's own in the column copy.
  if (row && groups && (a->row.flags & TURBO_MX_TILE)) {
    TURBO_RETURN_IF_FAILED(launch(a, a->row, {}, false, target));
    return launch(a, {}, a->column, true, target);
  }
  return launch(a, a->row, a->column, groups, target);
}

}  // namespace
}  // namespace turbo_quant

turbo_status turbo_quantize_mx(const turbo_quantize_mx_args *args, int device, void *stream) {
  return turbo_quant::quantize(args, {device, stream});
}
