// SPDX-License-Identifier: MIT
// gfx950's scaled conversions v_cvt_scalef32_*.
//
// The scale operand is f32; its exponent field counts, as an e8m0 byte s: towards the narrow format values are divided
// by 2^(s - 127), from it multiplied. Field 255 makes NaN. Results round once, to nearest even (or stochastically).
//   packed word results    half op_sel[3], the other half is kept
//   byte results           byte op_sel[3:2], the others are kept
//   narrow sources         word op_sel[0] or byte op_sel[1:0]
//   pk32                   32 values, six registers of 6-bit codes; 2xpk16 interleaves its two f32 sources
// fp8 beyond the range: as in vop_cvt_fp8.cpp. fp6 and fp4 have neither infinity nor NaN and clamp.
#include "core/machine.h"
#include "exec/f16_math.h"

namespace turbo_sim {
namespace {

enum class Wide { f32, f16, bf16 };

inline double wide_value(Wide kind, uint32_t bits) {
  switch (kind) {
    case Wide::f32: return as_float(bits);
    case Wide::f16: return f16_to_f32(bits & 0xFFFF);
    default: return bf16_to_f32(bits & 0xFFFF);
  }
}
inline uint32_t wide_code(Wide kind, double value) {
  switch (kind) {
    case Wide::f32: return value != value ? kNaN32 : as_bits(float(value));
    case Wide::f16: return value != value ? 0x7E00u : encode(value, kF16);
    default: return value != value ? 0x7FC0u : encode(value, kBF16);
  }
}
inline double scale_of(uint32_t f32_bits, bool inverse) {
  const int s = int(f32_bits >> 23 & 255);
  if (s == 255) return std::nan("");
  return as_double(uint64_t(inverse ? 1023 + 127 - s : 1023 - 127 + s) << 52);
}
Overflow narrow_overflow(const Wave &w) { return w.mode.fp16_ovfl ? Overflow::clamp_all : Overflow::ieee; }

uint32_t next_noise(uint32_t x) { return (x << 1) ^ (x >> 31 ? 197u : 0u); }  // v_prng_b32

uint32_t narrow(const Wave &w, double value, const FloatFormat &format) {
  return encode(value, format, Round::nearest_even, narrow_overflow(w));
}
// 2^(127 - s) as a float. Scaling in float is as good as in double here: what it loses below 2^-126 rounds to zero in
// every narrow format, and what overflows becomes infinity, which is treated like an overflow.
inline float inverse_scale(uint32_t f32_bits) {
  const uint32_t s = f32_bits >> 23 & 255;
  const uint32_t bits = s == 255 ? kNaN32 : s == 254 ? 0x00400000u : (254 - s) << 23;
  return as_float(bits);
}
template <Wide KIND>
inline float wide_float(uint32_t bits) {
  if constexpr (KIND == Wide::f32)
    return as_float(bits);
  else if constexpr (KIND == Wide::f16)
    return f16_to_f32(bits & 0xFFFF);
  else
    return bf16_to_f32(bits & 0xFFFF);
}
uint32_t narrow_noisy(const Wave &w, double value, const FloatFormat &format, uint32_t noise) {
  const int bits = 23 - format.mantissa_bits;
  return encode_stochastic(value, format, noise >> (32 - bits), bits, narrow_overflow(w));
}

// --- results -------------------------------------------------------------------------------------------------------
void write_word(Wave &w, const Instruction &i, const Lanes &values) { write16(w, i, values.v, true); }
void write_byte(Wave &w, const Instruction &i, Lanes &values) {
  const unsigned shift = 8 * (i.op_sel >> 2 & 3);
  const uint32_t *old = destination_row(w, i);
  for (unsigned l = 0; l < kLanes; ++l) values.v[l] = (old[l] & ~(255u << shift)) | (values.v[l] & 255) << shift;
  write_row(w, i.dst, 0, values.v, write_mask(w, i));
}

// --- to fp8, bf8 and fp4, two values -------------------------------------------------------------------------------
// f32: src0, src1, scale src2. f16 and bf16: the halves of src0, scale src1.
template <const FloatFormat &FORMAT, Wide FROM>
void to_pair(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = FROM == Wide::f32 ? source_f32(w, i, 0, ta) : row32(w, i.src[0], 0, ta);
  const uint32_t *b = FROM == Wide::f32 ? source_f32(w, i, 1, tb) : a;
  const uint32_t *s = row32(w, i.src[FROM == Wide::f32 ? 2 : 1], 0, tc);
  constexpr int kWidth = FORMAT.width();
  const NarrowEncoder code(FORMAT, narrow_overflow(w));
  for (unsigned l = 0; l < kLanes; ++l) {
    const float scale = inverse_scale(s[l]);
    const uint32_t high = FROM == Wide::f32 ? b[l] : a[l] >> 16;
    out.v[l] = code(wide_float<FROM>(a[l]) * scale) | code(wide_float<FROM>(high) * scale) << kWidth;
  }
  if (kWidth == 8)
    write_word(w, i, out);
  else
    write_byte(w, i, out);
}

// One value, noise src1, scale src2.
template <const FloatFormat &FORMAT, Wide FROM>
void to_one_noisy(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = row32(w, i.src[0], 0, ta), *noise = row32(w, i.src[1], 0, tb), *s = row32(w, i.src[2], 0, tc);
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = narrow_noisy(w, wide_value(FROM, a[l]) * scale_of(s[l], true), FORMAT, noise[l]);
  write_byte(w, i, out);
}

// Two values to fp4; the second takes the next number of v_prng_b32.
template <Wide FROM>
void to_fp4_noisy(Wave &w, const Instruction &i) {
  Lanes ta, tb, tn, tc, out;
  const uint32_t *a = row32(w, i.src[0], 0, ta);
  const uint32_t *b = FROM == Wide::f32 ? row32(w, i.src[0], 1, tb) : a;
  const uint32_t *noise = row32(w, i.src[1], 0, tn), *s = row32(w, i.src[2], 0, tc);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double scale = scale_of(s[l], true);
    const uint32_t high = FROM == Wide::f32 ? b[l] : a[l] >> 16;
    out.v[l] = narrow_noisy(w, wide_value(FROM, a[l]) * scale, kE2M1, noise[l]) |
               narrow_noisy(w, wide_value(FROM, high) * scale, kE2M1, next_noise(noise[l])) << 4;
  }
  write_byte(w, i, out);
}

// --- from fp8, bf8 and fp4 -----------------------------------------------------------------------------------------
template <const FloatFormat &FORMAT, Wide TO>
void from_pair(Wave &w, const Instruction &i) {
  Lanes ta, tb, low, high;
  const uint32_t *a = row32(w, i.src[0], 0, ta), *s = row32(w, i.src[1], 0, tb);
  constexpr int kWidth = FORMAT.width();
  constexpr uint32_t kMask = (1u << kWidth) - 1;
  const unsigned shift = kWidth == 8 ? 16 * (i.op_sel & 1) : 8 * (i.op_sel & 3);
  const auto &table = decode_table(FORMAT);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double scale = scale_of(s[l], false);
    low.v[l] = wide_code(TO, table[a[l] >> shift & kMask] * scale);
    high.v[l] = wide_code(TO, table[a[l] >> (shift + kWidth) & kMask] * scale);
  }
  const uint64_t mask = write_mask(w, i);
  if (TO == Wide::f32) {
    write_row(w, i.dst, 0, low.v, mask);
    write_row(w, i.dst, 1, high.v, mask);
  } else {
    for (unsigned l = 0; l < kLanes; ++l) low.v[l] |= high.v[l] << 16;
    write_row(w, i.dst, 0, low.v, mask);
  }
}

