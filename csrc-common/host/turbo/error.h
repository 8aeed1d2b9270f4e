// SPDX-License-Identifier: MIT
//
// The text that goes with a status code. Nothing throws: a status crosses the C interface, and the text waits per
// thread.
#pragma once

#include "turbo/abi.h"

namespace turbo {

// Keeps the formatted text as this thread's last error and returns `status`:
//   return fail(TURBO_ERROR_ARGUMENT, "dim is %d", dim);
__attribute__((format(printf, 2, 3))) turbo_status fail(turbo_status status, const char *format, ...);

// Text of this thread's last failure; empty when there was none. Valid until the thread's next failure.
const char *last_error();

}  // namespace turbo
