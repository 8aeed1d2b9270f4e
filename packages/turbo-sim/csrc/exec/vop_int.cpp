// SPDX-License-Identifier: MIT
// 32-bit integer and bit instructions.
#include "exec/valu.h"

#include <algorithm>

namespace turbo_sim {
namespace {

inline uint32_t sext24(uint32_t x) { return uint32_t(int32_t(x << 8) >> 8); }
inline uint32_t umin(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline uint32_t umax(uint32_t a, uint32_t b) { return a > b ? a : b; }
inline uint32_t smin(uint32_t a, uint32_t b) { return int32_t(a) < int32_t(b) ? a : b; }
inline uint32_t smax(uint32_t a, uint32_t b) { return int32_t(a) > int32_t(b) ? a : b; }
inline uint32_t reverse(uint32_t x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
  return __builtin_bswap32(x);
}
inline uint32_t field(uint32_t x, uint32_t offset, uint32_t width) {
  return x >> (offset & 31) & ((1u << (width & 31)) - 1);
}
// Width 0 gives 0. A field that runs over bit 31 is filled by the arithmetic shift.
inline uint32_t signed_field(uint32_t x, uint32_t offset, uint32_t width) {
  offset &= 31, width &= 31;
  const int32_t moved = int32_t(x) >> offset;
  const uint32_t unused = width == 0 ? 0 : 32 - width;
  return width == 0 ? 0 : uint32_t(int32_t(uint32_t(moved) << unused) >> unused);
}
inline uint32_t align(uint32_t high, uint32_t low, uint32_t bits) {
  return uint32_t((uint64_t(high) << 32 | low) >> bits);
}
inline uint32_t absolute_difference(uint32_t a, uint32_t b) { return a > b ? a - b : b - a; }
inline uint32_t sad_u8(uint32_t a, uint32_t b, uint32_t c) {
  for (unsigned s = 0; s < 32; s += 8) c += absolute_difference(a >> s & 255, b >> s & 255);
  return c;
}
inline uint32_t msad_u8(uint32_t a, uint32_t b, uint32_t c) {
  for (unsigned s = 0; s < 32; s += 8) c += (b >> s & 255) ? absolute_difference(a >> s & 255, b >> s & 255) : 0;
  return c;
}
inline uint32_t sad_u16(uint32_t a, uint32_t b, uint32_t c) {
  return c + absolute_difference(a & 0xFFFF, b & 0xFFFF) + absolute_difference(a >> 16, b >> 16);
}
// Bytes 0-3 of the table are the low source (src1), 4-7 the high one (src0); 8-11 replicate signs, 12 is 0, above: 255.
inline uint32_t permute(uint32_t high, uint32_t low, uint32_t select) {
  uint32_t out = 0;
  for (unsigned s = 0; s < 32; s += 8) {
    const uint32_t k = select >> s & 255;
    const uint32_t plain = (k & 4 ? high : low) >> (8 * (k & 3)) & 255;
    const uint32_t sign = uint32_t(int32_t((k & 2 ? high : low) << (k & 1 ? 0 : 16)) >> 31) & 255;
    uint32_t byte = k < 8 ? plain : sign;
    byte = k == 12 ? 0u : byte;
    byte = k > 12 ? 255u : byte;
    out |= byte << s;
  }
  return out;
}
inline uint32_t saturate_u16(uint32_t x) { return umin(x, 0xFFFF); }
inline uint32_t saturate_i16(uint32_t x) { return smax(smin(x, 0x7FFF), uint32_t(-0x8000)) & 0xFFFF; }
inline uint32_t saturate_u8_i16(uint32_t x) { return uint32_t(std::clamp<int32_t>(int16_t(x), 0, 255)); }
inline uint32_t clamped_i8(int32_t x) { return uint32_t(std::clamp(x, -128, 127)) & 255; }
inline uint32_t clamped_u8(int32_t x) { return uint32_t(std::clamp(x, 0, 255)); }
inline uint32_t lerp_u8(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out = 0;
  for (unsigned s = 0; s < 32; s += 8) out |= ((a >> s & 255) + (b >> s & 255) + (c >> s & 1)) >> 1 << s;
  return out;
}
inline uint32_t add_sat_u32(uint32_t a, uint32_t b) { return a + b < a ? ~0u : a + b; }
inline uint32_t sub_sat_u32(uint32_t a, uint32_t b) { return a < b ? 0 : a - b; }
inline uint32_t saturate_i32(int64_t x) { return uint32_t(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX)); }

#define UNARY(X)                                                                         \
  X(v_mov_b32, a)                                                                        \
  X(v_not_b32, ~a)                                                                       \
  X(v_bfrev_b32, reverse(a))                                                             \
  X(v_ffbh_u32, a == 0 ? ~0u : uint32_t(std::countl_zero(a)))                            \
  X(v_ffbl_b32, a == 0 ? ~0u : uint32_t(std::countr_zero(a)))                            \
  X(v_ffbh_i32, a + 1 <= 1u ? ~0u : uint32_t(std::countl_zero(int32_t(a) < 0 ? ~a : a))) \
  X(v_sat_pk_u8_i16, saturate_u8_i16(a) | saturate_u8_i16(a >> 16) << 8)                 \
  X(v_prng_b32, (a << 1) ^ (a >> 31 ? 197u : 0u))                                        \
  X(v_accvgpr_read_b32, a)                                                               \
  X(v_accvgpr_write_b32, a)                                                              \
  X(v_accvgpr_mov_b32, a)

#define BINARY(X)                                                                       \
  X(v_add_u32, a + b)                                                                   \
  X(v_sub_u32, a - b)                                                                   \
  X(v_subrev_u32, b - a)                                                                \
  X(v_add_i32, a + b)                                                                   \
  X(v_sub_i32, a - b)                                                                   \
  X(v_and_b32, a &b)                                                                    \
  X(v_or_b32, a | b)                                                                    \
  X(v_xor_b32, a ^ b)                                                                   \
  X(v_xnor_b32, ~(a ^ b))                                                               \
  X(v_lshlrev_b32, b << (a & 31))                                                       \
  X(v_lshrrev_b32, b >> (a & 31))                                                       \
  X(v_ashrrev_i32, uint32_t(int32_t(b) >> (a & 31)))                                    \
  X(v_min_i32, smin(a, b))                                                              \
  X(v_max_i32, smax(a, b))                                                              \
  X(v_min_u32, umin(a, b))                                                              \
  X(v_max_u32, umax(a, b))                                                              \
  X(v_mul_lo_u32, a *b)                                                                 \
  X(v_mul_hi_u32, uint32_t(uint64_t(a) * b >> 32))                                      \
  X(v_mul_hi_i32, uint32_t(int64_t(int32_t(a)) * int32_t(b) >> 32))                     \
  X(v_mul_i32_i24, sext24(a) * sext24(b))                                               \
  X(v_mul_hi_i32_i24, uint32_t(int64_t(int32_t(sext24(a))) * int32_t(sext24(b)) >> 32)) \
  X(v_mul_u32_u24, (a & 0xFFFFFF) * (b & 0xFFFFFF))                                     \
  X(v_mul_hi_u32_u24, uint32_t(uint64_t(a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32))          \
  X(v_bfm_b32, ((1u << (a & 31)) - 1) << (b & 31))                                      \
  X(v_bcnt_u32_b32, uint32_t(std::popcount(a)) + b)                                     \
  X(v_cvt_pk_u16_u32, saturate_u16(a) | saturate_u16(b) << 16)                          \
  X(v_cvt_pk_i16_i32, saturate_i16(a) | saturate_i16(b) << 16)

#define TERNARY(X)                                      \
  X(v_add3_u32, a + b + c)                              \
  X(v_lshl_add_u32, (a << (b & 31)) + c)                \
  X(v_add_lshl_u32, (a + b) << (c & 31))                \
  X(v_lshl_or_b32, (a << (b & 31)) | c)                 \
  X(v_and_or_b32, (a & b) | c)                          \
  X(v_or3_b32, a | b | c)                               \
  X(v_xad_u32, (a ^ b) + c)                             \
  X(v_bfe_u32, field(a, b, c))                          \
  X(v_bfe_i32, signed_field(a, b, c))                   \
  X(v_bfi_b32, (a & b) | (~a & c))                      \
  X(v_alignbit_b32, align(a, b, c & 31))                \
  X(v_alignbyte_b32, align(a, b, 8 * (c & 3)))          \
  X(v_perm_b32, permute(a, b, c))                       \
  X(v_mad_u32_u24, (a & 0xFFFFFF) * (b & 0xFFFFFF) + c) \
  X(v_mad_i32_i24, sext24(a) * sext24(b) + c)           \
  X(v_min3_i32, smin(smin(a, b), c))                    \
  X(v_min3_u32, umin(umin(a, b), c))                    \
  X(v_max3_i32, smax(smax(a, b), c))                    \
  X(v_max3_u32, umax(umax(a, b), c))                    \
  X(v_med3_i32, smax(smin(a, b), smin(smax(a, b), c)))  \
  X(v_med3_u32, umax(umin(a, b), umin(umax(a, b), c)))  \
  X(v_sad_u8, sad_u8(a, b, c))                          \
  X(v_sad_hi_u8, (sad_u8(a, b, 0) << 16) + c)           \
  X(v_sad_u16, sad_u16(a, b, c))                        \
  X(v_sad_u32, absolute_difference(a, b) + c)           \
  X(v_msad_u8, msad_u8(a, b, c))                        \
  X(v_lerp_u8, lerp_u8(a, b, c))

// With clamp, integer results saturate.
#define SATURATING(X)                                          \
  X(v_add_u32, add_sat_u32(a, b))                              \
  X(v_sub_u32, sub_sat_u32(a, b))                              \
  X(v_subrev_u32, sub_sat_u32(b, a))                           \
  X(v_add_i32, saturate_i32(int64_t(int32_t(a)) + int32_t(b))) \
  X(v_sub_i32, saturate_i32(int64_t(int32_t(a)) - int32_t(b)))

#define X(name, expr)                                           \
  void name(Wave &w, const Instruction &i) {                    \
    unary32(w, i, [](uint32_t a) -> uint32_t { return expr; }); \
  }
UNARY(X)
#undef X
#define X(name, expr)                                                        \
  void name(Wave &w, const Instruction &i) {                                 \
    binary32(w, i, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }
BINARY(X)
#undef X
#define X(name, expr)                                                                     \
  void name(Wave &w, const Instruction &i) {                                              \
    ternary32(w, i, [](uint32_t a, uint32_t b, uint32_t c) -> uint32_t { return expr; }); \
  }
TERNARY(X)
#undef X
#define X(name, expr)                                                        \
  void name##_saturating(Wave &w, const Instruction &i) {                    \
    binary32(w, i, [](uint32_t a, uint32_t b) -> uint32_t { return expr; }); \
  }                                                                          \
  Handler name##_form(const Instruction &i) {                                \
    require_modifiers(i, kClamp);                                            \
    return i.clamp ? name##_saturating : name;                               \
  }
SATURATING(X)
#undef X

// Two shifted and saturated bytes in the low half; the upper half is kept.
template <uint32_t (*SATURATE)(int32_t)>
void ashr_pk(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb), *c = src32(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = SATURATE(int32_t(a[l]) >> (c[l] & 31)) | SATURATE(int32_t(b[l]) >> (c[l] & 31)) << 8;
  write16(w, i, out.v, true);
}

// Bit n of the table is the result for (a, b, c) = the bits of n, a the highest.
void v_bitop3_b32(Wave &w, const Instruction &i) {
  uint32_t on[8];
  for (unsigned n = 0; n < 8; ++n) on[n] = i.bitop3 >> n & 1 ? ~0u : 0;
  ternary32(w, i, [&on](uint32_t a, uint32_t b, uint32_t c) -> uint32_t {
    return (on[0] & ~a & ~b & ~c) | (on[1] & ~a & ~b & c) | (on[2] & ~a & b & ~c) | (on[3] & ~a & b & c) |
           (on[4] & a & ~b & ~c) | (on[5] & a & ~b & c) | (on[6] & a & b & ~c) | (on[7] & a & b & c);
  });
}

}  // namespace

void register_vop_int(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kInt>);
  UNARY(X)
  BINARY(X)
  TERNARY(X)
#undef X
#define X(name, expr) r.select(Op::name, name##_form);  // after BINARY: replaces the plain form
  SATURATING(X)
#undef X
  r.select(Op::v_bitop3_b32, bind_checked<v_bitop3_b32, kInt>);
  r.select(Op::v_ashr_pk_i8_i32, bind_checked<ashr_pk<clamped_i8>, kOpSel>);
  r.select(Op::v_ashr_pk_u8_i32, bind_checked<ashr_pk<clamped_u8>, kOpSel>);
}

}  // namespace turbo_sim
