// SPDX-License-Identifier: MIT
// Dot products of packed elements. Integer ones wrap, or saturate with clamp. Float ones: exact products, summed in
// double with the accumulator, rounded once (hardware rounds in steps: results agree within a tolerance).
#include "exec/f16_math.h"

#include <algorithm>

namespace turbo_sim {
namespace {

// --- integers ------------------------------------------------------------------------------------------------------
template <unsigned BITS, bool SIGNED>
inline int64_t element(uint32_t word, unsigned k) {
  const uint32_t x = word >> (BITS * k) & ((1u << BITS) - 1);
  return SIGNED ? int64_t(int32_t(x << (32 - BITS)) >> (32 - BITS)) : int64_t(x);
}
template <unsigned BITS, bool SIGNED>
void dot_int(Wave &w, const Instruction &i, const uint32_t *a, const uint32_t *b, const uint32_t *c) {
  Lanes out;
  for (unsigned l = 0; l < kLanes; ++l) {
    int64_t sum = SIGNED ? int64_t(int32_t(c[l])) : int64_t(c[l]);
    for (unsigned k = 0; k < 32 / BITS; ++k) sum += element<BITS, SIGNED>(a[l], k) * element<BITS, SIGNED>(b[l], k);
    if (i.clamp) sum = SIGNED ? std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX) : std::min<int64_t>(sum, UINT32_MAX);
    out.v[l] = uint32_t(sum);
  }
  write_row(w, i.dst, 0, out.v, write_mask(w, i));
}
template <unsigned BITS, bool SIGNED>
void dot(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc;
  dot_int<BITS, SIGNED>(w, i, row32(w, i.src[0], 0, ta), row32(w, i.src[1], 0, tb), row32(w, i.src[2], 0, tc));
}
template <unsigned BITS>
void dot_accumulate(Wave &w, const Instruction &i) {
  Lanes ta, tb;
  dot_int<BITS, true>(w, i, src32(w, i, 0, ta), src32(w, i, 1, tb), destination_row(w, i));
}

// --- floats --------------------------------------------------------------------------------------------------------
template <bool BF16>
inline double half(uint32_t word, bool high) {
  const uint32_t code = high ? word >> 16 : word & 0xFFFF;
  return BF16 ? bf16_to_f32(code) : f16_to_f32(code);
}
template <bool BF16>
inline uint32_t dot2(uint32_t a_low, uint32_t a_high, uint32_t b_low, uint32_t b_high, uint32_t c) {
  const double sum = half<BF16>(a_low, false) * half<BF16>(b_low, false) +
                     half<BF16>(a_high, false) * half<BF16>(b_high, false) + double(as_float(c));
  return sum != sum ? kNaN32 : as_bits(float(sum));
}
template <bool BF16>
void dot2_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = row32(w, i.src[0], 0, ta), *b = row32(w, i.src[1], 0, tb), *c = row32(w, i.src[2], 0, tc);
  auto pick = [&](unsigned n, uint32_t word, bool high) {
    const bool upper = (high ? i.op_sel_hi : i.op_sel) >> n & 1;
    const uint32_t flip = (high ? i.neg_hi : i.neg) >> n & 1 ? 0x8000u : 0;
    return (upper ? word >> 16 : word & 0xFFFF) ^ flip;
  };
  const uint32_t flip_c = i.neg & 4 ? 0x80000000u : 0;
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] =
        dot2<BF16>(pick(0, a[l], false), pick(0, a[l], true), pick(1, b[l], false), pick(1, b[l], true), c[l] ^ flip_c);
  write_row(w, i.dst, 0, out.v, w.exec());
}
template <bool BF16>
void dot2_f32_accumulate(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb), *c = destination_row(w, i);
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = dot2<BF16>(a[l] & 0xFFFF, a[l] >> 16, b[l] & 0xFFFF, b[l] >> 16, c[l]);
  write32(w, i, out.v);
}

// Integer dots: op_sel and neg have no meaning there (neg would change the signedness on later archs).
template <Handler H>
Handler integer_form(const Instruction &i) {
  if (i.op_sel || (i.format == Format::VOP3P && i.op_sel_hi != 7)) throw NotImplemented("op_sel");
  if (i.neg || i.neg_hi) throw NotImplemented("neg");
  require_modifiers(i, kClamp);
  return H;
}
template <Handler H>
Handler float_form(const Instruction &i) {
  if (i.neg_hi & 4) throw NotImplemented("neg_hi of the accumulator");
  require_modifiers(i, kNegAbs);
  return H;
}

}  // namespace

void register_vop3p_dot(Registry &r) {
  r.select(Op::v_dot2_i32_i16, integer_form<dot<16, true>>);
  r.select(Op::v_dot2_u32_u16, integer_form<dot<16, false>>);
  r.select(Op::v_dot4_i32_i8, integer_form<dot<8, true>>);
  r.select(Op::v_dot4_u32_u8, integer_form<dot<8, false>>);
  r.select(Op::v_dot8_i32_i4, integer_form<dot<4, true>>);
  r.select(Op::v_dot8_u32_u4, integer_form<dot<4, false>>);
  r.select(Op::v_dot2c_i32_i16, integer_form<dot_accumulate<16>>);
  r.select(Op::v_dot4c_i32_i8, integer_form<dot_accumulate<8>>);
  r.select(Op::v_dot8c_i32_i4, integer_form<dot_accumulate<4>>);
  r.select(Op::v_dot2_f32_f16, float_form<dot2_f32<false>>);
  r.select(Op::v_dot2_f32_bf16, float_form<dot2_f32<true>>);
  r.select(Op::v_dot2c_f32_f16, bind_checked<dot2_f32_accumulate<false>, kInt>);
  r.select(Op::v_dot2c_f32_bf16, bind_checked<dot2_f32_accumulate<true>, kInt>);
}

}  // namespace turbo_sim
