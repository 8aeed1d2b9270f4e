// SPDX-License-Identifier: MIT
// Work-groups, LDS, memory access with checks, findings and launch state: the services behind the handlers.
#pragma once

#include "core/wave.h"

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace turbo_sim {

// --- decoded code
struct Code {
  Arch arch = Arch::gfx950;
  std::vector<Instruction> insts;
  std::vector<uint32_t> index_of_dword;  // (byte offset / 4) -> index in insts, or kNoInst inside an instruction
  std::vector<uint8_t> bytes;            // the text section as loaded
  uint64_t address = 0;                  // where the loaded text lies in host memory (s_getpc)
};
constexpr uint32_t kNoInst = 0xffffffffu;

// --- findings
enum class Check : uint8_t { Bounds, Uninit, Wait, Race, Registers, Hazard, count };
const char *check_name(Check);
constexpr uint32_t check_bit(Check c) { return 1u << unsigned(c); }
constexpr uint32_t kAllChecks = (1u << unsigned(Check::count)) - 1;

struct Finding {
  Check check;
  uint32_t group[3];
  uint32_t wave;
  int lane;            // -1: not of one lane
  uint32_t inst;       // index in Code::insts
  std::string detail;  // "4-byte store at 0x7f.. is 16 bytes past the end of 'out'"
  uint64_t times = 1;  // how often this (check, instruction) was met; only the first is kept in full
};

/// Stops the launch: unknown or unimplemented instruction, wild branch, deadlock, step limit.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// --- costs: what cannot be derived from per-pc execution counts
/// Filled by memory handlers when Worker::costs_on. Work that is exact per instruction (MFMA cycles, counts) comes from
/// pc_counts after the launch.
struct Costs {
  uint64_t lds_bytes = 0, lds_cycles = 0, lds_conflict_cycles = 0;
  uint64_t vmem_load_bytes = 0, vmem_store_bytes = 0;  // bytes that active lanes asked for
  uint64_t vmem_segments = 0;                          // 64-byte segments touched, per instruction
  uint64_t vmem_lane_cycles = 0;                       // free for the cost model
  uint64_t atomics = 0;
  void add(const Costs &);
};

// --- memory map
struct Allocation {
  uint64_t begin = 0, end = 0;
  std::string name;
  bool writable = true;
};

enum class Access : uint8_t { Load, Store, Atomic };

struct Options {
  uint32_t checks = kAllChecks;
  bool costs = false;
  bool stop_on_finding = false;    // first finding becomes a Fault
  uint32_t threads = 0;            // 0: hardware concurrency
  uint64_t seed = 0;               // 0: waves in order between barriers; else seeded interleave of single waves
  uint64_t quantum = 0;            // instructions of one wave before the next has its turn; 0: up to the next barrier.
                                   // Small values come near to hardware, where waves advance together: kernels that
                                   // rely on that (a race, strictly) then give the numbers that hardware gives
  uint64_t max_steps = 0;          // per wave; 0: no limit
  std::vector<Allocation> memory;  // known allocations; empty: global accesses are not checked against a map
};

struct Launch {
  const Code *code = nullptr;
  const Options *options = nullptr;
  std::string kernel;
  uint32_t entry = 0;                         // index of the first instruction
  uint32_t grid[3] = {1, 1, 1};               // in work-groups
  uint32_t block[3] = {1, 1, 1};              // in work-items
  uint32_t lds_bytes = 0, scratch_bytes = 0;  // per group, per lane
  uint32_t sgprs = 0, vgprs = 0,
           agprs = 0;           // the kernel's allocation: VGPRs below the accumulators' offset, AGPRs above it
  std::vector<Allocation> map;  // sorted by begin: options->memory, kernarg, code object
};

// --- LDS and work-group
struct LdsShadow;  // checks.cpp

struct WorkGroup {
  uint32_t id[3] = {0, 0, 0};
  uint32_t waves = 0;
  uint32_t lds_size = 0;  // allocated bytes; an access at or beyond it reads 0 / is dropped, as on hardware
  uint8_t *lds = nullptr;
  LdsShadow *shadow = nullptr;  // null when neither Uninit, Wait nor Race is checked
  uint32_t epoch = 0;           // barriers passed
};

/// One host thread's state.
struct Worker {
  const Launch *launch = nullptr;
  uint32_t checks = 0;  // copy of options->checks
  bool costs_on = false;
  Costs costs;
  std::vector<uint64_t> pc_counts;  // executions per Code::insts index
  std::vector<uint64_t> pc_memory;  // costs_on: conflict cycles (LDS) or 64-byte segments (VMEM) per Code::insts index
  std::vector<Finding> findings;
  const Allocation *last_hit = nullptr;

  /// Adds conflict cycles or segments of the memory instruction that is being executed.
  void count_memory_cycles(const Wave &w, uint64_t n) {
    if (w.pc && w.pc <= pc_memory.size()) pc_memory[w.pc - 1] += n;
  }

  /// Records a finding (deduplicated by check and instruction). Throws Fault when options say so.
  void find(Check, const Wave &, const Instruction &, int lane, std::string detail);
};

// --- access for memory handlers
// Addresses are host addresses.
// With Check::Bounds on and a map given, an access outside every allocation is a finding.

/// Host pointer for a global access of one lane, or null: the access must not happen (a load then gives 0).
uint8_t *global_ptr_checked(Wave &, const Instruction &, uint64_t addr, unsigned bytes, Access, int lane);
inline uint8_t *global_ptr(Wave &w, const Instruction &i, uint64_t addr, unsigned bytes, Access a, int lane) {
  if (w.worker->checks & check_bit(Check::Bounds)) return global_ptr_checked(w, i, addr, bytes, a, lane);
  return reinterpret_cast<uint8_t *>(addr);
}
/// Scratch byte `offset` of a lane, or null with a finding.
uint8_t *scratch_ptr(Wave &, const Instruction &, uint32_t offset, unsigned bytes, Access, int lane);

/// LDS access of one lane: bounds, initialised-ness, races and pending DMA are checked inside. Out of range: read gives
/// zeros, write is dropped (and Check::Bounds reports it).
void lds_read_checked(Wave &, const Instruction &, uint32_t addr, void *out, unsigned bytes, int lane);
void lds_write_checked(Wave &, const Instruction &, uint32_t addr, const void *in, unsigned bytes, int lane);
inline void lds_read(Wave &w, const Instruction &i, uint32_t addr, void *out, unsigned bytes, int lane) {
  WorkGroup &g = *w.group;
  if (g.shadow || uint64_t(addr) + bytes > g.lds_size) return lds_read_checked(w, i, addr, out, bytes, lane);
  std::memcpy(out, g.lds + addr, bytes);
}
inline void lds_write(Wave &w, const Instruction &i, uint32_t addr, const void *in, unsigned bytes, int lane) {
  WorkGroup &g = *w.group;
  if (g.shadow || uint64_t(addr) + bytes > g.lds_size) return lds_write_checked(w, i, addr, in, bytes, lane);
  std::memcpy(g.lds + addr, in, bytes);
}
/// LDS atomic of one lane: pointer to `bytes` of LDS or null (out of range). Never counted as a race with other
/// atomics.
uint8_t *lds_atomic_ptr(Wave &, const Instruction &, uint32_t addr, unsigned bytes, int lane);

/// Result of a load or of a returning atomic: write a VGPR row (0..511) under a mask. With Check::Wait the row is
/// marked pending until an s_waitcnt covers the instruction. The run loop has already counted the instruction
/// (vmcnt / lgkmcnt by its format), so a handler only delivers. Every memory handler ends in one of these.
void deliver_vgpr(Wave &, const Instruction &, unsigned row, const uint32_t *values, uint64_t mask);
void deliver_sgpr(Wave &, const Instruction &, unsigned index, uint32_t value);
/// LDS-DMA (buffer_load ... lds, global_load_lds_*): bytes of LDS that land when vmcnt says so.
void deliver_lds(Wave &, const Instruction &, uint32_t addr, const void *data, unsigned bytes, int lane);

}  // namespace turbo_sim
