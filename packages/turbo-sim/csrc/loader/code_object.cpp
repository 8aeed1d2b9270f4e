// SPDX-License-Identifier: MIT
#include "loader/code_object.h"

#include "isa/decode.h"
#include "loader/debug_lines.h"
#include "loader/msgpack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace turbo_sim {

const char *arch_name(Arch a) { return a == Arch::gfx942 ? "gfx942" : "gfx950"; }

void CodeObject::Free::operator()(uint8_t *p) const { std::free(p); }

const Kernel *CodeObject::find(const std::string &name) const {
  for (const Kernel &k : kernels)
    if (k.name == name) return &k;
  return nullptr;
}

std::string CodeObject::source_of(uint32_t offset) const {
  auto it = std::upper_bound(lines.begin(), lines.end(), offset,
                             [](uint32_t o, const SourceLine &l) { return o < l.offset; });
  if (it == lines.begin()) return "";
  --it;
  if (!it->line || it->file >= files.size()) return "";
  return files[it->file] + ":" + std::to_string(it->line);
}

// --- ELF

namespace {
struct Section {
  uint32_t name, type;
  uint64_t flags, address, offset, size;
  uint32_t link, info;
  uint64_t align, entry;
};
struct Segment {
  uint32_t type, flags;
  uint64_t offset, address, physical, file_size, memory_size, align;
};
struct Symbol {
  uint32_t name;
  uint8_t info, other;
  uint16_t section;
  uint64_t value, size;
};
static_assert(sizeof(Section) == 64 && sizeof(Segment) == 56 && sizeof(Symbol) == 24);

enum : uint32_t { kLoad = 1, kNote = 4, kExecutable = 1, kSymtab = 2, kRela = 4, kDynsym = 11, kObject = 1 };
}  // namespace

struct ElfReader {
  const uint8_t *p;
  size_t size;
  CodeObject &out;
  std::vector<Section> sections;
  std::vector<Segment> segments;

  template <typename T>
  T at(uint64_t offset) const {
    if (offset > size || size - offset < sizeof(T)) throw LoadError("code object: truncated ELF file");
    T v;
    std::memcpy(&v, p + offset, sizeof(T));
    return v;
  }
  std::string text(uint64_t offset) const {
    const uint8_t *e =
        offset < size ? static_cast<const uint8_t *>(std::memchr(p + offset, 0, size - offset)) : nullptr;
    if (!e) throw LoadError("code object: bad string in ELF file");
    return std::string(reinterpret_cast<const char *>(p + offset), size_t(e - p) - offset);
  }
  std::string section_name(const Section &s) const { return text(sections.at(at<uint16_t>(62)).offset + s.name); }
  uint8_t *memory(uint64_t address) const { return out.image_.get() + address; }

  void header(const std::string &want) {
    if (size < 64 || std::memcmp(p,
                                 "\x7f"
                                 "ELF\x02\x01",
                                 6))
      throw LoadError("not a 64-bit little-endian ELF file");
    if (at<uint16_t>(18) != 224) throw LoadError("ELF file is not for AMDGPU");
    const uint32_t flags = at<uint32_t>(48), mach = flags & 0xff;
    if (mach == 0x4c)
      out.arch = Arch::gfx942;
    else if (mach == 0x4f)
      out.arch = Arch::gfx950;
    else
      throw LoadError("code object is for AMDGPU machine 0x" + std::string(1, "0123456789abcdef"[mach >> 4]) +
                      "0123456789abcdef"[mach & 15] + ", the simulator runs gfx942 (0x4c) and gfx950 (0x4f)");
    if (!want.empty() && want != arch_name(out.arch))
      throw LoadError(std::string("code object is for ") + arch_name(out.arch) + ", the simulated device is " + want);
    for (unsigned k = 0, n = at<uint16_t>(56); k < n; ++k)
      segments.push_back(at<Segment>(at<uint64_t>(32) + k * sizeof(Segment)));
    for (unsigned k = 0, n = at<uint16_t>(60); k < n; ++k)
      sections.push_back(at<Section>(at<uint64_t>(40) + k * sizeof(Section)));
  }

  void load_segments() {
    constexpr uint64_t kLimit = uint64_t(1) << 30;
    uint64_t end = 0;
    for (const Segment &s : segments) {
      if (s.type != kLoad) continue;
      if (s.address > kLimit || s.memory_size > kLimit) throw LoadError("code object: segment beyond 1 GiB");
      end = std::max(end, s.address + s.memory_size);
    }
    if (!end || end > kLimit) throw LoadError("code object: no loadable segment, or larger than 1 GiB");
    out.image_size_ = (end + 4095) / 4096 * 4096;
    out.image_.reset(static_cast<uint8_t *>(std::aligned_alloc(4096, out.image_size_)));
    std::memset(out.image_.get(), 0, out.image_size_);
    for (const Segment &s : segments) {
      if (s.type != kLoad) continue;
      if (s.file_size > s.memory_size || s.offset > size || size - s.offset < s.file_size)
        throw LoadError("code object: bad segment");
      std::memcpy(memory(s.address), p + s.offset, s.file_size);
    }
  }

