// SPDX-License-Identifier: MIT
// LDS access with bounds, definedness, race and "has it landed" checks.
//
// Race: between two barriers, two waves touch a byte, at least one writes, not both by atomics, and a write changes it
// (threads that store what is already there are a common and harmless idiom). A write that its own wave has not waited
// for when the barrier is passed may still be under way when another wave reads: reported by the wait check.
#include "core/checks.h"

#include <cstdio>

namespace turbo_sim {
namespace {

bool on(const Wave &w, Check c) { return w.worker->checks & check_bit(c); }

bool inside(Wave &w, const Instruction &i, uint32_t addr, unsigned bytes, int lane, const char *what) {
  const WorkGroup &g = *w.group;
  if (uint64_t(addr) + bytes <= g.lds_size) return true;
  if (on(w, Check::Bounds))
    w.worker->find(Check::Bounds, w, i, lane,
                   std::to_string(bytes) + "-byte LDS " + what + " at " + std::to_string(addr) +
                       ", the work-group has " + std::to_string(g.lds_size) + " bytes");
  return false;
}

/// "at pc 0x40" of an instruction.
std::string place(const Wave &w, uint32_t inst) {
  char text[24];
  std::snprintf(text, sizeof text, "at pc 0x%x", w.worker->launch->code->insts[inst].offset_in_code);
  return text;
}

/// Has the write recorded in `b` landed, as far as its own wave has made sure?
bool landed(const LdsShadow &s, const LdsByte &b) {
  const WaveChecks *c = s.waves[b.writer - 1].checks;
  if (!c || !b.write_serial) return true;
  return b.write_serial <= (b.dma ? c->vm_done : c->lgkm_done) || s.waves[b.writer - 1].stop == Stop::EndProgram;
}

void note_read(Wave &w, const Instruction &i, uint32_t addr, unsigned bytes, int lane, bool atomic) {
  WorkGroup &g = *w.group;
  const uint32_t epoch = g.epoch + 1;
  const uint16_t self = uint16_t(w.id + 1);
  bool undefined = false;
  const LdsByte *race = nullptr, *pending = nullptr;
  LdsByte *first = &g.shadow->bytes[addr];
  for (unsigned k = 0; k < bytes; ++k) {
    LdsByte &b = first[k];
    undefined |= !b.defined;
    if (b.writer != self) {
      if (!b.writer) {
        // never written: only undefined
      } else if (b.write_epoch == epoch && !(atomic && b.atomic))
        race = &b;
      else if (!landed(*g.shadow, b))
        pending = &b;
    } else if (b.dma && !landed(*g.shadow, b)) {
      pending = &b;  // within a wave LDS instructions are in order, but DMA arrives by vmcnt
    }
    b.reader = b.read_epoch == epoch && b.reader != self ? uint16_t(0xffff) : self;
    b.read_epoch = epoch;
    b.read_inst = i.index;
  }
  auto text = [&](const LdsByte &b) {
    const size_t offset = size_t(&b - g.shadow->bytes.data());
    return "reads LDS byte " + std::to_string(offset) + " that wave " + std::to_string(b.writer - 1) + " writes " +
           place(w, b.write_inst);
  };
  if (race && on(w, Check::Race)) w.worker->find(Check::Race, w, i, lane, text(*race) + ", with no barrier between");
  if (pending && on(w, Check::Wait))
    w.worker->find(Check::Wait, w, i, lane, text(*pending) + ", before an s_waitcnt of that wave covers the write");
  if (undefined && w.checks && lane >= 0) w.checks->undefined_lanes |= uint64_t(1) << lane;
}

void note_write(Wave &w, const Instruction &i, uint32_t addr, const void *data, unsigned bytes, int lane, bool atomic,
                bool dma) {
  WorkGroup &g = *w.group;
  const uint32_t epoch = g.epoch + 1;
  const uint16_t self = uint16_t(w.id + 1);
  bool defined = true;
  if (w.checks && lane >= 0 && !dma) {
    for (unsigned n = 1; n < 3; ++n)  // data operands of DS instructions
      if (i.src[n].is_vector())
        for (unsigned r = 0; r < i.src[n].dwords; ++r) defined &= w.checks->vdef[i.src[n].reg + r] >> lane & 1;
  }
  const uint8_t *now = g.lds + addr, *next = static_cast<const uint8_t *>(data);
  const char *kind = nullptr;
  uint16_t other = 0;
  uint32_t where = 0;
  for (unsigned k = 0; k < bytes; ++k) {
    LdsByte &b = g.shadow->bytes[addr + k];
    const bool same = next && now[k] == next[k];
    if (!same && b.writer && b.writer != self && b.write_epoch == epoch && !(atomic && b.atomic))
      kind = "writes", other = b.writer, where = b.write_inst;
    if (!same && b.read_epoch == epoch && b.reader != self && !(atomic && b.atomic))
      kind = "reads", other = b.reader, where = b.read_inst;
    b.write_epoch = epoch;
    b.write_inst = i.index;
    b.writer = self;
    b.dma = dma;
    b.atomic = atomic;
    b.defined = defined;
    b.write_serial = w.checks ? (dma ? w.checks->vm_serial : w.checks->lgkm_serial) : 0;
  }
  if (kind && on(w, Check::Race)) {
    const std::string who = other == 0xffff ? "another wave" : "wave " + std::to_string(other - 1);
    w.worker->find(Check::Race, w, i, lane,
                   "writes LDS byte " + std::to_string(addr) + " that " + who + " " + kind + " " + place(w, where) +
                       ", with no barrier between");
  }
}

}  // namespace

void lds_read_checked(Wave &w, const Instruction &i, uint32_t addr, void *out, unsigned bytes, int lane) {
  if (!inside(w, i, addr, bytes, lane, "read")) {
    std::memset(out, 0, bytes);
    return;
  }
  if (w.group->shadow) note_read(w, i, addr, bytes, lane, false);
  std::memcpy(out, w.group->lds + addr, bytes);
}

void lds_write_checked(Wave &w, const Instruction &i, uint32_t addr, const void *in, unsigned bytes, int lane) {
  if (!inside(w, i, addr, bytes, lane, "write")) return;
  if (w.group->shadow) note_write(w, i, addr, in, bytes, lane, false, false);
  std::memcpy(w.group->lds + addr, in, bytes);
}

uint8_t *lds_atomic_ptr(Wave &w, const Instruction &i, uint32_t addr, unsigned bytes, int lane) {
  if (!inside(w, i, addr, bytes, lane, "atomic")) return nullptr;
  if (w.group->shadow) {
    note_read(w, i, addr, bytes, lane, true);
    note_write(w, i, addr, nullptr, bytes, lane, true, false);
  }
  return w.group->lds + addr;
}

void deliver_lds(Wave &w, const Instruction &i, uint32_t addr, const void *data, unsigned bytes, int lane) {
  if (!inside(w, i, addr, bytes, lane, "DMA write")) return;
  if (w.group->shadow) note_write(w, i, addr, data, bytes, lane, false, true);
  std::memcpy(w.group->lds + addr, data, bytes);
}

}  // namespace turbo_sim
