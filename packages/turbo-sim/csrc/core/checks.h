// SPDX-License-Identifier: MIT
// Shadow state of the register, wait and hazard checks. Only the run loop, dispatch and the delivery functions use it.
#pragma once

#include "core/machine.h"

#include <array>
#include <vector>

namespace turbo_sim {

/// A load whose result has not landed.
struct PendingRow {
  uint32_t vm, lgkm;  // serial numbers that must be done (0: does not depend on that counter)
  uint16_t row;       // VGPR row, or SGPR index
  bool scalar;
  uint64_t mask;  // lanes
  std::array<uint32_t, kLanes> data;
};

struct WaveChecks {
  // --- definedness: a lane's value comes from something the program wrote
  uint64_t vdef[512];    // lanes defined, per VGPR row
  uint32_t sundef[128];  // undefined bits, per SGPR (bits, because compare results are masks)
  bool scc_undef;

  // --- counters
  uint32_t vm_issued, vm_done;      // serial of the last vector memory instruction; all up to vm_done have landed
  uint32_t lgkm_issued, lgkm_done;  // LDS, scalar memory, FLAT
  uint32_t smem_last;               // serial of the last SMEM instruction: they return out of order
  uint32_t vpend_vm[512], vpend_lgkm[512], spend[128];  // serial that each register waits for
  std::vector<PendingRow> pending;                      // in order of issue

  // --- of the instruction that is being executed
  uint32_t vm_serial, lgkm_serial;  // its serials (0: not counted)
  uint64_t undefined_lanes;         // lanes that read undefined LDS

  // --- MFMA wait states: time in wait states
  uint64_t time, mfma_free;
  enum Unit : uint8_t { Xdl, F32, F64 };
  struct Written {
    uint64_t time;  // issue time of the last writer
    uint64_t c_read_time;
    uint32_t c_reader;  // the MFMA that read the register as C last
    uint8_t c_reader_passes;
    uint8_t passes;  // > 0: written by an MFMA of that many passes
    Unit kind;
    uint16_t inst_row;  // first row of the destination, to recognise exact overlap
    uint16_t rows;
    uint32_t inst;
  } written[512];

  // --- other wait states (wait_states.cpp)
  struct Event {
    uint64_t time;  // 0: never
    uint32_t inst;
  };
  Event scalar[128];  // last VALU write of each SGPR; EXEC: by v_cmpx
  Event stored[512];  // last store of more than 64 bits that took the row as data
  Event hwreg[64];    // last s_setreg of each hardware register

  void reset();
};

/// "v12" or "a3" for a row of Wave::vgpr.
std::string row_name(unsigned row);

/// s_waitcnt: results whose counters the immediate covers become visible.
void land_loads(Wave &, unsigned imm);
/// Everything outstanding lands (end of program).
void land_all(Wave &);

/// Counts a memory instruction (vmcnt, lgkmcnt) and gives it its serials.
void count_memory(Wave &, const Instruction &);

/// Before and after an instruction, when any register check is on.
void check_before(Wave &, const Instruction &);
void check_after(Wave &, const Instruction &);

// --- LDS shadow
struct LdsByte {
  uint32_t write_epoch = 0, read_epoch = 0;  // barrier epoch + 1 of the last write / read; 0: never
  uint32_t write_serial = 0;                 // writer's lgkm (or vm, for DMA) serial
  uint32_t write_inst = 0, read_inst = 0;    // who: index in Code::insts
  uint16_t writer = 0;                       // wave + 1; 0: never written
  uint16_t reader = 0;                       // wave + 1 of the reader in read_epoch, 0xffff: several
  bool dma = false, defined = false, atomic = false;
};

struct LdsShadow {
  std::vector<LdsByte> bytes;
  Wave *waves = nullptr;  // of the group, to ask whether a writer's operation has landed
  uint32_t count = 0;
};

// --- after the launch
class CodeObject;
struct FindingText;

/// Registers beyond the kernel's allocation in instructions that ran.
void check_allocation(const Launch &, const std::vector<uint64_t> &pc_counts, std::vector<Finding> &);
/// Merges equal findings of several threads, adds instruction text and source line.
std::vector<FindingText> spell_out(const CodeObject &, const Launch &, std::vector<Finding>);

}  // namespace turbo_sim
