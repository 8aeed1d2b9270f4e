// SPDX-License-Identifier: MIT
//
// Host launchers of the grouped GEMMs: check the arguments, choose kernel, tile and grid, launch.
#include <tuple>

#include "grouped_gemm_args.h"
#include "turbo/gemm/launch.h"
#include "turbo/library.h"
#include "turbo_grouped_gemm.h"

namespace turbo_grouped_gemm {
namespace {

using namespace turbo::gemm;
using turbo::ceil_div;
using turbo::fail;
using turbo::Kernel;
using turbo::kFloatBytes;

using Problem = turbo_grouped_gemm_problem;

const Variant mx_variants[] = {TURBO_GEMM_MX_PAIRS(TURBO_GEMM_VARIANT, grouped_gemm_mx)};
const Variant row_variants[] = {TURBO_GEMM_FP8_PAIRS(TURBO_GEMM_VARIANT, grouped_gemm_fp8_row)};
const Variant block_row_variants[] = {TURBO_GEMM_FP8_PAIRS(TURBO_GEMM_BLOCK_VARIANT, grouped_gemm_fp8_block_row)};
const Variant block_tile_variants[] = {TURBO_GEMM_FP8_PAIRS(TURBO_GEMM_BLOCK_VARIANT, grouped_gemm_fp8_block_tile)};

const TileKernel fp16_kernels[] = {TURBO_GEMM_TILES(TURBO_GEMM_TILE, grouped_gemm_half, fp16, fp16)};
const TileKernel bf16_kernels[] = {TURBO_GEMM_TILES(TURBO_GEMM_TILE, grouped_gemm_half, bf16, bf16)};

constexpr int64_t kMaxGroups = int64_t{1} << 20;
constexpr int64_t kMaxNumber = int64_t{1} << 31;  // of tiles: they are counted in 32 bits, a grid beyond the last

bool of_rows(const Problem &problem) { return problem.groups.lens != nullptr; }

// --- checks ----------------------------------------------------------------------------------------------------------

turbo_status check_groups(const char *op, const turbo_groups &groups) {
  if (groups.count < 0 || groups.count > kMaxGroups)
    return fail(TURBO_ERROR_ARGUMENT, "%s: %lld groups; at most %lld are accepted", op, (long long)groups.count,
                (long long)kMaxGroups);
  if (groups.lens == nullptr && groups.offs == nullptr && groups.count > 0)
    return fail(TURBO_ERROR_ARGUMENT, "%s: neither lens nor offs is given", op);
  for (const auto &[pointer, bits, name] :
       {std::tuple{groups.lens, groups.lens_bits, "lens"}, std::tuple{groups.offs, groups.offs_bits, "offs"}}) {
    if (pointer == nullptr) continue;
    if (bits != 32 && bits != 64) return fail(TURBO_ERROR_ARGUMENT, "%s: values of %s have %d bits", op, name, bits);
    if (!turbo::aligned(pointer, bits / 8)) return fail(TURBO_ERROR_ARGUMENT, "%s: %s is at %p", op, name, pointer);
  }
  return TURBO_OK;
}

// What a group's operands are aligned to must be so in each. `unit` is the bytes of a scale.
turbo_status check_group_steps(const char *op, const Problem &problem, int64_t unit) {
  const struct {
    const char *name;
    int64_t step, multiple;
  } steps[] = {{"b", problem.b_group, 16},
               {"scales of a", problem.a_scale_group * unit, 4},
               {"scales of b", problem.b_scale_group * unit, 4},
               {"bias", problem.bias_group, 1},
               {"c", problem.c_group, 1}};
  for (const auto &[name, step, multiple] : steps)
    if (step < 0 || step % multiple != 0)
      return fail(TURBO_ERROR_ARGUMENT, "%s: groups of %s are %lld bytes apart; a multiple of %lld is needed", op, name,
                  (long long)step, (long long)multiple);
  return TURBO_OK;
}

turbo_status check(const char *op, const Problem &problem, int64_t row_bytes, int64_t unit) {
  TURBO_RETURN_IF_FAILED(check_operand(op, "a", problem.a, problem.m, row_bytes, unit));
  TURBO_RETURN_IF_FAILED(check_operand(op, "b", problem.b, problem.n, row_bytes, unit));
  TURBO_RETURN_IF_FAILED(check_output(op, problem.c, problem.m, problem.n));
  TURBO_RETURN_IF_FAILED(check_group_steps(op, problem, unit));
  TURBO_RETURN_IF_FAILED(check_grid(op, problem.tile, problem.compute_units));
  if (!turbo::aligned(problem.counter, 4))
    return fail(TURBO_ERROR_ARGUMENT, "%s: counter is at %p", op, (void *)problem.counter);
  if (problem.most_units < 0) return fail(TURBO_ERROR_ARGUMENT, "%s: most_units is %d", op, problem.most_units);
  if (of_rows(problem) && problem.c.accumulate)
    return fail(TURBO_ERROR_ARGUMENT, "%s: groups of rows are not added to C", op);
  if (!of_rows(problem) && problem.c.bias != nullptr)
    return fail(TURBO_ERROR_ARGUMENT, "%s: groups of columns have no bias; it must be NULL", op);
  return TURBO_OK;
}

bool is_empty(const Problem &problem) {
  return problem.m == 0 || problem.n == 0 || (problem.groups.count == 0 && !of_rows(problem));
}

// --- the grid --------------------------------------------------------------------------------------------------------

// As many tiles as there may be, whatever the lengths of the groups: each run of rows, of a group or of none, may end with
// a tile of its own.
int64_t most_tiles(const Problem &problem, const TileKernel &tile) {
  const int64_t tiles_n = ceil_div(problem.n, tile.n), groups = problem.groups.count;
  if (!of_rows(problem)) return groups * ceil_div(problem.m, tile.m) * tiles_n;
  return (problem.m / tile.m + (problem.groups.offs == nullptr ? groups + 1 : 2 * groups + 1)) * tiles_n;
}

// Groups of rows: as many work-groups as run at a time, since only the device knows how many tiles there are. Groups of
// columns: one for each tile, as these take different times, unless a counter hands them out.
int64_t work_groups_of(const Problem &problem, const TileKernel &tile) {
  const int64_t units =
      problem.most_units > 0 ? std::min(problem.most_units, problem.compute_units) : problem.compute_units;
  const int64_t at_a_time = units * (tile.kernel.threads() <= 256 ? 2 : 1);
  const bool limited = of_rows(problem) || problem.most_units > 0 || problem.counter != nullptr;
  return std::min(most_tiles(problem, tile), limited ? at_a_time : kMaxTiles);
}

// --- launch ----------------------------------------------------------------------------------------------------------

// `row_bytes`: of all of K. `unit`: bytes of a scale; `block_step`: from 128 columns to the next, scales, of A and of B.
turbo_status launch(const char *op, const TileKernel (&kernels)[kTiles], const Problem &problem, int64_t row_bytes,
                    int64_t unit, int64_t a_block_step, int64_t b_block_step, turbo::Target target) {
  const bool rows = of_rows(problem);
  const int64_t groups = problem.groups.count,
                each = rows ? ceil_div(problem.m, std::max<int64_t>(groups, 1)) : problem.m;
  const TileKernel &tile = choose_tile(kernels, each, problem.n, problem.tile, problem.compute_units, groups);
  const int64_t number = most_tiles(problem, tile), work_groups = work_groups_of(problem, tile);
  if (number + work_groups > kMaxNumber)
    return fail(TURBO_ERROR_ARGUMENT, "%s: %lld tiles; less than %lld are accepted", op, (long long)number,
                (long long)kMaxNumber);
  const int64_t c_bytes = kFloatBytes[problem.c.dtype];
  GroupedGemmArgs args{};
  args.gemm = arguments_of(problem.a, problem.b, problem.c, problem.m, problem.n, row_bytes, tile);
  args.gemm.vector = args.gemm.vector && problem.c_group * c_bytes % 16 == 0;
  args.b.group = problem.b_group;
  args.a_scale.group = problem.a_scale_group * unit;
  args.b_scale.group = problem.b_scale_group * unit;
  if (problem.c.bias != nullptr) args.bias.group = problem.bias_group * kFloatBytes[problem.c.bias_dtype];
  args.c.group = problem.c_group * c_bytes;
  if (rows) {
    args.a.row = problem.a.stride;
    args.a_scale.row = problem.a.scale_stride * unit;
    args.c.row = problem.c.stride * c_bytes;
  } else {
    args.a.row = args.b.row = 128 * row_bytes / problem.k;
    args.a_scale.row = a_block_step * unit;
    args.b_scale.row = b_block_step * unit;
  }
  args.lens = problem.groups.lens;
  args.offs = problem.groups.offs;
  args.wide_lens = problem.groups.lens_bits == 64;
  args.wide_offs = problem.groups.offs_bits == 64;
  args.groups = int(groups);
  args.size = int(rows ? problem.m : problem.k);
  args.pack_shift = row_bytes < problem.k;
  args.work_groups = int(work_groups);
  args.counter = problem.counter;
  return tile.kernel.launch(target, {unsigned(work_groups)}, args);
}

turbo_status grouped_gemm_mx(const turbo_grouped_gemm_mx_args &args, turbo::Target target) {
  const char *op = "grouped_gemm_mx";
  const Problem &problem = args.problem;
  const Variant *variant = find(mx_variants, args.format_a, args.format_b);
  TURBO_RETURN_IF_FAILED(check_formats(op, variant, args.format_a, args.format_b));
  TURBO_RETURN_IF_FAILED(check_sizes(op, problem.m, problem.n, problem.k, 128));
  TURBO_RETURN_IF_FAILED(check_groups(op, problem.groups));
  if (is_empty(problem)) return TURBO_OK;
  const int64_t row_bytes = args.format_a == e2m1 ? problem.k / 2 : problem.k;
  TURBO_RETURN_IF_FAILED(check(op, problem, row_bytes, 1));
  return launch(op, variant->kernels, problem, row_bytes, 1, 4, 4, target);
}

turbo_status grouped_gemm_fp8(const turbo_grouped_gemm_fp8_args &args, turbo::Target target) {
  const char *op = "grouped_gemm_fp8";
  const Problem &problem = args.problem;
  const turbo_gemm_operand &a = problem.a, &b = problem.b;
  if (args.block != 0 && args.block != 128)
    return fail(TURBO_ERROR_ARGUMENT, "%s: block is %d; 0 and 128 are accepted", op, args.block);
  TURBO_RETURN_IF_FAILED(check_sizes(op, problem.m, problem.n, problem.k, of_rows(problem) ? 16 : 128));
  TURBO_RETURN_IF_FAILED(check_groups(op, problem.groups));
  if (is_empty(problem)) return TURBO_OK;
  TURBO_RETURN_IF_FAILED(check(op, problem, problem.k, 4));
  TURBO_RETURN_IF_FAILED(check_block(op, "a", a, args.block));
  TURBO_RETURN_IF_FAILED(check_block(op, "b", b, args.block));
  if (a.scale_rows != 1)
    return fail(TURBO_ERROR_ARGUMENT, "%s: %d rows of a share a scale; 1 is accepted", op, a.scale_rows);
  turbo_mx_format format_a, format_b;
  TURBO_RETURN_IF_FAILED(format_of(op, "a", args.dtype_a, target.device, format_a));
  TURBO_RETURN_IF_FAILED(format_of(op, "b", args.dtype_b, target.device, format_b));
  const auto &variants = args.block == 0 ? row_variants : b.scale_rows == 1 ? block_row_variants : block_tile_variants;
  const bool blocks = args.block != 0;
  return launch(op, find(variants, format_a, format_b)->kernels, problem, problem.k, 4, blocks ? a.scale_step : 0,
                blocks ? b.scale_step : 0, target);
}

turbo_status grouped_gemm_half(const turbo_grouped_gemm_half_args &args, turbo::Target target) {
  const char *op = "grouped_gemm_half";
  const Problem &problem = args.problem;
  if (args.dtype != TURBO_FLOAT16 && args.dtype != TURBO_BFLOAT16)
    return fail(TURBO_ERROR_ARGUMENT, "%s: dtype is %d; float16 and bfloat16 are accepted", op, args.dtype);
  TURBO_RETURN_IF_FAILED(check_sizes(op, problem.m, problem.n, problem.k, 8));
  TURBO_RETURN_IF_FAILED(check_groups(op, problem.groups));
  if (!of_rows(problem)) return fail(TURBO_ERROR_ARGUMENT, "%s: groups of 16 bits are rows; lens is NULL", op);
  if (is_empty(problem)) return TURBO_OK;
  TURBO_RETURN_IF_FAILED(check(op, problem, 2 * problem.k, 0));
  return launch(op, args.dtype == TURBO_FLOAT16 ? fp16_kernels : bf16_kernels, problem, 2 * problem.k, 0, 0, 0, target);
}

}  // namespace
}  // namespace turbo_grouped_gemm

// --- the C interface -------------------------------------------------------------------------------------------------

TURBO_DEFINE_LIBRARY_FUNCTIONS(turbo_grouped_gemm, TURBO_GROUPED_GEMM_ABI_VERSION, "grouped_gemm_fp8_row")

turbo_status turbo_grouped_gemm_mx(const turbo_grouped_gemm_mx_args *args, int device, void *stream) {
  return turbo_grouped_gemm::grouped_gemm_mx(*args, {device, stream});
}

turbo_status turbo_grouped_gemm_fp8(const turbo_grouped_gemm_fp8_args *args, int device, void *stream) {
  return turbo_grouped_gemm::grouped_gemm_fp8(*args, {device, stream});
}

turbo_status turbo_grouped_gemm_half(const turbo_grouped_gemm_half_args *args, int device, void *stream) {
  return turbo_grouped_gemm::grouped_gemm_half(*args, {device, stream});
}
