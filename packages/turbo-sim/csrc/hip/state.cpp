// SPDX-License-Identifier: MIT
#include "hip/state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace turbo_sim::hip {
namespace {

thread_local int last_error = kSuccess;
thread_local int text_error = kSuccess;
thread_local std::string last_text;

uint32_t parse_checks(const std::string &value) {
  if (value == "all" || value == "1") return kAllChecks;
  if (value == "none" || value == "0" || value.empty()) return 0;
  uint32_t mask = 0;
  std::stringstream names(value);
  for (std::string name; std::getline(names, name, ',');) {
    unsigned k = 0;
    while (k < unsigned(Check::count) && name != check_name(Check(k))) ++k;
    if (k == unsigned(Check::count))
      throw std::invalid_argument("unknown check " + name +
                                  ": all, none or a list of bounds, uninit, wait, race, registers, hazard");
    mask |= check_bit(Check(k));
  }
  return mask;
}

uint64_t parse_number(const std::string &key, const std::string &value) {
  char *end = nullptr;
  const uint64_t v = std::strtoull(value.c_str(), &end, 0);
  if (value.empty() || *end) throw std::invalid_argument(key + ": not a number: " + value);
  return v;
}

/// Readable mappings of the process, neighbours joined.
std::vector<Allocation> process_map() {
  std::vector<Allocation> map;
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    uint64_t begin = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, permissions) != 3 || permissions[0] != 'r') continue;
    const bool writable = permissions[1] == 'w';
    if (!map.empty() && map.back().end == begin && map.back().writable == writable)
      map.back().end = end;
    else
      map.push_back({begin, end, "memory of the process", writable});
  }
  return map;
}

std::vector<Allocation> without_overlaps(std::vector<Allocation> all) {
  std::sort(all.begin(), all.end(), [](const Allocation &a, const Allocation &b) { return a.begin < b.begin; });
  std::vector<Allocation> map;
  for (Allocation &a : all) {
    if (a.begin == a.end) continue;
    if (!map.empty() && a.begin < map.back().end)
      map.back().end = std::max(map.back().end, a.end);  // views of one storage
    else
      map.push_back(std::move(a));
  }
  return map;
}

/// The block of a sorted map that an address lies in, or null.
const Allocation *holder(const std::vector<Allocation> &map, uint64_t address) {
  auto it =
      std::upper_bound(map.begin(), map.end(), address, [](uint64_t x, const Allocation &a) { return x < a.begin; });
  return it != map.begin() && address < (it - 1)->end ? &*(it - 1) : nullptr;
}

}  // namespace

State &state() {
  static State *s = new State;  // never destroyed: launches may come from static destructors
  return *s;
}

void set(State &s, const std::string &key, const std::string &value) {
  auto one_of = [&](std::initializer_list<const char *> names) {
    for (const char *n : names)
      if (value == n) return;
    std::string list;
    for (const char *n : names) list += (list.empty() ? "" : ", ") + std::string(n);
    throw std::invalid_argument(key + ": " + value + " is not one of " + list);
  };
  if (key == "arch")
    one_of({"gfx942", "gfx950"}), s.arch = value;
  else if (key == "checks")
    s.options.checks = parse_checks(value);
  else if (key == "threads")
    s.options.threads = uint32_t(parse_number(key, value));
  else if (key == "seed")
    s.options.seed = parse_number(key, value);
  else if (key == "max_steps")
    s.options.max_steps = parse_number(key, value);
  else if (key == "bounds")
    one_of({"known", "process"}), s.bounds = value == "known" ? Bounds::Known : Bounds::Process;
  else if (key == "findings")
    one_of({"error", "keep"}), s.keep_going = value == "keep";
  else if (key == "record")
    s.record = s.options.costs = parse_number(key, value) != 0;
  else
    throw std::invalid_argument("unknown setting " + key);
}

std::vector<Allocation> memory_map(State &s, const std::vector<uint8_t> &kernarg) {
  std::vector<Allocation> all = s.next_launch;
  const bool told = !all.empty();
  s.next_launch.clear();
  all.insert(all.end(), s.announced.begin(), s.announced.end());
  for (const auto &[begin, a] : s.blocks) all.push_back(a);
  if (s.bounds == Bounds::Process) return process_map();
  if (!told) append_torch_memory(all);
  all = without_overlaps(std::move(all));
  if (told) return all;
  // Nobody has said what this launch may touch: an address among the arguments that lies in memory of unknown extent (a
  // numpy array, a tensor from before tracking) leaves only the mappings of the process to check against.
  std::vector<Allocation> mapped;
  for (size_t k = 0; k + 8 <= kernarg.size(); k += 8) {
    uint64_t v;
    std::memcpy(&v, kernarg.data() + k, 8);
    if (v < 65536 || v >> 47 || holder(all, v)) continue;
    if (mapped.empty()) mapped = process_map();
    if (holder(mapped, v)) return mapped;
  }
  return all.empty() ? process_map() : all;
}

int fail(int error, const std::string &text) {
  last_error = error;
  text_error = error;
  last_text = text;
  return error;
}

int take_last_error() {
  const int e = last_error;
  last_error = kSuccess;
  return e;
}

int peek_last_error() { return last_error; }

const char *error_text(int error) {
  if (error == text_error && !last_text.empty()) return last_text.c_str();
  switch (error) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument";
    case kOutOfMemory: return "out of memory";
    case kInvalidConfiguration: return "invalid configuration argument";
    case kInvalidDevicePointer: return "invalid device pointer";
    case kInvalidDeviceFunction: return "invalid device function";
    case kInvalidDevice: return "invalid device ordinal";
    case kInvalidImage: return "device kernel image is invalid";
    case kNoBinaryForGpu: return "no kernel image is available for execution on the device";
    case kInvalidHandle: return "invalid resource handle";
    case kNotFound: return "named symbol not found";
    case kLaunchFailure: return "unspecified launch failure";
    case kNotSupported: return "operation not supported by the simulator";
    default: return "unknown error";
  }
}

}  // namespace turbo_sim::hip
