// SPDX-License-Identifier: MIT
// Wait states around scalar registers, lane accesses and results that are forwarded late: distances that gfx942 and
// gfx950 leave to the program. They are those that LLVM 22 keeps (observed: `llc -run-pass=post-RA-hazard-rec` on pairs
// of instructions), not a hardware document. Loads and MFMAs have rules of their own: waits.cpp, hazards.cpp.
//
//   VALU writes SGPR, VCC   VALU reads it 2, as the lane of v_readlane or v_writelane 4; v_div_fmas reads VCC 4; VMEM 5
//   v_cmpx writes EXEC      v_readlane, v_readfirstlane, v_writelane, v_permlane*_swap, MFMA 4; DPP 5
//   VALU writes VGPR        v_readlane, v_readfirstlane reads it 1; source 0 of DPP, v_permlane*_swap, MFMA 2
//   transcendental          another VALU instruction reads its result 1
//   part of a register      (SDWA dst_sel, op_sel of the destination) VALU reads or overwrites it 1
//   v_dot*                  all but the same opcode accumulating into it read its result 3, overwrite it 3
//   store > 64 bits         VALU overwrites its data 2; none after a buffer store with an SGPR offset
//   s_setreg                s_getreg, s_setreg of the same hardware register 2
//
// LLVM keeps two more, which the hand-written kernels of amd-aiter do not: 1 between a scalar write of M0 and LDS-DMA,
// and 2 for the sources of a DPP instruction that are not permuted. Those are not checked.
#include "core/checks.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace turbo_sim {
namespace {

/// What a mnemonic says, looked up once per opcode.
struct Facts {
  bool reads_lane = false, writes_lane = false, cmpx = false, div_fmas = false, lane_swap = false;
  bool dot = false, setreg = false, getreg = false;
};

Facts facts_of(const char *n) {
  auto is = [&](const char *prefix) { return !std::strncmp(n, prefix, std::strlen(prefix)); };
  Facts f;
  f.reads_lane = is("v_readlane") || is("v_readfirstlane");
  f.writes_lane = is("v_writelane");
  f.cmpx = is("v_cmpx");
  f.div_fmas = is("v_div_fmas");
  f.lane_swap = is("v_permlane");
  f.dot = is("v_dot");
  f.setreg = is("s_setreg");
  f.getreg = is("s_getreg");
  return f;
}

const Facts &facts(Op op) {
  static const std::vector<Facts> table = [] {
    std::vector<Facts> t;
    for (unsigned k = 0; k < unsigned(Op::count); ++k) t.push_back(facts_of(op_name(Op(k))));
    return t;
  }();
  return table[size_t(op)];
}

bool writes_part(const Instruction &i) {
  return (i.has_sdwa && i.dst_sel != DWORD) || (i.format == Format::VOP3 && (i.op_sel & 8));
}

/// One instruction against what came before it; the first violation is reported.
class Look {
 public:
  Look(Wave &wave, const Instruction &inst)
      : w(wave), i(inst), c(*wave.checks), f(facts(inst.op)), insts(wave.worker->launch->code->insts.data()) {}

  bool valu() {
    const bool mfma = i.cls == InstClass::Mfma;
    const unsigned exec = i.has_dpp ? 5 : f.reads_lane || f.writes_lane || f.lane_swap || mfma ? 4 : 0;
    if (too_soon(c.scalar[kExec], exec, "EXEC")) return true;
    if (f.div_fmas && (scalar(kVcc, 4) || scalar(kVcc + 1, 4))) return true;
    for (unsigned k = 0; k < 3; ++k)
      if (scalars(i.src[k], k == 1 && (f.reads_lane || f.writes_lane) ? 4 : 2) || reads(k)) return true;
    return overwrites();
  }

  bool memory() {
    for (const Operand &o : i.src) {
      if (i.cls == InstClass::Vmem && scalars(o, 5)) return true;
      for (unsigned r = o.reg; o.is_vector() && r < o.reg + o.dwords; ++r)
        if (const Instruction *by = recent_valu(r); by && facts(by->op).dot && written(r, 3)) return true;
    }
    return false;
  }

  bool hardware_register() { return too_soon(c.hwreg[i.imm & 63], 2, "the hardware register"); }

 private:
  Wave &w;
  const Instruction &i;
  WaveChecks &c;
  const Facts &f;
  const Instruction *insts;

  uint64_t since(uint64_t time) const { return c.time - time - 1; }

