// SPDX-License-Identifier: MIT
// The run loops. The fast one does nothing but count and call; the checked one wraps the same handlers.
#include "core/checks.h"
#include "core/launch.h"

namespace turbo_sim {
namespace {

bool is_vector(const Instruction &i) {
  switch (i.cls) {
    case InstClass::Valu:
    case InstClass::Trans:
    case InstClass::Mfma:
    case InstClass::Lds:
    case InstClass::Vmem: return true;
    default: return false;
  }
}

/// VGPR indexing: M0[7:0] is added to the registers that M0[15:12] names. Vector ALU only.
Instruction indexed(const Wave &w, const Instruction &i) {
  Instruction copy = i;
  const unsigned index = w.m0() & 0xff, which = w.m0() >> 12 & 15;
  auto shift = [&](Operand &o) {
    if (o.kind != Kind::Vgpr) return;
    if (o.reg + index + o.dwords > 256) throw Fault("VGPR index beyond v255");
    o.reg = uint16_t(o.reg + index);
  };
  for (unsigned k = 0; k < 3; ++k)
    if (which >> k & 1) shift(copy.src[k]);
  if (which & 8) shift(copy.dst);
  return copy;
}

void execute(Wave &w, const Instruction &i) {
  if (!w.checks) return i.exec(w, i);
  check_before(w, i);
  i.exec(w, i);
  check_after(w, i);
}

/// With VSKIP or VGPR indexing in force, or with checks on.
void run_careful(Wave &w, const Instruction *insts, uint64_t *counts, uint64_t &budget) {
  const bool special = w.mode.vskip || w.mode.gpr_idx_en;
  do {
    const Instruction &i = insts[w.pc];
    ++counts[w.pc];
    ++w.pc;
    if (special) {
      if (w.mode.vskip && is_vector(i)) continue;
      if (w.mode.gpr_idx_en && (i.cls == InstClass::Valu || i.cls == InstClass::Trans)) {
        execute(w, indexed(w, i));
        continue;
      }
    }
    execute(w, i);
  } while (--budget && w.stop == Stop::Running);
}

void run_fast(Wave &w, const Instruction *insts, uint64_t *counts, uint64_t &budget) {
  do {
    const Instruction &i = insts[w.pc];
    ++counts[w.pc];
    ++w.pc;
    i.exec(w, i);
  } while (--budget && w.stop == Stop::Running);
}

}  // namespace

uint64_t run_wave(Wave &w, uint64_t budget) {
  const uint64_t allowed = budget;
  const Instruction *insts = w.worker->launch->code->insts.data();
  uint64_t *counts = w.worker->pc_counts.data();
  w.stop = Stop::Running;
  if (w.checks || w.mode.vskip || w.mode.gpr_idx_en)
    run_careful(w, insts, counts, budget);
  else
    run_fast(w, insts, counts, budget);
  if (w.stop == Stop::Running) w.stop = Stop::Yield;
  return allowed - budget;
}

}  // namespace turbo_sim
