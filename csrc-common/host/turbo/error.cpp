// SPDX-License-Identifier: MIT
#include "turbo/error.h"

#include <cstdarg>
#include <cstdio>

namespace turbo {
namespace {

// A plain array: it needs neither memory nor a destructor, so it works in any thread at any time.
thread_local char text[2048];

}  // namespace

turbo_status fail(turbo_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return status;
}

const char *last_error() { return text; }

}  // namespace turbo
