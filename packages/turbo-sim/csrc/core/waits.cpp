// SPDX-License-Identifier: MIT
// Deferred completion: with the wait check on, a load's result reaches its register only at an s_waitcnt that covers
// it.
//
// vmcnt counts vector memory (loads return in order), lgkmcnt LDS (in order) and scalar memory (in any order: only a
// wait for zero is good for them, or for LDS results issued while one is under way). FLAT counts in both.
#include "core/checks.h"
#include "core/operands.h"

#include <algorithm>

namespace turbo_sim {
namespace {

constexpr unsigned kVmMax = 63, kLgkmMax = 15;  // an instruction beyond the counter's range waits for the oldest

void write_now(Wave &w, const PendingRow &p) {
  if (p.scalar)
    w.sgpr[p.row] = p.data[0];
  else
    for (unsigned l = 0; l < kLanes; ++l)
      if (p.mask >> l & 1) w.vgpr[p.row][l] = p.data[l];
}

void land(Wave &w) {
  WaveChecks &c = *w.checks;
  auto done = [&](const PendingRow &p) {
    if (p.vm > c.vm_done || p.lgkm > c.lgkm_done) return false;
    write_now(w, p);
    return true;
  };
  c.pending.erase(std::remove_if(c.pending.begin(), c.pending.end(), done), c.pending.end());
}

void wait_vm(WaveChecks &c, unsigned n) {
  if (c.vm_issued - c.vm_done > n) c.vm_done = c.vm_issued - n;
}

void wait_lgkm(WaveChecks &c, unsigned n) {
  const uint32_t outstanding = c.lgkm_issued - c.lgkm_done;
  if (outstanding <= n) return;
  // With scalar loads under way, a count above zero says nothing about which have returned.
  if (n && c.smem_last > c.lgkm_done) return;
  c.lgkm_done = c.lgkm_issued - n;
}

}  // namespace

void land_loads(Wave &w, unsigned imm) {
  WaveChecks &c = *w.checks;
  wait_vm(c, (imm & 15) | (imm >> 14 & 3) << 4);
  wait_lgkm(c, imm >> 8 & 15);
  if (!c.pending.empty()) land(w);
}

void land_all(Wave &w) {
  w.checks->vm_done = w.checks->vm_issued;
  w.checks->lgkm_done = w.checks->lgkm_issued;
  land(w);
}

void count_memory(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  c.vm_serial = c.lgkm_serial = 0;
  switch (i.format) {
    case Format::MUBUF:
    case Format::MTBUF:
    case Format::GLOBAL:
    case Format::SCRATCH:
    case Format::FLAT:
      if (i.op == Op::buffer_inv) break;  // not counted
      c.vm_serial = ++c.vm_issued;
      if (i.format == Format::FLAT) c.lgkm_serial = ++c.lgkm_issued;
      break;
    case Format::DS: c.lgkm_serial = ++c.lgkm_issued; break;
    case Format::SMEM: c.lgkm_serial = c.smem_last = ++c.lgkm_issued; break;
    default: return;
  }
  if (c.vm_issued - c.vm_done > kVmMax) wait_vm(c, kVmMax), land(w);
  // All older ones must have returned to make room; for scalar loads this cannot be told, so only LDS is moved on.
  if (c.lgkm_issued - c.lgkm_done > kLgkmMax) wait_lgkm(c, kLgkmMax), land(w);
}

void deliver_vgpr(Wave &w, const Instruction &i, unsigned row, const uint32_t *values, uint64_t mask) {
  if (WaveChecks *c = w.checks) {
    const uint64_t defined = ~c->undefined_lanes;
    c->vdef[row] = (c->vdef[row] & ~mask) | (mask & defined);
    if (w.worker->checks & check_bit(Check::Wait)) {
      c->vpend_vm[row] = c->vm_serial;
      c->vpend_lgkm[row] = c->lgkm_serial;
      PendingRow &p = c->pending.emplace_back();
      p.vm = c->vm_serial;
      p.lgkm = c->lgkm_serial;
      p.row = uint16_t(row);
      p.scalar = false;
      p.mask = mask;
      std::memcpy(p.data.data(), values, sizeof p.data);
      return;
    }
  }
  merge(w.vgpr[row], values, mask);
}

void deliver_sgpr(Wave &w, const Instruction &i, unsigned index, uint32_t value) {
  if (WaveChecks *c = w.checks) {
    c->sundef[index] = 0;
    if (w.worker->checks & check_bit(Check::Wait)) {
      c->spend[index] = c->lgkm_serial;
      PendingRow &p = c->pending.emplace_back();
      p.vm = 0;
      p.lgkm = c->lgkm_serial;
      p.row = uint16_t(index);
      p.scalar = true;
      p.mask = 1;
      p.data[0] = value;
      return;
    }
  }
  w.sgpr[index] = value;
}

}  // namespace turbo_sim
