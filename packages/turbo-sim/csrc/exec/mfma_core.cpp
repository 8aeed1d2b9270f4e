// SPDX-License-Identifier: MIT
#include "exec/mfma_core.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "numerics/formats.h"

// This file is compiled with -ffp-contract=fast: products of 16-bit and 8-bit inputs are exact in double, so a fused
// multiply-add gives the same bits, faster.
namespace turbo_sim {

namespace {

constexpr int kLanes = 64;
constexpr int kMaxPanel = 2048;  // K * M * blocks of the largest form (32x32x64; 16x16x128)

// ---- elements ---------------------------------------------------------------------------------------------------

int bits_of(Element e) {
  switch (e) {
    case Element::f64: return 64;
    case Element::f32:
    case Element::xf32: return 32;
    case Element::f16:
    case Element::bf16: return 16;
    case Element::e2m3:
    case Element::e3m2: return 6;
    case Element::e2m1: return 4;
    default: return 8;
  }
}

// Any format with subnormals and at most 8 bits, without branches: rebias, or normalise by a float subtraction.
template <int EXP, int MAN, int BIAS>
inline float small_float(uint32_t code) {
  constexpr uint32_t kMagnitude = (1u << (EXP + MAN)) - 1;
  constexpr uint32_t kRebias = uint32_t(127 - BIAS) << 23;
  const uint32_t sign = (code >> (EXP + MAN)) << 31;
  const uint32_t body = (code & kMagnitude) << (23 - MAN);
  const float subnormal =
      std::bit_cast<float>(body + kRebias + (1u << 23)) - std::bit_cast<float>(kRebias + (1u << 23));
  const uint32_t bits = body < (1u << 23) ? std::bit_cast<uint32_t>(subnormal) : body + kRebias;
  return std::bit_cast<float>(bits | sign);
}

inline float fp8_value(uint32_t code, Element e) {
  const float nan = std::bit_cast<float>(0x7FC00000u);
  switch (e) {
    case Element::e4m3:
    case Element::e4m3_split: return (code & 0x7F) == 0x7F ? nan : small_float<4, 3, 7>(code);
    case Element::e4m3fnuz: return code == 0x80 ? nan : small_float<4, 3, 8>(code);
    case Element::e5m2fnuz: return code == 0x80 ? nan : small_float<5, 2, 16>(code);
    default: {
      const float infinity = std::bit_cast<float>(0x7F800000u | (code & 0x80u) << 24);
      const float value = small_float<5, 2, 15>(code);
      const float finite = (code & 0x7F) == 0x7C ? infinity : value;
      return (code & 0x7F) > 0x7C ? nan : finite;
    }
  }
}

// ---- panels -----------------------------------------------------------------------------------------------------
// panel[(block * K + k) * M + row]: for a fixed k the rows are contiguous, which is how lanes hold them.

// Calls store(element_index_in_lane, get) for 16 lanes at a time; get(j) is the raw code of lane j of the 16.
template <int BITS, class Value>
inline void unpack_with(const uint32_t *regs, int per_lane, int m, int k_total, int blocks, bool split, double *panel,
                        Value value) {
  constexpr uint32_t kMask = BITS == 32 ? 0xFFFFFFFFu : (1u << BITS) - 1;
  for (int i = 0; i < per_lane; ++i) {
    const int bit = i * BITS, word = bit / 32, shift = bit % 32;
    const bool straddles = shift + BITS > 32;
    for (int chunk = 0; chunk < kLanes; chunk += 16) {
      const uint32_t *__restrict low = regs + word * kLanes + chunk;
      const uint32_t *__restrict high = straddles ? low + kLanes : low;
      const int group = chunk / m, row = chunk % m;
      int index;  // block * K + k
      if (blocks > 1) {
        index = group * k_total + i;
      } else if (split) {
        index = (i / 16) * (k_total / 2) + 16 * group + i % 16;
      } else {
        index = group * per_lane + i;
      }
      double *__restrict out = panel + index * m + row;
      // "unroll 1": unrolled before vectorisation these loops stay scalar.
      if (straddles) {
#pragma GCC unroll 1
        for (int j = 0; j < 16; ++j) out[j] = double(value(((low[j] >> shift) | (high[j] << (32 - shift))) & kMask));
      } else {
#pragma GCC unroll 1
        for (int j = 0; j < 16; ++j) out[j] = double(value((low[j] >> shift) & kMask));
      }
    }
  }
}

// 4x4 forms: four lanes a block, one register at a time.
template <int BITS, class Value>
inline void unpack_4x4(const uint32_t *regs, int k_total, double *panel, Value value) {
  constexpr uint32_t kMask = BITS == 32 ? 0xFFFFFFFFu : (1u << BITS) - 1;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int k = 0; k < k_total; ++k) {
      const uint32_t code = (regs[(k * BITS / 32) * kLanes + lane] >> (k * BITS % 32)) & kMask;
      panel[((lane / 4) * k_total + k) * 4 + lane % 4] = double(value(code));
    }
}

template <int BITS, class Value>
inline void unpack_as(const MfmaForm &f, const uint32_t *regs, bool split, double *panel, Value value) {
  const int per_lane = f.k * f.m * f.blocks / kLanes;
  if (f.m == 4) {
    unpack_4x4<BITS>(regs, f.k, panel, value);
  } else {
    unpack_with<BITS>(regs, per_lane, f.m, f.k, f.blocks, split, panel, value);
  }
}

void unpack(const MfmaForm &f, Element e, const uint32_t *regs, double *panel) {
  switch (e) {
    case Element::bf16: return unpack_as<16>(f, regs, false, panel, [](uint32_t c) { return bf16_to_f32(c); });
    case Element::f16: return unpack_as<16>(f, regs, false, panel, [](uint32_t c) { return f16_to_f32(c); });
    case Element::f32: return unpack_as<32>(f, regs, false, panel, [](uint32_t c) { return std::bit_cast<float>(c); });
    case Element::xf32:
      return unpack_as<32>(f, regs, false, panel, [](uint32_t c) {
        // Infinity survives the cut; a NaN must not turn into infinity.
        const uint32_t cut = c & 0xFFFFE000u;
        return std::bit_cast<float>((c & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : cut);
      });
    case Element::i8: return unpack_as<8>(f, regs, false, panel, [](uint32_t c) { return float(int8_t(c)); });
    case Element::e4m3:
      return unpack_as<8>(f, regs, false, panel, [](uint32_t c) { return fp8_value(c, Element::e4m3); });
    case Element::e5m2:
      return unpack_as<8>(f, regs, false, panel, [](uint32_t c) { return fp8_value(c, Element::e5m2); });
    case Element::e4m3fnuz:
      return unpack_as<8>(f, regs, false, panel, [](uint32_t c) { return fp8_value(c, Element::e4m3fnuz); });
    case Element::e5m2fnuz:
      return unpack_as<8>(f, regs, false, panel, [](uint32_t c) { return fp8_value(c, Element::e5m2fnuz); });
    case Element::e4m3_split:
      return unpack_as<8>(f, regs, true, panel, [](uint32_t c) { return fp8_value(c, Element::e4m3); });
    case Element::e5m2_split:
      return unpack_as<8>(f, regs, true, panel, [](uint32_t c) { return fp8_value(c, Element::e5m2); });
    case Element::e2m3: return unpack_as<6>(f, regs, false, panel, [](uint32_t c) { return small_float<2, 3, 1>(c); });
    case Element::e3m2: return unpack_as<6>(f, regs, false, panel, [](uint32_t c) { return small_float<3, 2, 3>(c); });
    case Element::e2m1: return unpack_as<4>(f, regs, false, panel, [](uint32_t c) { return small_float<2, 1, 1>(c); });
    case Element::f64: break;
  }
  throw std::logic_error("mfma: element type without a panel form");
}

// Multiplies each K block of 32 by its rows' e8m0 scales. Powers of two: exact in double.
void apply_scales(const MfmaForm &f, const uint8_t *scales, double *panel) {
  double values[kLanes];  // lane = row + m * block
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t power = uint64_t(1023 - 127 + scales[lane]) << 52;
    values[lane] = std::bit_cast<double>(scales[lane] == 255 ? 0x7FF8000000000000ull : power);
  }
  for (int k = 0; k < f.k; ++k) {
    const double *__restrict scale = values + (k / 32) * f.m;
    double *__restrict out = panel + k * f.m;
    for (int row = 0; row < f.m; ++row) out[row] *= scale[row];
  }
}

// ---- products ---------------------------------------------------------------------------------------------------

typedef double Double4 __attribute__((vector_size(32), aligned(8), may_alias));

// Sums of one M x M block: out[row * M + column], computed in tiles of 4 x 8.
template <int M>
inline void product(const double *a, const double *b, int k_total, double *out) {
  for (int row = 0; row < M; row += 4) {
    for (int column = 0; column < M; column += 8) {
      Double4 sum[4][2] = {};
      const double *pa = a + row;
      const double *pb = b + column;
      for (int k = 0; k < k_total; ++k, pa += M, pb += M) {
        const Double4 b0 = *reinterpret_cast<const Double4 *>(pb);
        const Double4 b1 = *reinterpret_cast<const Double4 *>(pb + 4);
        for (int i = 0; i < 4; ++i) {
          sum[i][0] += pa[i] * b0;
          sum[i][1] += pa[i] * b1;
        }
      }
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<Double4 *>(out + (row + i) * M + column) = sum[i][0];
        *reinterpret_cast<Double4 *>(out + (row + i) * M + column + 4) = sum[i][1];
      }
    }
  }
}

