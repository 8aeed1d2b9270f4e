// SPDX-License-Identifier: MIT
//
// Kernels of a library: loaded from the code objects that lie beside it, launched on a device and stream.
//
// A code object is the file <object>.<arch>.hsaco in the folder of the shared library that this code is linked into.
// It is read and loaded once per device, at the first launch of one of its kernels there; all of this is thread-safe,
// and a warm launch takes no lock.
#pragma once

#include "turbo/abi.h"

namespace turbo {

// Where a launch goes.
struct Target {
  int device;
  void *stream;  // hipStream_t
};

struct Grid {
  unsigned x, y = 1;
};

// One kernel. Objects are constants of namespace scope in the launchers.
class Kernel {
 public:
  Kernel(const char *object, const char *name, unsigned threads);

  // `arguments` is the struct that the kernel takes by value; it is copied before launch() returns. Nothing is
  // launched for an empty grid.
  template <class Arguments>
  turbo_status launch(Target target, Grid grid, Arguments arguments) const {
    return enqueue(target, grid, &arguments);
  }

  const char *object() const { return object_; }
  const char *name() const { return name_; }
  unsigned threads() const { return threads_; }

 private:
  turbo_status enqueue(Target target, Grid grid, void *arguments) const;

  const char *object_;
  const char *name_;
  unsigned threads_;
  int index_;
};

// TURBO_OK when kernels can run on the device: a run time is there, and a code object `object` for the device's
// architecture.
turbo_status check_device(int device, const char *object);

// Architecture of the device, into a buffer; an empty string on failure.
turbo_status device_arch(int device, char *name, int size);

// Forgets the run time, what is known of devices, and the loaded code objects: the next launch finds them anew. For
// simulators and tests, which change the library or the architecture behind a device index. Not to be called while a
// launch is under way. What was loaded stays loaded.
void reset();

}  // namespace turbo
