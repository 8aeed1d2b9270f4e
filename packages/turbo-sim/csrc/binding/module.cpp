// SPDX-License-Identifier: MIT
// The Python module: code objects, launches, disassembly.
#include "core/launch.h"
#include "cost/profile.h"
#include "isa/decode.h"
#include "isa/disasm.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace turbo_sim {
void bind_testing(py::module_ &);  // testing.cpp

namespace {

std::string bytes_of(const py::buffer &b) {
  py::buffer_info info = b.request();
  return std::string(static_cast<const char *>(info.ptr), size_t(info.size * info.itemsize));
}

Arch arch_of(const std::string &name) {
  if (name == "gfx942") return Arch::gfx942;
  if (name == "gfx950") return Arch::gfx950;
  throw std::invalid_argument("unknown architecture " + name + ": gfx942 or gfx950");
}

/// [(offset, size, text)]; words that do not decode have the text "<undecodable: reason>".
py::list disassemble_bytes(const py::buffer &code, const std::string &arch_text) {
  const Arch arch = arch_of(arch_text);
  const std::string bytes = bytes_of(code);
  const auto *p = reinterpret_cast<const uint8_t *>(bytes.data());
  py::list out;
  for (size_t at = 0; at + 4 <= bytes.size();) {
    unsigned size = 4;
    std::string text;
    try {
      const Instruction i = decode_one(arch, p + at, bytes.size() - at);
      text = disassemble(arch, i);
      size = i.size;
    } catch (const DecodeError &e) {
      text = std::string("<undecodable: ") + e.what() + ">";
    }
    out.append(py::make_tuple(at, size, text));
    at += size;
  }
  return out;
}

uint32_t checks_mask(const py::object &checks) {
  if (checks.is_none()) return kAllChecks;
  if (py::isinstance<py::bool_>(checks)) return checks.cast<bool>() ? kAllChecks : 0;
  uint32_t mask = 0;
  for (py::handle h : checks) {
    const std::string name = h.cast<std::string>();
    unsigned k = 0;
    while (k < unsigned(Check::count) && name != check_name(Check(k))) ++k;
    if (k == unsigned(Check::count))
      throw std::invalid_argument("unknown check " + name + ": bounds, uninit, wait, race, registers, hazard");
    mask |= check_bit(Check(k));
  }
  return mask;
}

using Dim = std::tuple<uint32_t, uint32_t, uint32_t>;
using Memory = std::vector<std::tuple<uint64_t, uint64_t, std::string>>;  // address, bytes, name

Report launch_from_python(const std::shared_ptr<CodeObject> &object, const std::string &kernel, const Dim &grid,
                          const Dim &block, const py::buffer &kernarg, uint32_t shared, const py::object &checks,
                          const Memory &memory, uint32_t threads, uint64_t seed, uint64_t max_steps, uint64_t quantum,
                          bool costs, bool stop_on_finding) {
  const Kernel *k = object->find(kernel);
  if (!k) throw std::invalid_argument("no kernel " + kernel + " in this code object");
  LaunchArgs a;
  std::tie(a.grid[0], a.grid[1], a.grid[2]) = grid;
  std::tie(a.block[0], a.block[1], a.block[2]) = block;
  const std::string bytes = bytes_of(kernarg);
  a.kernarg.assign(bytes.begin(), bytes.end());
  a.shared_bytes = shared;
  Options o;
  o.checks = checks_mask(checks);
  o.threads = threads;
  o.seed = seed;
  o.max_steps = max_steps;
  o.quantum = quantum;
  o.costs = costs;
  o.stop_on_finding = stop_on_finding;
  for (const auto &[address, size, name] : memory) o.memory.push_back({address, address + size, name, true});
  py::gil_scoped_release release;
  return launch(*object, *k, a, o);
}

void bind_code_object(py::module_ &m) {
  py::class_<KernelArg>(m, "KernelArg")
      .def_readonly("name", &KernelArg::name)
      .def_readonly("offset", &KernelArg::offset)
      .def_readonly("size", &KernelArg::size)
      .def_readonly("kind", &KernelArg::kind);
  py::class_<Kernel>(m, "Kernel")
      .def_readonly("name", &Kernel::name)
      .def_readonly("args", &Kernel::args)
      .def_readonly("lds_bytes", &Kernel::lds_bytes)
      .def_readonly("scratch_bytes", &Kernel::scratch_bytes)
      .def_property_readonly("kernarg_bytes",
                             [](const Kernel &k) { return std::max(k.kernarg_bytes, k.kernarg_metadata_bytes); })
      .def_readonly("max_workgroup", &Kernel::max_workgroup)
      .def_readonly("vgpr_count", &Kernel::vgpr_count)
      .def_readonly("agpr_count", &Kernel::agpr_count)
      .def_readonly("sgpr_count", &Kernel::sgpr_count)
      .def_readonly("vgpr_spills", &Kernel::vgpr_spills)
      .def_readonly("sgpr_spills", &Kernel::sgpr_spills)
      .def_property_readonly("total_vgprs", &Kernel::total_vgprs)
      .def_property_readonly("arch_vgprs", &Kernel::arch_vgprs);
  py::class_<CodeObject, std::shared_ptr<CodeObject>>(m, "CodeObject")
      .def_static(
          "load",
          [](const py::buffer &b, const std::string &arch) {
            const std::string bytes = bytes_of(b);
            return CodeObject::load(reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size(), arch);
          },
          py::arg("data"), py::arg("arch") = "")
      .def_static(
          "from_text",
          [](const py::buffer &b, const std::string &arch, uint32_t lds_bytes, uint32_t scratch_bytes, uint32_t vgprs,
             uint32_t agprs) {
            const std::string bytes = bytes_of(b);
            return CodeObject::from_text(arch_of(arch), reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size(),
                                         lds_bytes, scratch_bytes, vgprs, agprs);
          },
          py::arg("code"), py::arg("arch"), py::arg("lds_bytes") = 0, py::arg("scratch_bytes") = 0,
          py::arg("vgprs") = 256, py::arg("agprs") = 256)
      .def_property_readonly("arch", [](const CodeObject &o) { return arch_name(o.arch); })
      .def_readonly("kernels", &CodeObject::kernels)
      .def_property_readonly("globals", [](const CodeObject &o) { return o.globals; })
      .def("source_of", &CodeObject::source_of)
      .def("instruction_texts",
           [](const CodeObject &o) {  // [(offset, text)], in the order of Report.pc_counts
             std::vector<std::pair<uint32_t, std::string>> out;
             for (const Instruction &i : o.code.insts) out.emplace_back(i.offset_in_code, disassemble(o.arch, i));
             return out;
           })
      .def("unsupported", [](const CodeObject &o) {  // [(offset, reason)] of instructions that would stop a launch
        std::vector<std::pair<uint32_t, std::string>> out;
        for (const Instruction &i : o.code.insts) {
          if (i.offset_in_code >= o.code.bytes.size()) continue;
          std::string why =
              stop_reason(o.arch, o.code.bytes.data() + i.offset_in_code, o.code.bytes.size() - i.offset_in_code);
          if (!why.empty()) out.emplace_back(i.offset_in_code, why);
        }
        return out;
      });
}

void bind_launch(py::module_ &m) {
  py::class_<FindingText>(m, "Finding")
      .def_readonly("check", &FindingText::check)
      .def_readonly("kernel", &FindingText::kernel)
      .def_readonly("instruction", &FindingText::instruction)
      .def_readonly("source", &FindingText::source)
      .def_readonly("detail", &FindingText::detail)
      .def_readonly("pc", &FindingText::pc)
      .def_property_readonly("group",
                             [](const FindingText &f) { return std::make_tuple(f.group[0], f.group[1], f.group[2]); })
      .def_readonly("wave", &FindingText::wave)
      .def_readonly("lane", &FindingText::lane)
      .def_readonly("times", &FindingText::times)
      .def("__str__", &FindingText::text)
      .def("__repr__", [](const FindingText &f) { return "<Finding " + f.text() + ">"; });
  py::class_<Costs>(m, "Costs")
      .def_readonly("lds_bytes", &Costs::lds_bytes)
      .def_readonly("lds_cycles", &Costs::lds_cycles)
      .def_readonly("lds_conflict_cycles", &Costs::lds_conflict_cycles)
      .def_readonly("vmem_load_bytes", &Costs::vmem_load_bytes)
      .def_readonly("vmem_store_bytes", &Costs::vmem_store_bytes)
      .def_readonly("vmem_segments", &Costs::vmem_segments)
      .def_readonly("vmem_lane_cycles", &Costs::vmem_lane_cycles)
      .def_readonly("atomics", &Costs::atomics);
  py::class_<Report>(m, "Report")
      .def_readonly("kernel", &Report::kernel)
      .def_readonly("findings", &Report::findings)
      .def_readonly("pc_counts", &Report::pc_counts)
      .def_readonly("costs", &Report::costs)
      .def_readonly("instructions", &Report::instructions)
      .def_readonly("waves", &Report::waves)
      .def_readonly("groups", &Report::groups)
      .def_readonly("lds_bytes", &Report::lds_bytes)
      .def_readonly("seconds", &Report::seconds);
  m.def("launch", launch_from_python, py::arg("code_object"), py::arg("kernel"), py::arg("grid"), py::arg("block"),
        py::arg("kernarg"), py::arg("shared") = 0, py::arg("checks") = py::none(), py::arg("memory") = Memory(),
        py::arg("threads") = 0, py::arg("seed") = 0, py::arg("max_steps") = 0, py::arg("quantum") = 0,
        py::arg("costs") = false, py::arg("stop_on_finding") = false);
  m.def(
      "profile_json",  // needs a report of a launch with costs=True
      [](const std::shared_ptr<CodeObject> &object, const Report &report, unsigned hot) {
        const Kernel *k = object->find(report.kernel);
        if (!k) throw std::invalid_argument("no kernel " + report.kernel + " in this code object");
        return profile_json(*object, *k, report, hot);
      },
      py::arg("code_object"), py::arg("report"), py::arg("hot") = 20);
}

}  // namespace
}  // namespace turbo_sim

PYBIND11_MODULE(TURBO_SIM_MODULE, m) {
  using namespace turbo_sim;
  m.doc() = "Simulator core. Use turbo_sim, which picks the build for this processor.";
  py::register_exception<LoadError>(m, "LoadError", PyExc_ValueError);
  py::register_exception<Fault>(m, "Fault", PyExc_RuntimeError);
  m.def("disassemble", disassemble_bytes, py::arg("code"), py::arg("arch"));
  m.attr("checks") = std::vector<std::string>{"bounds", "uninit", "wait", "race", "registers", "hazard"};
  bind_code_object(m);
  bind_launch(m);
  bind_testing(m);
}