template <const FloatFormat &FORMAT, Wide TO>
void from_one(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = row32(w, i.src[0], 0, ta), *s = row32(w, i.src[1], 0, tb);
  const unsigned shift = 8 * (i.op_sel & 3);
  const auto &table = decode_table(FORMAT);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = wide_code(TO, table[a[l] >> shift & 255] * scale_of(s[l], false));
  if (TO == Wide::f32)
    write_row(w, i.dst, 0, out.v, write_mask(w, i));
  else
    write16(w, i, out.v, true);
}

// --- fp6 and bf6, 32 values ----------------------------------------------------------------------------------------
// value(k, lane) for the 32 inputs; noise advances by v_prng_b32 from one value to the next.
template <const FloatFormat &FORMAT, class Value>
void pack_six(Wave &w, const Instruction &i, const uint32_t *s, const uint32_t *noise, Value value) {
  Lanes out[6] = {};
  for (unsigned l = 0; l < kLanes; ++l) {
    const double scale = scale_of(s[l], true);
    uint32_t random = noise ? noise[l] : 0;
    for (unsigned k = 0; k < 32; ++k) {
      const double x = value(k, l) * scale;
      const uint64_t code = noise ? narrow_noisy(w, x, FORMAT, random) : narrow(w, x, FORMAT);
      random = next_noise(random);
      const unsigned bit = 6 * k;
      out[bit / 32].v[l] |= uint32_t(code << (bit % 32));
      if (bit % 32 > 26) out[bit / 32 + 1].v[l] |= uint32_t(code >> (32 - bit % 32));
    }
  }
  const uint64_t mask = write_mask(w, i);
  for (unsigned r = 0; r < 6; ++r) write_row(w, i.dst, r, out[r].v, mask);
}

template <const FloatFormat &FORMAT, Wide FROM, bool NOISY>
void to_six(Wave &w, const Instruction &i) {
  Lanes ts, tn, ta[32];
  const uint32_t *rows[32];
  for (unsigned r = 0; r < (FROM == Wide::f32 ? 32 : 16); ++r) rows[r] = row32(w, i.src[0], r, ta[r]);
  const uint32_t *noise = NOISY ? row32(w, i.src[1], 0, tn) : nullptr;
  const uint32_t *s = row32(w, i.src[NOISY ? 2 : 1], 0, ts);
  pack_six<FORMAT>(w, i, s, noise, [&](unsigned k, unsigned l) {
    return FROM == Wide::f32 ? wide_value(FROM, rows[k][l]) : wide_value(FROM, rows[k / 2][l] >> (16 * (k % 2)));
  });
}

