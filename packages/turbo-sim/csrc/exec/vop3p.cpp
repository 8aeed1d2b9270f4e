// SPDX-License-Identifier: MIT
// Packed instructions. For source n, op_sel bit n chooses the half that the low result reads, op_sel_hi bit n the half
// for the high result; neg (neg_lo) and neg_hi flip signs likewise. An inline constant fills the low half (integers:
// sign-extended to 32 bits), as on all of gfx9.
#include "exec/f16_math.h"

namespace turbo_sim {
namespace {

// --- two 16-bit halves ---------------------------------------------------------------------------------------------
struct Halves {
  Lanes low, high;
  Halves(const Wave &w, const Instruction &i, unsigned n, bool is_float) {
    Lanes tmp;
    const uint32_t *row = row32(w, i.src[n], 0, tmp);
    const unsigned shift_low = i.op_sel >> n & 1 ? 16 : 0, shift_high = i.op_sel_hi >> n & 1 ? 16 : 0;
    const uint32_t flip_low = is_float && (i.neg >> n & 1) ? 0x8000u : 0;
    const uint32_t flip_high = is_float && (i.neg_hi >> n & 1) ? 0x8000u : 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      low.v[l] = (row[l] >> shift_low & 0xFFFF) ^ flip_low;
      high.v[l] = (row[l] >> shift_high & 0xFFFF) ^ flip_high;
    }
    if (is_float && !keep_input_denormals(w.mode.denorm64))
      for (unsigned l = 0; l < kLanes; ++l) low.v[l] = flush16(low.v[l]), high.v[l] = flush16(high.v[l]);
  }
};

void join(Wave &w, const Instruction &i, const Lanes &low, Lanes &high) {
  for (unsigned l = 0; l < kLanes; ++l) high.v[l] = (low.v[l] & 0xFFFF) | high.v[l] << 16;
  write_row(w, i.dst, 0, high.v, w.exec());
}

template <class F>
inline void packed_int2(Wave &w, const Instruction &i, F f) {
  const Halves a(w, i, 0, false), b(w, i, 1, false);
  Lanes low, high;
  for (unsigned l = 0; l < kLanes; ++l) low.v[l] = f(a.low.v[l], b.low.v[l]), high.v[l] = f(a.high.v[l], b.high.v[l]);
  join(w, i, low, high);
}
template <class F>
inline void packed_int3(Wave &w, const Instruction &i, F f) {
  const Halves a(w, i, 0, false), b(w, i, 1, false), c(w, i, 2, false);
  Lanes low, high;
  for (unsigned l = 0; l < kLanes; ++l) {
    low.v[l] = f(a.low.v[l], b.low.v[l], c.low.v[l]);
    high.v[l] = f(a.high.v[l], b.high.v[l], c.high.v[l]);
  }
  join(w, i, low, high);
}
template <class F>
inline void packed_f16_2(Wave &w, const Instruction &i, F f) {
  const Halves a(w, i, 0, true), b(w, i, 1, true);
  Lanes low, high;
  for (unsigned l = 0; l < kLanes; ++l) low.v[l] = f(a.low.v[l], b.low.v[l]), high.v[l] = f(a.high.v[l], b.high.v[l]);
  settle_f16(w, i, low.v);
  settle_f16(w, i, high.v);
  join(w, i, low, high);
}
template <class F>
inline void packed_f16_3(Wave &w, const Instruction &i, F f) {
  const Halves a(w, i, 0, true), b(w, i, 1, true), c(w, i, 2, true);
  Lanes low, high;
  for (unsigned l = 0; l < kLanes; ++l) {
    low.v[l] = f(a.low.v[l], b.low.v[l], c.low.v[l]);
    high.v[l] = f(a.high.v[l], b.high.v[l], c.high.v[l]);
  }
  settle_f16(w, i, low.v);
  settle_f16(w, i, high.v);
  join(w, i, low, high);
}

inline int32_t s16(uint32_t x) { return int16_t(x); }
inline uint32_t saturate_i16(int32_t x) { return uint32_t(x > 0x7FFF ? 0x7FFF : x < -0x8000 ? -0x8000 : x); }

#define INTEGER2(X)                                 \
  X(v_pk_add_i16, a + b)                            \
  X(v_pk_add_u16, a + b)                            \
  X(v_pk_sub_i16, a - b)                            \
  X(v_pk_sub_u16, a - b)                            \
  X(v_pk_mul_lo_u16, a *b)                          \
  X(v_pk_lshlrev_b16, b << (a & 15))                \
  X(v_pk_lshrrev_b16, b >> (a & 15))                \
  X(v_pk_ashrrev_i16, uint32_t(s16(b) >> (a & 15))) \
  X(v_pk_max_i16, s16(a) > s16(b) ? a : b)          \
  X(v_pk_min_i16, s16(a) < s16(b) ? a : b)          \
  X(v_pk_max_u16, a > b ? a : b)                    \
  X(v_pk_min_u16, a < b ? a : b)
#define INTEGER3(X)         \
  X(v_pk_mad_i16, a *b + c) \
  X(v_pk_mad_u16, a *b + c)
// With clamp, results saturate.
#define SATURATING(X)                              \
  X(v_pk_add_i16, saturate_i16(s16(a) + s16(b)))   \
  X(v_pk_sub_i16, saturate_i16(s16(a) - s16(b)))   \
  X(v_pk_add_u16, a + b > 0xFFFF ? 0xFFFF : a + b) \
  X(v_pk_sub_u16, a < b ? 0 : a - b)

#define X(name, expr)                                                           \
  void name(Wave &w, const Instruction &i) {                                    \
    packed_int2(w, i, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }
INTEGER2(X)
#undef X
#define X(name, expr)                                                                       \
  void name(Wave &w, const Instruction &i) {                                                \
    packed_int3(w, i, [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return expr; }); \
  }
INTEGER3(X)
#undef X
#define X(name, expr)                                                           \
  void name##_saturating(Wave &w, const Instruction &i) {                       \
    packed_int2(w, i, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }                                                                             \
  Handler name##_form(const Instruction &i) {                                   \
    require_modifiers(i, kClamp);                                               \
    return i.clamp ? name##_saturating : name;                                  \
  }
SATURATING(X)
#undef X

void v_pk_add_f16(Wave &w, const Instruction &i) {
  with_f16_rounding(w.mode, [&](auto round) {
    packed_f16_2(w, i, [round](uint32_t a, uint32_t b) {
      return settle_nan16(round(f16_add_exact(f16_to_f32(a), f16_to_f32(b), round.down())), a, b, 0);
    });
  });
}
void v_pk_mul_f16(Wave &w, const Instruction &i) {
  with_f16_rounding(w.mode, [&](auto round) {
    packed_f16_2(w, i, [round](uint32_t a, uint32_t b) {
      return settle_nan16(round(double(f16_to_f32(a)) * double(f16_to_f32(b))), a, b, 0);
    });
  });
}
void v_pk_fma_f16(Wave &w, const Instruction &i) {
  with_f16_rounding(w.mode, [&](auto round) {
    packed_f16_3(w, i, [round](uint32_t a, uint32_t b, uint32_t c) {
      return settle_nan16(round(f16_fma_exact(f16_to_f32(a), f16_to_f32(b), f16_to_f32(c), round.down())), a, b, c);
    });
  });
}
template <bool MAX>
void pk_min_max(Wave &w, const Instruction &i) {
  packed_f16_2(w, i, [ieee = w.mode.ieee](uint32_t a, uint32_t b) { return f16_min_max(MAX, ieee, a, b); });
}
// IEEE 754-2019: NaN wins.
template <bool MAX>
void pk_minimum3(Wave &w, const Instruction &i) {
  packed_f16_3(w, i, [](uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t r = f16_min_max(MAX, false, f16_min_max(MAX, false, a, b), c);
    auto nan = [](uint32_t x) { return (x & 0x7FFF) > 0x7C00; };
    return nan(a) || nan(b) || nan(c) ? settle_nan16(0x7E00u, a, b, c) : r;
  });
}

// --- two f32 in a register pair ------------------------------------------------------------------------------------
// An inline constant is the low half of its pair. What the upper half reads as is not documented; compilers leave it
// selected only where that result is not needed, so it reads as NaN here, which a kernel that needs it will notice.
struct PairF32 {
  Lanes tl, th;
  const uint32_t *low, *high;
  PairF32(const Wave &w, const Instruction &i, unsigned n)
      : low(fetch(w, i, n, i.op_sel, i.neg, tl)), high(fetch(w, i, n, i.op_sel_hi, i.neg_hi, th)) {}

