// SPDX-License-Identifier: MIT
// FLAT, GLOBAL and SCRATCH instructions.
//
// GLOBAL: 64-bit VGPR address + offset, or SGPR pair + 32-bit unsigned VGPR + offset. SCRATCH: optional VGPR + optional
// SGPR + offset, in the lane's own scratch. FLAT: 64-bit address; the LDS and scratch apertures are told by the high
// half.
#include "exec/vmem.h"

namespace turbo_sim {
namespace {

struct Global {
  static void resolve(Wave &w, const Instruction &i, unsigned, bool, Targets &t) {
    const uint32_t *low = w.vgpr[i.src[0].reg];
    t.exec = t.mask = w.exec();
    if (i.src[1].present()) {
      const uint64_t base = scalar64(w, i.src[1]) + uint64_t(int64_t(i.offset));
      for (unsigned l = 0; l < kLanes; ++l) t.at[l] = base + low[l];
      return;
    }
    const uint32_t *high = w.vgpr[i.src[0].reg + 1];
    for (unsigned l = 0; l < kLanes; ++l) t.at[l] = (low[l] | uint64_t(high[l]) << 32) + uint64_t(int64_t(i.offset));
  }
};

struct Scratch {
  static void resolve(Wave &w, const Instruction &i, unsigned, bool, Targets &t) {
    t.exec = t.mask = t.scratch = w.exec();
    const uint32_t base = (i.src[1].present() ? scalar32(w, i.src[1]) : 0) + uint32_t(i.offset);
    for (unsigned l = 0; l < kLanes; ++l) t.at[l] = uint32_t(base + (i.src[0].present() ? w.vgpr[i.src[0].reg][l] : 0));
  }
};

struct Flat {
  static void resolve(Wave &w, const Instruction &i, unsigned bytes, bool whole, Targets &t) {
    Global::resolve(w, i, bytes, whole, t);
    for (unsigned l = 0; l < kLanes; ++l) {
      const uint64_t aperture = t.at[l] >> 32 << 32, bit = uint64_t(1) << l;
      if (aperture != kSharedAperture && aperture != kPrivateAperture) continue;
      (aperture == kSharedAperture ? t.lds : t.scratch) |= t.mask & bit;
      t.at[l] = uint32_t(t.at[l]);
    }
  }
};

}  // namespace

void register_flat(Registry &r) {
  TURBO_SIM_LOADS(r, flat, Flat);
  TURBO_SIM_STORES(r, flat, Flat);
  TURBO_SIM_ATOMICS(r, flat, Flat);
  TURBO_SIM_LOADS(r, global, Global);
  TURBO_SIM_STORES(r, global, Global);
  TURBO_SIM_ATOMICS(r, global, Global);
  TURBO_SIM_LOADS(r, scratch, Scratch);
  TURBO_SIM_STORES(r, scratch, Scratch);
  r.set(Op::global_load_lds_ubyte, lds_handler<Global, Shape::U8>);
  r.set(Op::global_load_lds_sbyte, lds_handler<Global, Shape::I8>);
  r.set(Op::global_load_lds_ushort, lds_handler<Global, Shape::U16>);
  r.set(Op::global_load_lds_sshort, lds_handler<Global, Shape::I16>);
  r.set(Op::global_load_lds_dword, lds_handler<Global, Shape::D1>);
  r.set(Op::global_load_lds_dwordx3, lds_handler<Global, Shape::D3>);
  r.set(Op::global_load_lds_dwordx4, lds_handler<Global, Shape::D4>);
  // scratch_load_lds_*: no kernel of the census has them.
}

}  // namespace turbo_sim
