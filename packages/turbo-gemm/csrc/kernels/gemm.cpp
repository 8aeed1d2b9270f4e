// SPDX-License-Identifier: MIT
//
// Host launchers of the quantised GEMMs: check the arguments, choose kernel and tile, launch.
#include "turbo/gemm/launch.h"
#include "turbo/library.h"
#include "turbo_gemm.h"

namespace turbo_gemm {
namespace {

using namespace turbo::gemm;
using turbo::fail;
using turbo::Kernel;

const Variant mx_variants[] = {TURBO_GEMM_MX_PAIRS(TURBO_GEMM_VARIANT, gemm_mx)};
const Variant row_variants[] = {TURBO_GEMM_FP8_PAIRS(TURBO_GEMM_VARIANT, gemm_fp8_row)};
const Variant block_row_variants[] = {TURBO_GEMM_FP8_PAIRS(TURBO_GEMM_BLOCK_VARIANT, gemm_fp8_block_row)};
const Variant block_tile_variants[] = {TURBO_GEMM_FP8_PAIRS(TURBO_GEMM_BLOCK_VARIANT, gemm_fp8_block_tile)};

// Args is turbo_gemm_mx_args or turbo_gemm_fp8_args.
template <class Args>
turbo_status launch(const char *op, const Variant &variant, const Args &given, int64_t row_bytes,
                    turbo::Target target) {
  TURBO_RETURN_IF_FAILED(check_grid(op, given.tile, given.compute_units));
  const TileKernel &tile = choose_tile(variant.kernels, given.m, given.n, given.tile, given.compute_units);
  const int64_t tiles = tiles_of(tile, given.m, given.n);
  if (tiles > kMaxTiles)
    return fail(TURBO_ERROR_ARGUMENT, "%s: m = %lld and n = %lld are %lld tiles; at most %lld are accepted", op,
                (long long)given.m, (long long)given.n, (long long)tiles, (long long)kMaxTiles);
  return tile.kernel.launch(target, {unsigned(tiles)},
                            arguments_of(given.a, given.b, given.c, given.m, given.n, row_bytes, tile));
}

turbo_status gemm_mx(const turbo_gemm_mx_args &args, turbo::Target target) {
  const char *op = "gemm_mx";
  const Variant *variant = find(mx_variants, args.format_a, args.format_b);
  TURBO_RETURN_IF_FAILED(check_formats(op, variant, args.format_a, args.format_b));
  TURBO_RETURN_IF_FAILED(check_sizes(op, args.m, args.n, args.k, 128));
  if (args.m == 0 || args.n == 0) return TURBO_OK;
  const int64_t row_bytes = args.format_a == e2m1 ? args.k / 2 : args.k;
  TURBO_RETURN_IF_FAILED(check_operand(op, "a", args.a, args.m, row_bytes, 1));
  TURBO_RETURN_IF_FAILED(check_operand(op, "b", args.b, args.n, row_bytes, 1));
  TURBO_RETURN_IF_FAILED(check_output(op, args.c, args.m, args.n));
  return launch(op, *variant, args, row_bytes, target);
}

turbo_status gemm_fp8(const turbo_gemm_fp8_args &args, turbo::Target target) {
  const char *op = "gemm_fp8";
  if (args.block != 0 && args.block != 128)
    return fail(TURBO_ERROR_ARGUMENT, "%s: block is %d; 0 and 128 are accepted", op, args.block);
  TURBO_RETURN_IF_FAILED(check_sizes(op, args.m, args.n, args.k, 16));
  if (args.m == 0 || args.n == 0) return TURBO_OK;
  TURBO_RETURN_IF_FAILED(check_operand(op, "a", args.a, args.m, args.k, 4));
  TURBO_RETURN_IF_FAILED(check_operand(op, "b", args.b, args.n, args.k, 4));
  TURBO_RETURN_IF_FAILED(check_block(op, "a", args.a, args.block));
  TURBO_RETURN_IF_FAILED(check_block(op, "b", args.b, args.block));
  TURBO_RETURN_IF_FAILED(check_output(op, args.c, args.m, args.n));
  turbo_mx_format format_a, format_b;
  TURBO_RETURN_IF_FAILED(format_of(op, "a", args.dtype_a, target.device, format_a));
  TURBO_RETURN_IF_FAILED(format_of(op, "b", args.dtype_b, target.device, format_b));
  const auto &variants = args.block == 0          ? row_variants
                         : args.b.scale_rows == 1 ? block_row_variants
                                                  : block_tile_variants;
  return launch(op, *find(variants, format_a, format_b), args, args.k, target);
}

}  // namespace
}  // namespace turbo_gemm

// --- the C interface -------------------------------------------------------------------------------------------------

TURBO_DEFINE_LIBRARY_FUNCTIONS(turbo_gemm, TURBO_GEMM_ABI_VERSION, "gemm_fp8_row")

turbo_status turbo_gemm_mx(const turbo_gemm_mx_args *args, int device, void *stream) {
  return turbo_gemm::gemm_mx(*args, {device, stream});
}

turbo_status turbo_gemm_fp8(const turbo_gemm_fp8_args *args, int device, void *stream) {
  return turbo_gemm::gemm_fp8(*args, {device, stream});
}
