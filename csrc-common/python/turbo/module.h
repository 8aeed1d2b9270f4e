// SPDX-License-Identifier: MIT
//
// What the extensions <package>.pytorch._C have in common. They are the C interfaces, for Python: integers stand for
// pointers and the stream, so no torch header is needed and one build serves every torch. They check nothing and
// allocate nothing; both are done by the wheel's pytorch/kernels/native.py. A function returns a turbo_status, and
// last_error() the text that goes with it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "turbo/abi.h"

namespace turbo {

using Address = uintptr_t;

template <class T = void>
T *pointer(Address address) {
  return reinterpret_cast<T *>(address);
}

// For each function that launches or loads: it can wait (for a code object to load, or on a full queue), so Python's
// other threads go on meanwhile.
using release = pybind11::call_guard<pybind11::gil_scoped_release>;

template <auto Function>
int check(int device) {
  return Function(device);
}

template <auto Function>
std::string device_arch(int device) {
  char name[64];
  Function(device, name, sizeof name);
  return name;
}

inline void define_constants(pybind11::module_ &m) {
  m.attr("OK") = int(TURBO_OK);
  m.attr("ERROR_ARGUMENT") = int(TURBO_ERROR_ARGUMENT);
  m.attr("ERROR_NO_RUNTIME") = int(TURBO_ERROR_NO_RUNTIME);
  m.attr("ERROR_NO_KERNEL") = int(TURBO_ERROR_NO_KERNEL);
  m.attr("ERROR_HIP") = int(TURBO_ERROR_HIP);
  m.attr("FLOAT32") = int(TURBO_FLOAT32);
  m.attr("FLOAT16") = int(TURBO_FLOAT16);
  m.attr("BFLOAT16") = int(TURBO_BFLOAT16);
  m.attr("FLOAT8_E4M3") = int(TURBO_FLOAT8_E4M3);
  m.attr("FLOAT8_E5M2") = int(TURBO_FLOAT8_E5M2);
  m.attr("FLOAT8_E4M3_FNUZ") = int(TURBO_FLOAT8_E4M3_FNUZ);
  m.attr("FLOAT8_E5M2_FNUZ") = int(TURBO_FLOAT8_E5M2_FNUZ);
  m.attr("MX_FORMATS") =
      pybind11::dict(pybind11::arg("e4m3") = int(TURBO_MX_E4M3), pybind11::arg("e5m2") = int(TURBO_MX_E5M2),
                     pybind11::arg("e2m1") = int(TURBO_MX_E2M1));
}

}  // namespace turbo

// The constants of turbo/abi.h and the functions of TURBO_LIBRARY_FUNCTIONS(library), in the module `m`.
#define TURBO_BIND_LIBRARY(m, library)                                                \
  turbo::define_constants(m);                                                         \
  m.def("abi_version", &library##_abi_version);                                       \
  m.def("last_error", &library##_last_error);                                         \
  m.def("check", &turbo::check<library##_check>, turbo::release());                   \
  m.def("device_arch", &turbo::device_arch<library##_device_arch>, turbo::release()); \
  m.def("reset", &library##_reset, turbo::release())