void block_products(const MfmaForm &f, const double *a, const double *b, double *out) {
  if (f.m == 16) return product<16>(a, b, f.k, out);
  if (f.m == 32) return product<32>(a, b, f.k, out);
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      double sum = 0;
      for (int k = 0; k < f.k; ++k) sum += a[k * 4 + i] * b[k * 4 + j];
      out[i * 4 + j] = sum;
    }
}

inline uint32_t rounded_sum(double sum, uint32_t c) {
  const float value = float(sum + double(std::bit_cast<float>(c)));
  return value != value ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
}

inline uint32_t integer_sum(double sum, uint32_t c) { return uint32_t(int32_t(sum)) + c; }

// Adds C and writes one block's D. Rows of a block are runs of M lanes in one register.
template <class Finish>
inline void store_block(const MfmaForm &f, int block, const double *sums, const MfmaOperands &o, uint32_t *d,
                        Finish finish) {
  const int m = f.m;
  for (int row = 0; row < m; ++row) {
    int reg, lane;
    if (m == 32) {
      reg = 16 * block + 4 * (row / 8) + row % 4;
      lane = 32 * ((row / 4) % 2);
    } else if (m == 16) {
      reg = 4 * block + row % 4;
      lane = 16 * (row / 4);
    } else {
      reg = row;
      lane = 4 * block;
    }
    const uint32_t *__restrict c = o.c + reg * o.c_stride + lane;
    uint32_t *__restrict out = d + reg * kLanes + lane;
    const double *__restrict sum = sums + row * m;
    for (int j = 0; j < m; ++j) out[j] = finish(sum[j], c[j]);
  }
}

