// SPDX-License-Identifier: MIT
// Global and scratch memory: translation and bounds.
#include "core/machine.h"
#include "core/operands.h"

#include <algorithm>
#include <cstdio>

namespace turbo_sim {
namespace {

const char *access_name(Access a) { return a == Access::Load ? "load" : a == Access::Store ? "store" : "atomic"; }

std::string hex(uint64_t v) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

/// "4-byte store at 0x7f.. is 16 bytes past the end of 'out' (4096 bytes)"
std::string describe(const Launch &l, uint64_t addr, unsigned bytes, Access a) {
  std::string s = std::to_string(bytes) + "-byte " + access_name(a) + " at " + hex(addr);
  const Allocation *nearest = nullptr;
  uint64_t distance = ~uint64_t(0);
  for (const Allocation &m : l.map) {
    const uint64_t d = addr < m.begin ? m.begin - addr : addr + bytes > m.end ? addr + bytes - m.end : 0;
    if (d < distance) distance = d, nearest = &m;
  }
  if (!nearest || distance > (1u << 20)) return s + " is in no allocation";
  const std::string name = "'" + nearest->name + "' (" + std::to_string(nearest->end - nearest->begin) + " bytes)";
  if (!distance) return s + " writes the read-only " + name;
  if (addr < nearest->begin) return s + " begins " + std::to_string(nearest->begin - addr) + " bytes before " + name;
  return s + " ends " + std::to_string(distance) + " bytes past the end of " + name;
}

}  // namespace

uint8_t *global_ptr_checked(Wave &w, const Instruction &i, uint64_t addr, unsigned bytes, Access a, int lane) {
  Worker &worker = *w.worker;
  const std::vector<Allocation> &map = worker.launch->map;
  if (map.empty()) return reinterpret_cast<uint8_t *>(addr);
  const Allocation *m = worker.last_hit;
  if (!m || addr < m->begin || addr + bytes > m->end) {
    auto it =
        std::upper_bound(map.begin(), map.end(), addr, [](uint64_t x, const Allocation &e) { return x < e.begin; });
    m = it == map.begin() ? nullptr : &*(it - 1);
    if (m && (addr + bytes > m->end || addr + bytes < addr)) m = nullptr;
  }
  if (!m || (a != Access::Load && !m->writable)) {
    worker.find(Check::Bounds, w, i, lane, describe(*worker.launch, addr, bytes, a));
    return nullptr;
  }
  worker.last_hit = m;
  return reinterpret_cast<uint8_t *>(addr);
}

uint8_t *scratch_ptr(Wave &w, const Instruction &i, uint32_t offset, unsigned bytes, Access a, int lane) {
  if (uint64_t(offset) + bytes > w.scratch_stride) {
    const std::string text = std::to_string(bytes) + "-byte scratch " + access_name(a) + " at " +
                             std::to_string(offset) + ", the kernel has " +
                             std::to_string(w.worker->launch->scratch_bytes) + " bytes a lane";
    // There is nothing there to access, so this stops the launch when it cannot be a finding.
    if (!(w.worker->checks & check_bit(Check::Bounds))) throw Fault(text);
    w.worker->find(Check::Bounds, w, i, lane, text);
    return nullptr;
  }
  return w.scratch + size_t(lane < 0 ? 0 : lane) * w.scratch_stride + offset;
}

uint64_t special_value(const Wave &w, SpecialReg r) {
  switch (r) {
    case SpecialReg::SharedBase: return kSharedAperture;
    case SpecialReg::SharedLimit: return kSharedAperture | 0xffffffff;
    case SpecialReg::PrivateBase: return kPrivateAperture;
    case SpecialReg::PrivateLimit: return kPrivateAperture | 0xffffffff;
    case SpecialReg::Vccz: return w.vcc() == 0;
    case SpecialReg::Execz: return w.exec() == 0;
    case SpecialReg::Scc: return w.scc;
    default: throw Fault("source operand src_pops_exiting_wave_id or src_lds_direct: not implemented");
  }
}

}  // namespace turbo_sim
