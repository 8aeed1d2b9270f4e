// SPDX-License-Identifier: MIT
#include "loader/debug_lines.h"

#include <algorithm>
#include <cstring>

namespace turbo_sim {
namespace {

struct End {};  // thrown at the end of the bytes

struct Cursor {
  const uint8_t *p, *end;
  void need(size_t n) const {
    if (size_t(end - p) < n) throw End();
  }
  uint64_t fixed(unsigned n) {
    need(n);
    uint64_t v = 0;
    std::memcpy(&v, p, n);
    p += n;
    return v;
  }
  uint64_t uleb() {
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
      const uint64_t b = fixed(1);
      if (shift < 64) v |= (b & 127) << shift;
      if (!(b & 128)) return v;
    }
  }
  int64_t sleb() {
    uint64_t v = 0;
    unsigned shift = 0;
    for (;;) {
      const uint64_t b = fixed(1);
      if (shift < 64) v |= (b & 127) << shift;
      shift += 7;
      if (b & 128) continue;
      if ((b & 64) && shift < 64) v |= ~uint64_t(0) << shift;
      return int64_t(v);
    }
  }
  std::string text() {
    const void *z = std::memchr(p, 0, size_t(end - p));
    if (!z) throw End();
    std::string s(reinterpret_cast<const char *>(p), size_t(static_cast<const uint8_t *>(z) - p));
    p += s.size() + 1;
    return s;
  }
};

std::string string_at(const DebugSections::Bytes &b, uint64_t offset) {
  if (offset >= b.size) return "";
  Cursor c{b.p + offset, b.p + b.size};
  return c.text();
}

/// Version 5 file and directory tables describe their own layout. Returns the paths (form of DW_LNCT_path only).
std::vector<std::string> entries(Cursor &c, const DebugSections &d) {
  std::vector<std::pair<uint64_t, uint64_t>> formats;
  for (uint64_t k = 0, n = c.fixed(1); k < n; ++k) {
    const uint64_t content = c.uleb();
    formats.emplace_back(content, c.uleb());
  }
  std::vector<std::string> names;
  for (uint64_t k = 0, n = c.uleb(); k < n; ++k) {
    std::string name;
    for (auto [content, form] : formats) {
      std::string s;
      switch (form) {
        case 0x08: s = c.text(); break;                           // string
        case 0x1f: s = string_at(d.line_str, c.fixed(4)); break;  // line_strp
        case 0x0e: s = string_at(d.str, c.fixed(4)); break;       // strp
        case 0x0b: c.fixed(1); break;                             // data1
        case 0x05: c.fixed(2); break;
        case 0x06: c.fixed(4); break;
        case 0x07: c.fixed(8); break;
        case 0x0f: c.uleb(); break;
        case 0x1e: c.need(16), c.p += 16; break;  // data16 (MD5)
        default: throw End();
      }
      if (content == 1) name = s;
    }
    names.push_back(name);
  }
  return names;
}

void unit(Cursor c, const DebugSections &d, uint64_t text_address, uint64_t text_size, std::vector<std::string> &files,
          std::vector<SourceLine> &lines) {
  const unsigned version = unsigned(c.fixed(2));
  if (version < 2 || version > 5) return;
  if (version >= 5) c.fixed(2);  // address and segment selector size
  const uint64_t header = c.fixed(4);
  const uint8_t *program = c.p + header;
  if (header > size_t(c.end - c.p)) return;
  const unsigned min_length = unsigned(c.fixed(1));
  if (version >= 4) c.fixed(1);  // operations per instruction
  c.fixed(1);                    // default is_stmt
  const int line_base = int8_t(c.fixed(1));
  const unsigned line_range = unsigned(c.fixed(1)), opcode_base = unsigned(c.fixed(1));
  if (!line_range || !opcode_base) return;
  std::vector<unsigned> lengths(1);
  for (unsigned k = 1; k < opcode_base; ++k) lengths.push_back(unsigned(c.fixed(1)));
  const uint32_t base = uint32_t(files.size());
  uint32_t first_file = 1;  // version 5 counts files from 0
  if (version >= 5) {
    entries(c, d);  // directories
    for (std::string &s : entries(c, d)) files.push_back(std::move(s));
    first_file = 0;
  } else {
    while (c.p < c.end && *c.p) c.text();
    c.fixed(1);
    while (c.p < c.end && *c.p) {
      files.push_back(c.text());
      c.uleb(), c.uleb(), c.uleb();
    }
  }
  c.p = program;
  uint64_t address = 0, file = 1;
  int64_t line = 1;
  auto row = [&] {
    if (address < text_address || address - text_address > text_size) return;
    lines.push_back(
        {uint32_t(address - text_address), base + uint32_t(file - first_file), uint32_t(line > 0 ? line : 0)});
  };
  while (c.p < c.end) {
    const unsigned op = unsigned(c.fixed(1));
    if (op >= opcode_base) {
      address += uint64_t((op - opcode_base) / line_range) * min_length;
      line += line_base + int((op - opcode_base) % line_range);
      row();
      continue;
    }
    switch (op) {
      case 0: {
        const uint64_t n = c.uleb();
        c.need(n);
        Cursor x{c.p, c.p + n};
        c.p += n;
        if (!n) break;
        const unsigned sub = unsigned(x.fixed(1));
        if (sub == 1) {
          lines.push_back({uint32_t(address >= text_address ? address - text_address : 0), 0,
                           0});  // end of sequence: no line from here
          address = 0, file = 1, line = 1;
        } else if (sub == 2) {
          address = x.fixed(unsigned(n - 1 < 8 ? n - 1 : 8));
        }
        break;
      }
      case 1: row(); break;
      case 2: address += c.uleb() * min_length; break;
      case 3: line += c.sleb(); break;
      case 4: file = c.uleb(); break;
      case 8: address += uint64_t((255 - opcode_base) / line_range) * min_length; break;
      case 9: address += c.fixed(2); break;
      default:
        for (unsigned k = 0; k < lengths[op]; ++k) c.uleb();
    }
  }
}

}  // namespace

void read_debug_lines(const DebugSections &d, uint64_t text_address, uint64_t text_size,
                      std::vector<std::string> &files, std::vector<SourceLine> &lines) {
  try {
    Cursor all{d.line.p, d.line.p + d.line.size};
    while (all.p < all.end) {
      const uint64_t length = all.fixed(4);
      if (length >= 0xfffffff0) break;  // 64-bit DWARF is not used for GPUs
      all.need(length);
      try {
        unit({all.p, all.p + length}, d, text_address, text_size, files, lines);
      } catch (const End &) {
      }
      all.p += length;
    }
  } catch (const End &) {
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const SourceLine &a, const SourceLine &b) { return a.offset < b.offset; });
}

}  // namespace turbo_sim
