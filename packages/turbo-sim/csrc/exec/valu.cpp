// SPDX-License-Identifier: MIT
#include "exec/valu.h"

#include "numerics/formats.h"

namespace turbo_sim {

namespace {
bool dpp_known(unsigned ctrl) {
  if (ctrl < 0x100) return true;  // quad_perm
  switch (ctrl >> 4) {
    case 0x10:
    case 0x11:
    case 0x12: return ctrl & 15;        // row_shl, row_shr, row_ror by 1 to 15
    case 0x13: return (ctrl & 3) == 0;  // wave_shl, wave_rol, wave_shr, wave_ror by 1
    case 0x14: return (ctrl & 15) < 4;  // mirrors and row_bcast
    case 0x15: return true;             // row_newbcast
    default: return false;
  }
}
}  // namespace

void require_modifiers(const Instruction &i, unsigned allow) {
  // v_bitop3 keeps its truth table in the places of neg, abs and omod; the decoder has moved it to `bitop3`.
  if (i.plain) return;
  if (i.has_dpp && !dpp_known(i.dpp_ctrl)) throw NotImplemented("dpp_ctrl " + std::to_string(i.dpp_ctrl));
  if (!(allow & kNegAbs)) {
    if (i.neg) throw NotImplemented("neg");
    if (i.abs) throw NotImplemented("abs");
  }
  if (!(allow & kOmod) && i.omod) throw NotImplemented("omod");
  if (!(allow & kClamp) && i.clamp) throw NotImplemented("clamp");
  if (!(allow & kOpSel) && i.op_sel && i.format != Format::VOP3P) throw NotImplemented("op_sel");
}

// --- NaN -----------------------------------------------------------------------------------------------------------
void settle_nans32(uint32_t *out, const uint32_t *a, const uint32_t *b, const uint32_t *c) {
  uint32_t any = 0;
  for (unsigned l = 0; l < kLanes; ++l) any |= (out[l] & 0x7FFFFFFFu) > 0x7F800000u ? 1u : 0u;
  if (!any) return;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!is_nan32(out[l])) continue;
    if (a && is_nan32(a[l]))
      out[l] = a[l] | 0x400000u;
    else if (b && is_nan32(b[l]))
      out[l] = b[l] | 0x400000u;
    else if (c && is_nan32(c[l]))
      out[l] = c[l] | 0x400000u;
    else
      out[l] = kNaN32;
  }
}

void settle_nans64(uint64_t *out, const uint64_t *a, const uint64_t *b, const uint64_t *c) {
  constexpr uint64_t kQuiet = 1ull << 51;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!is_nan64(out[l])) continue;
    if (a && is_nan64(a[l]))
      out[l] = a[l] | kQuiet;
    else if (b && is_nan64(b[l]))
      out[l] = b[l] | kQuiet;
    else if (c && is_nan64(c[l]))
      out[l] = c[l] | kQuiet;
    else
      out[l] = kNaN64;
  }
}

// --- sources -------------------------------------------------------------------------------------------------------
const uint32_t *source_f32(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  const uint32_t *v = srcf32(w, i, n, tmp);
  if (keep_input_denormals(w.mode.denorm32)) return v;
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = flush32(v[l]);
  return tmp.v;
}

const uint64_t *source_f64(const Wave &w, const Instruction &i, unsigned n, Lanes64 &tmp) {
  const uint64_t *v = srcf64(w, i, n, tmp);
  if (keep_input_denormals(w.mode.denorm64)) return v;
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = flush64(v[l]);
  return tmp.v;
}

const uint32_t *source_f16(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  const uint32_t *v = srcf16(w, i, n, tmp);
  if (keep_input_denormals(w.mode.denorm64)) return v;
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = flush16(v[l]);
  return tmp.v;
}

const uint32_t *accumulator_f32(const Wave &w, const Instruction &i, Lanes &tmp) {
  const uint32_t *v = destination_row(w, i);
  if (keep_input_denormals(w.mode.denorm32)) return v;
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = flush32(v[l]);
  return tmp.v;
}

const uint64_t *accumulator_f64(const Wave &w, const Instruction &i, Lanes64 &tmp) {
  const uint32_t *low = destination_row(w, i, 0), *high = destination_row(w, i, 1);
  const bool flush = !keep_input_denormals(w.mode.denorm64);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t bits = uint64_t(low[l]) | uint64_t(high[l]) << 32;
    tmp.v[l] = flush ? flush64(bits) : bits;
  }
  return tmp.v;
}

// --- results -------------------------------------------------------------------------------------------------------
void result_f32(Wave &w, const Instruction &i, uint32_t *values) {
  if (!keep_output_denormals(w.mode.denorm32))
    for (unsigned l = 0; l < kLanes; ++l) values[l] = flush32(values[l]);
  writef32(w, i, values);
}

namespace {
constexpr double kOutputScale[4] = {1.0, 2.0, 4.0, 0.5};

// clamp to [0, 1]; NaN becomes 0 where MODE.DX10_CLAMP says so.
template <class T>
inline T clamp01(T x, bool dx10) {
  if (x != x) return dx10 ? T(0) : x;
  return x > T(0) ? (x < T(1) ? x : T(1)) : T(0);
}
}  // namespace

void result_f64(Wave &w, const Instruction &i, uint64_t *values) {
  if (!keep_output_denormals(w.mode.denorm64))
    for (unsigned l = 0; l < kLanes; ++l) values[l] = flush64(values[l]);
  if (i.omod)
    for (unsigned l = 0; l < kLanes; ++l) values[l] = as_bits(as_double(values[l]) * kOutputScale[i.omod]);
  if (i.clamp)
    for (unsigned l = 0; l < kLanes; ++l) values[l] = as_bits(clamp01(as_double(values[l]), w.mode.dx10_clamp));
  write64(w, i, values);
}

void settle_f16(const Wave &w, const Instruction &i, uint32_t *values) {
  if (!keep_output_denormals(w.mode.denorm64))
    for (unsigned l = 0; l < kLanes; ++l) values[l] = flush16(values[l]);
  if (i.omod)
    for (unsigned l = 0; l < kLanes; ++l) values[l] = encode(f16_to_f32(values[l]) * kOutputScale[i.omod], kF16);
  if (i.clamp)
    for (unsigned l = 0; l < kLanes; ++l) values[l] = f32_to_f16(clamp01(f16_to_f32(values[l]), w.mode.dx10_clamp));
}

void result_f16(Wave &w, const Instruction &i, uint32_t *values, bool keep_high) {
  settle_f16(w, i, values);
  write16(w, i, values, keep_high);
}

void register_valu(Registry &r) {
  register_vop_int(r);
  register_vop_int16(r);
  register_vop_int64(r);
  register_vop_f32(r);
  register_vop_trans(r);
  register_vop_f64(r);
  register_vop_f16(r);
  register_vop_div(r);
  register_vop_cvt(r);
  register_vop_cvt_fp8(r);
  register_vop_cvt_scale(r);
  register_vop_cmp(r);
  register_vop_lane(r);
  register_vop3p(r);
  register_vop3p_dot(r);
}

}  // namespace turbo_sim