 private:
  static const uint32_t *fetch(const Wave &w, const Instruction &i, unsigned n, uint8_t sel, uint8_t neg, Lanes &tmp) {
    const bool upper = sel >> n & 1;
    const uint32_t *row = row32(w, i.src[n], i.src[n].is_constant() ? 0 : upper, tmp);
    if (upper && i.src[n].is_constant() && i.src[n].value != 0) {
      for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = kNaN32;
      return tmp.v;
    }
    const bool flush = !keep_input_denormals(w.mode.denorm32);
    if (!(neg >> n & 1) && !flush) return row;
    const uint32_t flip = neg >> n & 1 ? 0x80000000u : 0;
    for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = (flush ? flush32(row[l]) : row[l]) ^ flip;
    return tmp.v;
  }
};

void finish_f32(const Wave &w, const Instruction &i, uint32_t *v) {
  if (!keep_output_denormals(w.mode.denorm32))
    for (unsigned l = 0; l < kLanes; ++l) v[l] = flush32(v[l]);
  if (i.clamp)
    for (unsigned l = 0; l < kLanes; ++l) {
      const float x = as_float(v[l]);
      v[l] = x != x ? (w.mode.dx10_clamp ? 0 : v[l]) : as_bits(x > 0 ? (x < 1 ? x : 1.0f) : 0.0f);
    }
}
void write_pair(Wave &w, const Instruction &i, Lanes &low, Lanes &high) {
  finish_f32(w, i, low.v);
  finish_f32(w, i, high.v);
  write_row(w, i.dst, 0, low.v, w.exec());
  write_row(w, i.dst, 1, high.v, w.exec());
}

template <class F>
inline void packed_f32_2(Wave &w, const Instruction &i, F f) {
  const PairF32 a(w, i, 0), b(w, i, 1);
  Lanes low, high;
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) low.v[l] = as_bits(f(as_float(a.low[l]), as_float(b.low[l])));
    for (unsigned l = 0; l < kLanes; ++l) high.v[l] = as_bits(f(as_float(a.high[l]), as_float(b.high[l])));
  }
  settle_nans32(low.v, a.low, b.low);
  settle_nans32(high.v, a.high, b.high);
  write_pair(w, i, low, high);
}
void v_pk_add_f32(Wave &w, const Instruction &i) {
  packed_f32_2(w, i, [](float a, float b) { return a + b; });
}
void v_pk_mul_f32(Wave &w, const Instruction &i) {
  packed_f32_2(w, i, [](float a, float b) { return a * b; });
}
void v_pk_fma_f32(Wave &w, const Instruction &i) {
  const PairF32 a(w, i, 0), b(w, i, 1), c(w, i, 2);
  Lanes low, high;
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l)
      low.v[l] = as_bits(std::fma(as_float(a.low[l]), as_float(b.low[l]), as_float(c.low[l])));
    for (unsigned l = 0; l < kLanes; ++l)
      high.v[l] = as_bits(std::fma(as_float(a.high[l]), as_float(b.high[l]), as_float(c.high[l])));
  }
  settle_nans32(low.v, a.low, b.low, c.low);
  settle_nans32(high.v, a.high, b.high, c.high);
  write_pair(w, i, low, high);
}

