// SPDX-License-Identifier: MIT
// State of one wave of 64 lanes.
#pragma once

#include "isa/instruction.h"

#include <cstdint>
#include <cstring>

namespace turbo_sim {

constexpr unsigned kLanes = 64;
constexpr unsigned kAgprBase = 256;

// Rows of Wave::sgpr that have a name: the hardware's own operand encoding.
enum ScalarIndex : unsigned { kFlatScratch = 102, kXnackMask = 104, kVcc = 106, kTtmp = 108, kM0 = 124, kExec = 126 };

// High halves of the flat address apertures (the low half is the offset).
constexpr uint64_t kSharedAperture = 0x0100'0000'0000'0000ull;
constexpr uint64_t kPrivateAperture = 0x0200'0000'0000'0000ull;

/// MODE register, unpacked. Rounding: 0 nearest even, 1 +inf, 2 -inf, 3 zero. Denorm: bit 0 keep inputs, bit 1 keep
/// outputs (0 flush both, 3 keep both).
struct Mode {
  uint32_t raw = 0;
  uint8_t round32 = 0, round64 = 0;  // round64 and denorm64 also govern f16
  uint8_t denorm32 = 3, denorm64 = 3;
  bool dx10_clamp = true, ieee = true, fp16_ovfl = false;
  bool gpr_idx_en = false, vskip = false;  // handled by the run loop
  void set(uint32_t bits);
};

/// Why a wave's run loop returned.
enum class Stop : uint8_t { Running, EndProgram, Barrier, Yield, Fault };

struct WorkGroup;
struct Worker;
struct WaveChecks;

struct Wave {
  // --- registers ---------------------------------------------------------------------------------------------------
  // Scalars lie at their operand encoding, so VCC, M0 and EXEC need no special case as operands.
  alignas(64) uint32_t sgpr[128];
  uint32_t pc = 0;   // index of the next instruction in Code::insts; a branch handler assigns it
  uint32_t scc = 0;  // 0 or 1
  Mode mode;
  Stop stop = Stop::Running;

  // --- where it runs -----------------------------------------------------------------------------------------------
  uint32_t id = 0;               // wave number in the work-group
  WorkGroup *group = nullptr;    // LDS, group ids
  Worker *worker = nullptr;      // per-thread services: memory map, findings, costs
  WaveChecks *checks = nullptr;  // null when all register and wait checks are off
  uint8_t *scratch = nullptr;    // scratch_stride bytes per lane: lane l's byte b is scratch[l * scratch_stride + b]
  uint32_t scratch_stride = 0;

  // --- vector registers: [row][lane]; AGPR n is row 256 + n
  alignas(64) uint32_t vgpr[512][kLanes];

  uint64_t read64(unsigned index) const {
    uint64_t v;
    std::memcpy(&v, &sgpr[index], 8);
    return v;
  }
  void write64(unsigned index, uint64_t v) { std::memcpy(&sgpr[index], &v, 8); }
  uint64_t exec() const { return read64(kExec); }
  uint64_t vcc() const { return read64(kVcc); }
  uint32_t m0() const { return sgpr[kM0]; }
};

}  // namespace turbo_sim
