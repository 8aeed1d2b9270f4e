// SPDX-License-Identifier: MIT
//
// Host launcher of the composable-kernel GEMMs. The code objects are there only in a build with TURBO_BUILD_CK=1.
#include <algorithm>
#include <cstdint>

#include "ck_args.h"
#include "turbo/check.h"
#include "turbo/kernels.h"
#include "turbo_gemm.h"

namespace turbo_gemm {
namespace {

using turbo::aligned;
using turbo::fail;
using turbo::Kernel;

const Kernel row("ck_gemm_fp8_row", "ck_gemm_fp8_row", kCkThreads);
const Kernel block_kernel("ck_gemm_fp8_block", "ck_gemm_fp8_block", kCkThreads);

constexpr int64_t kMaxBytes = (int64_t{1} << 31) - 1;  // of an operand and of C: CK's offsets have 31 bits
constexpr int64_t kColumns = 8;                        // of C, that a store holds

turbo_status check_operand(const char *name, const turbo_gemm_ck_operand &x, int64_t rows, int64_t k) {
  if (x.data == nullptr || !aligned(x.data, 16) || x.scale == nullptr)
    return fail(TURBO_ERROR_ARGUMENT, "gemm_ck: %s is at %p, its scales at %p; 16-byte aligned rows are needed", name,
                x.data, static_cast<const void *>(x.scale));
  if (x.stride % 16 != 0 || x.stride < k || x.stride > kMaxBytes / std::max<int64_t>(rows, 1))
    return fail(TURBO_ERROR_ARGUMENT, "gemm_ck: %lld rows of %s are %lld bytes apart; at most 2**31 bytes are accepted",
                (long long)rows, name, (long long)x.stride);
  return TURBO_OK;
}

turbo_status gemm_ck(const turbo_gemm_ck_args &given, turbo::Target target) {
  const auto &[a, b, c, m, n, k, block] = given;
  if (block != 0 && block != 128)
    return fail(TURBO_ERROR_ARGUMENT, "gemm_ck: block is %d; 0 and 128 are accepted", block);
  if (m < 0 || n < 0 || n % kColumns != 0 || k < 1 || k % 16 != 0)
    return fail(TURBO_ERROR_ARGUMENT, "gemm_ck: m = %lld, n = %lld, k = %lld; n a multiple of 8, k of 16", (long long)m,
                (long long)n, (long long)k);
  if (m == 0 || n == 0) return TURBO_OK;
  TURBO_RETURN_IF_FAILED(check_operand("a", a, m, k));
  TURBO_RETURN_IF_FAILED(check_operand("b", b, n, k));
  if (c == nullptr || !aligned(c, 16) || n > kMaxBytes / 2 / m)
    return fail(TURBO_ERROR_ARGUMENT, "gemm_ck: c is at %p, %lld x %lld; 16-byte aligned, at most 2**31 bytes", c,
                (long long)m, (long long)n);
  const CkGemmArgs args{a.data, b.data, a.scale,       b.scale,       c,     int(m),
                        int(n), int(k), int(a.stride), int(b.stride), int(n)};
  const int64_t tiles = turbo::ceil_div(m, kCkTile) * turbo::ceil_div(n, kCkTile);
  return (block == 0 ? row : block_kernel).launch(target, {unsigned(tiles)}, args);
}

}  // namespace
}  // namespace turbo_gemm

turbo_status turbo_gemm_ck(const turbo_gemm_ck_args *args, int device, void *stream) {
  return turbo_gemm::gemm_ck(*args, {device, stream});
}

turbo_status turbo_gemm_ck_check(int device) { return turbo::check_device(device, turbo_gemm::row.object()); }
