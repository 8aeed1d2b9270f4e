// SPDX-License-Identifier: MIT
#include "cost/profile.h"

#include "cost/coexecution.h"
#include "cost/mfma_passes.h"

#include <algorithm>
#include <cstring>

namespace turbo_sim {
namespace {

const char *class_name(const Instruction &i) {
  switch (i.cls) {
    case InstClass::Salu: return "salu";
    case InstClass::Smem: return "smem";
    case InstClass::Branch: return "branch";
    case InstClass::Wait: return "wait";
    case InstClass::Barrier: return "barrier";
    case InstClass::Message: return "message";
    case InstClass::Valu: return "valu";
    case InstClass::Trans: return "trans";
    case InstClass::Mfma: return "mfma";
    case InstClass::Lds: return "lds";
    case InstClass::Vmem: return "vmem";
    default: return "other";
  }
}

/// Moves between VGPRs and AGPRs are decoded with the matrix instructions but run on the vector ALU.
bool is_matrix(const Instruction &i) { return i.cls == InstClass::Mfma && !std::strstr(op_name(i.op), "accvgpr"); }

void occupancy(const DeviceModel &d, const Kernel &k, const Report &r, Profile &p) {
  const unsigned by_registers = std::min(d.max_waves, 512 / std::max(8u, std::min(k.total_vgprs(), 512u)));
  const uint64_t waves_per_group = r.groups ? r.waves / r.groups : 1;
  unsigned by_lds = d.max_waves;
  if (r.lds_bytes) {
    const uint32_t each = (r.lds_bytes + d.lds_granule - 1) / d.lds_granule * d.lds_granule;
    const uint64_t waves = d.lds_bytes / std::max(1u, each) * waves_per_group;  // per compute unit
    by_lds = unsigned(std::min<uint64_t>(d.max_waves, std::max<uint64_t>(1, waves / d.simds)));
  }
  p.waves_per_simd = std::min(by_registers, by_lds);
  p.occupancy_limit = p.waves_per_simd == d.max_waves ? "none" : by_registers <= by_lds ? "registers" : "lds";
}

}  // namespace

const DeviceModel &device_model(Arch arch) {
  // Compute units: CDNA3 and CDNA4 white papers. LDS granules and banks: ISA manuals.
  static const DeviceModel gfx942{304, 4, 8, 65536, 512, 32, 64}, gfx950{256, 4, 8, 163840, 1280, 64, 64};
  return arch == Arch::gfx942 ? gfx942 : gfx950;
}

unsigned issue_cycles(Arch arch, const Instruction &i) {
  if (is_matrix(i)) return 4 * mfma_passes(arch, i);
  switch (i.cls) {
    case InstClass::Mfma:
    case InstClass::Valu: return 4;    // 64 lanes, 16 a cycle
    case InstClass::Trans: return 16;  // quarter rate
    default: return 1;
  }
}

Profile profile(const CodeObject &object, const Kernel &kernel, const Report &r, unsigned hot) {
  Profile p;
  const DeviceModel &d = device_model(object.arch);
  for (const char *unit : {"mfma", "valu", "salu", "lds", "vmem"}) p.unit_cycles[unit] = 0;
  for (const Instruction &i : object.code.insts) {
    const uint64_t n = i.index < r.pc_counts.size() ? r.pc_counts[i.index] : 0;
    if (!n) continue;
    const char *name = class_name(i);
    p.instructions[is_matrix(i) || i.cls != InstClass::Mfma ? name : "valu"] += n;
    HotInstruction h{i.index, n, n * issue_cycles(object.arch, i),
                     i.index < r.pc_memory.size() ? r.pc_memory[i.index] : 0};
    if (is_matrix(i)) {
      p.mfma[op_name(i.op)] += n;
      p.unit_cycles["mfma"] += h.cycles;
      p.matrix_cycles += h.cycles;
      p.issue_cycles += n * held_cycles(object.arch, i);
    } else if (i.cls == InstClass::Valu || i.cls == InstClass::Trans || i.cls == InstClass::Mfma) {
      p.unit_cycles["valu"] += h.cycles;
      p.issue_cycles += h.cycles;
      if (runs_alone(i)) p.matrix_cycles += h.cycles;
    } else if (i.cls == InstClass::Salu || i.cls == InstClass::Smem || i.cls == InstClass::Branch) {
      p.unit_cycles["salu"] += n;
    }
    p.hot.push_back(h);
  }
  if (p.unit_cycles["mfma"]) p.mfma_share = double(p.unit_cycles["mfma"]) / double(simd_cycles(p));
  p.unit_cycles["lds"] = r.costs.lds_cycles;
  p.unit_cycles["vmem"] = r.costs.vmem_segments * 64 / d.l1_bytes_per_cycle;

  p.units_used = unsigned(std::min<uint64_t>(std::max<uint64_t>(r.groups, 1), d.compute_units));
  for (const auto &[unit, cycles] : p.unit_cycles) {
    const bool per_simd = unit == "mfma" || unit == "valu";
    // A work-group of fewer than four waves leaves matrix and vector units of its compute unit idle.
    const uint64_t waves_per_group = r.groups ? r.waves / r.groups : 1;
    const uint64_t groups_per_unit = p.units_used ? (r.groups + p.units_used - 1) / p.units_used : 1;
    const double lanes =
        per_simd ? double(std::min<uint64_t>(d.simds, std::max<uint64_t>(1, waves_per_group * groups_per_unit))) : 1.0;
    p.bound[unit] = double(cycles) / (p.units_used * lanes);
    if (p.bound[unit] > p.bound_cycles) p.bound_cycles = p.bound[unit], p.limit = unit;
  }
  occupancy(d, kernel, r, p);
  // Hot: issue cycles, with what LDS conflicts and further segments add.
  auto weight = [](const HotInstruction &h) { return h.cycles + h.memory; };
  std::sort(p.hot.begin(), p.hot.end(), [&](const HotInstruction &a, const HotInstruction &b) {
    return weight(a) != weight(b) ? weight(a) > weight(b) : a.index < b.index;
  });
  if (p.hot.size() > hot) p.hot.resize(hot);
  return p;
}

}  // namespace turbo_sim
