// SPDX-License-Identifier: MIT
// Findings: recording, merging, text. Costs that workers add up. The register allocation check.
#include "core/checks.h"
#include "core/launch.h"
#include "isa/disasm.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace turbo_sim {

const char *check_name(Check c) {
  static const char *const kNames[] = {"bounds", "uninit", "wait", "race", "registers", "hazard"};
  return kNames[unsigned(c)];
}

void Worker::find(Check check, const Wave &w, const Instruction &i, int lane, std::string detail) {
  for (Finding &f : findings)
    if (f.check == check && f.inst == i.index) {
      ++f.times;
      return;
    }
  if (launch->options->stop_on_finding) throw Fault(std::string(check_name(check)) + " check: " + detail);
  Finding f;
  f.check = check;
  for (unsigned d = 0; d < 3; ++d) f.group[d] = w.group->id[d];
  f.wave = w.id;
  f.lane = lane;
  f.inst = i.index;
  f.detail = std::move(detail);
  findings.push_back(std::move(f));
}

void Costs::add(const Costs &o) {
  lds_bytes += o.lds_bytes;
  lds_cycles += o.lds_cycles;
  lds_conflict_cycles += o.lds_conflict_cycles;
  vmem_load_bytes += o.vmem_load_bytes;
  vmem_store_bytes += o.vmem_store_bytes;
  vmem_segments += o.vmem_segments;
  vmem_lane_cycles += o.vmem_lane_cycles;
  atomics += o.atomics;
}

void check_allocation(const Launch &l, const std::vector<uint64_t> &pc_counts, std::vector<Finding> &findings) {
  // VGPRs beyond the accumulators' offset are the accumulators' registers: fine for a kernel that uses none of those.
  bool accumulators = false;
  for (const Instruction &i : l.code->insts) {
    if (!pc_counts[i.index]) continue;
    accumulators |= i.dst.kind == Kind::Agpr;
    for (const Operand &o : i.src) accumulators |= o.kind == Kind::Agpr;
  }
  const unsigned vgprs = accumulators ? l.vgprs : std::min(256u, l.vgprs + l.agprs);
  auto beyond = [&](const Operand &o) -> std::string {
    const unsigned end = o.reg + o.dwords;
    if (o.kind == Kind::Vgpr && end > vgprs)
      return "v" + std::to_string(end - 1) + ", the kernel has " + std::to_string(vgprs) + " VGPRs";
    if (o.kind == Kind::Agpr && end > kAgprBase + l.agprs)
      return "a" + std::to_string(end - 1 - kAgprBase) + ", the kernel has " + std::to_string(l.agprs) + " AGPRs";
    return "";
  };
  for (const Instruction &i : l.code->insts) {
    if (!pc_counts[i.index]) continue;
    std::string bad = beyond(i.dst);
    for (const Operand &o : i.src)
      if (bad.empty()) bad = beyond(o);
    if (bad.empty()) continue;
    Finding f{};
    f.check = Check::Registers;
    f.lane = -1;
    f.inst = i.index;
    f.times = pc_counts[i.index];
    f.detail = "uses " + bad;
    findings.push_back(f);
  }
}

std::vector<FindingText> spell_out(const CodeObject &object, const Launch &l, std::vector<Finding> findings) {
  // The lowest work-group and wave that met it speaks for all, so that the text does not depend on threads.
  auto key = [](const Finding &f) { return std::make_tuple(f.group[2], f.group[1], f.group[0], f.wave); };
  std::map<std::pair<uint32_t, Check>, Finding> merged;
  for (Finding &f : findings) {
    auto [it, fresh] = merged.try_emplace({f.inst, f.check}, f);
    if (fresh) continue;
    const uint64_t times = it->second.times + f.times;
    if (key(f) < key(it->second)) it->second = f;
    it->second.times = times;
  }
  std::vector<FindingText> out;
  for (auto &[where, f] : merged) {
    const Instruction &i = l.code->insts[f.inst];
    FindingText t;
    t.check = check_name(f.check);
    t.kernel = l.kernel;
    t.instruction = disassemble(l.code->arch, i);
    t.source = object.source_of(i.offset_in_code);
    t.detail = f.detail;
    t.pc = i.offset_in_code;
    for (unsigned d = 0; d < 3; ++d) t.group[d] = f.group[d];
    t.wave = f.wave;
    t.lane = f.lane;
    t.times = f.times;
    out.push_back(std::move(t));
  }
  return out;
}

std::string FindingText::text() const {
  char where[160];
  std::snprintf(where, sizeof where, "group (%u, %u, %u), wave %u%s, pc 0x%llx", group[0], group[1], group[2], wave,
                lane < 0 ? "" : (", lane " + std::to_string(lane)).c_str(), static_cast<unsigned long long>(pc));
  return check + ": " + kernel + ", " + where + " `" + instruction + "`" + (source.empty() ? "" : " (" + source + ")") +
         ": " + detail + (times > 1 ? " [" + std::to_string(times) + " times]" : "");
}

}  // namespace turbo_sim
