// SPDX-License-Identifier: MIT
//
// Instantiates every function of the device headers, so that a test can compile them all for both architectures and
// look at the instructions. Each kernel is named after what it shows.
#include "turbo/buffer.h"
#include "turbo/fp8.h"
#include "turbo/lds.h"
#include "turbo/lds_dma.h"
#include "turbo/mfma.h"
#include "turbo/vec.h"
#include "turbo/wave.h"
#include "turbo/xcd.h"

using namespace turbo;

// --- vec.h -----------------------------------------------------------------------------------------------------------

template <class T, int N>
TURBO_DEVICE void copy(global<void> *to, global<const void> *from) {
  const int at = thread_index() * N;
  auto *source = (const global<T> *)from + at;
  auto *target = (global<T> *)to + at;
  if (!aligned(source, 16)) return;
  store<N>(target, from_float<T, N>(to_float<T, N>(load<N>(source)) + 1.0f));
  store_streaming<N>(target, load_streaming<N>(source));
  target[0] = from_float<T>(to_float(source[0]) * rsqrt(to_float(source[N - 1])));
}

#define COPY(name, T, N) \
  TURBO_KERNEL(64, 1) void vec_##name##_##N(global<void> *to, global<const void> *from) { copy<T, N>(to, from); }
COPY(bf16, bf16, 1)
COPY(bf16, bf16, 2)
COPY(bf16, bf16, 4)
COPY(bf16, bf16, 8)
COPY(fp16, fp16, 1)
COPY(fp16, fp16, 2)
COPY(fp16, fp16, 4)
COPY(fp16, fp16, 8)
COPY(fp32, float, 1)
COPY(fp32, float, 2)
COPY(fp32, float, 4)

TURBO_KERNEL(64, 1) void vec_sums(global<float> *to, global<const float> *from) {
  vec<float, 4> x = load<4>(from + thread_index() * 4);
  forget(x);
  to[thread_index()] = dot<4>(x, x, sum<4>(x));
}

// --- wave.h ----------------------------------------------------------------------------------------------------------

TURBO_KERNEL(64, 1) void wave_reductions(global<float> *to) {
  const float x = to[thread_index()];
  const float lanes = dpp::move<dpp::quad_perm(1, 0, 3, 2)>(x, 0.0f) + dpp::move<dpp::row_mirror>(x, 0.0f) +
                      dpp::move<dpp::row_half_mirror>(x, 0.0f);
  to[thread_index()] = wave_sum(x) + wave_max(x) + shuffle(x, thread_index() ^ 5) + read_lane(x, 3) + lanes;
}

TURBO_KERNEL(64, 1) void wave_scans(global<unsigned> *to) {
  to[thread_index()] = wave_scan(to[thread_index()], [](unsigned x, unsigned y) { return x + y; });
}

TURBO_KERNEL(1024, 4) void block_reductions(global<float> *to) {
  __shared__ BlockReduce<1024>::Slots slots;
  const unsigned block = block_index() + block_index_y() + block_index_z();
  float x = to[block * 1024 + (unsigned)thread_index()];
  x += BlockReduce<1024>::apply<Sum>(x, slots, 0);
  x += BlockReduce<1024>::apply<Max>(x, slots, 1);
  to[block * 1024 + (unsigned)thread_index()] = x;
}

// --- lds.h, buffer.h -------------------------------------------------------------------------------------------------

TURBO_KERNEL(64, 1) void lds_swizzled(global<bf16> *to, global<const bf16> *from) {
  __shared__ __attribute__((aligned(16))) bf16 tile[64 * 64];
  auto *lds = (local<bf16> *)&tile[0];
  const int row = thread_index();
  for (int chunk = 0; chunk < 8; ++chunk)
    store<8>(lds + row * 64 + swizzle<8>(row, chunk) * 8, load<8>(from + row * 64 + chunk * 8));
  barrier();
  store<8>(to + row * 8, load<8>((const local<bf16> *)lds + swizzle<8>(row, 3) * 8));
}

