// SPDX-License-Identifier: MIT
// Running a kernel: from code object, grid and kernel arguments to a report.
#pragma once

#include "loader/code_object.h"

namespace turbo_sim {

struct LaunchArgs {
  uint32_t grid[3] = {1, 1, 1};  // work-groups
  uint32_t block[3] = {64, 1, 1};
  std::vector<uint8_t> kernarg;  // explicit arguments; hidden ones are filled in by launch()
  uint32_t shared_bytes = 0;     // dynamic LDS, added to the kernel's own
};

/// A finding with its place spelled out.
struct FindingText {
  std::string check, kernel, instruction, source, detail;
  uint64_t pc = 0;  // byte offset from the start of the code
  uint32_t group[3] = {0, 0, 0}, wave = 0;
  int lane = -1;
  uint64_t times = 1;
  std::string text() const;  // one line
};

struct Report {
  std::string kernel;
  std::vector<FindingText> findings;
  std::vector<uint64_t> pc_counts;  // executions per Code::insts index, summed over waves
  std::vector<uint64_t> pc_memory;  // costs: LDS conflict cycles or VMEM segments per instruction
  Costs costs;
  uint64_t instructions = 0;  // wave-instructions executed
  uint64_t waves = 0, groups = 0;
  double seconds = 0;
  uint32_t lds_bytes = 0;  // per work-group, static and dynamic
};

/// Runs all work-groups. Throws Fault (with kernel, wave, pc and instruction in its text) when the launch cannot go on,
/// and std::invalid_argument for a launch that does not fit the kernel or the device.
Report launch(const CodeObject &, const Kernel &, const LaunchArgs &, const Options &);

/// LDS of one work-group: 64 KiB on gfx942, 160 KiB on gfx950.
uint32_t lds_limit(Arch);

/// Writes the implicit arguments (block counts, group sizes, ...) that the metadata lists. The buffer is grown to fit.
void fill_hidden_args(const Kernel &, const LaunchArgs &, std::vector<uint8_t> &kernarg);

// --- pieces (run.cpp, dispatch.cpp)

/// Runs one wave until it stops (Wave::stop says why) or `budget` instructions have run (Stop::Yield). Returns how many
/// ran.
uint64_t run_wave(Wave &, uint64_t budget);

}  // namespace turbo_sim
