// SPDX-License-Identifier: MIT
// Scalar arithmetic and logic: SOP2, SOP1, SOPC and the arithmetic part of SOPK.
// SCC: carry or borrow for the unsigned, overflow for the signed 32-bit additions, "result is not zero" for logic and
// shifts.
#include "core/operands.h"
#include "isa/registry.h"

#include <bit>

namespace turbo_sim {
namespace {

uint32_t a32(Wave &w, const Instruction &i) { return scalar32(w, i.src[0]); }
uint32_t b32(Wave &w, const Instruction &i) { return scalar32(w, i.src[1]); }
uint64_t a64(Wave &w, const Instruction &i) { return scalar64(w, i.src[0]); }
uint64_t b64(Wave &w, const Instruction &i) { return scalar64(w, i.src[1]); }
void put32(Wave &w, const Instruction &i, uint32_t v) { w.sgpr[i.dst.reg] = v; }
void put64(Wave &w, const Instruction &i, uint64_t v) { w.write64(i.dst.reg, v); }

// One line per opcode: NAME(opcode, expression of a and b). KEEP leaves SCC alone, NZ sets it to "result != 0".
#define BODY32(expr, scc_expr)                                    \
  [](Wave &w, const Instruction &i) {                             \
    [[maybe_unused]] const uint32_t a = a32(w, i), b = b32(w, i); \
    const uint32_t d = uint32_t(expr);                            \
    scc_expr;                                                     \
    put32(w, i, d);                                               \
  }
#define BODY64(expr, scc_expr)                     \
  [](Wave &w, const Instruction &i) {              \
    [[maybe_unused]] const uint64_t a = a64(w, i); \
    [[maybe_unused]] const uint64_t b = b64(w, i); \
    const uint64_t d = uint64_t(expr);             \
    scc_expr;                                      \
    put64(w, i, d);                                \
  }
#define NZ w.scc = d != 0
#define KEEP (void)0

uint64_t field(uint64_t a, uint32_t control, unsigned size, bool is_signed) {
  const unsigned offset = control & (size - 1), width = control >> 16 & 0x7f;
  if (!width) return 0;
  const unsigned avail = size - offset, n = width < avail ? width : avail;
  uint64_t v = a >> offset;
  if (n < 64) v &= (uint64_t(1) << n) - 1;
  // A field that reaches beyond the top takes the sign from the top bit of the source.
  if (is_signed && n < 64 && (v >> (n - 1) & 1)) v |= ~uint64_t(0) << n;
  return v;
}

int32_t leading_same(uint64_t v, unsigned size) {  // flbit_i32: leading bits equal to the sign, -1 if all are
  for (unsigned k = 1; k < size; ++k)
    if ((v >> (size - 1 - k) & 1) != (v >> (size - 1) & 1)) return int32_t(k);
  return -1;
}

uint32_t bit_reverse(uint32_t v) {
  uint32_t r = 0;
  for (unsigned k = 0; k < 32; ++k) r |= (v >> k & 1) << (31 - k);
  return r;
}
uint64_t bit_reverse64(uint64_t v) { return uint64_t(bit_reverse(uint32_t(v))) << 32 | bit_reverse(uint32_t(v >> 32)); }

uint64_t whole_quads(uint64_t v) {  // wqm: every group of four bits becomes all ones if any is set
  uint64_t r = 0;
  for (unsigned k = 0; k < 64; k += 4)
    if (v >> k & 15) r |= uint64_t(15) << k;
  return r;
}
uint64_t quad_mask(uint64_t v) {
  uint64_t r = 0;
  for (unsigned k = 0; k < 64; k += 4)
    if (v >> k & 15) r |= uint64_t(1) << (k / 4);
  return r;
}
uint64_t replicate(uint32_t v) {  // each bit twice
  uint64_t r = 0;
  for (unsigned k = 0; k < 32; ++k)
    if (v >> k & 1) r |= uint64_t(3) << (2 * k);
  return r;
}

bool add_overflow(uint32_t a, uint32_t b, uint32_t d) { return ((a ^ d) & (b ^ d)) >> 31; }
bool sub_overflow(uint32_t a, uint32_t b, uint32_t d) { return ((a ^ b) & (a ^ d)) >> 31; }

void sop2(Registry &r) {
  r.set(Op::s_add_u32, BODY32(a + b, w.scc = d < a));
  r.set(Op::s_sub_u32, BODY32(a - b, w.scc = b > a));
  r.set(Op::s_add_i32, BODY32(a + b, w.scc = add_overflow(a, b, d)));
  r.set(Op::s_sub_i32, BODY32(a - b, w.scc = sub_overflow(a, b, d)));
  r.set(Op::s_addc_u32, BODY32(a + b + w.scc, w.scc = (uint64_t(a) + b + w.scc) >> 32));
  r.set(Op::s_subb_u32, BODY32(a - b - w.scc, w.scc = uint64_t(b) + w.scc > a));
  r.set(Op::s_min_i32, BODY32(int32_t(a) < int32_t(b) ? a : b, w.scc = int32_t(a) < int32_t(b)));
  r.set(Op::s_max_i32, BODY32(int32_t(a) > int32_t(b) ? a : b, w.scc = int32_t(a) > int32_t(b)));
  r.set(Op::s_min_u32, BODY32(a < b ? a : b, w.scc = a < b));
  r.set(Op::s_max_u32, BODY32(a > b ? a : b, w.scc = a > b));
  r.set(Op::s_cselect_b32, BODY32(w.scc ? a : b, KEEP));
  r.set(Op::s_cselect_b64, BODY64(w.scc ? a : b, KEEP));
  r.set(Op::s_and_b32, BODY32(a & b, NZ));
  r.set(Op::s_or_b32, BODY32(a | b, NZ));
  r.set(Op::s_xor_b32, BODY32(a ^ b, NZ));
  r.set(Op::s_andn2_b32, BODY32(a & ~b, NZ));
  r.set(Op::s_orn2_b32, BODY32(a | ~b, NZ));
  r.set(Op::s_nand_b32, BODY32(~(a & b), NZ));
  r.set(Op::s_nor_b32, BODY32(~(a | b), NZ));
  r.set(Op::s_xnor_b32, BODY32(~(a ^ b), NZ));
  r.set(Op::s_and_b64, BODY64(a & b, NZ));
  r.set(Op::s_or_b64, BODY64(a | b, NZ));
  r.set(Op::s_xor_b64, BODY64(a ^ b, NZ));
  r.set(Op::s_andn2_b64, BODY64(a & ~b, NZ));
  r.set(Op::s_orn2_b64, BODY64(a | ~b, NZ));
  r.set(Op::s_nand_b64, BODY64(~(a & b), NZ));
  r.set(Op::s_nor_b64, BODY64(~(a | b), NZ));
  r.set(Op::s_xnor_b64, BODY64(~(a ^ b), NZ));
  r.set(Op::s_lshl_b32, BODY32(a << (b & 31), NZ));
  r.set(Op::s_lshr_b32, BODY32(a >> (b & 31), NZ));
  r.set(Op::s_ashr_i32, BODY32(int32_t(a) >> (b & 31), NZ));
  r.set(Op::s_bfm_b32, BODY32(((1u << (a & 31)) - 1) << (b & 31), KEEP));
  r.set(Op::s_mul_i32, BODY32(a * b, KEEP));
  r.set(Op::s_mul_hi_u32, BODY32(uint64_t(a) * b >> 32, KEEP));
  r.set(Op::s_mul_hi_i32, BODY32(int64_t(int32_t(a)) * int32_t(b) >> 32, KEEP));
  r.set(Op::s_bfe_u32, BODY32(field(a, b, 32, false), NZ));
  r.set(Op::s_bfe_i32, BODY32(field(a, b, 32, true), NZ));
  r.set(Op::s_absdiff_i32, BODY32(int32_t(a - b) < 0 ? b - a : a - b, NZ));
  r.set(Op::s_lshl1_add_u32, BODY32((a << 1) + b, w.scc = ((uint64_t(a) << 1) + b) >> 32 != 0));
  r.set(Op::s_lshl2_add_u32, BODY32((a << 2) + b, w.scc = ((uint64_t(a) << 2) + b) >> 32 != 0));
  r.set(Op::s_lshl3_add_u32, BODY32((a << 3) + b, w.scc = ((uint64_t(a) << 3) + b) >> 32 != 0));
  r.set(Op::s_lshl4_add_u32, BODY32((a << 4) + b, w.scc = ((uint64_t(a) << 4) + b) >> 32 != 0));
  r.set(Op::s_pack_ll_b32_b16, BODY32((a & 0xffff) | b << 16, KEEP));
  r.set(Op::s_pack_lh_b32_b16, BODY32((a & 0xffff) | (b & 0xffff0000), KEEP));
  r.set(Op::s_pack_hh_b32_b16, BODY32(a >> 16 | (b & 0xffff0000), KEEP));
  // 64-bit operations with a 32-bit second operand
#define SHIFT64(expr, scc_expr)        \
  [](Wave &w, const Instruction &i) {  \
    const uint64_t a = a64(w, i);      \
    const uint32_t b = b32(w, i);      \
    const uint64_t d = uint64_t(expr); \
    scc_expr;                          \
    put64(w, i, d);                    \
  }
  r.set(Op::s_lshl_b64, SHIFT64(a << (b & 63), NZ));
  r.set(Op::s_lshr_b64, SHIFT64(a >> (b & 63), NZ));
  r.set(Op::s_ashr_i64, SHIFT64(int64_t(a) >> (b & 63), NZ));
  r.set(Op::s_bfe_u64, SHIFT64(field(a, b, 64, false), NZ));
  r.set(Op::s_bfe_i64, SHIFT64(field(a, b, 64, true), NZ));
  r.set(Op::s_bfm_b64, [](Wave &w, const Instruction &i) {
    put64(w, i, ((uint64_t(1) << (a32(w, i) & 63)) - 1) << (b32(w, i) & 63));
  });
}

void sop1(Registry &r) {
#define ONE32(expr, scc_expr)          \
  [](Wave &w, const Instruction &i) {  \
    const uint32_t a = a32(w, i);      \
    const uint32_t d = uint32_t(expr); \
    scc_expr;                          \
    put32(w, i, d);                    \
  }
#define ONE64(expr, scc_expr)          \
  [](Wave &w, const Instruction &i) {  \
    const uint64_t a = a64(w, i);      \
    const uint64_t d = uint64_t(expr); \
    scc_expr;                          \
    put64(w, i, d);                    \
  }
#define COUNT64(expr, scc_expr)        \
  [](Wave &w, const Instruction &i) {  \
    const uint64_t a = a64(w, i);      \
    const uint32_t d = uint32_t(expr); \
    scc_expr;                          \
    put32(w, i, d);                    \
  }
  r.set(Op::s_mov_b32, ONE32(a, KEEP));
  r.set(Op::s_mov_b64, ONE64(a, KEEP));
  r.set(Op::s_cmov_b32, ONE32(w.scc ? a : w.sgpr[i.dst.reg], KEEP));
  r.set(Op::s_cmov_b64, ONE64(w.scc ? a : w.read64(i.dst.reg), KEEP));
  r.set(Op::s_not_b32, ONE32(~a, NZ));
  r.set(Op::s_not_b64, ONE64(~a, NZ));
  r.set(Op::s_wqm_b32, ONE32(whole_quads(a), NZ));
  r.set(Op::s_wqm_b64, ONE64(whole_quads(a), NZ));
  r.set(Op::s_quadmask_b32, ONE32(quad_mask(a), NZ));
  r.set(Op::s_quadmask_b64, ONE64(quad_mask(a), NZ));
  r.set(Op::s_brev_b32, ONE32(bit_reverse(a), KEEP));
  r.set(Op::s_brev_b64, ONE64(bit_reverse64(a), KEEP));
  r.set(Op::s_bcnt0_i32_b32, ONE32(32 - std::popcount(a), NZ));
  r.set(Op::s_bcnt1_i32_b32, ONE32(std::popcount(a), NZ));
  r.set(Op::s_bcnt0_i32_b64, COUNT64(64 - std::popcount(a), NZ));
  r.set(Op::s_bcnt1_i32_b64, COUNT64(std::popcount(a), NZ));
  r.set(Op::s_ff0_i32_b32, ONE32(~a ? std::countr_one(a) : -1, KEEP));
  r.set(Op::s_ff1_i32_b32, ONE32(a ? std::countr_zero(a) : -1, KEEP));
  r.set(Op::s_ff0_i32_b64, COUNT64(~a ? std::countr_one(a) : -1, KEEP));
  r.set(Op::s_ff1_i32_b64, COUNT64(a ? std::countr_zero(a) : -1, KEEP));
  r.set(Op::s_flbit_i32_b32, ONE32(a ? std::countl_zero(a) : -1, KEEP));
  r.set(Op::s_flbit_i32_b64, COUNT64(a ? std::countl_zero(a) : -1, KEEP));
  r.set(Op::s_flbit_i32, ONE32(leading_same(a, 32), KEEP));
  r.set(Op::s_flbit_i32_i64, COUNT64(leading_same(a, 64), KEEP));
  r.set(Op::s_sext_i32_i8, ONE32(int8_t(a), KEEP));
  r.set(Op::s_sext_i32_i16, ONE32(int16_t(a), KEEP));
  r.set(Op::s_abs_i32, ONE32(int32_t(a) < 0 ? 0u - a : a, NZ));
  r.set(Op::s_bitset0_b32, ONE32(w.sgpr[i.dst.reg] & ~(1u << (a & 31)), KEEP));
  r.set(Op::s_bitset1_b32, ONE32(w.sgpr[i.dst.reg] | 1u << (a & 31), KEEP));
  r.set(Op::s_bitset0_b64,
        [](Wave &w, const Instruction &i) { put64(w, i, w.read64(i.dst.reg) & ~(uint64_t(1) << (a32(w, i) & 63))); });
  r.set(Op::s_bitset1_b64,
        [](Wave &w, const Instruction &i) { put64(w, i, w.read64(i.dst.reg) | uint64_t(1) << (a32(w, i) & 63)); });
  r.set(Op::s_bitreplicate_b64_b32, [](Wave &w, const Instruction &i) { put64(w, i, replicate(a32(w, i))); });

  // d = EXEC; EXEC = f(source a, old EXEC e); SCC = EXEC != 0. The wrexec forms write d = new EXEC.
#define SAVEEXEC(expr, d_expr)                  \
  [](Wave &w, const Instruction &i) {           \
    const uint64_t a = a64(w, i), e = w.exec(); \
    const uint64_t n = expr;                    \
    w.write64(kExec, n);                        \
    put64(w, i, d_expr);                        \
    w.scc = n != 0;                             \
  }
  r.set(Op::s_and_saveexec_b64, SAVEEXEC(a & e, e));
  r.set(Op::s_or_saveexec_b64, SAVEEXEC(a | e, e));
  r.set(Op::s_xor_saveexec_b64, SAVEEXEC(a ^ e, e));
  r.set(Op::s_andn2_saveexec_b64, SAVEEXEC(a & ~e, e));
  r.set(Op::s_orn2_saveexec_b64, SAVEEXEC(a | ~e, e));
  r.set(Op::s_nand_saveexec_b64, SAVEEXEC(~(a & e), e));
  r.set(Op::s_nor_saveexec_b64, SAVEEXEC(~(a | e), e));
  r.set(Op::s_xnor_saveexec_b64, SAVEEXEC(~(a ^ e), e));
  r.set(Op::s_andn1_saveexec_b64, SAVEEXEC(~a & e, e));
  r.set(Op::s_orn1_saveexec_b64, SAVEEXEC(~a | e, e));
  r.set(Op::s_andn1_wrexec_b64, SAVEEXEC(~a & e, n));
  r.set(Op::s_andn2_wrexec_b64, SAVEEXEC(a & ~e, n));
}

#define COMPARE(cond)                            \
  [](Wave &w, const Instruction &i) {            \
    const uint32_t a = a32(w, i), b = b32(w, i); \
    w.scc = (cond);                              \
  }
#define COMPARE_K(cond)                  \
  [](Wave &w, const Instruction &i) {    \
    const uint32_t a = a32(w, i), b = K; \
    w.scc = (cond);                      \
  }

void sopc(Registry &r) {
#define PAIR(name, cond) r.set(Op::s_cmp_##name, COMPARE(cond)), r.set(Op::s_cmpk_##name, COMPARE_K(cond))
#define K uint32_t(i.imm)  // signed forms: sign-extended
  PAIR(eq_i32, a == b);
  PAIR(lg_i32, a != b);
  PAIR(gt_i32, int32_t(a) > int32_t(b));
  PAIR(ge_i32, int32_t(a) >= int32_t(b));
  PAIR(lt_i32, int32_t(a) < int32_t(b));
  PAIR(le_i32, int32_t(a) <= int32_t(b));
#undef K
#define K uint32_t(i.imm & 0xffff)  // unsigned forms: zero-extended
  PAIR(eq_u32, a == b);
  PAIR(lg_u32, a != b);
  PAIR(gt_u32, a > b);
  PAIR(ge_u32, a >= b);
  PAIR(lt_u32, a < b);
  PAIR(le_u32, a <= b);
#undef K
  r.set(Op::s_bitcmp0_b32, COMPARE(!(a >> (b & 31) & 1)));
  r.set(Op::s_bitcmp1_b32, COMPARE(a >> (b & 31) & 1));
  r.set(Op::s_bitcmp0_b64, [](Wave &w, const Instruction &i) { w.scc = !(a64(w, i) >> (b32(w, i) & 63) & 1); });
  r.set(Op::s_bitcmp1_b64, [](Wave &w, const Instruction &i) { w.scc = a64(w, i) >> (b32(w, i) & 63) & 1; });
  r.set(Op::s_cmp_eq_u64, [](Wave &w, const Instruction &i) { w.scc = a64(w, i) == b64(w, i); });
  r.set(Op::s_cmp_lg_u64, [](Wave &w, const Instruction &i) { w.scc = a64(w, i) != b64(w, i); });
}

void sopk(Registry &r) {
  r.set(Op::s_movk_i32, [](Wave &w, const Instruction &i) { put32(w, i, uint32_t(i.imm)); });
  r.set(Op::s_cmovk_i32, [](Wave &w, const Instruction &i) {
    if (w.scc) put32(w, i, uint32_t(i.imm));
  });
  r.set(Op::s_addk_i32, [](Wave &w, const Instruction &i) {
    const uint32_t a = w.sgpr[i.dst.reg], b = uint32_t(i.imm), d = a + b;
    w.scc = add_overflow(a, b, d);
    put32(w, i, d);
  });
  r.set(Op::s_mulk_i32, [](Wave &w, const Instruction &i) { put32(w, i, w.sgpr[i.dst.reg] * uint32_t(i.imm)); });
}

}  // namespace

void register_salu(Registry &r) {
  sop2(r);
  sop1(r);
  sopc(r);
  sopk(r);
}

}  // namespace turbo_sim
