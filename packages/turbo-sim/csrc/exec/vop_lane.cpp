// SPDX-License-Identifier: MIT
// Instructions that look across lanes or at lane masks: readlane, writelane, permlane swaps, mbcnt, cndmask, swap.
#include "exec/valu.h"

namespace turbo_sim {
namespace {

void v_nop(Wave &, const Instruction &) {}

// --- one lane to or from a scalar; EXEC does not matter, save for the choice of the first active lane --------------
void v_readlane_b32(Wave &w, const Instruction &i) {
  const unsigned lane = scalar32(w, i.src[1]) & 63;
  w.sgpr[i.dst.reg] = i.src[0].is_vector() ? w.vgpr[i.src[0].reg][lane] : scalar32(w, i.src[0]);
}
void v_readfirstlane_b32(Wave &w, const Instruction &i) {
  const unsigned lane = w.exec() ? unsigned(std::countr_zero(w.exec())) : 0;
  w.sgpr[i.dst.reg] = i.src[0].is_vector() ? w.vgpr[i.src[0].reg][lane] : scalar32(w, i.src[0]);
}
void v_writelane_b32(Wave &w, const Instruction &i) {
  const uint32_t value = scalar32(w, i.src[0]);
  w.vgpr[i.dst.reg][scalar32(w, i.src[1]) & 63] = value;
}

// --- selection -----------------------------------------------------------------------------------------------------
// neg and abs act on the bits as if they were f32.
void v_cndmask_b32(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = srcf32(w, i, 0, ta), *b = srcf32(w, i, 1, tb);
  std::memcpy(out.v, a, sizeof out.v);
  merge(out.v, b, scalar64(w, i.src[2]));
  write32(w, i, out.v);
}

void v_swap_b32(Wave &w, const Instruction &i) {
  uint32_t *x = w.vgpr[i.dst.reg], *y = w.vgpr[i.src[0].reg];
  Lanes old;
  std::memcpy(old.v, x, sizeof old.v);
  const uint64_t mask = w.exec();
  if (x == y) return;
  merge(x, y, mask);
  merge(y, old.v, mask);
}

// Bits of the mask below the lane's own, counted and added to src1.
template <bool HIGH>
void mbcnt(Wave &w, const Instruction &i) {
  Lanes ta, tb, out;
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint64_t below = (1ull << l) - 1;
    out.v[l] = b[l] + uint32_t(std::popcount(a[l] & uint32_t(HIGH ? below >> 32 : below)));
  }
  write32(w, i, out.v);
}

// The upper rows of the destination trade places with the lower rows of the source register. A lane is written where it
// is active; what it would get from an inactive lane it does not get (no "fetch inactive").
template <unsigned ROW>
void permlane_swap(Wave &w, const Instruction &i) {
  uint32_t *x = w.vgpr[i.dst.reg], *y = w.vgpr[i.src[0].reg];
  const uint64_t exec = w.exec();
  for (unsigned base = 0; base < kLanes; base += 2 * ROW)
    for (unsigned l = base; l < base + ROW; ++l) {
      const uint32_t from_x = x[l + ROW], from_y = y[l];
      const bool both = (exec >> l & 1) && (exec >> (l + ROW) & 1);
      if (!both) continue;
      y[l] = from_x;
      x[l + ROW] = from_y;
    }
}

template <Handler H>
Handler no_modifiers(const Instruction &i) {
  require_modifiers(i, kInt);
  if (i.has_dpp) throw NotImplemented("DPP");
  if (i.has_sdwa) throw NotImplemented("SDWA");
  return H;
}
template <Handler H>
Handler two_registers(const Instruction &i) {
  if (!i.src[0].is_vector() || !i.dst.is_vector()) throw NotImplemented("an operand that is not a vector register");
  return no_modifiers<H>(i);
}

}  // namespace

void register_vop_lane(Registry &r) {
  r.set(Op::v_nop, v_nop);
  r.select(Op::v_readlane_b32, no_modifiers<v_readlane_b32>);
  r.select(Op::v_readfirstlane_b32, no_modifiers<v_readfirstlane_b32>);
  r.select(Op::v_writelane_b32, no_modifiers<v_writelane_b32>);
  r.select(Op::v_cndmask_b32, bind_checked<v_cndmask_b32, kNegAbs>);
  r.select(Op::v_swap_b32, two_registers<v_swap_b32>);
  r.select(Op::v_mbcnt_lo_u32_b32, bind_checked<mbcnt<false>, kInt>);
  r.select(Op::v_mbcnt_hi_u32_b32, bind_checked<mbcnt<true>, kInt>);
  r.select(Op::v_permlane16_swap_b32, two_registers<permlane_swap<16>>);
  r.select(Op::v_permlane32_swap_b32, two_registers<permlane_swap<32>>);
}

}  // namespace turbo_sim
