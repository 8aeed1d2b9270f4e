// SPDX-License-Identifier: MIT
// What the careful run loop does around an instruction.
#include "core/checks.h"

namespace turbo_sim {

void check_defined(Wave &, const Instruction &);  // definedness.cpp
void check_hazards(Wave &, const Instruction &);  // hazards.cpp

namespace {

bool on(const Wave &w, Check c) { return w.worker->checks & check_bit(c); }

/// A source (or, for anything but another load of the same kind, a destination) that a load has yet to deliver.
void check_landed(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  if (c.pending.empty()) return;
  auto waiting = [&](const Operand &o) -> int {
    if (o.is_vector()) {
      for (unsigned k = 0; k < o.dwords; ++k)
        if (c.vpend_vm[o.reg + k] > c.vm_done || c.vpend_lgkm[o.reg + k] > c.lgkm_done) return int(o.reg + k);
    } else if (o.kind == Kind::Scalar) {
      for (unsigned k = 0; k < o.dwords; ++k)
        if (c.spend[o.reg + k] > c.lgkm_done) return int(o.reg + k);
    }
    return -1;
  };
  auto complain = [&](const Operand &o, int reg, const char *what) {
    const std::string name = o.is_vector() ? row_name(unsigned(reg)) : "s" + std::to_string(reg);
    const bool vm = o.is_vector() && c.vpend_vm[reg] > c.vm_done;
    w.worker->find(Check::Wait, w, i, -1,
                   name + std::string(what) + " before an s_waitcnt " + (vm ? "vmcnt" : "lgkmcnt") +
                       " covers the load that writes it");
    // Said once: what follows from it is not a new mistake. The result still lands at its wait.
    if (o.is_vector())
      c.vpend_vm[reg] = c.vpend_lgkm[reg] = 0;
    else
      c.spend[reg] = 0;
  };
  for (const Operand &o : i.src)
    if (int r = waiting(o); r >= 0) return complain(o, r, " is read");
  const bool load = i.cls == InstClass::Vmem || i.cls == InstClass::Lds;
  if (load && i.dst.is_vector()) {  // in order with loads of its own kind, not with the other kind
    for (unsigned k = 0; k < i.dst.dwords; ++k) {
      const unsigned r = i.dst.reg + k;
      const bool other = i.cls == InstClass::Vmem ? c.vpend_lgkm[r] > c.lgkm_done : c.vpend_vm[r] > c.vm_done;
      if (other) return complain(i.dst, int(r), " is written");
    }
  } else if (int r = waiting(i.dst); r >= 0) {
    return complain(i.dst, r, " is written");
  }
  if (int r = waiting(i.sdst); r >= 0) complain(i.sdst, r, " is written");
}

}  // namespace

std::string row_name(unsigned row) {
  return row < kAgprBase ? "v" + std::to_string(row) : "a" + std::to_string(row - kAgprBase);
}

void WaveChecks::reset() {
  *this = WaveChecks{};
  for (uint32_t &u : sundef) u = ~0u;
  scc_undef = true;
}

void check_before(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  c.undefined_lanes = 0;
  if (on(w, Check::Wait)) check_landed(w, i);
  if (on(w, Check::Uninit)) check_defined(w, i);
  if (on(w, Check::Hazard)) check_hazards(w, i);
  count_memory(w, i);
}

void check_after(Wave &w, const Instruction &i) {
  if (w.stop == Stop::EndProgram) land_all(w);
}

}  // namespace turbo_sim
