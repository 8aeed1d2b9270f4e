// SPDX-License-Identifier: MIT
// fp8 and bf8 conversions of both archs: FNUZ formats on gfx942, OCP on gfx950.
//
// To fp8: nearest even whatever MODE rounds to. Beyond the range: NaN (e5m2 OCP: infinity); with MODE.FP16_OVFL the
// largest finite number, for infinities too.
#include "core/machine.h"
#include "exec/f16_math.h"

namespace turbo_sim {
namespace {

enum class Kind8 { fp8, bf8 };

const FloatFormat &format8(const Wave &w, Kind8 kind) {
  const bool fnuz = w.worker->launch->code->arch == Arch::gfx942;
  if (kind == Kind8::fp8) return fnuz ? kE4M3FNUZ : kE4M3;
  return fnuz ? kE5M2FNUZ : kE5M2;
}
Overflow overflow8(const Wave &w) { return w.mode.fp16_ovfl ? Overflow::clamp_all : Overflow::ieee; }

// Byte of src0: SDWA's byte select arrives as the low byte already.
template <Kind8 KIND>
void cvt_f32(Wave &w, const Instruction &i) {
  Lanes ta, out;
  const uint32_t *a = src32(w, i, 0, ta);
  const auto &table = decode_table(format8(w, KIND));
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = as_bits(table[a[l] & 255]);
  result_f32(w, i, out.v);
}

// Two bytes of the word that SDWA (or op_sel) selects.
template <Kind8 KIND>
void cvt_pk_f32(Wave &w, const Instruction &i) {
  Lanes ta;
  Lanes64 out;
  const uint32_t *a = src16(w, i, 0, ta);
  const auto &table = decode_table(format8(w, KIND));
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = uint64_t(as_bits(table[a[l] & 255])) | uint64_t(as_bits(table[a[l] >> 8 & 255])) << 32;
  write64(w, i, out.v);
}

// Result word into the half that op_sel bit 3 names; the other half is kept.
template <Kind8 KIND>
void cvt_pk_8_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = source_f32(w, i, 1, tb);
  const NarrowEncoder code(format8(w, KIND), overflow8(w));
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = code(as_float(a[l])) | code(as_float(b[l])) << 8;
  write16(w, i, out.v, true);
}

// Stochastic: the top bits of src1 are added below the last kept bit, then the value is truncated. Result byte
// op_sel[3:2].
template <Kind8 KIND>
void cvt_sr_8_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  const FloatFormat &format = format8(w, KIND);
  const int noise_bits = 23 - format.mantissa_bits;
  const unsigned shift = 8 * (i.op_sel >> 2 & 3);
  const uint32_t *old = destination_row(w, i);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint32_t code =
        encode_stochastic(as_float(a[l]), format, b[l] >> (32 - noise_bits), noise_bits, overflow8(w));
    out.v[l] = (old[l] & ~(255u << shift)) | code << shift;
  }
  write_row(w, i.dst, 0, out.v, write_mask(w, i));
}

// f16 and bf16 results, noise from the top bits of src1; op_sel bit 3 chooses the half, the other is kept.
template <const FloatFormat &FORMAT>
void cvt_sr_16_f32(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = source_f32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  const int noise_bits = 23 - FORMAT.mantissa_bits;
  const Overflow overflow = w.mode.fp16_ovfl && FORMAT.mantissa_bits == 10 ? Overflow::clamp : Overflow::ieee;
  for (unsigned l = 0; l < kLanes; ++l)
    out.v[l] = encode_stochastic(as_float(a[l]), FORMAT, b[l] >> (32 - noise_bits), noise_bits, overflow);
  write16(w, i, out.v, true);
}

// The 64-bit form selects the byte or word by op_sel[1:0] on later archs; gfx9 has SDWA for that.
template <Handler H>
Handler byte_form(const Instruction &i) {
  require_modifiers(i, kOmod | kClamp);
  return H;
}
template <Handler H>
Handler pair_form(const Instruction &i) {
  require_modifiers(i, kInt);
  return H;
}

}  // namespace

void register_vop_cvt_fp8(Registry &r) {
  r.select(Op::v_cvt_f32_fp8, byte_form<cvt_f32<Kind8::fp8>>);
  r.select(Op::v_cvt_f32_bf8, byte_form<cvt_f32<Kind8::bf8>>);
  r.select(Op::v_cvt_pk_f32_fp8, pair_form<cvt_pk_f32<Kind8::fp8>>);
  r.select(Op::v_cvt_pk_f32_bf8, pair_form<cvt_pk_f32<Kind8::bf8>>);
  r.select(Op::v_cvt_pk_fp8_f32, bind_checked<cvt_pk_8_f32<Kind8::fp8>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_pk_bf8_f32, bind_checked<cvt_pk_8_f32<Kind8::bf8>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_sr_fp8_f32, bind_checked<cvt_sr_8_f32<Kind8::fp8>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_sr_bf8_f32, bind_checked<cvt_sr_8_f32<Kind8::bf8>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_sr_f16_f32, bind_checked<cvt_sr_16_f32<kF16>, kNegAbs | kOpSel>);
  r.select(Op::v_cvt_sr_bf16_f32, bind_checked<cvt_sr_16_f32<kBF16>, kNegAbs | kOpSel>);
}

}  // namespace turbo_sim