void store_float(const MfmaForm &f, int block, const double *sums, const MfmaOperands &o, uint32_t *d) {
  store_block(f, block, sums, o, d, rounded_sum);
}

void store_integer(const MfmaForm &f, int block, const double *sums, const MfmaOperands &o, uint32_t *d) {
  store_block(f, block, sums, o, d, integer_sum);
}

using Store = void (*)(const MfmaForm &, int, const double *, const MfmaOperands &, uint32_t *);

void multiply(const MfmaForm &f, Element ea, Element eb, const MfmaOperands &o, Store store) {
  alignas(64) double a[kMaxPanel], b[kMaxPanel], sums[32 * 32];
  alignas(64) uint32_t d[32 * kLanes];  // D may overlap A, B and C: nothing is written before all is read
  unpack(f, ea, o.a, a);
  unpack(f, eb, o.b, b);
  if (o.scale_a) apply_scales(f, o.scale_a, a);
  if (o.scale_b) apply_scales(f, o.scale_b, b);
  for (int block = 0; block < f.blocks; ++block) {
    const uint32_t group = 1u << o.a_broadcast_log2;
    const int a_block = o.a_broadcast_log2 ? int((block & ~(group - 1)) + o.a_broadcast_block) : block;
    block_products(f, a + a_block * f.k * f.m, b + block * f.k * f.m, sums);
    store(f, block, sums, o, d);
  }
  std::memcpy(o.d, d, size_t(mfma_output_registers(f, false)) * kLanes * sizeof(uint32_t));
}

double load_f64(const uint32_t *regs, int lane) {
  return std::bit_cast<double>(uint64_t(regs[lane]) | uint64_t(regs[kLanes + lane]) << 32);
}

}  // namespace

int mfma_input_registers(const MfmaForm &f, Element e) {
  return (f.k * f.m * f.blocks * bits_of(e) + kLanes * 32 - 1) / (kLanes * 32);
}

int mfma_output_registers(const MfmaForm &f, bool is_f64) { return f.m * f.m * f.blocks / kLanes * (is_f64 ? 2 : 1); }

void mfma_float(const MfmaForm &form, Element a, Element b, const MfmaOperands &o) {
  multiply(form, a, b, o, store_float);
}

// Every product and partial sum is an integer below 2^53: the double path is exact.
void mfma_i8(const MfmaForm &form, const MfmaOperands &o) {
  multiply(form, Element::i8, Element::i8, o, store_integer);
}

// 16x16x4 (one block, K across lane groups) and 4x4x4 (4 blocks: lane = row + 4 * (block + 4 * k)).
void mfma_f64(const MfmaForm &f, const MfmaOperands &o) {
  const int m = f.m;
  double results[4][kLanes];
  auto sign = [&](int bit, double x) { return o.negate >> bit & 1 ? -x : x; };
  const int registers = m * m * f.blocks / kLanes;
  for (int r = 0; r < registers; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int column = lane % m;
      const int block = f.blocks == 1 ? 0 : (lane / m) % f.blocks;
      const int row = f.blocks == 1 ? 4 * r + lane / m : lane / (m * f.blocks);
      double sum = sign(2, load_f64(o.c + 2 * r * o.c_stride, lane));
      for (int k = 0; k < f.k; ++k) {
        const int base = m * (block + f.blocks * k);
        sum = std::fma(sign(0, load_f64(o.a, base + row)), sign(1, load_f64(o.b, base + column)), sum);
      }
      results[r][lane] = sum;
    }
  }
  for (int r = 0; r < registers; ++r)
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t bits = std::bit_cast<uint64_t>(results[r][lane]);
      o.d[2 * r * kLanes + lane] = uint32_t(bits);
      o.d[(2 * r + 1) * kLanes + lane] = uint32_t(bits >> 32);
    }
}

}  // namespace turbo_sim
