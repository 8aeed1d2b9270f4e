// SPDX-License-Identifier: MIT
#include "cost/profile.h"
#include "isa/disasm.h"

#include <cstdio>

namespace turbo_sim {
namespace {

std::string quoted(const std::string &s) {
  std::string out = "\"";
  for (char c : s) {
    char escape[8];
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 32)
      std::snprintf(escape, sizeof escape, "\\u%04x", c), out += escape;
    else
      out += c;
  }
  return out + "\"";
}
std::string json(uint64_t v) { return std::to_string(v); }
std::string json(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", v);
  return text;
}

class Object {
 public:
  template <class T>
  void add(const char *key, const T &v) {
    raw(key, json(v));
  }
  void text(const char *key, const std::string &v) { raw(key, quoted(v)); }
  void raw(const std::string &key, const std::string &v) {
    body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + v;
  }
  template <class T>
  void map(const char *key, const std::map<std::string, T> &m) {
    Object o;
    for (const auto &[name, v] : m) o.raw(name, json(v));
    raw(key, o.str());
  }
  std::string str() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

std::string list(const std::vector<std::string> &items) {
  std::string s;
  for (const std::string &i : items) s += (s.empty() ? "" : ", ") + i;
  return "[" + s + "]";
}

}  // namespace

std::string profile_json(const CodeObject &object, const Kernel &k, const Report &r, unsigned hot) {
  const Profile p = profile(object, k, r, hot);
  const DeviceModel &d = device_model(object.arch);
  Object o;
  o.text("note", "model, not a measurement");
  o.text("kernel", r.kernel);
  o.text("arch", arch_name(object.arch));
  o.add("work_groups", r.groups);
  o.add("waves", r.waves);
  o.add("wave_instructions", r.instructions);
  o.map("instructions", p.instructions);
  o.map("mfma", p.mfma);
  o.map("unit_cycles", p.unit_cycles);
  o.map("simd_cycles", std::map<std::string, uint64_t>{{"matrix", p.matrix_cycles}, {"issue", p.issue_cycles}});
  o.add("mfma_share", p.mfma_share);
  o.map("bound_cycles_by_unit", p.bound);
  o.add("bound_cycles", p.bound_cycles);
  o.text("limit", p.limit);
  o.add("compute_units_used", uint64_t(p.units_used));
  o.add("compute_units", uint64_t(d.compute_units));
  o.add("lds_bytes_moved", r.costs.lds_bytes);
  o.add("lds_cycles", r.costs.lds_cycles);
  o.add("lds_conflict_cycles", r.costs.lds_conflict_cycles);
  o.add("vmem_load_bytes", r.costs.vmem_load_bytes);
  o.add("vmem_store_bytes", r.costs.vmem_store_bytes);
  o.add("vmem_segments_of_64_bytes", r.costs.vmem_segments);
  o.add("atomics", r.costs.atomics);
  o.add("vgprs_allocated", uint64_t(k.total_vgprs()));
  o.add("vgprs", uint64_t(k.vgpr_count));
  o.add("agprs", uint64_t(k.agpr_count));
  o.add("sgprs", uint64_t(k.sgpr_count));
  o.add("vgpr_spills", uint64_t(k.vgpr_spills));
  o.add("scratch_bytes", uint64_t(k.scratch_bytes));
  o.add("lds_bytes", uint64_t(r.lds_bytes));
  o.add("waves_per_simd", uint64_t(p.waves_per_simd));
  o.text("occupancy_limit", p.occupancy_limit);
  o.add("simulation_seconds", r.seconds);
  std::vector<std::string> rows;
  for (const HotInstruction &h : p.hot) {
    const Instruction &i = object.code.insts[h.index];
    Object row;
    row.add("pc", uint64_t(i.offset_in_code));
    row.text("instruction", disassemble(object.arch, i));
    row.text("source", object.source_of(i.offset_in_code));
    row.add("times", h.times);
    row.add("issue_cycles", h.cycles);
    row.add(i.cls == InstClass::Lds ? "lds_conflict_cycles" : "segments", h.memory);
    rows.push_back(row.str());
  }
  o.raw("hot", list(rows));
  std::vector<std::string> findings;
  for (const FindingText &f : r.findings) findings.push_back(quoted(f.text()));
  o.raw("findings", list(findings));
  return o.str();
}

}  // namespace turbo_sim
