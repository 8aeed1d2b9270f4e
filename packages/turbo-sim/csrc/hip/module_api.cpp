// SPDX-License-Identifier: MIT
// Exported functions: modules, functions, launches, fat binaries of hipcc's host code.
#include "hip/state.h"

#include <cstring>
#include <unordered_map>

using namespace turbo_sim;
using namespace turbo_sim::hip;

namespace {

struct Dim3 {
  uint32_t x, y, z;
};

int launch_dims(void *f, Dim3 grid, Dim3 block, size_t shared, void **params, void **extra) {
  return launch(static_cast<Function *>(f), {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, uint32_t(shared),
                params, extra);
}

// Kernels that host code registers: host stub -> (fat binary, name), loaded at the first launch.
struct FatBinary {
  const void *image = nullptr;
  Module *module = nullptr;
};
struct Registered {
  FatBinary *binary;
  std::string name;
  Function *function = nullptr;
};
std::unordered_map<const void *, Registered> &registered() {
  static auto *table = new std::unordered_map<const void *, Registered>;
  return *table;
}

struct CallConfiguration {
  Dim3 grid, block;
  size_t shared;
  void *stream;
};
thread_local std::vector<CallConfiguration> configurations;

}  // namespace

TURBO_SIM_API int hipModuleLoadData(void **module, const void *image) {
  return load_module(reinterpret_cast<Module **>(module), image);
}
TURBO_SIM_API int hipModuleLoadDataEx(void **module, const void *image, unsigned, void *, void **) {
  return load_module(reinterpret_cast<Module **>(module), image);
}
TURBO_SIM_API int hipModuleUnload(void *) {
  return kSuccess;
}  // kept: functions of it may still be in caches of the caller
TURBO_SIM_API int hipModuleGetFunction(void **function, void *module, const char *name) {
  return get_function(reinterpret_cast<Function **>(function), static_cast<Module *>(module), name);
}
TURBO_SIM_API int hipModuleGetGlobal(void **pointer, size_t *bytes, void *module, const char *name) {
  if (!module || !name) return fail(kInvalidValue);
  const auto &globals = static_cast<Module *>(module)->object->globals;
  const auto found = globals.find(name);
  if (found == globals.end()) return fail(kNotFound);
  if (pointer) *pointer = reinterpret_cast<void *>(found->second.first);
  if (bytes) *bytes = size_t(found->second.second);
  return kSuccess;
}

/// hipFunction_attribute: 0 threads per block, 1 static LDS, 3 scratch per lane, 4 registers, 8 dynamic LDS.
TURBO_SIM_API int hipFuncGetAttribute(int *value, int attribute, void *function) {
  if (!value || !function) return fail(kInvalidValue);
  const Kernel &k = *static_cast<Function *>(function)->kernel;
  switch (attribute) {
    case 0: *value = k.max_workgroup ? int(k.max_workgroup) : 1024; break;
    case 1: *value = int(k.lds_bytes); break;
    case 3: *value = int(k.scratch_bytes); break;
    case 4: *value = int(k.vgpr_count + k.agpr_count ? k.vgpr_count : k.total_vgprs()); break;
    case 8: *value = int(lds_limit(static_cast<Function *>(function)->module->object->arch) - k.lds_bytes); break;
    default: *value = 0; break;
  }
  return kSuccess;
}
TURBO_SIM_API int hipFuncSetAttribute(const void *, int, int) { return kSuccess; }

TURBO_SIM_API int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned shared, void *, void **params, void **extra) {
  return launch_dims(f, {gx, gy, gz}, {bx, by, bz}, shared, params, extra);
}
/// Work-groups run one after another on each thread, so a grid-wide barrier would never be passed.
TURBO_SIM_API int hipModuleLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                                   unsigned, void *, void **, void **) {
  return fail(kNotSupported, "turbo-sim: cooperative launches are not implemented");
}

// --- host code of hipcc (<<< >>>)

TURBO_SIM_API void **__hipRegisterFatBinary(const void *data) {  // {magic, version, image, unused}
  auto *binary = new FatBinary;
  std::memcpy(&binary->image, static_cast<const char *>(data) + 8, sizeof binary->image);
  return reinterpret_cast<void **>(binary);
}
TURBO_SIM_API void __hipUnregisterFatBinary(void **) {}
TURBO_SIM_API void __hipRegisterFunction(void **binary, const void *stub, char *, const char *name, unsigned, void *,
                                         void *, void *, void *, int *) {
  registered()[stub] = {reinterpret_cast<FatBinary *>(binary), name};
}
TURBO_SIM_API int __hipPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
  configurations.push_back({grid, block, shared, stream});
  return kSuccess;
}
TURBO_SIM_API int __hipPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
  if (configurations.empty()) return fail(kInvalidConfiguration);
  const CallConfiguration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared, *stream = c.stream;
  return kSuccess;
}
TURBO_SIM_API int hipLaunchKernel(const void *stub, Dim3 grid, Dim3 block, void **params, size_t shared, void *) {
  const auto found = registered().find(stub);
  if (found == registered().end()) return fail(kInvalidDeviceFunction);
  Registered &r = found->second;
  if (!r.function) {
    if (!r.binary->module)
      if (const int e = load_module(&r.binary->module, r.binary->image)) return e;
    if (const int e = get_function(&r.function, r.binary->module, r.name.c_str())) return e;
  }
  return launch_dims(r.function, grid, block, shared, params, nullptr);
}
