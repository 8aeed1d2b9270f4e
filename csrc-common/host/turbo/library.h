// SPDX-License-Identifier: MIT
//
// The functions that every kernel library has (TURBO_LIBRARY_FUNCTIONS of turbo/abi.h), defined.
#pragma once

#include "turbo/error.h"
#include "turbo/kernels.h"

// `object` names a code object of the library: where it is there for a device's architecture, all of them are.
#define TURBO_DEFINE_LIBRARY_FUNCTIONS(library, version, object)                           \
  int library##_abi_version(void) { return version; }                                      \
  const char *library##_last_error(void) { return turbo::last_error(); }                   \
  turbo_status library##_check(int device) { return turbo::check_device(device, object); } \
  turbo_status library##_device_arch(int device, char *name, int size) {                   \
    return turbo::device_arch(device, name, size);                                         \
  }                                                                                        \
  void library##_reset(void) { turbo::reset(); }
