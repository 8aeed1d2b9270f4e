// SPDX-License-Identifier: MIT
// Hazards that hardware does not resolve: wait states between an MFMA and the instructions around it. Others:
// wait_states.cpp.
//
// Time is counted in wait states: one per instruction, s_nop n is n + 1, and an MFMA that finds the matrix unit busy
// waits for it. The required distances are those that LLVM's scheduler keeps for gfx940 and gfx950 (observed through
// llvm-mc and compiled code: the s_nop that it inserts), not a hardware document.
#include "core/checks.h"
#include "cost/mfma_passes.h"
#include "isa/opinfo.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace turbo_sim {
namespace {

bool same_destination(const WaveChecks::Written &p, const Operand &o) {
  return p.inst_row == o.reg && p.rows == o.dwords;
}

/// Distance needed between the MFMA that wrote `p` and an instruction that reads or overwrites the register.
/// XDL: matrix instructions on 16-bit and narrower types and xf32. The full-precision ones finish sooner.
unsigned after_mfma(const WaveChecks::Written &p, bool gfx950, bool as_c_of_mfma, bool exact) {
  const unsigned passes = p.passes, extra = gfx950 && p.kind == WaveChecks::Xdl && passes != 2 ? 1 : 0;
  if (p.kind == WaveChecks::F64) return as_c_of_mfma ? 0 : passes + (passes > 4 ? 3 : 2);
  if (as_c_of_mfma) {
    if (exact) return passes == 2 ? 2 : 0;  // forwarded to an accumulation into the same registers
    return p.kind == WaveChecks::Xdl ? passes + 1 + extra : passes;
  }
  return p.kind == WaveChecks::Xdl ? passes + 3 + extra : passes + 2;
}

void complain(Wave &w, const Instruction &i, unsigned row, unsigned have, unsigned needed, const WaveChecks::Written &p,
              bool read) {
  const Instruction &writer = w.worker->launch->code->insts[read ? p.c_reader : p.inst];
  char pc[24];
  std::snprintf(pc, sizeof pc, "0x%x", writer.offset_in_code);
  w.worker->find(Check::Hazard, w, i, -1,
                 row_name(row) + (read ? " is C of " : " was written by ") + op_name(writer.op) + " at pc " + pc + " " +
                     std::to_string(have) + " wait states before; " + std::to_string(needed) + " are needed");
}

void look(Wave &w, const Instruction &i, const Operand &o, bool mfma_c, bool write, bool gfx950) {
  if (!o.is_vector()) return;
  WaveChecks &c = *w.checks;
  for (unsigned k = 0; k < o.dwords; ++k) {
    const WaveChecks::Written &p = c.written[o.reg + k];
    unsigned needed = 0;
    if (p.passes) {
      if (write && i.cls == InstClass::Mfma) continue;  // the unit is in order
      needed = after_mfma(p, gfx950, mfma_c, same_destination(p, o));
    }
    if (write && i.cls != InstClass::Mfma && p.c_reader_passes &&
        p.c_read_time) {  // overwritten while it is being read as C
      const uint64_t since = c.time - p.c_read_time - 1;
      if (since + 1 < p.c_reader_passes)
        return complain(w, i, o.reg + k, unsigned(since), p.c_reader_passes - 1u, p, true);
    }
    const uint64_t have = c.time - p.time - 1;
    if (p.time && have < needed) return complain(w, i, o.reg + k, unsigned(have), needed, p, false);
  }
}

WaveChecks::Unit unit_of(const Instruction &i) {
  const char *n = op_name(i.op);
  if (std::strstr(n, "_f64")) return WaveChecks::F64;
  const char *last = std::strrchr(n, '_');  // the type of A and B
  return last && !std::strcmp(last, "_f32") ? WaveChecks::F32 : WaveChecks::Xdl;
}

}  // namespace

void check_wait_states(Wave &, const Instruction &);  // wait_states.cpp

void check_hazards(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  const bool gfx950 = w.worker->launch->code->arch == Arch::gfx950;
  ++c.time;
  if (i.op == Op::s_nop) {
    c.time += unsigned(i.imm) & 15;
    return;
  }
  if (i.cls == InstClass::Mfma) c.time = std::max(c.time, c.mfma_free);
  check_wait_states(w, i);
  switch (i.cls) {
    case InstClass::Valu:
    case InstClass::Trans:
    case InstClass::Mfma:
    case InstClass::Lds:
    case InstClass::Vmem: break;
    default: return;
  }
  const bool mfma = i.cls == InstClass::Mfma;
  for (unsigned k = 0; k < 5; ++k) look(w, i, i.src[k], mfma && k == 2, false, gfx950);
  look(w, i, i.dst, false, true, gfx950);
  // Loads write later than any distance here: their own wait covers it.
  if (!i.dst.is_vector() || i.cls == InstClass::Lds || i.cls == InstClass::Vmem) {
    if (i.dst.is_vector())
      for (unsigned k = 0; k < i.dst.dwords; ++k) c.written[i.dst.reg + k].time = 0;
    return;
  }
  // Full-precision matrix instructions read C at once: LLVM inserts no distance after them.
  if (mfma && unit_of(i) == WaveChecks::Xdl && i.src[2].is_vector()) {
    for (unsigned k = 0; k < i.src[2].dwords; ++k) {
      WaveChecks::Written &r = c.written[i.src[2].reg + k];
      r.c_read_time = c.time;
      r.c_reader = i.index;
      r.c_reader_passes = uint8_t(mfma_passes(gfx950 ? Arch::gfx950 : Arch::gfx942, i));
    }
  }
  WaveChecks::Written p{};
  p.time = c.time;
  p.passes = mfma ? uint8_t(mfma_passes(gfx950 ? Arch::gfx950 : Arch::gfx942, i)) : 0;
  p.kind = mfma ? unit_of(i) : WaveChecks::Xdl;
  p.inst_row = i.dst.reg;
  p.rows = i.dst.dwords;
  p.inst = i.index;
  for (unsigned k = 0; k < i.dst.dwords; ++k) c.written[i.dst.reg + k] = p;
  if (i.op == Op::v_swap_b32 || i.op == Op::v_permlane16_swap_b32 || i.op == Op::v_permlane32_swap_b32)
    c.written[i.src[0].reg] = p;
  if (mfma) c.mfma_free = c.time + p.passes;
}

}  // namespace turbo_sim
