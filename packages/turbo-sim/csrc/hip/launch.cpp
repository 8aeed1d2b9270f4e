// SPDX-License-Identifier: MIT
// Modules, functions, launches: from HIP's arguments to turbo_sim::launch, and back to an error text.
#include "cost/profile.h"
#include "hip/state.h"

#include <algorithm>
#include <cstring>

namespace turbo_sim::hip {
namespace {

constexpr size_t kFindingsInText = 8, kProfilesKept = 4096;

template <class T>
T at(const uint8_t *p, size_t offset) {
  T v;
  std::memcpy(&v, p + offset, sizeof v);
  return v;
}

/// hipModuleLoadData gets no size: the ELF's own end (section headers or the last section), or the bundle's last entry.
size_t image_size(const uint8_t *p) {
  if (!std::memcmp(p, "\177ELF", 4)) {
    const uint64_t sections = at<uint64_t>(p, 40), segments = at<uint64_t>(p, 32);
    const unsigned section_size = at<uint16_t>(p, 58), section_count = at<uint16_t>(p, 60);
    const unsigned segment_size = at<uint16_t>(p, 54), segment_count = at<uint16_t>(p, 56);
    uint64_t end =
        std::max(sections + uint64_t(section_size) * section_count, segments + uint64_t(segment_size) * segment_count);
    for (unsigned k = 0; k < segment_count; ++k) {
      const uint8_t *s = p + segments + k * segment_size;
      end = std::max(end, at<uint64_t>(s, 8) + at<uint64_t>(s, 32));
    }
    for (unsigned k = 0; k < section_count; ++k) {
      const uint8_t *s = p + sections + k * section_size;
      if (at<uint32_t>(s, 4) != 8) end = std::max(end, at<uint64_t>(s, 24) + at<uint64_t>(s, 32));
    }
    return size_t(end);
  }
  if (!std::memcmp(p, "__CLANG_OFFLOAD_BUNDLE__", 24)) {
    uint64_t end = 32, o = 32;
    for (uint64_t k = 0, n = std::min<uint64_t>(at<uint64_t>(p, 24), 1000); k < n; ++k) {
      end = std::max(end, at<uint64_t>(p, o) + at<uint64_t>(p, o + 8));
      o += 24 + at<uint64_t>(p, o + 16);
      end = std::max(end, o);
    }
    return size_t(end);
  }
  throw LoadError("neither an ELF code object nor an uncompressed clang offload bundle");
}

/// Explicit arguments from HIP's two ways to pass them: an array of pointers, or one packed buffer.
std::vector<uint8_t> kernel_arguments(const Kernel &k, void **params, void **extra) {
  std::vector<uint8_t> bytes;
  if (extra) {  // {1, buffer, 2, &size, 3}
    const void *buffer = nullptr;
    size_t size = 0;
    for (unsigned n = 0; extra[n] && extra[n] != reinterpret_cast<void *>(3); n += 2) {
      if (extra[n] == reinterpret_cast<void *>(1)) buffer = extra[n + 1];
      if (extra[n] == reinterpret_cast<void *>(2)) size = *static_cast<size_t *>(extra[n + 1]);
    }
    if (buffer) bytes.assign(static_cast<const uint8_t *>(buffer), static_cast<const uint8_t *>(buffer) + size);
    return bytes;
  }
  unsigned n = 0;
  for (const KernelArg &a : k.args) {
    if (a.kind.rfind("hidden_", 0) == 0) continue;
    if (!params) throw std::invalid_argument("kernel " + k.name + " has arguments, none were given");
    bytes.resize(std::max<size_t>(bytes.size(), a.offset + a.size));
    std::memcpy(bytes.data() + a.offset, params[n++], a.size);
  }
  return bytes;
}

std::string describe(const std::vector<FindingText> &findings, const std::string &arch) {
  std::string s = "turbo-sim (" + arch + "): " + std::to_string(findings.size()) +
                  (findings.size() == 1 ? " finding" : " findings");
  for (size_t k = 0; k < std::min(findings.size(), kFindingsInText); ++k) s += "\n  " + findings[k].text();
  if (findings.size() > kFindingsInText) s += "\n  ...";
  return s;
}

}  // namespace

int load_module(Module **out, const void *image) {
  if (!out || !image) return fail(kInvalidValue);
  State &s = state();
  try {
    const auto *p = static_cast<const uint8_t *>(image);
    *out = new Module{CodeObject::load(p, image_size(p), s.arch)};
    return kSuccess;
  } catch (const LoadError &e) {
    return fail(kNoBinaryForGpu, std::string("turbo-sim: ") + e.what());
  } catch (const std::exception &e) {
    return fail(kInvalidImage, std::string("turbo-sim: ") + e.what());
  }
}

int get_function(Function **out, Module *m, const char *name) {
  if (!out || !m || !name) return fail(kInvalidValue);
  const Kernel *k = m->object->find(name);
  if (!k) return fail(kNotFound, std::string("turbo-sim: no kernel ") + name + " in this code object");
  *out = new Function{m, k};
  return kSuccess;
}

int launch(Function *f, const uint32_t (&grid)[3], const uint32_t (&block)[3], uint32_t shared, void **params,
           void **extra) {
  if (!f) return fail(kInvalidHandle);
  State &s = state();
  const std::shared_ptr<CodeObject> object = f->module->object;
  const std::string arch = arch_name(object->arch);
  std::lock_guard<std::mutex> lock(s.mutex);  // one launch at a time: it uses all threads
  if (arch != s.arch)
    return fail(kNoBinaryForGpu,
                "turbo-sim: kernel " + f->kernel->name + " is for " + arch + ", the simulated device is " + s.arch);
  try {
    LaunchArgs a;
    std::copy(grid, grid + 3, a.grid);
    std::copy(block, block + 3, a.block);
    a.shared_bytes = shared;
    a.kernarg = kernel_arguments(*f->kernel, params, extra);
    Options o = s.options;
    o.memory = memory_map(s, a.kernarg);
    const Report r = turbo_sim::launch(*object, *f->kernel, a, o);
    ++s.launches;
    s.instructions += r.instructions;
    s.findings += r.findings.size();
    if (s.record && s.profiles.size() < kProfilesKept) s.profiles.push_back(profile_json(*object, *f->kernel, r));
    if (r.findings.empty() || s.keep_going) return kSuccess;
    return fail(kLaunchFailure, describe(r.findings, arch));
  } catch (const std::invalid_argument &e) {
    return fail(kInvalidConfiguration, std::string("turbo-sim: ") + e.what());
  } catch (const std::bad_alloc &) {
    return fail(kOutOfMemory);
  } catch (const std::exception &e) {
    ++s.launches;
    return fail(kLaunchFailure, "turbo-sim (" + arch + "): " + e.what());
  }
}

}  // namespace turbo_sim::hip