// The low result from src0, the high one from src1; op_sel chooses the register of each pair.
void v_pk_mov_b32(Wave &w, const Instruction &i) {
  Lanes ta, tb, low, high;
  const uint32_t *a = row32(w, i.src[0], i.src[0].is_constant() ? 0 : i.op_sel & 1, ta);
  const uint32_t *b = row32(w, i.src[1], i.src[1].is_constant() ? 0 : i.op_sel >> 1 & 1, tb);
  std::memcpy(low.v, a, sizeof low.v);
  std::memcpy(high.v, b, sizeof high.v);
  write_row(w, i.dst, 0, low.v, w.exec());
  write_row(w, i.dst, 1, high.v, w.exec());
}

// v_pk_mov_b32 moves bits: there the upper half of a constant is refused.
Handler pk_mov_form(const Instruction &i) {
  for (unsigned n = 0; n < 2; ++n)
    if (i.src[n].is_constant() && (i.op_sel >> n & 1)) throw NotImplemented("op_sel on a constant");
  return bind_checked<v_pk_mov_b32, kInt>(i);
}

// --- mixed precision -----------------------------------------------------------------------------------------------
// Source n is f16 (half op_sel bit n) where op_sel_hi bit n is set, else f32. One f32 fma; mixlo and mixhi round its
// result once more to f16 and keep the other half of the register.
const uint32_t *mix_source(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  Lanes raw;
  const uint32_t *row = row32(w, i.src[n], 0, raw);
  const bool half = i.op_sel_hi >> n & 1;
  const unsigned shift = i.op_sel >> n & 1 ? 16 : 0;
  const bool flush = !keep_input_denormals(half ? w.mode.denorm64 : w.mode.denorm32);
  const uint32_t keep = i.abs >> n & 1 ? 0x7FFFFFFFu : ~0u, flip = i.neg >> n & 1 ? 0x80000000u : 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint32_t code = row[l] >> shift & 0xFFFF;
    const uint32_t from_half = as_bits(f16_to_f32(flush ? flush16(code) : code));
    const uint32_t from_float = flush ? flush32(row[l]) : row[l];
    tmp.v[l] = ((half ? from_half : from_float) & keep) ^ flip;
  }
  return tmp.v;
}
void mix(Wave &w, const Instruction &i, Lanes &out) {
  Lanes ta, tb, tc;
  const uint32_t *a = mix_source(w, i, 0, ta), *b = mix_source(w, i, 1, tb), *c = mix_source(w, i, 2, tc);
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(std::fma(as_float(a[l]), as_float(b[l]), as_float(c[l])));
  }
  settle_nans32(out.v, a, b, c);
}
void v_fma_mix_f32(Wave &w, const Instruction &i) {
  Lanes out;
  mix(w, i, out);
  finish_f32(w, i, out.v);
  write_row(w, i.dst, 0, out.v, w.exec());
}
template <bool HIGH>
void mix_f16(Wave &w, const Instruction &i) {
  Lanes out;
  mix(w, i, out);
  const F16Rounding round(w.mode);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = round(double(as_float(out.v[l])));
  settle_f16(w, i, out.v);
  const uint32_t *old = destination_row(w, i);
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = HIGH ? (old[l] & 0xFFFF) | out.v[l] << 16 : (old[l] & 0xFFFF0000u) | out.v[l];
  write_row(w, i.dst, 0, out.v, w.exec());
}

}  // namespace

