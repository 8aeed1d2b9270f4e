// SPDX-License-Identifier: MIT
// Exported functions: device, errors, memory, streams, events. One device; everything is synchronous.
#include "cost/profile.h"
#include "hip/state.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>

using namespace turbo_sim;
using namespace turbo_sim::hip;

namespace {

/// hipDeviceProp_tR0600: offsets of the fields that are filled in (the ABI of ROCm 6 and 7); the others are zero.
enum Field : size_t {
  kTotalMemory = 288,
  kLdsPerBlock = 296,
  kRegistersPerBlock = 304,
  kWaveSize = 308,
  kMaxThreads = 320,
  kMaxBlock = 324,
  kMaxGrid = 336,
  kClock = 348,
  kMajor = 360,
  kMinor = 364,
  kComputeUnits = 388,
  kMemoryClock = 608,
  kMemoryBusWidth = 612,
  kThreadsPerUnit = 624,
  kArchName = 1160,
  kLdsPerUnit = 1416,
  kPropertiesSize = 1472
};

template <class T>
void put(char *p, Field f, T v) {
  std::memcpy(p + f, &v, sizeof v);
}

struct Event {
  uint64_t instructions = 0;
};

}  // namespace

// --- device

TURBO_SIM_API int hipInit(unsigned) { return kSuccess; }
TURBO_SIM_API int hipDriverGetVersion(int *v) { return v ? *v = 60'400'000, kSuccess : fail(kInvalidValue); }
TURBO_SIM_API int hipRuntimeGetVersion(int *v) { return hipDriverGetVersion(v); }
TURBO_SIM_API int hipGetDeviceCount(int *n) { return n ? *n = 1, kSuccess : fail(kInvalidValue); }
TURBO_SIM_API int hipGetDevice(int *d) { return d ? *d = 0, kSuccess : fail(kInvalidValue); }
TURBO_SIM_API int hipSetDevice(int d) { return d ? fail(kInvalidDevice) : kSuccess; }
TURBO_SIM_API int hipDeviceSynchronize() { return kSuccess; }
TURBO_SIM_API int hipDeviceReset() { return kSuccess; }
TURBO_SIM_API int hipGetDevicePropertiesR0600(void *out, int device) {
  if (!out) return fail(kInvalidValue);
  // 0 is the device as set; 942 and 950 are names of it for callers that cache by number.
  if (device && device != 942 && device != 950) return fail(kInvalidDevice);
  const std::string arch = device ? "gfx" + std::to_string(device) : state().arch;
  const DeviceModel &d = device_model(arch == "gfx942" ? Arch::gfx942 : Arch::gfx950);
  const bool mi300 = arch == "gfx942";  // else MI355
  char *p = static_cast<char *>(out);
  std::memset(p, 0, kPropertiesSize);
  std::strcpy(p, ("turbo-sim " + arch).c_str());
  std::strcpy(p + kArchName, (arch + ":sramecc+:xnack-").c_str());
  put(p, kTotalMemory, size_t(64) << 30);
  put(p, kLdsPerBlock, size_t(d.lds_bytes));
  put(p, kLdsPerUnit, size_t(d.lds_bytes));
  put(p, kRegistersPerBlock, 131072);
  put(p, kWaveSize, 64);
  put(p, kMaxThreads, 1024);
  put(p, kMaxBlock, std::array<int, 3>{1024, 1024, 1024});
  put(p, kMaxGrid, std::array<int, 3>{2147483647, 65536, 65536});
  put(p, kClock, mi300 ? 2'100'000 : 2'400'000);
  put(p, kMajor, 9);
  put(p, kMinor, mi300 ? 4 : 5);
  put(p, kComputeUnits, int(d.compute_units));
  put(p, kMemoryClock, mi300 ? 2'600'000 : 4'000'000);
  put(p, kMemoryBusWidth, 8192);
  put(p, kThreadsPerUnit, 2048);
  return kSuccess;
}
TURBO_SIM_API int hipDeviceGetName(char *name, int size, int device) {
  if (!name || size < 1 || device) return fail(kInvalidValue);
  std::strncpy(name, ("turbo-sim " + state().arch).c_str(), size_t(size));
  name[size - 1] = 0;
  return kSuccess;
}

// --- errors

TURBO_SIM_API int hipGetLastError() { return take_last_error(); }
TURBO_SIM_API int hipPeekAtLastError() { return peek_last_error(); }
TURBO_SIM_API const char *hipGetErrorString(int e) { return error_text(e); }
TURBO_SIM_API const char *hipGetErrorName(int e) {
  switch (e) {
    case kSuccess: return "hipSuccess";
    case kInvalidValue: return "hipErrorInvalidValue";
    case kLaunchFailure: return "hipErrorLaunchFailure";
    case kNoBinaryForGpu: return "hipErrorNoBinaryForGpu";
    case kNotSupported: return "hipErrorNotSupported";
    default: return "hipErrorUnknown";
  }
}

// --- memory

