// SPDX-License-Identifier: MIT
// v_cmp_* and v_cmpx_*: one bit per lane, inactive lanes give 0. v_cmpx also writes EXEC.
#include "exec/f16_math.h"

namespace turbo_sim {
namespace {

void deliver(Wave &w, const Instruction &i, const uint8_t *flags, bool to_exec) {
  const uint64_t bits = pack_flags(flags) & w.exec();
  write_lane_mask(w, i.sdst, bits);
  if (to_exec) w.write64(kExec, bits);
}

// --- sources as arrays of comparable values ------------------------------------------------------------------------
template <class T>
struct Source32 {  // u32, i32
  Lanes tmp;
  const uint32_t *bits;
  Source32(const Wave &w, const Instruction &i, unsigned n) : bits(src32(w, i, n, tmp)) {}
  T operator[](unsigned l) const { return T(bits[l]); }
};
struct SourceF32 {
  Lanes tmp;
  const uint32_t *bits;
  SourceF32(const Wave &w, const Instruction &i, unsigned n) : bits(source_f32(w, i, n, tmp)) {}
  float operator[](unsigned l) const { return as_float(bits[l]); }
};
template <class T>
struct Source16 {  // u16, i16
  Lanes tmp;
  const uint32_t *bits;
  Source16(const Wave &w, const Instruction &i, unsigned n) : bits(src16(w, i, n, tmp)) {}
  T operator[](unsigned l) const { return T(bits[l]); }
};
struct SourceF16 {
  Lanes tmp;
  const uint32_t *bits;
  SourceF16(const Wave &w, const Instruction &i, unsigned n) : bits(source_f16(w, i, n, tmp)) {}
  float operator[](unsigned l) const { return f16_to_f32(bits[l]); }
};
template <class T>
struct Source64 {  // u64, i64
  Lanes64 tmp;
  const uint64_t *bits;
  Source64(const Wave &w, const Instruction &i, unsigned n) : bits(src64(w, i, n, tmp)) {}
  T operator[](unsigned l) const { return T(bits[l]); }
};
struct SourceF64 {
  Lanes64 tmp;
  const uint64_t *bits;
  SourceF64(const Wave &w, const Instruction &i, unsigned n) : bits(source_f64(w, i, n, tmp)) {}
  double operator[](unsigned l) const { return as_double(bits[l]); }
};

template <class S, bool EXEC, class F>
inline void compare(Wave &w, const Instruction &i, F f) {
  const S a(w, i, 0), b(w, i, 1);
  uint8_t flags[kLanes];
  for (unsigned l = 0; l < kLanes; ++l) flags[l] = f(a[l], b[l]) ? 1 : 0;
  deliver(w, i, flags, EXEC);
}

#define ORDERED(X, type, S)                \
  X(f, type, S, (void(a), void(b), false)) \
  X(lt, type, S, a < b)                    \
  X(eq, type, S, a == b)                   \
  X(le, type, S, a <= b)                   \
  X(gt, type, S, a > b)                    \
  X(ge, type, S, a >= b)
#define INTEGER(X, type, S) \
  ORDERED(X, type, S)       \
  X(ne, type, S, a != b)    \
  X(t, type, S, (void(a), void(b), true))
#define FLOATING(X, type, S)         \
  ORDERED(X, type, S)                \
  X(lg, type, S, a<b || a> b)        \
  X(o, type, S, a == a && b == b)    \
  X(u, type, S, a != a || b != b)    \
  X(nge, type, S, !(a >= b))         \
  X(nlg, type, S, !(a < b || a > b)) \
  X(ngt, type, S, !(a > b))          \
  X(nle, type, S, !(a <= b))         \
  X(neq, type, S, !(a == b))         \
  X(nlt, type, S, !(a < b))          \
  X(tru, type, S, (void(a), void(b), true))
#define ALL_INTEGER(X)                \
  INTEGER(X, i16, Source16<int16_t>)  \
  INTEGER(X, u16, Source16<uint16_t>) \
  INTEGER(X, i32, Source32<int32_t>)  \
  INTEGER(X, u32, Source32<uint32_t>) \
  INTEGER(X, i64, Source64<int64_t>)  \
  INTEGER(X, u64, Source64<uint64_t>)
#define ALL_FLOATING(X)       \
  FLOATING(X, f16, SourceF16) \
  FLOATING(X, f32, SourceF32) \
  FLOATING(X, f64, SourceF64)

#define X(relation, type, S, expr)                                        \
  void v_cmp_##relation##_##type(Wave &w, const Instruction &i) {         \
    compare<S, false>(w, i, [](auto a, auto b) -> bool { return expr; }); \
  }                                                                       \
  void v_cmpx_##relation##_##type(Wave &w, const Instruction &i) {        \
    compare<S, true>(w, i, [](auto a, auto b) -> bool { return expr; });  \
  }
