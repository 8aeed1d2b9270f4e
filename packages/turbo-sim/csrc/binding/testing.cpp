// SPDX-License-Identifier: MIT
// Hooks for the tests of number formats and single instructions: no loader, no launch, one wave.
#include "core/machine.h"
#include "exec/mfma_core.h"
#include "isa/decode.h"
#include "isa/registry.h"
#include "numerics/formats.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace turbo_sim {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

const FloatFormat &format_by_name(const std::string &name) {
  for (const FloatFormat *f : {&kF16, &kBF16, &kE4M3, &kE5M2, &kE4M3FNUZ, &kE5M2FNUZ, &kE2M3, &kE3M2, &kE2M1})
    if (name == f->name) return *f;
  throw std::invalid_argument("unknown format " + name);
}

template <class In, class Out, class F>
py::array_t<Out> map(const Array<In> &in, F f) {
  py::array_t<Out> out(in.size());
  for (py::ssize_t k = 0; k < in.size(); ++k) out.mutable_data()[k] = f(in.data()[k], k);
  return out;
}

/// Runs straight-line code for one wave and returns its registers: (vgpr [512, 64], sgpr [128], scc).
py::tuple run_wave(const std::string &arch, const std::string &code, const Array<uint32_t> &vgpr,
                   const Array<uint32_t> &sgpr, uint32_t mode, uint32_t repeat) {
  if (vgpr.size() != 512 * kLanes || sgpr.size() != 128) throw std::invalid_argument("wrong register file shape");
  Code section;
  section.arch = arch == "gfx942" ? Arch::gfx942 : Arch::gfx950;
  Launch launch;
  launch.code = &section;
  Worker worker;
  worker.launch = &launch;
  auto wave = std::make_unique<Wave>();
  wave->worker = &worker;
  std::memcpy(wave->vgpr, vgpr.data(), sizeof wave->vgpr);
  std::memcpy(wave->sgpr, sgpr.data(), sizeof wave->sgpr);
  wave->mode.set(mode);
  for (size_t at = 0; at < code.size();) {
    Instruction i = decode_one(section.arch, reinterpret_cast<const uint8_t *>(code.data()) + at, code.size() - at);
    i.exec = registry().bind(i);
    section.insts.push_back(i);
    at += i.size;
  }
  for (uint32_t n = 0; n < repeat; ++n)
    for (const Instruction &i : section.insts) i.exec(*wave, i);
  py::array_t<uint32_t> v({512, int(kLanes)}), s(128);
  std::memcpy(v.mutable_data(), wave->vgpr, sizeof wave->vgpr);
  std::memcpy(s.mutable_data(), wave->sgpr, sizeof wave->sgpr);
  return py::make_tuple(v, s, wave->scc);
}

}  // namespace

void bind_testing(py::module_ &m) {
  py::register_exception<NotImplemented>(m, "NotImplementedForm");
  m.def("decode_format", [](const Array<uint32_t> &codes, const std::string &name) {
    const FloatFormat &f = format_by_name(name);
    return map<uint32_t, float>(codes, [&](uint32_t c, py::ssize_t) { return decode(c, f); });
  });
  m.def("encode_format", [](const Array<double> &values, const std::string &name, int round, int overflow) {
    const FloatFormat &f = format_by_name(name);
    return map<double, uint32_t>(values,
                                 [&](double v, py::ssize_t) { return encode(v, f, Round(round), Overflow(overflow)); });
  });
  m.def("encode_stochastic",
        [](const Array<double> &values, const std::string &name, const Array<uint32_t> &noise, int bits, int overflow) {
          const FloatFormat &f = format_by_name(name);
          return map<double, uint32_t>(values, [&](double v, py::ssize_t k) {
            return encode_stochastic(v, f, noise.data()[k], bits, Overflow(overflow));
          });
        });
  m.def("decode_e8m0", [](const Array<uint32_t> &c) {
    return map<uint32_t, float>(c, [](uint32_t x, py::ssize_t) { return decode_e8m0(x); });
  });
  m.def("f32_to_bf16", [](const Array<float> &v) {
    return map<float, uint32_t>(v, [](float x, py::ssize_t) { return f32_to_bf16(x); });
  });
  m.def("f32_to_f16", [](const Array<float> &v) {
    return map<float, uint32_t>(v, [](float x, py::ssize_t) { return f32_to_f16(x); });
  });
  m.def("f16_to_f32", [](const Array<uint32_t> &c) {
    return map<uint32_t, float>(c, [](uint32_t x, py::ssize_t) { return f16_to_f32(x); });
  });
  m.def("f32_to_f16_toward_zero", [](const Array<float> &v) {
    return map<float, uint32_t>(v, [](float x, py::ssize_t) { return f32_to_f16_toward_zero(x); });
  });
  m.def("encode_narrow", [](const Array<float> &values, const std::string &name, int overflow) {
    const NarrowEncoder code(format_by_name(name), Overflow(overflow));
    return map<float, uint32_t>(values, [&](float x, py::ssize_t) { return code(x); });
  });
  m.def("implemented", [](const std::string &mnemonic) {
    for (unsigned op = 1; op < unsigned(Op::count); ++op)
      if (mnemonic == op_name(Op(op))) return registry().implemented(Op(op));
    return false;
  });
  m.def("run_wave", run_wave, py::arg("arch"), py::arg("code"), py::arg("vgpr"), py::arg("sgpr"),
        py::arg("mode") = 0xF0u, py::arg("repeat") = 1u);
}

}  // namespace turbo_sim
