// SPDX-License-Identifier: MIT
//
// What all host launchers check their arguments with.
#pragma once

#include <cstdint>

#include "turbo/error.h"

// Leaves the function with the status of a step that failed.
#define TURBO_RETURN_IF_FAILED(status) \
  if (const turbo_status turbo_failed = (status)) return turbo_failed

// A pointer that must be there, or must not; `name` is a string literal, for the message.
#define TURBO_REQUIRE(op, pointer, name) \
  if ((pointer) == nullptr) return turbo::fail(TURBO_ERROR_ARGUMENT, "%s: " name " is NULL", op)
#define TURBO_REFUSE(op, pointer, name) \
  if ((pointer) != nullptr) return turbo::fail(TURBO_ERROR_ARGUMENT, "%s: there is no " name "; it must be NULL", op)

namespace turbo {

// float32, float16 and bfloat16: the first of turbo_dtype, in its order.
constexpr int kFloatTypes = 3;
constexpr int64_t kFloatBytes[kFloatTypes] = {4, 2, 2};

inline bool is_float(int type) { return type >= 0 && type < kFloatTypes; }

inline bool aligned(const void *pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % uintptr_t(bytes) == 0;
}

constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

}  // namespace turbo
