// SPDX-License-Identifier: MIT
// Operand access for handlers. The pattern of a vector handler:
//
//   void v_add_u32(Wave &w, const Instruction &i) {
//     Lanes ta, tb, out;
//     const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb);   // pointer into the register file, or tmp
//     filled for (unsigned l = 0; l < kLanes; ++l) out.v[l] = a[l] + b[l];      // all 64 lanes: the compiler
//     vectorises this write32(w, i, out.v);                                              // merges under EXEC
//   }
//
// All lanes are computed and only active lanes are written, so a handler must be harmless on garbage lanes
// (no division by zero traps, no table index without a mask). `out` is never the register file itself: in-place
// operands and DPP need no care.
#pragma once

#include "core/wave.h"

namespace turbo_sim {

struct alignas(64) Lanes {
  uint32_t v[kLanes];
};
struct alignas(64) Lanes64 {
  uint64_t v[kLanes];
};

// --- scalar operands (SALU, SMEM, descriptors, uniform fields)
/// Value of a Scalar, Constant, Literal or Special operand.
uint64_t special_value(const Wave &, SpecialReg);
inline uint32_t scalar32(const Wave &w, const Operand &o) {
  if (o.kind == Kind::Scalar) return w.sgpr[o.reg];
  if (o.kind == Kind::Special) return uint32_t(special_value(w, SpecialReg(o.reg)));
  return uint32_t(o.value);
}
inline uint64_t scalar64(const Wave &w, const Operand &o) {
  if (o.kind == Kind::Scalar) return w.read64(o.reg);
  if (o.kind == Kind::Special) return special_value(w, SpecialReg(o.reg));
  return o.value;
}

// --- vector operands, raw bits
/// 64 lanes of src[n], one dword each, with DPP and SDWA applied, without neg/abs. May point into the register file.
const uint32_t *src32(const Wave &, const Instruction &, unsigned n, Lanes &tmp);
/// The same with neg/abs applied as sign-bit operations on f32.
const uint32_t *srcf32(const Wave &, const Instruction &, unsigned n, Lanes &tmp);
/// 16-bit operand in the low half of each lane (op_sel, SDWA), upper half zero; f16 variant applies neg/abs to bit 15.
const uint32_t *src16(const Wave &, const Instruction &, unsigned n, Lanes &tmp);
const uint32_t *srcf16(const Wave &, const Instruction &, unsigned n, Lanes &tmp);
/// 64-bit operand: register pairs joined; f64 variant applies neg/abs to bit 63.
const uint64_t *src64(const Wave &, const Instruction &, unsigned n, Lanes64 &tmp);
const uint64_t *srcf64(const Wave &, const Instruction &, unsigned n, Lanes64 &tmp);
/// One dword row of any operand (row 0 .. dwords-1) without modifiers: MFMA, memory data, addresses.
const uint32_t *row32(const Wave &, const Operand &, unsigned row, Lanes &tmp);

// --- destinations
/// The lanes that a vector instruction writes: EXEC, less those that DPP row/bank masks or bound_ctrl leave alone.
uint64_t write_mask(const Wave &, const Instruction &);
/// dst = values under write_mask; SDWA dst_sel / dst_unused applied.
void write32(Wave &, const Instruction &, const uint32_t *values);
/// f32 result: omod and clamp first.
void writef32(Wave &, const Instruction &, uint32_t *values);
/// 16-bit result in the low half of each value: op_sel bit 3 and SDWA choose the half; the other half is kept.
/// (gfx9: a 16-bit VOP writes zeros to the upper half unless it is one of the preserving opcodes - see the handler.)
void write16(Wave &, const Instruction &, const uint32_t *values, bool keep_other_half);
void write64(Wave &, const Instruction &, const uint64_t *values);
/// One row of a destination under an explicit mask, no modifiers.
void write_row(Wave &, const Operand &, unsigned row, const uint32_t *values, uint64_t mask);
/// VOPC / carry result: bit per lane; inactive lanes become 0.
void write_lane_mask(Wave &, const Operand &sdst, uint64_t bits);

/// Bit l of a half wave's mask.
struct LaneBits {
  uint32_t v[32];
  constexpr LaneBits() : v() {
    for (unsigned l = 0; l < 32; ++l) v[l] = 1u << l;
  }
};
alignas(64) inline constexpr LaneBits kLaneBits;

/// Merge of 64 values into a register row under a mask. Written so that it becomes and, compare, blend: with the
/// obvious conditional the compiler branches on every lane (ten times slower on irregular masks).
inline void merge(uint32_t *__restrict row, const uint32_t *__restrict values, uint64_t mask) {
  if (mask == ~0ull) {
    std::memcpy(row, values, kLanes * 4);
    return;
  }
  for (unsigned half = 0; half < kLanes; half += 32) {
    const uint32_t m = uint32_t(mask >> half);
#pragma GCC unroll 1
    for (unsigned l = 0; l < 32; ++l) {
      const uint32_t take = m & kLaneBits.v[l] ? ~0u : 0u;
      row[half + l] ^= (values[half + l] ^ row[half + l]) & take;
    }
  }
}

}  // namespace turbo_sim
