// SPDX-License-Identifier: MIT
// Conversions between f16, bf16, f32, f64 and integers. (fp8 and scaled ones: vop_cvt_fp8.cpp, vop_cvt_scale.cpp.)
#include "exec/f16_math.h"

namespace turbo_sim {
namespace {

// --- float to integer: toward zero, saturating, NaN to 0 -----------------------------------------------------------
inline uint32_t to_i32(double x) {
  return x != x ? 0 : x >= 2147483647.0 ? 0x7FFFFFFFu : x <= -2147483648.0 ? 0x80000000u : uint32_t(int32_t(x));
}
inline uint32_t to_u32(double x) {
  return x != x || x <= 0 ? 0 : x >= 4294967295.0 ? 0xFFFFFFFFu : uint32_t(int64_t(x));
}
inline uint32_t to_i16(float x) {
  return x != x ? 0 : uint32_t(x >= 32767 ? 32767 : x <= -32768 ? -32768 : int32_t(x)) & 0xFFFF;
}
inline uint32_t to_u16(float x) { return x != x || x <= 0 ? 0 : x >= 65535 ? 65535u : uint32_t(x); }
inline uint32_t to_u8(float x) { return x != x || x <= 0 ? 0 : x >= 255 ? 255u : uint32_t(std::nearbyint(x)); }
// [-1, 1] to the 16-bit integers, nearest even.
inline uint32_t to_snorm(float x) {
  const float c = x != x ? 0.0f : x < -1 ? -1.0f : x > 1 ? 1.0f : x;
  return uint32_t(int32_t(round_half_even(c * 32767.0f))) & 0xFFFF;
}
inline uint32_t to_unorm(float x) {
  const float c = x != x || x < 0 ? 0.0f : x > 1 ? 1.0f : x;
  return uint32_t(round_half_even(c * 65535.0f));
}

template <class F>
inline void f32_to_int(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(as_float(a[l]));
  write32(w, i, out.v);
}
template <class F>
inline void int_to_f32(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = src32(w, i, 0, ta);
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(float(f(a[l])));
  }
  result_f32(w, i, out.v);
}

#define FROM_F32(X)                                         \
  X(v_cvt_i32_f32, to_i32(a))                               \
  X(v_cvt_u32_f32, to_u32(a))                               \
  X(v_cvt_rpi_i32_f32, to_i32(std::floor(double(a) + 0.5))) \
  X(v_cvt_flr_i32_f32, to_i32(std::floor(a)))
#define FROM_INT(X)                  \
  X(v_cvt_f32_i32, int32_t(a))       \
  X(v_cvt_f32_u32, a)                \
  X(v_cvt_f32_ubyte0, a & 255)       \
  X(v_cvt_f32_ubyte1, a >> 8 & 255)  \
  X(v_cvt_f32_ubyte2, a >> 16 & 255) \
  X(v_cvt_f32_ubyte3, a >> 24)       \
  X(v_cvt_off_f32_i4, float(int32_t(a << 28) >> 28) * 0.0625f)

#define X(name, expr)                                           \
  void name(Wave &w, const Instruction &i) {                    \
    f32_to_int(w, i, [](float a) -> uint32_t { return expr; }); \
  }
FROM_F32(X)
#undef X
#define X(name, expr)                                  \
  void name(Wave &w, const Instruction &i) {           \
    int_to_f32(w, i, [](uint32_t a) { return expr; }); \
  }
FROM_INT(X)
#undef X

// --- f64 -----------------------------------------------------------------------------------------------------------
template <bool SIGNED>
void int_f64(Wave &w, const Instruction &i) {
  Lanes64 ta;
  Lanes out;
  const uint64_t *a = source_f64(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = SIGNED ? to_i32(as_double(a[l])) : to_u32(as_double(a[l]));
  write32(w, i, out.v);
}
template <bool SIGNED>
void f64_int(Wave &w, const Instruction &i) {
  Lanes ta;
  Lanes64 out;
  const uint32_t *a = src32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(SIGNED ? double(int32_t(a[l])) : double(a[l]));
  result_f64(w, i, out.v);
}
void v_cvt_f64_f32(Wave &w, const Instruction &i) {
  Lanes ta;
  Lanes64 out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t nan = uint64_t(a[l] & 0x80000000u) << 32 | kNaN64 | uint64_t(a[l] & 0x3FFFFF) << 29;
    out.v[l] = is_nan32(a[l]) ? nan : as_bits(double(as_float(a[l])));
  }
  result_f64(w, i, out.v);
}
void v_cvt_f32_f64(Wave &w, const Instruction &i) {
  Lanes64 ta;
  Lanes out;
  const uint64_t *a = source_f64(w, i, 0, ta);
  {
    RoundingScope scope(w.mode.round32);
    for (unsigned l = 0; l < kLanes; ++l) {
      const uint32_t nan = uint32_t(a[l] >> 32 & 0x80000000u) | kNaN32 | uint32_t(a[l] >> 29 & 0x3FFFFF);
      out.v[l] = is_nan64(a[l]) ? nan : as_bits(float(as_double(a[l])));
    }
  }
  result_f32(w, i, out.v);
}

// --- f16 and bf16 --------------------------------------------------------------------------------------------------
void v_cvt_f32_f16(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f16(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint32_t r = as_bits(f16_to_f32(a[l]));
    out.v[l] = is_nan32(r) ? r | 0x400000u : r;
  }
  result_f32(w, i, out.v);
}
void v_cvt_f32_bf16(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = src16(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = a[l] << 16;
  result_f32(w, i, out.v);
}
void v_cvt_f16_f32(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f32(w, i, 0, ta);
  if (w.mode.round64 == 0 && !w.mode.fp16_ovfl) {
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f32_to_f16(as_float(a[l]));
  } else {
    const F16Rounding round(w.mode);
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = round(double(as_float(a[l])));
  }
  result_f16(w, i, out.v, false);
}
template <bool SIGNED>
void f16_int16(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = src16(w, i, 0, ta);
  const F16Rounding round(w.mode);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = round(SIGNED ? double(int16_t(a[l])) : double(a[l] & 0xFFFF));
  result_f16(w, i, out.v, false);
}
template <uint32_t (*CONVERT)(float)>
void int16_f16(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = source_f16(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = CONVERT(f16_to_f32(a[l]));
  write16(w, i, out.v, false);
}

// --- packed --------------------------------------------------------------------------------------------------------
template <class F>
inline void pack_f32(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = source_f32(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(as_float(a[l])) | f(as_float(b[l])) << 16;
  write32(w, i, out.v);
}
// clamp to [0, 1] before the conversion, NaN as MODE.DX10_CLAMP says.
void clamp_sources(const Wave &w, const uint32_t *in, uint32_t *out) {
  for (unsigned l = 0; l < kLanes; ++l) {
    const float x = as_float(in[l]);
    out[l] = x != x ? (w.mode.dx10_clamp ? 0 : in[l]) : as_bits(x > 0 ? (x < 1 ? x : 1.0f) : 0.0f);
  }
}
void v_cvt_pkrtz_f16_f32(Wave &w, const Instruction &i) { pack_f32(w, i, f32_to_f16_toward_zero); }
void v_cvt_pk_f16_f32(Wave &w, const Instruction &i) {
  if (!w.mode.fp16_ovfl) return pack_f32(w, i, [](float x) { return f32_to_f16(x); });
  pack_f32(w, i, [](float x) { return encode(x, kF16, Round::nearest_even, Overflow::clamp); });
}
void v_cvt_pk_bf16_f32(Wave &w, const Instruction &i) {
  if (!i.clamp) return pack_f32(w, i, [](float x) { return f32_to_bf16(x); });
  Lanes ta, tb, out;
  clamp_sources(w, source_f32(w, i, 0, ta), ta.v);
  clamp_sources(w, source_f32(w, i, 1, tb), tb.v);
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = f32_to_bf16(as_float(ta.v[l])) | f32_to_bf16(as_float(tb.v[l])) << 16;
  write32(w, i, out.v);
}
void v_cvt_pknorm_i16_f32(Wave &w, const Instruction &i) { pack_f32(w, i, to_snorm); }
void v_cvt_pknorm_u16_f32(Wave &w, const Instruction &i) { pack_f32(w, i, to_unorm); }
template <uint32_t (*CONVERT)(float)>
void pknorm_f16(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f16(w, i, 0, ta), *b = source_f16(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = CONVERT(f16_to_f32(a[l])) | CONVERT(f16_to_f32(b[l])) << 16;
  write32(w, i, out.v);
}
// Byte src1[1:0] of src2 is replaced.
void v_cvt_pk_u8_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = src32(w, i, 1, tb), *c = src32(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) {
    const unsigned shift = 8 * (b[l] & 3);
    out.v[l] = (c[l] & ~(255u << shift)) | to_u8(as_float(a[l])) << shift;
  }
  write32(w, i, out.v);
}

}  // namespace

void register_vop_cvt(Registry &r) {
#define X(name, expr) r.select(Op::name, bind_checked<name, kNegAbs>);
  FROM_F32(X)
#undef X
#define X(name, expr) r.select(Op::name, bind_checked<name, kOmod | kClamp>);
  FROM_INT(X)
#undef X
  r.select(Op::v_cvt_i32_f64, bind_checked<int_f64<true>, kNegAbs>);
  r.select(Op::v_cvt_u32_f64, bind_checked<int_f64<false>, kNegAbs>);
  r.select(Op::v_cvt_f64_i32, bind_checked<f64_int<true>, kOmod | kClamp>);
  r.select(Op::v_cvt_f64_u32, bind_checked<f64_int<false>, kOmod | kClamp>);
  r.select(Op::v_cvt_f64_f32, bind_checked<v_cvt_f64_f32, kFloat>);
  r.select(Op::v_cvt_f32_f64, bind_checked<v_cvt_f32_f64, kFloat>);
  r.select(Op::v_cvt_f32_f16, bind_checked<v_cvt_f32_f16, kFloat>);
  r.select(Op::v_cvt_f32_bf16, bind_checked<v_cvt_f32_bf16, kOmod | kClamp>);
  r.select(Op::v_cvt_f16_f32, bind_checked<v_cvt_f16_f32, kFloat>);
  r.select(Op::v_cvt_f16_i16, bind_checked<f16_int16<true>, kOmod | kClamp>);
  r.select(Op::v_cvt_f16_u16, bind_checked<f16_int16<false>, kOmod | kClamp>);
  r.select(Op::v_cvt_i16_f16, bind_checked<int16_f16<to_i16>, kNegAbs>);
  r.select(Op::v_cvt_u16_f16, bind_checked<int16_f16<to_u16>, kNegAbs>);
  r.select(Op::v_cvt_norm_i16_f16, bind_checked<int16_f16<to_snorm>, kNegAbs>);
  r.select(Op::v_cvt_norm_u16_f16, bind_checked<int16_f16<to_unorm>, kNegAbs>);
  r.select(Op::v_cvt_pkrtz_f16_f32, bind_checked<v_cvt_pkrtz_f16_f32, kNegAbs>);
  r.select(Op::v_cvt_pk_f16_f32, bind_checked<v_cvt_pk_f16_f32, kNegAbs>);
  r.select(Op::v_cvt_pk_bf16_f32, bind_checked<v_cvt_pk_bf16_f32, kNegAbs | kClamp>);
  r.select(Op::v_cvt_pknorm_i16_f32, bind_checked<v_cvt_pknorm_i16_f32, kNegAbs>);
  r.select(Op::v_cvt_pknorm_u16_f32, bind_checked<v_cvt_pknorm_u16_f32, kNegAbs>);
  r.select(Op::v_cvt_pknorm_i16_f16, bind_checked<pknorm_f16<to_snorm>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_pknorm_u16_f16, bind_checked<pknorm_f16<to_unorm>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_pk_u8_f32, bind_checked<v_cvt_pk_u8_f32, kNegAbs>);
}

}  // namespace turbo_sim
