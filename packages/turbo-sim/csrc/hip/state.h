// SPDX-License-Identifier: MIT
// State behind the HIP functions: one simulated device on host memory. Launches run to their end before they return.
#pragma once

#include "core/launch.h"

#include <map>
#include <mutex>
#include <string>

namespace turbo_sim::hip {

// hipError_t
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidConfiguration = 9,
  kInvalidDevicePointer = 17,
  kInvalidDeviceFunction = 98,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kLaunchFailure = 719,
  kNotSupported = 801,
  kUnknown = 999
};

/// How the bounds check learns what memory there is.
enum class Bounds { Known, Process };  // announced and allocated blocks; all of the process's mappings

struct State {
  std::mutex mutex;
  // --- settings, by turbo_sim_set()
  std::string arch = "gfx950";
  Options options;
  Bounds bounds = Bounds::Known;
  bool keep_going = false;  // findings are recorded but the launch succeeds
  bool record = false;      // keep a profile of every launch
  // --- memory
  std::map<uint64_t, Allocation> blocks;  // hipMalloc, by begin
  std::vector<Allocation> announced;      // valid until cleared
  std::vector<Allocation> next_launch;    // valid for one launch
  // --- results
  std::vector<std::string> profiles;  // JSON
  uint64_t instructions = 0, launches = 0, findings = 0;
};
State &state();

struct Module {
  std::shared_ptr<CodeObject> object;
};
struct Function {
  Module *module;
  const Kernel *kernel;
};

/// Records an error for hipGetLastError; `text` is what hipGetErrorString then says of it.
int fail(int error, const std::string &text = "");
const char *error_text(int error);
int take_last_error();
int peek_last_error();

/// Sets one setting; throws std::invalid_argument.
void set(State &, const std::string &key, const std::string &value);

int load_module(Module **, const void *image);
int get_function(Function **, Module *, const char *name);
int launch(Function *, const uint32_t (&grid)[3], const uint32_t (&block)[3], uint32_t shared, void **params,
           void **extra);

/// The map for a launch, sorted and without overlaps: announced memory and hipMalloc blocks; without announcements for
/// this launch torch's CPU tensors too, if every address among the arguments lies in known memory; else the process's
/// mappings.
std::vector<Allocation> memory_map(State &, const std::vector<uint8_t> &kernarg);

/// Keeps a list of torch's CPU allocations from now on (torch_memory.cpp); false where that cannot be done.
bool track_torch();
void append_torch_memory(std::vector<Allocation> &);

}  // namespace turbo_sim::hip

#define TURBO_SIM_API extern "C" __attribute__((visibility("default")))
