// SPDX-License-Identifier: MIT
//
// What the host launchers share: kernels by types, checks, the source and its tiles.
#pragma once

#include <cstdint>

#include "quant_args.h"
#include "turbo/check.h"
#include "turbo/kernels.h"
#include "turbo_quant.h"

namespace turbo_quant {

using turbo::aligned;
using turbo::ceil_div;
using turbo::fail;
using turbo::is_float;
using turbo::Kernel;
using turbo::kFloatBytes;
using turbo::kFloatTypes;
using turbo::Target;

// --- kernels ---------------------------------------------------------------------------------------------------------

constexpr int kCodes = 4;  // the FP8 types, in the order of turbo_dtype

inline bool is_code(int type) { return type >= TURBO_FLOAT8_E4M3 && type < TURBO_FLOAT8_E4M3 + kCodes; }

// Kernels `<name>_<type><suffix>` of a code object, by type; and `<name>_<type>_<code><suffix>`, by type and FP8 code.
#define TURBO_BY_TYPE(object, name, suffix)                                                      \
  {Kernel(object, name "_fp32" suffix, kThreads), Kernel(object, name "_fp16" suffix, kThreads), \
   Kernel(object, name "_bf16" suffix, kThreads)}
#define TURBO_BY_CODE(object, name, suffix, threads)                                           \
  {Kernel(object, name "_e4m3" suffix, threads), Kernel(object, name "_e5m2" suffix, threads), \
   Kernel(object, name "_e4m3_fnuz" suffix, threads), Kernel(object, name "_e5m2_fnuz" suffix, threads)}
#define TURBO_BY_TYPE_AND_CODE(object, name, suffix, threads)                                                  \
  {TURBO_BY_CODE(object, name "_fp32", suffix, threads), TURBO_BY_CODE(object, name "_fp16", suffix, threads), \
   TURBO_BY_CODE(object, name "_bf16", suffix, threads)}

// --- checks ----------------------------------------------------------------------------------------------------------

constexpr int64_t kMaxSize = int64_t{1} << 31;   // of a dimension: indices within one are 32 bits here and there
constexpr int64_t kMaxTiles = int64_t{1} << 24;  // a grid has less than 2^32 work-items

inline turbo_status check_size(const char *op, const int64_t (&size)[3]) {
  for (const int64_t n : size) {
    if (n < 0 || n >= kMaxSize)
      return fail(TURBO_ERROR_ARGUMENT, "%s: size is %lld x %lld x %lld; each must be 0 to 2**31 - 1", op,
                  (long long)size[0], (long long)size[1], (long long)size[2]);
  }
  return TURBO_OK;
}

inline bool empty(const int64_t (&size)[3]) { return size[0] == 0 || size[1] == 0 || size[2] == 0; }

// Whether `bytes` at a time can be read from each row. A stride that is never used, of a single row or batch, may be
// anything.
inline bool rows_are_vectors(const void *x, const int64_t (&strides)[3], const int64_t (&size)[3],
                             int64_t element_bytes, int64_t bytes) {
  return aligned(x, bytes) && (strides[2] == 1 || size[2] == 1) &&
         (size[1] == 1 || strides[1] * element_bytes % bytes == 0) &&
         (size[0] == 1 || strides[0] * element_bytes % bytes == 0);
}

// The source with tiles of kTile rows and `tile_columns` columns; `copy_rows` and `copy_columns` are what is to be
// covered.
inline turbo_status make_source(const char *op, const void *x, const int64_t (&strides)[3], const int64_t (&size)[3],
                                int64_t copy_rows, int64_t copy_columns, int64_t tile_columns, Source &source,
                                unsigned &tiles) {
  source = {};
  source.x = x;
  source.batch_stride = strides[0];
  source.row_stride = strides[1];
  source.column_stride = strides[2];
  source.rows = size[1];
  source.columns = size[2];
  const int64_t row_tiles = ceil_div(copy_rows, kTile), column_tiles = ceil_div(copy_columns, tile_columns);
  const int64_t all = size[0] * row_tiles * column_tiles;
  if (all > kMaxTiles)
    return fail(TURBO_ERROR_ARGUMENT, "%s: size is %lld x %lld x %lld, more than 2**24 tiles", op, (long long)size[0],
                (long long)size[1], (long long)size[2]);
  source.row_tiles = unsigned(row_tiles);
  source.column_tiles = unsigned(column_tiles);
  tiles = unsigned(all);
  return TURBO_OK;
}

inline turbo_status add_groups(const char *op, const int64_t *offs, const int64_t *padded, int64_t groups,
                               int64_t batches, Source &source) {
  if (offs == nullptr) return TURBO_OK;
  TURBO_REQUIRE(op, padded, "group_offs_padded");
  if (groups < 0 || groups >= kMaxSize) return fail(TURBO_ERROR_ARGUMENT, "%s: groups is %lld", op, (long long)groups);
  if (batches != 1)
    return fail(TURBO_ERROR_ARGUMENT, "%s: B is %lld; with groups it must be 1", op, (long long)batches);
  source.groups = int(groups);
  source.group_offs = reinterpret_cast<const long long *>(offs);
  source.group_offs_padded = reinterpret_cast<const long long *>(padded);
  return TURBO_OK;
}

}  // namespace turbo_quant
