// SPDX-License-Identifier: MIT
#include "turbo/kernels.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "turbo/error.h"
#include "turbo/hip.h"

namespace turbo {
namespace {

constexpr int kMaxDevices = 256;  // 8 cards in 8 partitions are 64

int kernel_count = 0;  // Kernel objects are made while the library is loaded, by one thread

// The folder of this shared library, wherever it was installed.
std::string library_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(&library_folder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Architectures for which there is a code object of that name, "gfx942, gfx950"; "none" when there is none.
std::string archs_of(const std::string &folder, const std::string &object) {
  std::vector<std::string> found;
  const std::string prefix = object + ".", suffix = ".hsaco";
  if (DIR *entries = opendir(folder.c_str())) {
    while (const dirent *entry = readdir(entries)) {
      const std::string name = entry->d_name;
      if (name.size() > prefix.size() + suffix.size() && name.compare(0, prefix.size(), prefix) == 0 &&
          name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
        found.push_back(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
      }
    }
    closedir(entries);
  }
  std::sort(found.begin(), found.end());
  std::string list;
  for (const std::string &arch : found) list += (list.empty() ? "" : ", ") + arch;
  return list.empty() ? "none" : list;
}

bool read_file(const std::string &path, std::vector<char> &bytes) {
  std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file || std::fseek(file.get(), 0, SEEK_END) != 0) return false;
  const long size = std::ftell(file.get());
  if (size <= 0 || std::fseek(file.get(), 0, SEEK_SET) != 0) return false;
  bytes.resize(static_cast<size_t>(size));
  return std::fread(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
}

// What is known of one device: its architecture, its loaded code objects, its functions.
class Device {
 public:
  Device(const Hip &hip, int index, std::string arch)
      : hip_(hip), index_(index), arch_(std::move(arch)), functions_(static_cast<size_t>(kernel_count)) {}

  const std::string &arch() const { return arch_; }

  turbo_status function(int index, const char *object, const char *name, void *&function) {
    function = functions_[static_cast<size_t>(index)].load(std::memory_order_acquire);
    if (function != nullptr) return TURBO_OK;
    const std::lock_guard<std::mutex> lock(mutex_);
    void *module = nullptr;
    if (const turbo_status status = load(object, module); status != TURBO_OK) return status;
    if (const int error = hip_.ModuleGetFunction(&function, module, name)) {
      hip_.check(error, "hipModuleGetFunction");
      const std::string reason = last_error();
      return fail(TURBO_ERROR_NO_KERNEL, "code object %s has no kernel %s: %s", file(object).c_str(), name,
                  reason.c_str());
    }
    functions_[static_cast<size_t>(index)].store(function, std::memory_order_release);
    return TURBO_OK;
  }

  turbo_status check(const char *object) const {
    if (std::unique_ptr<std::FILE, int (*)(std::FILE *)>(std::fopen(file(object).c_str(), "rb"), &std::fclose))
      return TURBO_OK;
    return fail(TURBO_ERROR_NO_KERNEL, "device %d is %s; code objects of %s in %s are for: %s", index_, arch_.c_str(),
                object, library_folder().c_str(), archs_of(library_folder(), object).c_str());
  }

 private:
  std::string file(const char *object) const { return library_folder() + "/" + object + "." + arch_ + ".hsaco"; }

  // With the mutex held and the device current.
  turbo_status load(const char *object, void *&module) {
    const auto known = modules_.find(object);
    if (known != modules_.end()) {
      module = known->second;
      return TURBO_OK;
    }
    if (const turbo_status status = check(object); status != TURBO_OK) return status;
    std::vector<char> image;
    if (!read_file(file(object), image)) return fail(TURBO_ERROR_NO_KERNEL, "cannot read %s", file(object).c_str());
    const std::string what = "hipModuleLoadData of " + file(object) + " on device " + std::to_string(index_);
    if (const turbo_status status = hip_.check(hip_.ModuleLoadData(&module, image.data()), what.c_str());
        status != TURBO_OK)
      return status;
    modules_[object] = module;
    return TURBO_OK;
  }

  const Hip &hip_;
  const int index_;
  const std::string arch_;
  std::mutex mutex_;
  std::map<std::string, void *> modules_;
  std::vector<std::atomic<void *>> functions_;
};

// The run time and its devices. Made at the first use, kept for the life of the process: launches may come from static
// destructors of others, so nothing is ever taken down.
class Runtime {
 public:
  Hip hip;

  turbo_status device(int index, Device *&found) {
    if (index < 0 || index >= kMaxDevices)
      return fail(TURBO_ERROR_ARGUMENT, "device %d: expected 0 to %d", index, kMaxDevices - 1);
    std::atomic<Device *> &slot = devices_[static_cast<size_t>(index)];
    found = slot.load(std::memory_order_acquire);
    if (found != nullptr) return TURBO_OK;
    const std::lock_guard<std::mutex> lock(mutex_);
    found = slot.load(std::memory_order_acquire);
    if (found != nullptr) return TURBO_OK;
    std::string arch;
    if (const turbo_status status = hip.arch(index, arch); status != TURBO_OK) return status;
    found = new Device(hip, index, arch);
    slot.store(found, std::memory_order_release);
    return TURBO_OK;
  }

 private:
  std::mutex mutex_;
  std::array<std::atomic<Device *>, kMaxDevices> devices_{};
};

std::atomic<Runtime *> current{nullptr};
std::mutex current_mutex;

turbo_status runtime(Runtime *&found) {
  found = current.load(std::memory_order_acquire);
  if (found != nullptr) return TURBO_OK;
  const std::lock_guard<std::mutex> lock(current_mutex);
  found = current.load(std::memory_order_acquire);
  if (found != nullptr) return TURBO_OK;
  auto made = std::make_unique<Runtime>();
  if (const turbo_status status = made->hip.load(); status != TURBO_OK) return status;
  found = made.release();
  current.store(found, std::memory_order_release);
  return TURBO_OK;
}

turbo_status find_device(int index, Runtime *&run, Device *&device) {
  if (const turbo_status status = runtime(run); status != TURBO_OK) return status;
  return run->device(index, device);
}

}  // namespace

Kernel::Kernel(const char *object, const char *name, unsigned threads)
    : object_(object), name_(name), threads_(threads), index_(kernel_count++) {}

turbo_status Kernel::enqueue(Target target, Grid grid, void *arguments) const {
  if (grid.x == 0 || grid.y == 0) return TURBO_OK;
  Runtime *run = nullptr;
  Device *device = nullptr;
  if (const turbo_status status = find_device(target.device, run, device); status != TURBO_OK) return status;
  // The module is loaded for the current device, and a null stream is the current device's.
  const DeviceGuard guard(run->hip, target.device);
  if (guard.status() != TURBO_OK) return guard.status();
  void *function = nullptr;
  if (const turbo_status status = device->function(index_, object_, name_, function); status != TURBO_OK) return status;
  void *parameters[] = {arguments};
  const int error =
      run->hip.ModuleLaunchKernel(function, grid.x, grid.y, 1, threads_, 1, 1, 0, target.stream, parameters, nullptr);
  if (error == 0) return TURBO_OK;
  char what[256];
  std::snprintf(what, sizeof what, "hipModuleLaunchKernel of %s on device %d (%s), %u x %u work-groups of %u", name_,
                target.device, device->arch().c_str(), grid.x, grid.y, threads_);
  return run->hip.check(error, what);
}

turbo_status check_device(int index, const char *object) {
  Runtime *run = nullptr;
  Device *device = nullptr;
  if (const turbo_status status = find_device(index, run, device); status != TURBO_OK) return status;
  return device->check(object);
}

turbo_status device_arch(int index, char *name, int size) {
  name[0] = '\0';
  Runtime *run = nullptr;
  Device *device = nullptr;
  if (const turbo_status status = find_device(index, run, device); status != TURBO_OK) return status;
  std::snprintf(name, static_cast<size_t>(size), "%s", device->arch().c_str());
  return TURBO_OK;
}

void reset() { current.store(nullptr, std::memory_order_release); }

}  // namespace turbo
