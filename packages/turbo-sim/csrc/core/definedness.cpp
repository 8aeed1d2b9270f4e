// SPDX-License-Identifier: MIT
// Uninitialised registers. Undefined values may be moved and computed with (compilers do both); the finding comes when
// one decides something: an address, data that leaves for memory, a branch, EXEC, an MFMA operand.
//
// Vectors: one bit per lane and register. Scalars: one bit per bit, because compare results and EXEC masks are bit
// sets. Lanes that DPP and permutes fetch from elsewhere count as defined (not followed lane by lane).
#include "core/checks.h"
#include "core/operands.h"
#include "isa/opinfo.h"

#include <bit>
#include <cstring>
#include <vector>

namespace turbo_sim {
namespace {

constexpr uint64_t kAll = ~uint64_t(0);

uint32_t undef32(const WaveChecks &c, const Operand &o) {
  if (o.kind == Kind::Special) return SpecialReg(o.reg) == SpecialReg::Scc && c.scc_undef ? ~0u : 0;
  return o.kind == Kind::Scalar ? c.sundef[o.reg] : 0;
}
uint64_t undef64(const WaveChecks &c, const Operand &o) {
  return o.kind == Kind::Scalar ? c.sundef[o.reg] | uint64_t(c.sundef[o.reg + 1]) << 32 : 0;
}
bool any_undef(const WaveChecks &c, const Operand &o) {
  if (o.kind == Kind::Special) return undef32(c, o);
  if (o.kind != Kind::Scalar) return false;
  for (unsigned k = 0; k < o.dwords; ++k)
    if (c.sundef[o.reg + k]) return true;
  return false;
}
void set_undef(WaveChecks &c, const Operand &o, uint64_t bits) {
  if (o.kind != Kind::Scalar) return;
  c.sundef[o.reg] = uint32_t(bits);
  if (o.dwords == 2)
    c.sundef[o.reg + 1] = uint32_t(bits >> 32);
  else
    for (unsigned k = 1; k < o.dwords; ++k) c.sundef[o.reg + k] = bits ? ~0u : 0;
}

/// Lanes in which the operand is defined.
uint64_t lanes(const WaveChecks &c, const Operand &o) {
  if (!o.is_vector()) return any_undef(c, o) ? 0 : kAll;
  uint64_t d = kAll;
  for (unsigned k = 0; k < o.dwords; ++k) d &= c.vdef[o.reg + k];
  return d;
}

void report(Wave &w, const Instruction &i, const Operand &o, const char *use, uint64_t bad) {
  std::string name;
  if (o.is_vector()) {
    for (unsigned k = 0; k < o.dwords && name.empty(); ++k)
      if (bad & ~w.checks->vdef[o.reg + k]) name = row_name(o.reg + k);
  } else {
    name = "s" + std::to_string(o.reg);
  }
  w.worker->find(Check::Uninit, w, i, bad ? std::countr_zero(bad) : -1, name + " is not initialised, used as " + use);
}

void need(Wave &w, const Instruction &i, const Operand &o, const char *use, uint64_t mask) {
  if (!o.present() || o.is_constant()) return;
  const uint64_t bad = mask & ~lanes(*w.checks, o);
  if (bad || (!o.is_vector() && any_undef(*w.checks, o))) report(w, i, o, use, o.is_vector() ? bad : 0);
}

// --- scalar instructions

/// What a mnemonic says about implicit operands, looked up once per opcode.
struct Implicit {
  bool reads_scc = false, writes_scc = false, saves_exec = false, reads_dst = false;
};

Implicit implicit_of(Op op) {
  const OpInfo &info = op_info(op);
  const char *full = info.name, *n = full + 2;  // without "s_" or "v_"
  auto is = [&](const char *prefix) { return !std::strncmp(n, prefix, std::strlen(prefix)); };
  Implicit u;
  if (*full == 'v') {
    u.reads_dst = is("fmac") || is("mac") || is("pk_fmac") || is("dot2c") || is("dot4c") || is("dot8c");
    return u;
  }
  u.reads_scc = is("addc") || is("subb") || is("cselect") || is("cmov");
  u.saves_exec = std::strstr(n, "exec_b64");
  switch (info.format) {
    case Format::SOP2: u.writes_scc = !(is("cselect") || is("mul") || is("bfm") || is("pack")); break;
    case Format::SOP1:
      u.writes_scc = is("not") || is("wqm") || is("quadmask") || is("bcnt") || is("abs") || u.saves_exec;
      break;
    case Format::SOPC: u.writes_scc = !(is("set_gpr") || is("setvskip")); break;
    case Format::SOPK: u.writes_scc = is("cmpk") || is("addk"); break;
    default: break;
  }
  return u;
}

const Implicit &implicit(Op op) {
  static const std::vector<Implicit> table = [] {
    std::vector<Implicit> t;
    for (unsigned k = 0; k < unsigned(Op::count); ++k) t.push_back(implicit_of(Op(k)));
    return t;
  }();
  return table[size_t(op)];
}

/// Undefined bits of the result; bitwise for logic, all or nothing otherwise. Sources before the instruction ran.
uint64_t scalar_result(const Wave &w, const Instruction &i, const Implicit &implied) {
  const WaveChecks &c = *w.checks;
  const bool wide = i.src[0].dwords == 2;
  const uint64_t ua = wide ? undef64(c, i.src[0]) : undef32(c, i.src[0]),
                 ub = wide ? undef64(c, i.src[1]) : undef32(c, i.src[1]);
  if (!(ua | ub) && !(implied.reads_scc && c.scc_undef)) return 0;
  auto value = [&](const Operand &o) { return wide ? scalar64(w, o) : scalar32(w, o); };
  switch (i.op) {
    case Op::s_mov_b32:
    case Op::s_mov_b64:
    case Op::s_not_b32:
    case Op::s_not_b64: return ua;
    case Op::s_and_b32:
    case Op::s_and_b64: return (ua | ub) & (ua | value(i.src[0])) & (ub | value(i.src[1]));
    case Op::s_or_b32:
    case Op::s_or_b64: return (ua | ub) & (ua | ~value(i.src[0])) & (ub | ~value(i.src[1]));
    case Op::s_andn2_b32:
    case Op::s_andn2_b64: return (ua | ub) & (ua | value(i.src[0])) & (ub | ~value(i.src[1]));
    case Op::s_xor_b32:
    case Op::s_xor_b64: return ua | ub;
    case Op::s_cselect_b32:
    case Op::s_cselect_b64: return c.scc_undef ? kAll : w.scc ? ua : ub;
    default: return (ua | ub) || (implied.reads_scc && c.scc_undef) ? kAll : 0;
  }
}

void scalar(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  const Implicit &implied = implicit(i.op);
  const bool saves_exec = implied.saves_exec;
  const uint64_t bits = scalar_result(w, i, implied);
  if (implied.writes_scc)
    c.scc_undef = bits || any_undef(c, i.src[0]) || any_undef(c, i.src[1]) || (implied.reads_scc && c.scc_undef);
  if (saves_exec && any_undef(c, i.src[0])) report(w, i, i.src[0], "EXEC", 0);
  if (i.dst.present()) set_undef(c, i.dst, saves_exec ? 0 : bits);
  if (i.dst.kind == Kind::Scalar && i.dst.reg == kExec && bits) {
    report(w, i, i.src[0], "EXEC", 0);
    set_undef(c, i.dst, 0);
  }
}

void branch(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  const bool on_scc = i.op == Op::s_cbranch_scc0 || i.op == Op::s_cbranch_scc1;
  const bool on_vcc = i.op == Op::s_cbranch_vccz || i.op == Op::s_cbranch_vccnz;
  if (on_scc && c.scc_undef) w.worker->find(Check::Uninit, w, i, -1, "SCC is not defined, used as a branch condition");
  if (on_vcc && ((c.sundef[kVcc] & ~w.sgpr[kVcc]) | (c.sundef[kVcc + 1] & ~w.sgpr[kVcc + 1])))
    w.worker->find(Check::Uninit, w, i, -1, "VCC has undefined bits, used as a branch condition");
  if (i.format == Format::SOP1) need(w, i, i.src[0], "a jump address", 0);
  if (i.dst.present()) set_undef(c, i.dst, 0);
}

// --- vector ALU

/// Lanes in which dword k of a two-dword result is defined, where it does not depend on all of the sources: compilers
/// leave the upper half of a 64-bit addend undefined when they need the lower half of the sum only.
uint64_t one_half(const WaveChecks &c, const Instruction &i, unsigned k, uint64_t all) {
  auto half = [&](const Operand &o, unsigned h) {
    const unsigned reg = o.reg + (o.dwords == 2 ? h : 0);
    if (o.is_vector()) return c.vdef[reg];
    return o.kind == Kind::Scalar && c.sundef[reg] ? 0 : kAll;
  };
  switch (i.op) {
    case Op::v_pk_fma_f32:
    case Op::v_pk_mul_f32:
    case Op::v_pk_add_f32: {  // each half of the result has its own selects
      uint64_t d = kAll;
      for (unsigned n = 0; n < 3; ++n)
        if (i.src[n].present()) d &= half(i.src[n], (k ? i.op_sel_hi : i.op_sel) >> n & 1);
      return d;
    }
    case Op::v_pk_mov_b32: return half(i.src[k], i.op_sel >> k & 1);
    case Op::v_mov_b64: return half(i.src[0], k);
    case Op::v_mad_u64_u32:
    case Op::v_mad_i64_i32:
    case Op::v_lshl_add_u64:
    case Op::v_lshlrev_b64:  // carries go up: the lower half depends on lower halves
      return k ? all : half(i.src[0], 0) & half(i.src[1], 0) & (i.src[2].present() ? half(i.src[2], 0) : kAll);
    case Op::v_lshrrev_b64:
    case Op::v_ashrrev_i64: return k ? half(i.src[0], 0) & half(i.src[1], 1) : all;
    default: return all;
  }
}

void valu(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  const uint64_t exec = w.exec();
  switch (i.op) {
    case Op::v_readfirstlane_b32: {
      const unsigned lane = exec ? unsigned(std::countr_zero(exec)) : 0;
      return set_undef(c, i.dst, lanes(c, i.src[0]) >> lane & 1 ? 0 : kAll);
    }
    case Op::v_readlane_b32:
      return set_undef(c, i.dst, lanes(c, i.src[0]) >> (scalar32(w, i.src[1]) & 63) & 1 ? 0 : kAll);
    case Op::v_writelane_b32: c.vdef[i.dst.reg] |= uint64_t(1) << (scalar32(w, i.src[1]) & 63); return;
    case Op::v_swap_b32:
    case Op::v_permlane16_swap_b32:
    case Op::v_permlane32_swap_b32:
      c.vdef[i.dst.reg] |= exec;
      c.vdef[i.src[0].reg] |= exec;
      return;
    default: break;
  }
  uint64_t d = kAll, rows[32];
  if (i.op == Op::v_cndmask_b32) {
    const uint64_t sel = scalar64(w, i.src[2]), unknown = undef64(c, i.src[2]);
    const uint64_t d0 = i.has_dpp ? kAll : lanes(c, i.src[0]), d1 = lanes(c, i.src[1]);
    d = ((sel & d1) | (~sel & d0)) & (~unknown | (d0 & d1));
  } else {
    for (unsigned k = 0; k < 3; ++k) {
      const Operand &o = i.src[k];
      if (k == 0 && i.has_dpp) continue;
      if (k == 2 && o.kind == Kind::Scalar && o.dwords == 2 && i.sdst.present() && i.dst.dwords == 1)
        d &= ~undef64(c, o);  // carry-in
      else if (o.present() && !o.is_constant())
        d &= lanes(c, o);
    }
    if (implicit(i.op).reads_dst) d &= lanes(c, i.dst);
  }
  if (i.dst.is_vector()) {
    const uint64_t mask = i.has_dpp ? write_mask(w, i) : exec;
    for (unsigned k = 0; k < i.dst.dwords; ++k) rows[k] = d == kAll || i.dst.dwords != 2 ? d : one_half(c, i, k, d);
    for (unsigned k = 0; k < i.dst.dwords; ++k)
      c.vdef[i.dst.reg + k] = (c.vdef[i.dst.reg + k] & ~mask) | (mask & rows[k]);
  }
  if (i.sdst.present()) set_undef(c, i.sdst, exec & ~d);
}

void mfma(Wave &w, const Instruction &i) {
  WaveChecks &c = *w.checks;
  static const char *const kUse[] = {"MFMA operand A", "MFMA operand B", "MFMA operand C", "MFMA scale of A",
                                     "MFMA scale of B"};
  for (unsigned k = 0; k < 5; ++k) need(w, i, i.src[k], kUse[k], kAll);
  for (unsigned k = 0; k < i.dst.dwords; ++k) c.vdef[i.dst.reg + k] = kAll;
}

// --- memory

void memory(Wave &w, const Instruction &i) {
  const uint64_t exec = w.exec();
  need(w, i, i.src[0], "an address", exec);
  if (i.cls == InstClass::Lds) return;  // data: the LDS shadow keeps its definedness
  need(w, i, i.src[1], i.format == Format::MUBUF ? "a buffer descriptor" : "an address", exec);
  need(w, i, i.src[2], "an offset", exec);
  need(w, i, i.src[3], "data to store", exec);
}

}  // namespace

void check_defined(Wave &w, const Instruction &i) {
  switch (i.cls) {
    case InstClass::Salu: return scalar(w, i);
    case InstClass::Branch: return branch(w, i);
    case InstClass::Valu:
    case InstClass::Trans: return valu(w, i);
    case InstClass::Mfma: return mfma(w, i);
    case InstClass::Lds:
    case InstClass::Vmem:
    case InstClass::Smem: return memory(w, i);
    default: return;
  }
}

}  // namespace turbo_sim