#if defined(__gfx950__)
TURBO_KERNEL(64, 1) void lds_transposed(global<bf16> *to, global<fp16> *to16, global<int> *bytes) {
  __shared__ __attribute__((aligned(16))) bf16 tile[256];
  auto *lds = (local<bf16> *)&tile[0];
  store<4>(lds + thread_index() * 4, load<4>((const global<bf16> *)to + thread_index() * 4));
  barrier();
  store<4>(to + thread_index() * 4, load_transposed(lds + thread_index() * 4));
  store<4>(to16 + thread_index() * 4, load_transposed((local<fp16> *)lds + thread_index() * 4));
  store<2>(bytes + thread_index() * 2, load_transposed_bytes((local<unsigned char> *)lds + thread_index() * 8));
}
#endif

TURBO_KERNEL(64, 1) void buffer_accesses(global<float> *to, global<const float> *from, unsigned size) {
  const Buffer source = make_buffer(from, size), target = make_buffer((const global<float> *)to, size);
  const int offset = thread_index() * 16;
  store<float, 1>(load<float, 1>(source, offset), target, offset);
  store<bf16, 4>(load<bf16, 4>(source, offset, 64), target, offset, 64);
  store<bf16, 8>(load<bf16, 8>(source, offset, 128), target, offset, 128);
}

template <int Bytes>
TURBO_DEVICE void through_lds(global<int> *to, global<const int> *from, unsigned size) {
  __shared__ __attribute__((aligned(16))) int tile[64 * Bytes / 4];
  load_to_lds<Bytes>(make_buffer(from, size), (local<void> *)(local<int> *)&tile[0], thread_index() * Bytes);
  wait_vector_memory<0>();
  barrier();
  to[thread_index()] = tile[thread_index() ^ 1];
}
TURBO_KERNEL(64, 1) void buffer_to_lds_4(global<int> *to, global<const int> *from, unsigned size) {
  through_lds<4>(to, from, size);
}
#if defined(__gfx950__)
TURBO_KERNEL(64, 1) void buffer_to_lds_16(global<int> *to, global<const int> *from, unsigned size) {
  through_lds<16>(to, from, size);
}
#endif

// --- lds_dma.h -------------------------------------------------------------------------------------------------------

TURBO_KERNEL(128, 1) void lds_dma(global<int> *to, global<const unsigned char> *from, unsigned size) {
  constexpr int bytes = kLdsDmaMaxBytes;
  __shared__ __attribute__((aligned(16))) int tile[128 * bytes / 4];
  auto *lds = (local<int> *)&tile[0];
  const int start = int(reinterpret_cast<unsigned long>(lds)) + wave_index() * 64 * bytes;
  const Descriptor source = describe(from, size);
  fetch_to_lds<bytes>(source, thread_index() * bytes, start);
  wait_fetched();
  bare_barrier();
  const int x = lds[thread_index() ^ 65];
  wait_lds();
  bare_barrier();
  lds[thread_index()] = x;
  fetch_to_lds<4>(source, thread_index() * 4, start);
  fetch_to_lds<bytes>(source, thread_index() * bytes, int(size) / 2, start);
  wait_fetched();
  order();
  to[thread_index()] = lds[thread_index()] + x;
}

// --- fp8.h -----------------------------------------------------------------------------------------------------------

#define FP8(F)                                                                                            \
  TURBO_KERNEL(64, 1) void convert_##F(global<float> *x, global<unsigned> *packed) {                      \
    const vec<float, 4> decoded = decode_fp8x4<fp8_##F>(packed[thread_index()]);                          \
    packed[thread_index()] = encode_fp8<fp8_##F>(load<4>((const global<float> *)x + thread_index() * 4)); \
    store<4>(x + thread_index() * 4, decoded);                                                            \
  }
