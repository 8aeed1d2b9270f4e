// SPDX-License-Identifier: MIT
//
// A function of a C interface that takes a struct, for Python: each field by its name, none left out, none made up.
//
//   TURBO_FIELDS(turbo_norm_forward_args, x, x_stride, residual, ...);             all of the struct's, in its order
//   turbo::bind_launch(m, "rmsnorm_forward", turbo_rmsnorm_forward);               in PYBIND11_MODULE
//
//   _C.rmsnorm_forward(device, stream, x=x.data_ptr(), x_stride=4096, residual=0, ...)
//
// Pointers are addresses, enums and flags integers, arrays sequences of their length, structs inside dicts of their own
// fields. The compiler sees that TURBO_FIELDS has as many names as the struct has fields.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "turbo/module.h"

namespace turbo {

template <class Arguments>
struct Fields;

// In the global namespace.
#define TURBO_FIELDS(type, ...)                 \
  template <>                                   \
  struct turbo::Fields<type> {                  \
    static constexpr auto names = #__VA_ARGS__; \
    static auto of(type &turbo_struct) {        \
      auto &[__VA_ARGS__] = turbo_struct;       \
      return std::tie(__VA_ARGS__);             \
    }                                           \
  }

// The names of a struct as Python strings, made once and kept.
template <class Arguments>
const std::vector<PyObject *> &field_names() {
  static const std::vector<PyObject *> made = [] {
    std::vector<PyObject *> names;
    for (std::string_view rest = Fields<Arguments>::names; !rest.empty();) {
      const size_t end = rest.find_first_of(", ");
      if (end != 0) names.push_back(PyUnicode_InternFromString(std::string(rest.substr(0, end)).c_str()));
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
    return names;
  }();
  return made;
}

template <class Arguments>
void read_struct(const pybind11::dict &from, Arguments &to);

template <class Field>
void read_value(pybind11::handle from, Field &to) {
  if constexpr (std::is_pointer_v<Field>) {
    to = reinterpret_cast<Field>(from.cast<Address>());
  } else if constexpr (std::is_enum_v<Field>) {
    to = static_cast<Field>(from.cast<int>());
  } else if constexpr (std::is_arithmetic_v<Field>) {
    to = from.cast<Field>();
  } else if constexpr (std::is_array_v<Field>) {
    const auto values = from.cast<pybind11::sequence>();
    if (values.size() != std::extent_v<Field>) throw pybind11::cast_error();
    for (size_t i = 0; i < std::extent_v<Field>; ++i) read_value(pybind11::object(values[i]), to[i]);
  } else {
    read_struct(from.cast<pybind11::dict>(), to);
  }
}

template <class Field>
void read_field(const pybind11::dict &from, PyObject *name, Field &to) {
  PyObject *value = PyDict_GetItemWithError(from.ptr(), name);
  if (value == nullptr) throw pybind11::type_error("missing: " + pybind11::handle(name).cast<std::string>());
  try {
    read_value(value, to);
  } catch (const pybind11::cast_error &) {
    throw pybind11::type_error(pybind11::handle(name).cast<std::string>() + " cannot be " +
                               pybind11::repr(value).cast<std::string>());
  }
}

inline void refuse_unknown(const pybind11::dict &from, const std::vector<PyObject *> &names) {
  for (const auto &item : from) {
    bool known = false;
    for (PyObject *name : names) known = known || item.first.equal(pybind11::handle(name));
    if (!known) throw pybind11::type_error("there is no " + item.first.cast<std::string>());
  }
}

template <class Arguments>
void read_struct(const pybind11::dict &from, Arguments &to) {
  const std::vector<PyObject *> &names = field_names<Arguments>();
  auto name = names.begin();
  std::apply([&](auto &...field) { (read_field(from, *name++, field), ...); }, Fields<Arguments>::of(to));
  if (from.size() != names.size()) refuse_unknown(from, names);
}

// Other threads of Python go on while it loads a code object or waits for a full queue.
template <class Arguments>
void bind_launch(pybind11::module_ &m, const char *name, turbo_status (*launch)(const Arguments *, int, void *)) {
  m.def(name, [launch](int device, Address stream, const pybind11::kwargs &fields) {
    Arguments arguments{};
    read_struct(fields, arguments);
    const pybind11::gil_scoped_release released;
    return int(launch(&arguments, device, pointer(stream)));
  });
}

}  // namespace turbo