  bool too_soon(const WaveChecks::Event &e, unsigned needed, const std::string &what,
                const char *verb = " was written by ") {
    if (!e.time || since(e.time) >= needed) return false;
    const Instruction &by = insts[e.inst];
    char pc[24];
    std::snprintf(pc, sizeof pc, "0x%x", by.offset_in_code);
    w.worker->find(Check::Hazard, w, i, -1,
                   what + verb + op_name(by.op) + " at pc " + pc + " " + std::to_string(since(e.time)) +
                       " wait states before; " + std::to_string(needed) + " are needed");
    return true;
  }

  bool scalar(unsigned reg, unsigned needed) {
    return too_soon(c.scalar[reg], needed, reg >= kVcc && reg < kVcc + 2 ? "VCC" : "s" + std::to_string(reg));
  }
  bool scalars(const Operand &o, unsigned needed) {
    if (o.kind == Kind::Scalar)
      for (unsigned k = 0; k < o.dwords; ++k)
        if (scalar(o.reg + k, needed)) return true;
    return false;
  }

  /// The instruction that wrote a row, if it is of the plain vector ALU and so near that a rule might apply.
  const Instruction *recent_valu(unsigned row) const {
    const WaveChecks::Written &p = c.written[row];
    return p.time && !p.passes && since(p.time) < 3 ? &insts[p.inst] : nullptr;
  }
  bool written(unsigned row, unsigned needed) {
    return too_soon({c.written[row].time, c.written[row].inst}, needed, row_name(row));
  }

  bool reads(unsigned k) {
    const Operand &o = i.src[k];
    if (!o.is_vector()) return false;
    for (unsigned r = o.reg; r < o.reg + o.dwords; ++r) {
      const Instruction *by = recent_valu(r);
      if (!by) continue;
      const bool mfma = i.cls == InstClass::Mfma, dot = facts(by->op).dot;
      const bool permuted = (i.has_dpp && k == 0) || f.lane_swap;
      unsigned needed = permuted || (mfma && !dot) ? 2 : f.reads_lane || writes_part(*by) ? 1 : 0;
      if (by->cls == InstClass::Trans && i.cls != InstClass::Trans) needed = std::max(needed, 1u);
      if (dot && !mfma && !(by->op == i.op && k == 2)) needed = 3;
      if (written(r, needed)) return true;
    }
    return false;
  }

  bool overwrites() {
    if (!i.dst.is_vector()) return false;
    for (unsigned r = i.dst.reg; r < i.dst.reg + i.dst.dwords; ++r) {
      if (too_soon(c.stored[r], 2, row_name(r), " is data of ")) return true;
      const Instruction *by = recent_valu(r);
      if (!by) continue;
      const bool other_dot = facts(by->op).dot && by->op != i.op && i.cls != InstClass::Mfma;
      if (written(r, other_dot ? 3 : f.lane_swap ? 2 : writes_part(*by) ? 1 : 0)) return true;
    }
    return false;
  }
};

}  // namespace

void check_wait_states(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  const Facts &f = facts(i.op);
  const WaveChecks::Event now{c.time, i.index};
  auto scalar_write = [&](const Operand &o, WaveChecks::Event e) {
    if (o.kind == Kind::Scalar)
      for (unsigned k = 0; k < o.dwords; ++k) c.scalar[o.reg + k] = e;
  };
  switch (i.cls) {
    case InstClass::Valu:
    case InstClass::Trans:
    case InstClass::Mfma:
      Look(w, i).valu();
      scalar_write(i.dst, now);
      scalar_write(i.sdst, now);
      if (f.cmpx) c.scalar[kExec] = now;
      break;
    case InstClass::Vmem:
    case InstClass::Lds:
      Look(w, i).memory();
      if (i.cls == InstClass::Vmem && i.src[3].is_vector() && i.src[3].dwords > 2 &&
          !(i.format == Format::MUBUF && i.src[2].kind == Kind::Scalar))
        for (unsigned k = 0; k < i.src[3].dwords; ++k) c.stored[i.src[3].reg + k] = now;
      break;
    default:
      if (f.setreg || f.getreg) Look(w, i).hardware_register();
      if (f.setreg) c.hwreg[i.imm & 63] = now;
      // A scalar write in between has waited for the vector one.
      scalar_write(i.dst, {});
      scalar_write(i.sdst, {});
  }
}

}  // namespace turbo_sim
