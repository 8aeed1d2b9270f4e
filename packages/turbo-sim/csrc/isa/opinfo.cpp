// SPDX-License-Identifier: MIT
#include "isa/opinfo.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace turbo_sim {
namespace {

struct Row {
  const char *name;
  Format format;
  int code[2];
  InstClass cls;
  const char *types[4];
};

const Row kRows[] = {
    {"invalid", Format::Invalid, {-1, -1}, InstClass::Other, {"", "", "", ""}},
#define OP(name, format, code942, code950, cls, d, a, b, c) \
  {#name, Format::format, {code942, code950}, InstClass::cls, {d, a, b, c}},
#include "isa/opcodes.def"
#undef OP
};

OperandType parse_type(const char *text) {
  static const struct {
    const char *name;
    OperandType type;
  } kNames[] = {{"b16", {Type::B16, 1}},       {"f16", {Type::F16, 1}},      {"b32", {Type::B32, 1}},
                {"f32", {Type::F32, 1}},       {"b64", {Type::B64, 2}},      {"i64", {Type::I64, 2}},
                {"f64", {Type::F64, 2}},       {"p16", {Type::Packed16, 1}}, {"pf16", {Type::PackedF16, 1}},
                {"pf32", {Type::PackedF32, 2}}};
  const char *x = std::strchr(text, 'x');  // "f32x4": four dwords
  size_t n = x ? size_t(x - text) : std::strlen(text);
  for (const auto &entry : kNames) {
    if (std::strlen(entry.name) == n && !std::strncmp(entry.name, text, n)) {
      OperandType t = entry.type;
      if (x) t.dwords = uint8_t(std::atoi(x + 1));
      return t;
    }
  }
  return {};
}

constexpr unsigned kFormats = unsigned(Format::VOP3PX2) + 1;

struct Tables {
  std::vector<OpInfo> info;
  std::array<std::array<std::vector<Op>, kFormats>, 2> by_code;

  Tables() {
    for (const Row &row : kRows) {
      OpInfo o;
      o.name = row.name;
      o.format = row.format;
      o.cls = row.cls;
      for (unsigned k = 0; k < 4; ++k) o.types[k] = parse_type(row.types[k]);
      for (unsigned a = 0; a < 2; ++a) {
        o.code[a] = int16_t(row.code[a]);
        if (row.code[a] < 0) continue;
        auto &list = by_code[a][unsigned(row.format)];
        if (list.size() <= unsigned(row.code[a])) list.resize(unsigned(row.code[a]) + 1, Op::invalid);
        list[unsigned(row.code[a])] = Op(info.size());
      }
      info.push_back(o);
    }
  }
};

const Tables &tables() {
  static const Tables t;
  return t;
}

}  // namespace

const OpInfo &op_info(Op op) { return tables().info[size_t(op)]; }
const char *op_name(Op op) { return op_info(op).name; }

Op find_op(Arch arch, Format format, unsigned code) {
  if (format == Format::VOP3 && code < 0x1c0) {
    if (code < 0x100) return find_op(arch, Format::VOPC, code);
    if (code < 0x140) return find_op(arch, Format::VOP2, code - 0x100);
    return find_op(arch, Format::VOP1, code - 0x140);
  }
  const auto &list = tables().by_code[unsigned(arch)][unsigned(format)];
  return code < list.size() ? list[code] : Op::invalid;
}

const char *format_name(Format f) {
  static const char *const kNames[] = {"invalid", "SOP1",  "SOP2", "SOPC",   "SOPK",    "SOPP",   "SMEM",
                                       "VOP1",    "VOP2",  "VOPC", "VOP3",   "VOP3P",   "MFMA",   "DS",
                                       "MUBUF",   "MTBUF", "FLAT", "GLOBAL", "SCRATCH", "VOP3PX2"};
  return kNames[unsigned(f)];
}

}  // namespace turbo_sim