  void relocate() {
    for (const Section &s : sections) {
      if (s.type != kRela || !s.size || !(s.flags & 2)) continue;  // only those that are part of the loaded image
      const Section &symbols = sections.at(s.link);
      for (uint64_t o = 0; o + 24 <= s.size; o += 24) {
        const uint64_t where = at<uint64_t>(s.offset + o), info = at<uint64_t>(s.offset + o + 8);
        const int64_t addend = at<int64_t>(s.offset + o + 16);
        uint64_t value = uint64_t(addend) + out.image_begin();
        const uint32_t type = uint32_t(info);
        if (type == 3)
          value += at<Symbol>(symbols.offset + (info >> 32) * 24).value;  // R_AMDGPU_ABS64
        else if (type != 13)
          throw LoadError("code object: relocation type " + std::to_string(type) + " is not supported");
        if (where > out.image_size_ || out.image_size_ - where < 8)
          throw LoadError("code object: relocation outside the image");
        std::memcpy(memory(where), &value, 8);
      }
    }
  }

  void decode_text() {
    for (const Segment &s : segments) {
      if (s.type != kLoad || !(s.flags & kExecutable)) continue;
      out.code = decode_section(out.arch, memory(s.address), s.file_size);
      out.code.address = out.image_begin() + s.address;
      text_address = s.address;
      return;
    }
    throw LoadError("code object: no executable segment");
  }
  uint64_t text_address = 0;

  void symbols() {
    for (const Section &s : sections) {
      if (s.type != kDynsym && s.type != kSymtab) continue;
      const Section &strings = sections.at(s.link);
      for (uint64_t o = 0; o + 24 <= s.size; o += 24) {
        const Symbol y = at<Symbol>(s.offset + o);
        if (!y.section || (y.info & 15) != kObject) continue;
        const std::string name = text(strings.offset + y.name);
        if (name.size() > 3 && name.compare(name.size() - 3, 3, ".kd") == 0)
          descriptor(name.substr(0, name.size() - 3), y.value);
        else
          out.globals[name] = {out.image_begin() + y.value, y.size};
      }
    }
  }

  void descriptor(const std::string &name, uint64_t address) {
    if (out.find(name)) return;
    if (address > out.image_size_ || out.image_size_ - address < 64)
      throw LoadError("code object: kernel descriptor outside the image");
    const uint8_t *d = memory(address);
    auto get = [&](unsigned offset, auto &v) { std::memcpy(&v, d + offset, sizeof v); };
    Kernel k;
    k.name = name;
    int64_t entry;
    uint16_t preload;
    get(0, k.lds_bytes);
    get(4, k.scratch_bytes);
    get(8, k.kernarg_bytes);
    get(16, entry);
    get(44, k.rsrc3);
    get(48, k.rsrc1);
    get(52, k.rsrc2);
    get(56, k.properties);
    get(58, preload);
    k.preload_dwords = preload & 0x7f;
    k.preload_offset = preload >> 7;
    k.entry_address = out.image_begin() + address + uint64_t(entry);
    out.kernels.push_back(k);
  }

  void notes() {
    for (const Segment &s : segments) {
      if (s.type != kNote) continue;
      for (uint64_t o = s.offset; o + 12 <= s.offset + s.file_size;) {
        const uint32_t name_size = at<uint32_t>(o), size_ = at<uint32_t>(o + 4), type = at<uint32_t>(o + 8);
        const uint64_t body = o + 12 + (name_size + 3) / 4 * 4;
        if (body > size || size - body < size_) throw LoadError("code object: bad note");
        if (type == 32 && name_size == 7 && text(o + 12) == "AMDGPU") metadata(msgpack::parse(p + body, size_));
        o = body + (uint64_t(size_) + 3) / 4 * 4;
      }
    }
  }

  void metadata(const msgpack::Value &root) {
    for (const msgpack::Value &m : root["amdhsa.kernels"].items) {
      std::string symbol = m[".symbol"].text;
      if (symbol.size() > 3) symbol.resize(symbol.size() - 3);
      for (Kernel &k : out.kernels) {
        if (k.name != symbol) continue;
        auto number = [&](const char *key) { return uint32_t(m[key].integer); };
        k.max_workgroup = number(".max_flat_workgroup_size");
        k.vgpr_count = number(".vgpr_count");
        k.agpr_count = number(".agpr_count");
        k.sgpr_count = number(".sgpr_count");
        k.vgpr_spills = number(".vgpr_spill_count");
        k.sgpr_spills = number(".sgpr_spill_count");
        k.kernarg_metadata_bytes = number(".kernarg_segment_size");
        for (const msgpack::Value &a : m[".args"].items)
          k.args.push_back({uint32_t(a[".offset"].integer), uint32_t(a[".size"].integer), a[".name"].text,
                            a[".value_kind"].text, a[".access"].text});
      }
    }
  }

