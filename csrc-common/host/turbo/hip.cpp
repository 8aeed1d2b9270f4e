// SPDX-License-Identifier: MIT
#include "turbo/hip.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <cstring>

#include "turbo/error.h"

namespace turbo {
namespace {

constexpr const char *kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

const char *environment(const char *name) {
  const char *value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// Path of a libamdhip64 that the process has mapped, under whatever name and from wherever; empty when there is none.
std::string already_loaded() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *result) {
        const char *slash = std::strrchr(info->dlpi_name, '/');
        const char *base = slash != nullptr ? slash + 1 : info->dlpi_name;
        if (std::strncmp(base, "libamdhip64", 11) != 0) return 0;
        *static_cast<std::string *>(result) = info->dlpi_name;
        return 1;
      },
      &found);
  return found;
}

// dlopen, with a line in `tried` about a failure.
void *open(const std::string &path, int flags, std::string &tried) {
  void *library = dlopen(path.c_str(), flags);
  if (library == nullptr) {
    const char *reason = dlerror();
    tried += "\n  " + (reason != nullptr ? std::string(reason) : path);
  }
  return library;
}

void *find(std::string &path, std::string &tried) {
  if (const char *named = environment("TURBO_HIP_LIBRARY")) {
    path = named;
    void *library = open(path, RTLD_NOW | RTLD_LOCAL, tried);
    tried += " (named by TURBO_HIP_LIBRARY, so nothing else is tried)";
    return library;
  }
  path = already_loaded();
  if (!path.empty()) return open(path, RTLD_NOW | RTLD_NOLOAD, tried);
  tried += "\n  none is loaded in this process (a ROCm build of torch brings one)";
  const char *home = environment("ROCM_HOME");
  if (home == nullptr) home = environment("ROCM_PATH");
  const std::string folder = std::string(home != nullptr ? home : "/opt/rocm") + "/lib/";
  for (const std::string &prefix : {folder, std::string()}) {
    for (const char *name : kNames) {
      path = prefix + name;
      // Global, as if it were linked: what is loaded later (torch) must find this copy and not bring a second one.
      if (void *library = open(path, RTLD_NOW | RTLD_GLOBAL, tried)) return library;
    }
  }
  return nullptr;
}

}  // namespace

turbo_status Hip::load() {
  std::string tried;
  void *library = find(path, tried);
  if (library == nullptr) {
    return fail(TURBO_ERROR_NO_RUNTIME,
                "no HIP run time (libamdhip64). Looked at:%s\nInstall ROCm or a ROCm build of torch, set ROCM_HOME, or "
                "name the library in TURBO_HIP_LIBRARY.",
                tried.c_str());
  }
  const char *missing = nullptr;
  const auto resolve = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  resolve(GetDevice, "hipGetDevice");
  resolve(SetDevice, "hipSetDevice");
  resolve(GetDeviceProperties, "hipGetDevicePropertiesR0600");
  resolve(ModuleLoadData, "hipModuleLoadData");
  resolve(ModuleGetFunction, "hipModuleGetFunction");
  resolve(ModuleLaunchKernel, "hipModuleLaunchKernel");
  resolve(GetErrorString, "hipGetErrorString");
  resolve(GetLastError, "hipGetLastError");
  if (missing != nullptr) {
    return fail(TURBO_ERROR_NO_RUNTIME, "the HIP run time %s has no function %s: ROCm 6.0 or newer is needed",
                path.c_str(), missing);
  }
  return TURBO_OK;
}

turbo_status Hip::arch(int device, std::string &name) const {
  // hipDeviceProp_tR0600, of which only gcnArchName is wanted. The version in the function's name fixes the struct:
  // 1472 bytes, gcnArchName (char[256]) at 1160 in the headers of ROCm 6 and 7. The buffer is larger and cleared, and
  // the text is checked, so a run time that breaks the promise gives an error and no wrong choice.
  constexpr size_t kArchNameOffset = 1160, kArchNameSize = 256;
  alignas(16) char properties[8192] = {};
  const turbo_status status = check(GetDeviceProperties(properties, device), "hipGetDeviceProperties");
  if (status != TURBO_OK) return status;
  const char *text = properties + kArchNameOffset;
  name.assign(text, strnlen(text, kArchNameSize));
  name.resize(std::min(name.size(), name.find(':')));
  if (name.compare(0, 3, "gfx") != 0) {
    return fail(TURBO_ERROR_HIP, "%s reports no architecture for device %d (gcnArchName is \"%s\")", path.c_str(),
                device, name.c_str());
  }
  return TURBO_OK;
}

turbo_status Hip::check(int error, const char *what) const {
  if (error == 0) return TURBO_OK;
  GetLastError();
  return fail(TURBO_ERROR_HIP, "%s: %s (hipError_t %d)", what, GetErrorString(error), error);
}

DeviceGuard::DeviceGuard(const Hip &hip, int device) : hip_(hip) {
  status_ = hip.check(hip.GetDevice(&previous_), "hipGetDevice");
  if (status_ != TURBO_OK || previous_ == device) return;
  status_ = hip.check(hip.SetDevice(device), "hipSetDevice");
  changed_ = status_ == TURBO_OK;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) hip_.SetDevice(previous_);
}

}  // namespace turbo