// Values alternate between the two sources.
template <const FloatFormat &FORMAT>
void to_six_interleaved(Wave &w, const Instruction &i) {
  Lanes ts, ta[32];
  const uint32_t *rows[32];
  for (unsigned r = 0; r < 32; ++r) rows[r] = row32(w, i.src[r % 2], r / 2, ta[r]);
  pack_six<FORMAT>(w, i, row32(w, i.src[2], 0, ts), nullptr,
                   [&](unsigned k, unsigned l) { return wide_value(Wide::f32, rows[k][l]); });
}

template <const FloatFormat &FORMAT, Wide TO>
void from_six(Wave &w, const Instruction &i) {
  Lanes ts, ta[6], out[32] = {};
  const uint32_t *rows[6];
  for (unsigned r = 0; r < 6; ++r) rows[r] = row32(w, i.src[0], r, ta[r]);
  const uint32_t *s = row32(w, i.src[1], 0, ts);
  const auto &table = decode_table(FORMAT);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double scale = scale_of(s[l], false);
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned bit = 6 * k, r = bit / 32;
      const uint64_t window = uint64_t(rows[r][l]) | (r < 5 ? uint64_t(rows[r + 1][l]) << 32 : 0);
      const uint32_t code = wide_code(TO, table[window >> (bit % 32) & 63] * scale);
      if (TO == Wide::f32)
        out[k].v[l] = code;
      else
        out[k / 2].v[l] |= code << (16 * (k % 2));
    }
  }
  const uint64_t mask = write_mask(w, i);
  for (unsigned r = 0; r < (TO == Wide::f32 ? 32 : 16); ++r) write_row(w, i.dst, r, out[r].v, mask);
}

}  // namespace

void register_vop_cvt_scale(Registry &r) {
#define WIDE(X, name, format) X(name, f32, format) X(name, f16, format) X(name, bf16, format)
#define ALLOWED(wide) (Wide::wide == Wide::f32 ? kNegAbs | kOpSel : kOpSel)
#define X(name, wide, format)                                                                                \
  r.select(Op::v_cvt_scalef32_pk_##name##_##wide, bind_checked<to_pair<format, Wide::wide>, ALLOWED(wide)>); \
  r.select(Op::v_cvt_scalef32_pk_##wide##_##name, bind_checked<from_pair<format, Wide::wide>, kOpSel>);
  WIDE(X, fp8, kE4M3)
  WIDE(X, bf8, kE5M2)
  WIDE(X, fp4, kE2M1)
#undef X
#define X(name, wide, format) \
  r.select(Op::v_cvt_scalef32_sr_##name##_##wide, bind_checked<to_one_noisy<format, Wide::wide>, kOpSel>);
  WIDE(X, fp8, kE4M3)
  WIDE(X, bf8, kE5M2)
#undef X
#define X(name, wide, format) \
  r.select(Op::v_cvt_scalef32_sr_pk_fp4_##wide, bind_checked<to_fp4_noisy<Wide::wide>, kOpSel>);
  WIDE(X, fp4, kE2M1)
#undef X
#define X(name, wide, format) \
  r.select(Op::v_cvt_scalef32_##wide##_##name, bind_checked<from_one<format, Wide::wide>, kOpSel>);
  X(fp8, f32, kE4M3)
  X(bf8, f32, kE5M2)
  X(fp8, f16, kE4M3)
  X(bf8, f16, kE5M2)
#undef X
#define X(name, wide, format)                                                                          \
  r.select(Op::v_cvt_scalef32_pk32_##wide##_##name, bind_checked<from_six<format, Wide::wide>, kInt>); \
  r.select(Op::v_cvt_scalef32_sr_pk32_##name##_##wide, bind_checked<to_six<format, Wide::wide, true>, kInt>);
  WIDE(X, fp6, kE2M3)
  WIDE(X, bf6, kE3M2)
#undef X
#define X(name, wide, format) \
  r.select(Op::v_cvt_scalef32_pk32_##name##_##wide, bind_checked<to_six<format, Wide::wide, false>, kInt>);
  X(fp6, f16, kE2M3)
  X(fp6, bf16, kE2M3)
  X(bf6, f16, kE3M2)
  X(bf6, bf16, kE3M2)
#undef X
  r.select(Op::v_cvt_scalef32_2xpk16_fp6_f32, bind_checked<to_six_interleaved<kE2M3>, kInt>);
  r.select(Op::v_cvt_scalef32_2xpk16_bf6_f32, bind_checked<to_six_interleaved<kE3M2>, kInt>);
#undef ALLOWED
#undef WIDE
}

}  // namespace turbo_sim