  void debug() {
    DebugSections d;
    for (const Section &s : sections) {
      if (s.offset > size || size - s.offset < s.size || s.type == 8) continue;
      const std::string name = section_name(s);
      DebugSections::Bytes b{p + s.offset, size_t(s.size)};
      if (name == ".debug_line") d.line = b;
      if (name == ".debug_line_str") d.line_str = b;
      if (name == ".debug_str") d.str = b;
    }
    if (d.line.size) read_debug_lines(d, text_address, out.code.bytes.size(), out.files, out.lines);
  }
};

// --- entry

/// The entry of a clang offload bundle whose target ends in the architecture (any gfx94x/95x if none is asked for).
static std::pair<uint64_t, uint64_t> bundle_entry(const uint8_t *p, size_t size, const std::string &arch) {
  auto u64 = [&](uint64_t o) {
    uint64_t v = 0;
    if (o > size || size - o < 8) throw LoadError("offload bundle: truncated");
    std::memcpy(&v, p + o, 8);
    return v;
  };
  std::string seen;
  uint64_t o = 32;
  for (uint64_t k = 0, n = u64(24); k < n && k < 1000; ++k) {
    const uint64_t offset = u64(o), length = u64(o + 8), name_size = u64(o + 16);
    if (o + 24 > size || size - o - 24 < name_size) throw LoadError("offload bundle: truncated");
    const std::string name(reinterpret_cast<const char *>(p + o + 24), name_size);
    o += 24 + name_size;
    if (name.find("amdgcn") == std::string::npos) continue;
    seen += " " + name;
    const bool match = arch.empty()
                           ? name.find("gfx942") != std::string::npos || name.find("gfx950") != std::string::npos
                           : name.find(arch) != std::string::npos;
    if (match && offset <= size && size - offset >= length) return {offset, length};
  }
  throw LoadError("offload bundle: no entry for " + (arch.empty() ? std::string("gfx942 or gfx950") : arch) +
                  "; it has:" + seen);
}

std::shared_ptr<CodeObject> CodeObject::load(const uint8_t *p, size_t size, const std::string &arch) {
  if (!arch.empty() && arch != "gfx942" && arch != "gfx950")
    throw LoadError("unknown architecture " + arch + ": gfx942 or gfx950");
  if (size > 24 && !std::memcmp(p, "__CLANG_OFFLOAD_BUNDLE__", 24)) {
    auto [offset, length] = bundle_entry(p, size, arch);
    p += offset;
    size = length;
  } else if (size > 4 && !std::memcmp(p, "CCOB", 4)) {
    throw LoadError("compressed offload bundle: build without --offload-compress");
  }
  auto object = std::make_shared<CodeObject>();
  ElfReader r{p, size, *object, {}, {}};
  try {
    r.header(arch);
    r.load_segments();
    r.relocate();
    r.decode_text();
    r.symbols();
    r.notes();
    r.debug();
  } catch (const LoadError &) {
    throw;
  } catch (const std::exception &e) {  // a section index out of range, a malformed metadata note
    throw LoadError(std::string("code object: malformed ELF file (") + e.what() + ")");
  }
  if (object->kernels.empty()) throw LoadError("code object: no kernel descriptor (symbol NAME.kd)");
  return object;
}

std::shared_ptr<CodeObject> CodeObject::from_text(Arch arch, const uint8_t *p, size_t size, uint32_t lds_bytes,
                                                  uint32_t scratch_bytes, uint32_t vgprs, uint32_t agprs) {
  auto object = std::make_shared<CodeObject>();
  object->arch = arch;
  object->image_size_ = (size + 4096) / 4096 * 4096;
  object->image_.reset(static_cast<uint8_t *>(std::aligned_alloc(4096, object->image_size_)));
  std::memset(object->image_.get(), 0, object->image_size_);
  std::memcpy(object->image_.get(), p, size);
  object->code = decode_section(arch, object->image_.get(), size);
  object->code.address = object->image_begin();
  Kernel k;
  k.name = "kernel";
  k.lds_bytes = lds_bytes;
  k.scratch_bytes = scratch_bytes;
  k.entry_address = object->image_begin();
  const uint32_t arch_vgprs = std::clamp((vgprs + 3) / 4 * 4, 4u, 256u), total = (arch_vgprs + agprs + 7) / 8 * 8;
  k.rsrc1 = (total / 8 - 1) | 0xf0u << 12 | 1u << 21 | 1u << 23;  // denormals kept, DX10_CLAMP, IEEE
  k.rsrc2 = 2 << 1 | 7 << 7 | 2 << 11;
  k.rsrc3 = arch_vgprs / 4 - 1;
  k.properties = 8;
  object->kernels.push_back(k);
  return object;
}

}  // namespace turbo_sim