ALL_INTEGER(X)
ALL_FLOATING(X)
#undef X

// --- classes --------------------------------------------------------------------------------------------------------
// Bits of the mask: 0 signalling NaN, 1 quiet NaN, 2 -inf, 3 -normal, 4 -subnormal, 5 -0, 6 +0, 7 +subnormal,
// 8 +normal, 9 +inf.
inline unsigned class_bit(uint64_t bits, int exponent_bits, int mantissa_bits) {
  const uint64_t mantissa = bits & ((1ull << mantissa_bits) - 1);
  const uint64_t exponent = bits >> mantissa_bits & ((1ull << exponent_bits) - 1);
  const bool negative = bits >> (exponent_bits + mantissa_bits) & 1;
  if (exponent == (1ull << exponent_bits) - 1) {
    if (mantissa) return mantissa >> (mantissa_bits - 1) ? 1 : 0;
    return negative ? 2 : 9;
  }
  if (exponent) return negative ? 3 : 8;
  if (mantissa) return negative ? 4 : 7;
  return negative ? 5 : 6;
}

// Values are taken as they are: MODE's input flush does not apply to a classification.
template <bool EXEC>
void class_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb;
  const uint32_t *a = srcf32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  uint8_t flags[kLanes];
  for (unsigned l = 0; l < kLanes; ++l) flags[l] = b[l] >> class_bit(a[l], 8, 23) & 1;
  deliver(w, i, flags, EXEC);
}
template <bool EXEC>
void class_f16(Wave &w, const Instruction &i) {
  Lanes ta, tb;
  const uint32_t *a = srcf16(w, i, 0, ta), *b = src16(w, i, 1, tb);
  uint8_t flags[kLanes];
  for (unsigned l = 0; l < kLanes; ++l) flags[l] = b[l] >> class_bit(a[l] & 0xFFFF, 5, 10) & 1;
  deliver(w, i, flags, EXEC);
}
template <bool EXEC>
void class_f64(Wave &w, const Instruction &i) {
  Lanes64 ta;
  Lanes tb;
  const uint64_t *a = srcf64(w, i, 0, ta);
  const uint32_t *b = src32(w, i, 1, tb);
  uint8_t flags[kLanes];
  for (unsigned l = 0; l < kLanes; ++l) flags[l] = b[l] >> class_bit(a[l], 11, 52) & 1;
  deliver(w, i, flags, EXEC);
}

}  // namespace

void register_vop_cmp(Registry &r) {
#define X(relation, type, S, expr)                                                        \
  r.select(Op::v_cmp_##relation##_##type, bind_checked<v_cmp_##relation##_##type, kInt>); \
  r.select(Op::v_cmpx_##relation##_##type, bind_checked<v_cmpx_##relation##_##type, kInt>);
  ALL_INTEGER(X)
#undef X
// clamp on a float compare asks for signalling on NaN, which only exceptions would show.
#define X(relation, type, S, expr)                                                                    \
  r.select(Op::v_cmp_##relation##_##type, bind_checked<v_cmp_##relation##_##type, kNegAbs | kClamp>); \
  r.select(Op::v_cmpx_##relation##_##type, bind_checked<v_cmpx_##relation##_##type, kNegAbs | kClamp>);
  ALL_FLOATING(X)
#undef X
#define X(type)                                                                 \
  r.select(Op::v_cmp_class_##type, bind_checked<class_##type<false>, kNegAbs>); \
  r.select(Op::v_cmpx_class_##type, bind_checked<class_##type<true>, kNegAbs>);
  X(f16) X(f32) X(f64)
#undef X
}

}  // namespace turbo_sim
