// SPDX-License-Identifier: MIT
#include "loader/msgpack.h"

#include <cstring>
#include <stdexcept>

namespace turbo_sim::msgpack {
namespace {

struct Reader {
  const uint8_t *p, *end;
  int depth = 0;

  [[noreturn]] void fail(const char *what) { throw std::runtime_error(std::string("metadata note: ") + what); }
  void need(size_t n) {
    if (size_t(end - p) < n) fail("truncated");
  }
  uint64_t big_endian(unsigned n) {
    need(n);
    uint64_t v = 0;
    for (unsigned k = 0; k < n; ++k) v = v << 8 | *p++;
    return v;
  }
  std::string bytes(size_t n) {
    need(n);
    std::string s(reinterpret_cast<const char *>(p), n);
    p += n;
    return s;
  }
  Value integer(int64_t v) {
    Value r;
    r.kind = Value::Kind::Int;
    r.integer = v;
    return r;
  }
  Value string(size_t n) {
    Value r;
    r.kind = Value::Kind::String;
    r.text = bytes(n);
    return r;
  }
  Value array(size_t n) {
    Value r;
    r.kind = Value::Kind::Array;
    for (size_t k = 0; k < n; ++k) r.items.push_back(value());
    return r;
  }
  Value map(size_t n) {
    Value r;
    r.kind = Value::Kind::Map;
    for (size_t k = 0; k < n; ++k) {
      Value key = value();
      std::string name = key.kind == Value::Kind::String ? key.text : std::to_string(key.integer);
      r.fields.emplace_back(std::move(name), value());
    }
    return r;
  }

  Value value() {
    if (++depth > 64) fail("nested too deeply");
    Value v = any();
    --depth;
    return v;
  }
  Value any() {
    const unsigned t = unsigned(big_endian(1));
    if (t < 0x80) return integer(t);
    if (t < 0x90) return map(t & 15);
    if (t < 0xa0) return array(t & 15);
    if (t < 0xc0) return string(t & 31);
    if (t >= 0xe0) return integer(int8_t(t));
    Value r;
    switch (t) {
      case 0xc0: return r;
      case 0xc2:
      case 0xc3:
        r.kind = Value::Kind::Bool;
        r.integer = t & 1;
        return r;
      case 0xc4: return string(big_endian(1));  // binary: as text
      case 0xc5: return string(big_endian(2));
      case 0xc6: return string(big_endian(4));
      case 0xca: {
        const uint32_t b = uint32_t(big_endian(4));
        float f;
        std::memcpy(&f, &b, 4);
        r.kind = Value::Kind::Float, r.real = f;
        return r;
      }
      case 0xcb: {
        const uint64_t b = big_endian(8);
        r.kind = Value::Kind::Float;
        std::memcpy(&r.real, &b, 8);
        return r;
      }
      case 0xcc: return integer(int64_t(big_endian(1)));
      case 0xcd: return integer(int64_t(big_endian(2)));
      case 0xce: return integer(int64_t(big_endian(4)));
      case 0xcf: return integer(int64_t(big_endian(8)));
      case 0xd0: return integer(int8_t(big_endian(1)));
      case 0xd1: return integer(int16_t(big_endian(2)));
      case 0xd2: return integer(int32_t(big_endian(4)));
      case 0xd3: return integer(int64_t(big_endian(8)));
      case 0xd9: return string(big_endian(1));
      case 0xda: return string(big_endian(2));
      case 0xdb: return string(big_endian(4));
      case 0xdc: return array(big_endian(2));
      case 0xdd: return array(big_endian(4));
      case 0xde: return map(big_endian(2));
      case 0xdf: return map(big_endian(4));
      default: fail("unknown type byte");
    }
  }
};

}  // namespace

const Value &Value::operator[](const char *key) const {
  static const Value nil;
  for (const auto &f : fields)
    if (f.first == key) return f.second;
  return nil;
}

Value parse(const uint8_t *p, size_t size) {
  Reader r{p, p + size};
  return r.value();
}

}  // namespace turbo_sim::msgpack