TURBO_SIM_API int hipMalloc(void **p, size_t bytes) {
  if (!p) return fail(kInvalidValue);
  *p = nullptr;
  if (!bytes) return kSuccess;
  void *block = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
  if (!block) return fail(kOutOfMemory);
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  const uint64_t at = reinterpret_cast<uint64_t>(block);
  s.blocks[at] = {at, at + bytes, "hipMalloc(" + std::to_string(bytes) + ")", true};
  *p = block;
  return kSuccess;
}
TURBO_SIM_API int hipFree(void *p) {
  if (!p) return kSuccess;
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.blocks.erase(reinterpret_cast<uint64_t>(p))) return fail(kInvalidDevicePointer);
  std::free(p);
  return kSuccess;
}
TURBO_SIM_API int hipMallocAsync(void **p, size_t n, void *) { return hipMalloc(p, n); }
TURBO_SIM_API int hipFreeAsync(void *p, void *) { return hipFree(p); }
TURBO_SIM_API int hipMallocManaged(void **p, size_t n, unsigned) { return hipMalloc(p, n); }
TURBO_SIM_API int hipHostMalloc(void **p, size_t n, unsigned) { return hipMalloc(p, n); }
TURBO_SIM_API int hipHostFree(void *p) { return hipFree(p); }
TURBO_SIM_API int hipMemcpy(void *to, const void *from, size_t n, int) { return std::memmove(to, from, n), kSuccess; }
TURBO_SIM_API int hipMemcpyAsync(void *to, const void *from, size_t n, int, void *) {
  return std::memmove(to, from, n), kSuccess;
}
TURBO_SIM_API int hipMemcpyHtoD(void *to, void *from, size_t n) { return std::memmove(to, from, n), kSuccess; }
TURBO_SIM_API int hipMemcpyDtoH(void *to, void *from, size_t n) { return std::memmove(to, from, n), kSuccess; }
TURBO_SIM_API int hipMemcpyDtoD(void *to, void *from, size_t n) { return std::memmove(to, from, n), kSuccess; }
TURBO_SIM_API int hipMemset(void *p, int v, size_t n) { return std::memset(p, v, n), kSuccess; }
TURBO_SIM_API int hipMemsetAsync(void *p, int v, size_t n, void *) { return std::memset(p, v, n), kSuccess; }
TURBO_SIM_API int hipMemsetD32Async(void *p, int v, size_t n, void *) {
  for (size_t k = 0; k < n; ++k) std::memcpy(static_cast<char *>(p) + 4 * k, &v, 4);
  return kSuccess;
}
TURBO_SIM_API int hipMemGetInfo(size_t *free_, size_t *total) {
  if (free_) *free_ = size_t(60) << 30;
  if (total) *total = size_t(64) << 30;
  return kSuccess;
}
/// Host memory is device memory.
TURBO_SIM_API int hipPointerGetAttribute(void *data, int attribute, void *pointer) {
  if (!data) return fail(kInvalidValue);
  if (attribute == 3 || attribute == 4)
    std::memcpy(data, &pointer, sizeof pointer);  // device pointer, host pointer
  else if (attribute == 2)
    *static_cast<int *>(data) = 2;  // memory type: device
  else
    return fail(kNotSupported);
  return kSuccess;
}

// --- streams and events: a launch has ended before it returns

TURBO_SIM_API int hipStreamCreate(void **s) { return s ? *s = new char, kSuccess : fail(kInvalidValue); }
TURBO_SIM_API int hipStreamCreateWithFlags(void **s, unsigned) { return hipStreamCreate(s); }
TURBO_SIM_API int hipStreamCreateWithPriority(void **s, unsigned, int) { return hipStreamCreate(s); }
TURBO_SIM_API int hipStreamDestroy(void *s) { return delete static_cast<char *>(s), kSuccess; }
TURBO_SIM_API int hipStreamSynchronize(void *) { return kSuccess; }
TURBO_SIM_API int hipStreamQuery(void *) { return kSuccess; }
TURBO_SIM_API int hipStreamWaitEvent(void *, void *, unsigned) { return kSuccess; }
TURBO_SIM_API int hipStreamIsCapturing(void *, int *status) {
  return status ? *status = 0, kSuccess : fail(kInvalidValue);
}
TURBO_SIM_API int hipEventCreate(void **e) { return e ? *e = new Event, kSuccess : fail(kInvalidValue); }
TURBO_SIM_API int hipEventCreateWithFlags(void **e, unsigned) { return hipEventCreate(e); }
TURBO_SIM_API int hipEventDestroy(void *e) { return delete static_cast<Event *>(e), kSuccess; }
TURBO_SIM_API int hipEventSynchronize(void *) { return kSuccess; }
TURBO_SIM_API int hipEventQuery(void *) { return kSuccess; }
TURBO_SIM_API int hipEventRecord(void *e, void *) {
  if (!e) return fail(kInvalidHandle);
  static_cast<Event *>(e)->instructions = state().instructions;
  return kSuccess;
}
/// Not a time: wave-instructions between the events, in millions. It ranks variants and never depends on the host.
TURBO_SIM_API int hipEventElapsedTime(float *ms, void *from, void *to) {
  if (!ms || !from || !to) return fail(kInvalidHandle);
  *ms = float(double(static_cast<Event *>(to)->instructions - static_cast<Event *>(from)->instructions) * 1e-6);
  return kSuccess;
}

// --- look-up

TURBO_SIM_API int hipGetProcAddress(const char *name, void **function, int, uint64_t, int *status) {
  if (!name || !function) return fail(kInvalidValue);
  Dl_info self;
  void *library = nullptr;
  if (dladdr(reinterpret_cast<void *>(&hipGetProcAddress), &self))
    library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  const char *wanted = std::strcmp(name, "hipGetDeviceProperties") ? name : "hipGetDevicePropertiesR0600";
  *function = library ? dlsym(library, wanted) : nullptr;
  if (library) dlclose(library);
  if (status) *status = *function ? 0 : 1;
  return *function ? kSuccess : kInvalidValue;
}
