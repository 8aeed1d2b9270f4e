// SPDX-License-Identifier: MIT
// Reader for the MessagePack notes of code objects: maps, arrays, strings, integers, booleans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace turbo_sim::msgpack {

struct Value {
  enum class Kind { Nil, Bool, Int, Float, String, Array, Map } kind = Kind::Nil;
  int64_t integer = 0;  // Bool, Int (unsigned values above int64 wrap)
  double real = 0;
  std::string text;
  std::vector<Value> items;                           // Array
  std::vector<std::pair<std::string, Value>> fields;  // Map, keys as text

  /// Field of a map, or a Nil value.
  const Value &operator[](const char *key) const;
};

/// Throws std::runtime_error on malformed input.
Value parse(const uint8_t *p, size_t size);

}  // namespace turbo_sim::msgpack
