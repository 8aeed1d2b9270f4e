// SPDX-License-Identifier: MIT
// From a launch's exact counts to issue-cycle bounds: a model of which unit limits a kernel, not a measurement.
#pragma once

#include "core/launch.h"

#include <algorithm>
#include <map>

namespace turbo_sim {

/// Device numbers that the bounds divide by (full-size parts: MI300X, MI355X).
struct DeviceModel {
  unsigned compute_units, simds = 4, max_waves = 8;  // waves per SIMD
  uint32_t lds_bytes, lds_granule;
  unsigned lds_banks;
  unsigned l1_bytes_per_cycle = 64;
};
const DeviceModel &device_model(Arch);

struct HotInstruction {
  uint32_t index = 0;
  uint64_t times = 0, cycles = 0, memory = 0;  // issue cycles; LDS conflict cycles or VMEM segments
};

struct Profile {
  std::map<std::string, uint64_t> instructions;  // by class, wave-instructions
  std::map<std::string, uint64_t> mfma;          // by mnemonic
  std::map<std::string, uint64_t> unit_cycles;   // summed over the device: mfma, valu, salu, lds, vmem
  uint64_t matrix_cycles = 0, issue_cycles = 0;  // of SIMDs, summed: see simd_cycles
  std::map<std::string, double> bound;           // cycles per unit when work is spread evenly over the compute units
  std::string limit;                             // unit with the largest bound
  double bound_cycles = 0;
  unsigned units_used = 0;  // compute units that get a work-group
  unsigned waves_per_simd = 0;
  std::string occupancy_limit;
  double mfma_share = 0;            // mfma of simd_cycles; 0 without matrix instructions
  std::vector<HotInstruction> hot;  // by issue cycles, descending
};

/// Least time of a SIMD for its matrix and vector instructions. Either its matrix unit is the limit, with the vector
/// instructions that cannot run beside it, or the port that issues vector instructions, which matrix instructions hold at
/// their beginning.
inline uint64_t simd_cycles(const Profile &p) { return std::max(p.matrix_cycles, p.issue_cycles); }

Profile profile(const CodeObject &, const Kernel &, const Report &, unsigned hot = 20);

/// Cycles that an instruction occupies its unit: MFMA passes * 4; vector ALU 4, transcendental 16; others 1.
unsigned issue_cycles(Arch, const Instruction &);

/// Report, profile and hot instructions as one JSON object.
std::string profile_json(const CodeObject &, const Kernel &, const Report &, unsigned hot = 20);

}  // namespace turbo_sim
