// SPDX-License-Identifier: MIT
// Matrix instructions: which form an opcode is, and its operands. The arithmetic is in mfma_core.cpp.
// EXEC does not apply: all lanes take part, all lanes are written.
#include "core/machine.h"
#include "core/operands.h"
#include "exec/mfma_core.h"
#include "isa/registry.h"

namespace turbo_sim {
namespace {

constexpr unsigned kRegisterLanes = kLanes;

// --- operands ------------------------------------------------------------------------------------------------------
// C as registers, or a constant in `tmp` (64 lanes of its low dword, then 64 of its high dword).
struct Accumulator {
  uint32_t tmp[2 * kRegisterLanes];
  const uint32_t *base;
  uint32_t stride;
  Accumulator(const Wave &w, const Operand &c) {
    if (c.is_vector()) {
      base = w.vgpr[c.reg];
      stride = kRegisterLanes;
      return;
    }
    const uint64_t value = c.dwords > 1 || c.type == Type::F64 ? scalar64(w, c) : scalar32(w, c);
    for (unsigned l = 0; l < kRegisterLanes; ++l)
      tmp[l] = uint32_t(value), tmp[kRegisterLanes + l] = uint32_t(value >> 32);
    base = tmp;
    stride = 0;
  }
};

MfmaOperands operands(Wave &w, const Instruction &i, const Accumulator &c) {
  MfmaOperands o{};
  o.a = w.vgpr[i.src[0].reg];
  o.b = w.vgpr[i.src[1].reg];
  o.c = c.base;
  o.c_stride = c.stride;
  o.d = w.vgpr[i.dst.reg];
  return o;
}

// --- forms ---------------------------------------------------------------------------------------------------------
template <unsigned M, unsigned K, unsigned BLOCKS, Element A, Element B>
void run_float(Wave &w, const Instruction &i) {
  const Accumulator c(w, i.src[2]);
  MfmaOperands o = operands(w, i, c);
  o.a_broadcast_log2 = i.cbsz;
  o.a_broadcast_block = i.abid;
  mfma_float({M, K, BLOCKS}, A, B, o);
}
template <unsigned M, unsigned K, unsigned BLOCKS>
void run_i8(Wave &w, const Instruction &i) {
  const Accumulator c(w, i.src[2]);
  MfmaOperands o = operands(w, i, c);
  o.a_broadcast_log2 = i.cbsz;
  o.a_broadcast_block = i.abid;
  mfma_i8({M, K, BLOCKS}, o);
}
// BLGP holds the signs of A, B and C.
template <unsigned M, unsigned BLOCKS>
void run_f64(Wave &w, const Instruction &i) {
  const Accumulator c(w, i.src[2]);
  MfmaOperands o = operands(w, i, c);
  o.negate = i.blgp;
  mfma_f64({M, 4, BLOCKS}, o);
}
// gfx942's fp8 is FNUZ, gfx950's OCP.
template <unsigned M, unsigned K, bool BF8_A, bool BF8_B>
void run_fp8(Wave &w, const Instruction &i) {
  if (w.worker->launch->code->arch == Arch::gfx942)
    run_float<M, K, 1, BF8_A ? Element::e5m2fnuz : Element::e4m3fnuz, BF8_B ? Element::e5m2fnuz : Element::e4m3fnuz>(w,
                                                                                                                     i);
  else
    run_float<M, K, 1, BF8_A ? Element::e5m2 : Element::e4m3, BF8_B ? Element::e5m2 : Element::e4m3>(w, i);
}

Element f8f6f4_element(unsigned format) {  // CBSZ for A, BLGP for B
  static constexpr Element kElements[5] = {Element::e4m3_split, Element::e5m2_split, Element::e2m3, Element::e3m2,
                                           Element::e2m1};
  return kElements[format];
}

// Byte `select` of each lane of a scale operand.
const uint8_t *scales(const Wave &w, const Operand &o, unsigned select, uint8_t *out) {
  Lanes tmp;
  const uint32_t *row = row32(w, o, 0, tmp);
  for (unsigned l = 0; l < kLanes; ++l) out[l] = uint8_t(row[l] >> (8 * select));
  return out;
}

template <unsigned M, unsigned K, bool SCALED>
void run_f8f6f4(Wave &w, const Instruction &i) {
  const Accumulator c(w, i.src[2]);
  MfmaOperands o = operands(w, i, c);
  uint8_t scale_a[kLanes], scale_b[kLanes];
  if (SCALED) {
    o.scale_a = scales(w, i.src[3], (i.op_sel & 1) + 2 * (i.op_sel_hi & 1), scale_a);
    o.scale_b = scales(w, i.src[4], (i.op_sel >> 1 & 1) + 2 * (i.op_sel_hi >> 1 & 1), scale_b);
  }
  mfma_float({M, K, 1}, f8f6f4_element(i.cbsz), f8f6f4_element(i.blgp), o);
}

// --- which modifiers a form takes ----------------------------------------------------------------------------------
void require_vector_inputs(const Instruction &i) {
  if (!i.src[0].is_vector() || !i.src[1].is_vector()) throw NotImplemented("A or B that is no vector register");
}
template <Handler H, unsigned BLOCKS>
Handler plain_form(const Instruction &i) {
  require_vector_inputs(i);
  if (BLOCKS == 1 && i.cbsz) throw NotImplemented("cbsz on a form with one block");
  if (i.cbsz && ((1u << i.cbsz) > BLOCKS || i.abid >= 1u << i.cbsz)) throw NotImplemented("cbsz or abid out of range");
  if (!i.cbsz && i.abid) throw NotImplemented("abid without cbsz");
  if (i.blgp) throw NotImplemented("blgp");
  return H;
}
template <Handler H>
Handler f64_form(const Instruction &i) {
  require_vector_inputs(i);
  if (i.cbsz || i.abid) throw NotImplemented("cbsz or abid on an f64 form");
  return H;
}
template <Handler PLAIN, Handler SCALED>
Handler f8f6f4_form(const Instruction &i) {
  require_vector_inputs(i);
  if (i.cbsz > 4 || i.blgp > 4) throw NotImplemented("this cbsz or blgp format");
  return i.src[3].present() ? SCALED : PLAIN;
}

}  // namespace

void register_mfma(Registry &r) {
#define FLOAT(name, m, k, blocks, type) \
  r.select(Op::name, plain_form<run_float<m, k, blocks, Element::type, Element::type>, blocks>);
  FLOAT(v_mfma_f32_16x16x16_bf16, 16, 16, 1, bf16)
  FLOAT(v_mfma_f32_16x16x16_f16, 16, 16, 1, f16)
  FLOAT(v_mfma_f32_16x16x32_bf16, 16, 32, 1, bf16)
  FLOAT(v_mfma_f32_16x16x32_f16, 16, 32, 1, f16)
  FLOAT(v_mfma_f32_32x32x8_bf16, 32, 8, 1, bf16)
  FLOAT(v_mfma_f32_32x32x8_f16, 32, 8, 1, f16)
  FLOAT(v_mfma_f32_32x32x16_bf16, 32, 16, 1, bf16)
  FLOAT(v_mfma_f32_32x32x16_f16, 32, 16, 1, f16)
  FLOAT(v_mfma_f32_16x16x4_f32, 16, 4, 1, f32)
  FLOAT(v_mfma_f32_32x32x2_f32, 32, 2, 1, f32)
  FLOAT(v_mfma_f32_16x16x8_xf32, 16, 8, 1, xf32)
  FLOAT(v_mfma_f32_32x32x4_xf32, 32, 4, 1, xf32)
  FLOAT(v_mfma_f32_32x32x1_2b_f32, 32, 1, 2, f32)
  FLOAT(v_mfma_f32_16x16x1_4b_f32, 16, 1, 4, f32)
  FLOAT(v_mfma_f32_4x4x1_16b_f32, 4, 1, 16, f32)
  FLOAT(v_mfma_f32_32x32x4_2b_f16, 32, 4, 2, f16)
  FLOAT(v_mfma_f32_16x16x4_4b_f16, 16, 4, 4, f16)
  FLOAT(v_mfma_f32_4x4x4_16b_f16, 4, 4, 16, f16)
  FLOAT(v_mfma_f32_32x32x4_2b_bf16, 32, 4, 2, bf16)
  FLOAT(v_mfma_f32_16x16x4_4b_bf16, 16, 4, 4, bf16)
  FLOAT(v_mfma_f32_4x4x4_16b_bf16, 4, 4, 16, bf16)
#undef FLOAT
#define FP8(m, k, dims)                                                                  \
  r.select(Op::v_mfma_f32_##dims##_fp8_fp8, plain_form<run_fp8<m, k, false, false>, 1>); \
  r.select(Op::v_mfma_f32_##dims##_fp8_bf8, plain_form<run_fp8<m, k, false, true>, 1>);  \
  r.select(Op::v_mfma_f32_##dims##_bf8_fp8, plain_form<run_fp8<m, k, true, false>, 1>);  \
  r.select(Op::v_mfma_f32_##dims##_bf8_bf8, plain_form<run_fp8<m, k, true, true>, 1>);
  FP8(16, 32, 16x16x32)
  FP8(32, 16, 32x32x16)
#undef FP8
#define I8(name, m, k, blocks) r.select(Op::name, plain_form<run_i8<m, k, blocks>, blocks>);
  I8(v_mfma_i32_16x16x32_i8, 16, 32, 1)
  I8(v_mfma_i32_32x32x16_i8, 32, 16, 1)
  I8(v_mfma_i32_16x16x64_i8, 16, 64, 1)
  I8(v_mfma_i32_32x32x32_i8, 32, 32, 1)
  I8(v_mfma_i32_32x32x4_2b_i8, 32, 4, 2)
  I8(v_mfma_i32_16x16x4_4b_i8, 16, 4, 4)
  I8(v_mfma_i32_4x4x4_16b_i8, 4, 4, 16)
#undef I8
  r.select(Op::v_mfma_f64_16x16x4_f64, f64_form<run_f64<16, 1>>);
  r.select(Op::v_mfma_f64_4x4x4_4b_f64, f64_form<run_f64<4, 4>>);
#define F8F6F4(m, k, dims)                                                                                \
  r.select(Op::v_mfma_f32_##dims##_f8f6f4, f8f6f4_form<run_f8f6f4<m, k, false>, run_f8f6f4<m, k, true>>); \
  r.select(Op::v_mfma_scale_f32_##dims##_f8f6f4, f8f6f4_form<run_f8f6f4<m, k, false>, run_f8f6f4<m, k, true>>);
  F8F6F4(16, 128, 16x16x128)
  F8F6F4(32, 64, 32x32x64)
#undef F8F6F4
}

}  // namespace turbo_sim
