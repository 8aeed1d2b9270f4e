// SPDX-License-Identifier: MIT
// Source lines from DWARF .debug_line (versions 2 to 5).
#pragma once

#include "loader/code_object.h"

namespace turbo_sim {

struct DebugSections {
  struct Bytes {
    const uint8_t *p = nullptr;
    size_t size = 0;
  };
  Bytes line, line_str, str;
};

/// Appends files and lines (offsets from `text_address`). Malformed tables end quietly: lines are a convenience.
void read_debug_lines(const DebugSections &, uint64_t text_address, uint64_t text_size, std::vector<std::string> &files,
                      std::vector<SourceLine> &lines);

}  // namespace turbo_sim
