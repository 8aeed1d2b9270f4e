// SPDX-License-Identifier: MIT
//
// Host launcher of the attention: checks the arguments, chooses the kernel, launches.
#include <cmath>
#include <cstdint>

#include "attention_args.h"
#include "turbo/check.h"
#include "turbo/kernels.h"
#include "turbo/library.h"
#include "turbo_attention.h"

namespace turbo_attention {
namespace {

using turbo::fail;
using turbo::Kernel;

// --- kernels ---------------------------------------------------------------------------------------------------------

constexpr turbo_dtype bf16 = TURBO_BFLOAT16, fp16 = TURBO_FLOAT16;
constexpr bool full = false, causal = true;

struct Variant {
  turbo_dtype dtype;
  int64_t head_dim;
  bool causal;
  Kernel kernel;
};

#define VARIANT(dtype, head_dim, mask) \
  {dtype, head_dim, mask,              \
   Kernel("attention_forward", "attention_forward_" #dtype "_" #head_dim "_" #mask, kWaves * 64)},

const Variant variants[] = {TURBO_ATTENTION_KERNELS(VARIANT)};

const Kernel *find(const turbo_attention_forward_args &args) {
  for (const Variant &variant : variants)
    if (variant.dtype == args.dtype && variant.head_dim == args.head_dim && variant.causal == (args.causal != 0))
      return &variant.kernel;
  return nullptr;
}

// --- checks ----------------------------------------------------------------------------------------------------------

constexpr int64_t kMaxRows = (int64_t{1} << 30) - 1024;  // sums and differences of two, and tiles beyond, fit 31 bits
constexpr int64_t kMaxRowStride = int64_t{1} << 23;      // 64 rows of 16 bits are 2^30 bytes
constexpr int64_t kMaxWork = int64_t{1} << 22;           // a grid has less than 2^32 work-items

turbo_status check_size(const char *name, int64_t size, int64_t most) {
  if (size >= 0 && size <= most) return TURBO_OK;
  return fail(TURBO_ERROR_ARGUMENT, "attention_forward: %s is %lld; 0 to %lld are accepted", name, (long long)size,
              (long long)most);
}

turbo_status check_tensor(const char *name, const turbo_attention_tensor &x) {
  if (x.data == nullptr || !turbo::aligned(x.data, 16))
    return fail(TURBO_ERROR_ARGUMENT, "attention_forward: %s is at %p; a 16-byte aligned address is needed", name,
                x.data);
  for (int i = 0; i < 3; ++i)
    if (x.strides[i] < 0 || x.strides[i] % 8 != 0 || (i == 1 && x.strides[i] > kMaxRowStride))
      return fail(
          TURBO_ERROR_ARGUMENT,
          "attention_forward: strides of %s are %lld, %lld, %lld; multiples of 8 are needed, of a row at most %lld",
          name, (long long)x.strides[0], (long long)x.strides[1], (long long)x.strides[2], (long long)kMaxRowStride);
  return TURBO_OK;
}

// --- launch ----------------------------------------------------------------------------------------------------------

Strides bytes_of(const turbo_attention_tensor &x) { return {2 * x.strides[0], 2 * x.strides[1], 2 * x.strides[2]}; }

// exp(x) is exp2(x log2(e)). Zero would make NaN of -inf, which is how a key is hidden; what is tiny does as well.
float scale_of(float softmax_scale) {
  const float scale = std::fabs(softmax_scale) * 1.44269504f;
  return scale < 0x1p-100f ? 0x1p-100f : scale;
}

turbo_status forward(const turbo_attention_forward_args &args, turbo::Target target) {
  const Kernel *kernel = find(args);
  if (kernel == nullptr)
    return fail(TURBO_ERROR_ARGUMENT,
                "attention_forward: dtype is %d, head_dim %lld; accepted are float16 and bfloat16, 64 and 128",
                args.dtype, (long long)args.head_dim);
  TURBO_RETURN_IF_FAILED(check_size("batches", args.batches, kMaxRows));
  TURBO_RETURN_IF_FAILED(check_size("sq", args.sq, kMaxRows));
  TURBO_RETURN_IF_FAILED(check_size("sk", args.sk, kMaxRows));
  TURBO_RETURN_IF_FAILED(check_size("heads", args.heads, kMaxRows));
  if (args.batches == 0 || args.sq == 0 || args.heads == 0) return TURBO_OK;
  if (args.sk == 0) return fail(TURBO_ERROR_ARGUMENT, "attention_forward: sk is 0; there must be a key");
  if (args.key_heads < 1 || args.heads % args.key_heads != 0)
    return fail(TURBO_ERROR_ARGUMENT, "attention_forward: heads is %lld, key_heads %lld; a divisor is needed",
                (long long)args.heads, (long long)args.key_heads);
  const int64_t tiles = turbo::ceil_div(args.sq, kTileRows);
  if (args.heads > kMaxWork / tiles || args.batches > kMaxWork / (tiles * args.heads))
    return fail(TURBO_ERROR_ARGUMENT, "attention_forward: %lld x %lld x %lld work-groups; at most %lld are accepted",
                (long long)args.batches, (long long)args.heads, (long long)tiles, (long long)kMaxWork);
  TURBO_RETURN_IF_FAILED(check_tensor("q", args.q));
  TURBO_RETURN_IF_FAILED(check_tensor("k", args.k));
  TURBO_RETURN_IF_FAILED(check_tensor("v", args.v));
  TURBO_RETURN_IF_FAILED(check_tensor("out", args.out));
  TURBO_REQUIRE("attention_forward", args.lse, "lse");
  TURBO_REQUIRE("attention_forward", args.lse_low, "lse_low");
  ForwardArgs device{};
  device.q = static_cast<const unsigned char *>(args.q.data);
  device.k = static_cast<const unsigned char *>(args.k.data);
  device.v = static_cast<const unsigned char *>(args.v.data);
  device.out = static_cast<unsigned char *>(args.out.data);
  device.lse = args.lse;
  device.lse_low = args.lse_low;
  device.q_strides = bytes_of(args.q);
  device.k_strides = bytes_of(args.k);
  device.v_strides = bytes_of(args.v);
  device.out_strides = bytes_of(args.out);
  device.lse_batch = args.lse_strides[0];
  device.lse_head = args.lse_strides[1];
  device.sq = int(args.sq);
  device.sk = int(args.sk);
  device.heads = int(args.heads);
  device.group = int(args.heads / args.key_heads);
  device.tiles = int(tiles);
  device.work = int(args.batches * args.heads * tiles);
  device.scale = scale_of(args.softmax_scale);
  device.negative = args.softmax_scale < 0.0f;
  return kernel->launch(target, {unsigned(device.work)}, device);
}

}  // namespace
}  // namespace turbo_attention

// --- the C interface -------------------------------------------------------------------------------------------------

TURBO_DEFINE_LIBRARY_FUNCTIONS(turbo_attention, TURBO_ATTENTION_ABI_VERSION, "attention_forward")

turbo_status turbo_attention_forward(const turbo_attention_forward_args *args, int device, void *stream) {
  return turbo_attention::forward(*args, {device, stream});
}