FP8(e4m3)
FP8(e5m2)
FP8(e4m3_fnuz)
FP8(e5m2_fnuz)

// --- mfma.h ----------------------------------------------------------------------------------------------------------

template <class T, int N, class C>
TURBO_DEVICE void product(C (*instruction)(vec<T, N>, vec<T, N>, C), global<const void> *ab, global<C> *c) {
  auto *a = (const global<T> *)ab + thread_index() * N;
  c[thread_index()] = instruction(load<N>(a), load<N>(a + 64 * N), c[thread_index()]);
}
#define PRODUCT(name, C) \
  TURBO_KERNEL(64, 1) void name##_kernel(global<const void> *ab, global<C> *c) { product(name, ab, c); }
PRODUCT(mfma_f32_16x16x16_bf16, f32x4)
PRODUCT(mfma_f32_16x16x16_fp16, f32x4)
PRODUCT(mfma_f32_32x32x8_bf16, f32x16)
PRODUCT(mfma_f32_32x32x8_fp16, f32x16)
PRODUCT(mfma_f32_16x16x32_bf16, f32x4)
PRODUCT(mfma_f32_16x16x32_fp16, f32x4)
PRODUCT(mfma_f32_32x32x16_bf16, f32x16)
PRODUCT(mfma_f32_32x32x16_fp16, f32x16)

#define SCALAR_PRODUCT(name, T, C)                                                            \
  TURBO_KERNEL(64, 1) void name##_kernel(global<const T> *ab, global<C> *c) {                 \
    c[thread_index()] = name(ab[thread_index()], ab[thread_index() + 64], c[thread_index()]); \
  }
SCALAR_PRODUCT(mfma_f32_16x16x4_f32, float, f32x4)
SCALAR_PRODUCT(mfma_f32_32x32x2_f32, float, f32x16)
SCALAR_PRODUCT(mfma_f32_16x16x32_fp8_fp8, long, f32x4)
SCALAR_PRODUCT(mfma_f32_16x16x32_fp8_bf8, long, f32x4)
SCALAR_PRODUCT(mfma_f32_16x16x32_bf8_fp8, long, f32x4)
SCALAR_PRODUCT(mfma_f32_16x16x32_bf8_bf8, long, f32x4)
SCALAR_PRODUCT(mfma_f32_32x32x16_fp8_fp8, long, f32x16)
SCALAR_PRODUCT(mfma_f32_32x32x16_fp8_bf8, long, f32x16)
SCALAR_PRODUCT(mfma_f32_32x32x16_bf8_fp8, long, f32x16)
SCALAR_PRODUCT(mfma_f32_32x32x16_bf8_bf8, long, f32x16)

#if defined(__gfx950__)
#define SCALED_PRODUCT(name, A, B, C)                                                                     \
  TURBO_KERNEL(64, 1)                                                                                     \
  void name##_##A##_##B##_kernel(global<const mx_operand> *ab, global<C> *c, global<const int> *scales) { \
    const int at = thread_index();                                                                        \
    c[at] = name<MxType::A, MxType::B, 1, 2>(ab[at], ab[at + 64], c[at], scales[at], scales[at + 64]);    \
  }
SCALED_PRODUCT(mfma_scale_f32_16x16x128, fp8, fp8, f32x4)
SCALED_PRODUCT(mfma_scale_f32_16x16x128, fp4, fp4, f32x4)
SCALED_PRODUCT(mfma_scale_f32_16x16x128, bf8, fp4, f32x4)
SCALED_PRODUCT(mfma_scale_f32_32x32x64, fp8, fp8, f32x16)
SCALED_PRODUCT(mfma_scale_f32_32x32x64, fp4, fp4, f32x16)
#endif

// --- xcd.h -----------------------------------------------------------------------------------------------------------

TURBO_KERNEL(64, 1) void xcd_order_of_blocks(global<unsigned> *to, unsigned total) {
  to[block_index()] = xcd_order(total);
}
