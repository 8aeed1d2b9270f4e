// SPDX-License-Identifier: MIT
// Control flow, waits, barriers, MODE and other hardware registers, VGPR indexing.
#include "core/checks.h"
#include "core/machine.h"
#include "core/operands.h"
#include "isa/disasm.h"
#include "isa/registry.h"

namespace turbo_sim {
namespace {

// --- branches

void jump(Wave &w, const Instruction &i) {
  if (i.target < 0) throw Fault("branch to an address that is not an instruction");
  w.pc = uint32_t(i.target);
}

#define BRANCH_IF(cond)               \
  [](Wave &w, const Instruction &i) { \
    if (cond) jump(w, i);             \
  }

uint64_t next_address(const Wave &w) {
  const Code &code = *w.worker->launch->code;
  return code.address + code.insts[w.pc].offset_in_code;
}

void jump_to_address(Wave &w, uint64_t address) {
  const Code &code = *w.worker->launch->code;
  const uint64_t offset = address - code.address;
  if (offset % 4 || offset >= code.bytes.size() || code.index_of_dword[offset / 4] == kNoInst)
    throw Fault("jump to an address that is not an instruction of this code object");
  w.pc = code.index_of_dword[offset / 4];
}

void branches(Registry &r) {
  r.set(Op::s_branch, jump);
  r.set(Op::s_cbranch_scc0, BRANCH_IF(!w.scc));
  r.set(Op::s_cbranch_scc1, BRANCH_IF(w.scc));
  r.set(Op::s_cbranch_vccz, BRANCH_IF(!w.vcc()));
  r.set(Op::s_cbranch_vccnz, BRANCH_IF(w.vcc()));
  r.set(Op::s_cbranch_execz, BRANCH_IF(!w.exec()));
  r.set(Op::s_cbranch_execnz, BRANCH_IF(w.exec()));
  r.set(Op::s_endpgm, [](Wave &w, const Instruction &) { w.stop = Stop::EndProgram; });
  r.set(Op::s_getpc_b64, [](Wave &w, const Instruction &i) { w.write64(i.dst.reg, next_address(w)); });
  r.set(Op::s_setpc_b64, [](Wave &w, const Instruction &i) { jump_to_address(w, scalar64(w, i.src[0])); });
  r.set(Op::s_swappc_b64, [](Wave &w, const Instruction &i) {
    const uint64_t to = scalar64(w, i.src[0]);
    w.write64(i.dst.reg, next_address(w));
    jump_to_address(w, to);
  });
  r.set(Op::s_call_b64, [](Wave &w, const Instruction &i) {
    w.write64(i.dst.reg, next_address(w));
    jump(w, i);
  });
}

// --- waits and hints

void nothing(Wave &, const Instruction &) {}

void waits(Registry &r) {
  r.set(Op::s_waitcnt, [](Wave &w, const Instruction &i) {
    if (w.checks) land_loads(w, unsigned(i.imm) & 0xffff);
  });
  r.set(Op::s_barrier, [](Wave &w, const Instruction &) { w.stop = Stop::Barrier; });
  r.set(Op::s_sleep, [](Wave &w, const Instruction &) { w.stop = Stop::Yield; });  // lets the other waves run
  for (Op op : {Op::s_nop, Op::s_setprio, Op::s_sethalt, Op::s_icache_inv, Op::s_incperflevel, Op::s_decperflevel,
                Op::s_ttracedata, Op::s_wakeup})
    r.set(op, nothing);
}

// --- MODE and hardware registers

enum HwReg : unsigned {
  kMode = 1,
  kStatus = 2,
  kTrapsts = 3,
  kHwId = 4,
  kGprAlloc = 5,
  kLdsAlloc = 6,
  kIbSts = 7,
  kXccId = 20
};

struct HwField {
  unsigned id, offset, width;
  explicit HwField(const Instruction &i)
      : id(unsigned(i.imm) & 63), offset(unsigned(i.imm) >> 6 & 31), width((unsigned(i.imm) >> 11 & 31) + 1) {}
  uint32_t mask() const { return (width == 32 ? ~0u : (1u << width) - 1) << offset; }
};

/// Modes that the run loop must see at once: leave the fast loop.
void mode_changed(Wave &w) {
  if (w.stop == Stop::Running) w.stop = Stop::Yield;
}

void set_mode(Wave &w, uint32_t bits) {
  const bool special = w.mode.gpr_idx_en || w.mode.vskip;
  w.mode.set(bits);
  if (special || w.mode.gpr_idx_en || w.mode.vskip) mode_changed(w);
}

void getreg(Wave &w, const Instruction &i) {
  const HwField f(i);
  uint32_t v = 0;  // HW_ID, XCC_ID: the simulated device has one of each
  if (f.id == kMode) v = w.mode.raw;
  if (f.id == kStatus) v = w.scc | uint32_t(!w.exec()) << 9 | uint32_t(!w.vcc()) << 10;
  if (f.id == kLdsAlloc) v = (w.group->lds_size / 256) << 12;
  w.sgpr[i.dst.reg] = (v & f.mask()) >> f.offset;
}

void setreg(Wave &w, const Instruction &i) {
  const HwField f(i);
  if (f.id == kTrapsts) return;  // no traps: exception flags are not kept
  const uint32_t v = scalar32(w, i.src[0]) << f.offset;
  set_mode(w, (w.mode.raw & ~f.mask()) | (v & f.mask()));
}

Handler select_getreg(const Instruction &i) {
  switch (HwField(i).id) {
    case kMode:
    case kStatus:
    case kTrapsts:
    case kHwId:
    case kLdsAlloc:
    case kIbSts:
    case kXccId: return getreg;
    default: throw NotImplemented(hwreg_text(unsigned(i.imm) & 0xffff));
  }
}

Handler select_setreg(const Instruction &i) {
  const unsigned id = HwField(i).id;
  if (id != kMode && id != kTrapsts) throw NotImplemented(hwreg_text(unsigned(i.imm) & 0xffff));
  return setreg;
}

constexpr uint32_t kGprIdxEn = 1u << 27, kVskip = 1u << 28;

void modes(Registry &r) {
  r.select(Op::s_getreg_b32, select_getreg);
  r.select(Op::s_setreg_b32, select_setreg);
  r.select(Op::s_setreg_imm32_b32, select_setreg);
  // M0[7:0] is the index, M0[15:12] says which of SRC0, SRC1, SRC2, DST it is added to.
  r.set(Op::s_set_gpr_idx_on, [](Wave &w, const Instruction &i) {
    w.sgpr[kM0] = (w.sgpr[kM0] & ~0xf0ffu) | (scalar32(w, i.src[0]) & 0xff) | (uint32_t(i.imm) & 15) << 12;
    set_mode(w, w.mode.raw | kGprIdxEn);
  });
  r.set(Op::s_set_gpr_idx_off, [](Wave &w, const Instruction &) { set_mode(w, w.mode.raw & ~kGprIdxEn); });
  r.set(Op::s_set_gpr_idx_mode,
        [](Wave &w, const Instruction &i) { w.sgpr[kM0] = (w.sgpr[kM0] & ~0xf000u) | (uint32_t(i.imm) & 15) << 12; });
  r.set(Op::s_set_gpr_idx_idx,
        [](Wave &w, const Instruction &i) { w.sgpr[kM0] = (w.sgpr[kM0] & ~0xffu) | (scalar32(w, i.src[0]) & 0xff); });
  r.set(Op::s_setvskip, [](Wave &w, const Instruction &i) {
    const bool on = scalar32(w, i.src[0]) >> (scalar32(w, i.src[1]) & 31) & 1;
    set_mode(w, on ? w.mode.raw | kVskip : w.mode.raw & ~kVskip);
  });
}

}  // namespace

void Mode::set(uint32_t bits) {
  raw = bits;
  round32 = bits & 3;
  round64 = bits >> 2 & 3;
  denorm32 = bits >> 4 & 3;
  denorm64 = bits >> 6 & 3;
  dx10_clamp = bits >> 8 & 1;
  ieee = bits >> 9 & 1;
  fp16_ovfl = bits >> 23 & 1;
  gpr_idx_en = bits >> 27 & 1;
  vskip = bits >> 28 & 1;
}

void register_control(Registry &r) {
  branches(r);
  waits(r);
  modes(r);
}

}  // namespace turbo_sim