void register_vop3p(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kInt>);
  INTEGER2(X)
  INTEGER3(X)
#undef X
#define X(name, expr) r.select(Op::name, name##_form);  // after INTEGER2: replaces the plain form
  SATURATING(X)
#undef X
  r.set(Op::v_pk_add_f16, v_pk_add_f16);
  r.set(Op::v_pk_mul_f16, v_pk_mul_f16);
  r.set(Op::v_pk_fma_f16, v_pk_fma_f16);
  r.set(Op::v_pk_min_f16, pk_min_max<false>);
  r.set(Op::v_pk_max_f16, pk_min_max<true>);
  r.set(Op::v_pk_minimum3_f16, pk_minimum3<false>);
  r.set(Op::v_pk_maximum3_f16, pk_minimum3<true>);
  r.select(Op::v_pk_add_f32, bind_checked<v_pk_add_f32, kNegAbs | kClamp>);
  r.select(Op::v_pk_mul_f32, bind_checked<v_pk_mul_f32, kNegAbs | kClamp>);
  r.select(Op::v_pk_fma_f32, bind_checked<v_pk_fma_f32, kNegAbs | kClamp>);
  r.select(Op::v_pk_mov_b32, pk_mov_form);
  r.set(Op::v_fma_mix_f32, v_fma_mix_f32);
  r.set(Op::v_fma_mixlo_f16, mix_f16<false>);
  r.set(Op::v_fma_mixhi_f16, mix_f16<true>);
}

}  // namespace turbo_sim
