// SPDX-License-Identifier: MIT
//
// The HIP run time, found when the process runs: no ROCm header, no link to ROCm. One library file then serves every
// torch release, imports on a machine without a GPU, and builds on one without ROCm.
//
// Where it is looked for, first match wins:
//   1. TURBO_HIP_LIBRARY, the path of a file. It comes first because only someone who means it sets it: a simulator, a
//      test, or a user with two run times. If it is set and cannot be loaded, that is the error; nothing else is tried.
//   2. A libamdhip64 that is in the process already: torch brings its own, and two run times in one process do not know
//      each other's streams and memory.
//   3. lib/ of ROCM_HOME, else ROCM_PATH, else /opt/rocm.
//   4. The dynamic loader's own search (LD_LIBRARY_PATH, ldconfig).
#pragma once

#include <string>

#include "turbo/abi.h"

namespace turbo {

// The functions in use. Types of the HIP interface are opaque here: hipError_t is an int; hipModule_t, hipFunction_t
// and hipStream_t are pointers.
struct Hip {
  int (*GetDevice)(int *device);
  int (*SetDevice)(int device);
  int (*GetDeviceProperties)(void *properties, int device);  // hipGetDevicePropertiesR0600: ROCm 6.0 or newer
  int (*ModuleLoadData)(void **module, const void *image);
  int (*ModuleGetFunction)(void **function, void *module, const char *name);
  int (*ModuleLaunchKernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned lds_bytes, void *stream, void **arguments,
                            void **extra);
  const char *(*GetErrorString)(int error);
  int (*GetLastError)();
  std::string path;  // of the library

  // Finds the library and its functions. A failure is not remembered: torch may be imported later.
  turbo_status load();

  // Architecture of a device, "gfx950" for a gcnArchName of "gfx950:sramecc+:xnack-".
  turbo_status arch(int device, std::string &name) const;

  // TURBO_OK for error 0; else fails with `what` and HIP's text, and clears HIP's own last error, which would otherwise
  // surface at the next check of somebody else.
  turbo_status check(int error, const char *what) const;
};

// Makes `device` current for the block and puts back what was.
class DeviceGuard {
 public:
  DeviceGuard(const Hip &hip, int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;
  turbo_status status() const { return status_; }

 private:
  const Hip &hip_;
  int previous_ = 0;
  bool changed_ = false;
  turbo_status status_;
};

}  // namespace turbo
