// SPDX-License-Identifier: MIT
//
// What the host launchers of all GEMMs of quantised operands share: the kernels of a format, the choice of a tile, checks,
// and the argument struct.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "turbo/check.h"
#include "turbo/gemm/abi.h"
#include "turbo/gemm/args.h"
#include "turbo/kernels.h"

namespace turbo::gemm {

// --- kernels ---------------------------------------------------------------------------------------------------------

constexpr int kTiles = 2;  // large, small

struct TileKernel {
  int m, n;  // of the tile
  Kernel kernel;
};

struct Variant {
  turbo_mx_format a, b;
  TileKernel kernels[kTiles];
};

constexpr turbo_mx_format e4m3 = TURBO_MX_E4M3, e5m2 = TURBO_MX_E5M2, e2m1 = TURBO_MX_E2M1;

#define TURBO_GEMM_TILE(object, a, b, tile, waves_m, waves_n, fragments) \
  {waves_m * fragments * 16, waves_n * 64, Kernel(#object, #object "_" #a "_" #b "_" #tile, waves_m * waves_n * 64)},
#define TURBO_GEMM_VARIANT(object, a, b) {a, b, {TURBO_GEMM_TILES(TURBO_GEMM_TILE, object, a, b)}},
#define TURBO_GEMM_BLOCK_VARIANT(object, a, b) {a, b, {TURBO_GEMM_BLOCK_TILES(TURBO_GEMM_TILE, object, a, b)}},

template <int Count>
const Variant *find(const Variant (&variants)[Count], turbo_mx_format a, turbo_mx_format b) {
  for (const Variant &variant : variants)
    if (variant.a == a && variant.b == b) return &variant;
  return nullptr;
}

// The tile that takes less time by this reckoning: rounds over the compute units x area, the small tile at 4/5 of the large
// one's speed (it reads twice the bytes for each product). Not timed on a card. `groups` products of m x n each.
inline int64_t tiles_of(const TileKernel &tile, int64_t m, int64_t n) {
  return ceil_div(m, tile.m) * ceil_div(n, tile.n);
}

inline int64_t cost(const TileKernel &tile, int64_t m, int64_t n, int compute_units, int64_t groups) {
  return ceil_div(groups * tiles_of(tile, m, n), compute_units) * tile.m * tile.n;
}

inline const TileKernel &choose_tile(const TileKernel (&tiles)[kTiles], int64_t m, int64_t n, turbo_gemm_tile wanted,
                                     int compute_units, int64_t groups = 1) {
  if (wanted != TURBO_GEMM_TILE_CHOSEN) return tiles[wanted == TURBO_GEMM_TILE_SMALL];
  const auto of = [&](int tile) { return cost(tiles[tile], m, n, compute_units, groups); };
  return 4 * of(0) <= 5 * of(1) ? tiles[0] : tiles[1];
}

// --- checks ----------------------------------------------------------------------------------------------------------

// Offsets within a tile are 31 bits: 256 rows and a little more.
constexpr int64_t kMaxRowBytes = (int64_t{1} << 23) - 1024;
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1024;
constexpr int64_t kMaxTiles = int64_t{1} << 22;  // a grid has less than 2^32 work-items

inline turbo_status check_sizes(const char *op, int64_t m, int64_t n, int64_t k, int64_t k_multiple) {
  if (m < 0 || m > kMaxRows) return fail(TURBO_ERROR_ARGUMENT, "%s: m is %lld", op, (long long)m);
  if (n < 0 || n > kMaxRows) return fail(TURBO_ERROR_ARGUMENT, "%s: n is %lld", op, (long long)n);
  if (k < 1 || k % k_multiple != 0)
    return fail(TURBO_ERROR_ARGUMENT, "%s: k is %lld; multiples of %lld are accepted", op, (long long)k,
                (long long)k_multiple);
  return TURBO_OK;
}

// `unit` is the bytes of a scale; 0: there are none.
inline turbo_status check_operand(const char *op, const char *name, const turbo_gemm_operand &x, int64_t rows,
                                  int64_t row_bytes, int64_t unit) {
  if (x.data == nullptr || !aligned(x.data, 16))
    return fail(TURBO_ERROR_ARGUMENT, "%s: %s is at %p; a 16-byte aligned address is needed", op, name, x.data);
  if (x.stride % 16 != 0 || (rows > 1 && x.stride < row_bytes) || x.stride > kMaxRowBytes || row_bytes > kMaxRowBytes)
    return fail(TURBO_ERROR_ARGUMENT,
                "%s: rows of %s are %lld bytes, %lld apart; a multiple of 16 is needed, and at most %lld", op, name,
                (long long)row_bytes, (long long)x.stride, (long long)kMaxRowBytes);
  if (unit == 0) return TURBO_OK;
  if (x.scale == nullptr || !aligned(x.scale, 4))
    return fail(TURBO_ERROR_ARGUMENT, "%s: scales of %s are at %p; a 4-byte aligned address is needed", op, name,
                x.scale);
  if (x.scale_stride < 0 || x.scale_stride * unit % 4 != 0 || x.scale_stride * unit > kMaxRowBytes)
    return fail(TURBO_ERROR_ARGUMENT,
                "%s: rows of scales of %s are %lld bytes apart; a multiple of 4 is needed, and at most %lld", op, name,
                (long long)(x.scale_stride * unit), (long long)kMaxRowBytes);
  return TURBO_OK;
}

inline turbo_status check_output(const char *op, const turbo_gemm_output &c, int64_t m, int64_t n) {
  if (!is_float(c.dtype)) return fail(TURBO_ERROR_ARGUMENT, "%s: dtype of c is %d, no float type", op, c.dtype);
  if (c.bias != nullptr && !is_float(c.bias_dtype))
    return fail(TURBO_ERROR_ARGUMENT, "%s: dtype of bias is %d, no float type", op, c.bias_dtype);
  const int64_t bytes = c.dtype == TURBO_FLOAT32 ? 4 : 2;
  if (c.data == nullptr || !aligned(c.data, bytes)) return fail(TURBO_ERROR_ARGUMENT, "%s: c is at %p", op, c.data);
  if ((m > 1 && c.stride < n) || c.stride < 0 || std::max(c.stride, n) * bytes > kMaxRowBytes)
    return fail(TURBO_ERROR_ARGUMENT,
                "%s: rows of c are %lld elements apart; at least n, %lld, is needed, at most %lld", op,
                (long long)c.stride, (long long)n, (long long)(kMaxRowBytes / bytes));
  return TURBO_OK;
}

inline turbo_status format_of(const char *op, const char *name, turbo_dtype dtype, int device,
                              turbo_mx_format &format) {
  char arch[64];
  TURBO_RETURN_IF_FAILED(turbo::device_arch(device, arch, sizeof arch));
  const bool fnuz = std::strcmp(arch, "gfx942") == 0;
  format = dtype == (fnuz ? TURBO_FLOAT8_E4M3_FNUZ : TURBO_FLOAT8_E4M3) ? e4m3 : e5m2;
  if (format == e5m2 && dtype != (fnuz ? TURBO_FLOAT8_E5M2_FNUZ : TURBO_FLOAT8_E5M2))
    return fail(TURBO_ERROR_ARGUMENT, "%s: dtype of %s is %d; matrix units of %s take the %s types", op, name, dtype,
                arch, fnuz ? "FNUZ" : "OCP");
  return TURBO_OK;
}

inline turbo_status check_block(const char *op, const char *name, const turbo_gemm_operand &x, int block) {
  if (x.scale_rows != 1 && !(x.scale_rows == 128 && block == 128))
    return fail(TURBO_ERROR_ARGUMENT, "%s: %d rows of %s share a scale; 1 is accepted, 128 with blocks", op,
                x.scale_rows, name);
  if (block == 128 && x.scale_step < 0)
    return fail(TURBO_ERROR_ARGUMENT, "%s: scales of %s are %lld floats apart along k", op, name,
                (long long)x.scale_step);
  return TURBO_OK;
}

inline turbo_status check_grid(const char *op, int tile, int compute_units) {
  if (tile < TURBO_GEMM_TILE_CHOSEN || tile > TURBO_GEMM_TILE_SMALL)
    return fail(TURBO_ERROR_ARGUMENT, "%s: tile is %d, no turbo_gemm_tile", op, tile);
  if (compute_units < 1) return fail(TURBO_ERROR_ARGUMENT, "%s: compute_units is %d", op, compute_units);
  return TURBO_OK;
}

inline turbo_status check_formats(const char *op, const Variant *variant, int a, int b) {
  if (variant != nullptr) return TURBO_OK;
  return fail(TURBO_ERROR_ARGUMENT, "%s: formats %d and %d; e4m3 and e5m2 go with each other, e2m1 with itself", op, a,
              b);
}

// --- the argument struct ---------------------------------------------------------------------------------------------

// C [m, n] in tiles of `tile`.
inline GemmArgs arguments_of(const turbo_gemm_operand &a, const turbo_gemm_operand &b, const turbo_gemm_output &c,
                             int64_t m, int64_t n, int64_t row_bytes, const TileKernel &tile) {
  const int64_t per_access = c.dtype == TURBO_FLOAT32 ? 4 : 8;
  GemmArgs args{};
  args.a = static_cast<const unsigned char *>(a.data);
  args.b = static_cast<const unsigned char *>(b.data);
  args.a_scale = a.scale;
  args.b_scale = b.scale;
  args.bias = c.bias;
  args.c = c.data;
  args.a_stride = a.stride;
  args.b_stride = b.stride;
  args.a_scale_stride = a.scale_stride;
  args.b_scale_stride = b.scale_stride;
  args.a_scale_step = a.scale_step;
  args.b_scale_step = b.scale_step;
  args.c_stride = c.stride;
  args.m = int(m);
  args.n = int(n);
  args.row_bytes = int(row_bytes);
  args.a_scale_shift = a.scale_rows == 128 ? 7 : 0;
  args.b_scale_shift = b.scale_rows == 128 ? 7 : 0;
  args.c_type = c.dtype;
  args.bias_type = c.bias_dtype;
  args.accumulate = c.accumulate != 0;
  args.vector = aligned(c.data, 16) && c.stride % per_access == 0 && n % per_access == 0;
  args.tiles_m = int(ceil_div(m, tile.m));
  args.tiles_n = int(ceil_div(n, tile.n));
  return args;
}

}  // namespace turbo::gemm
