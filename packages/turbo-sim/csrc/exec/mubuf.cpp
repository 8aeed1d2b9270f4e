// SPDX-License-Identifier: MIT
// Buffer instructions.
//
// Descriptor: words 0 and 1 base (48 bits), stride (14 bits), cache swizzle (no effect on addresses), swizzle enable;
// word 2 num_records; word 3 format, add-thread-id, type. Address = base + soffset + stride * index + VGPR offset +
// offset. Range: with idxen and a stride, index < num_records; else byte offset + soffset < num_records, per dword for
// plain loads and stores, all or nothing for atomics. Out of range: loads give 0, stores and atomics do nothing. These
// rules are inferred: isa/unverified.def lists them.
#include "exec/vmem.h"

#include <algorithm>

namespace turbo_sim {
namespace {

struct Buffer {
  static void resolve(Wave &w, const Instruction &i, unsigned bytes, bool whole, Targets &t) {
    const uint32_t *d = &w.sgpr[i.src[1].reg];
    if (d[1] >> 31) throw Fault("buffer descriptor with swizzle enabled: not implemented");
    if (d[3] >> 23 & 1) throw Fault("buffer descriptor with add_tid_enable: not implemented");
    if (d[3] >> 30) throw Fault("not a buffer descriptor (type " + std::to_string(d[3] >> 30) + ")");
    const uint64_t base = d[0] | uint64_t(d[1] & 0xffff) << 32;
    const uint64_t stride = d[1] >> 16 & 0x3fff, records = d[2];
    const uint64_t soffset = scalar32(w, i.src[2]);
    static const uint32_t kZeros[kLanes] = {};
    const uint32_t *index = i.idxen ? w.vgpr[i.src[0].reg] : kZeros;
    const uint32_t *offset = i.offen ? w.vgpr[i.src[0].reg + i.idxen] : kZeros;
    t.exec = w.exec();
    const bool structured = i.idxen && stride;
    uint64_t inside = 0, cut = 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      const uint64_t o = uint64_t(offset[l]) + uint64_t(i.offset) + soffset;
      t.at[l] = base + o + (structured ? stride * index[l] : 0);
      const bool in = structured ? index[l] < records : o < records;
      inside |= uint64_t(in) << l;
      if (!structured) cut |= uint64_t(in && bytes > 4 && o + bytes > (records + 3) / 4 * 4) << l;
    }
    t.mask = t.exec & inside;
    if (whole || !(cut & t.mask)) return;
    t.partial = true;
    for (unsigned l = 0; l < kLanes; ++l) {
      const uint64_t o = uint64_t(offset[l]) + uint64_t(i.offset) + soffset;
      t.dwords[l] = uint8_t(o < records ? std::min<uint64_t>(bytes / 4, (records - o + 3) / 4) : 0);
    }
  }
};

/// The form with the LDS bit loads into LDS.
template <Shape S>
Handler load_or_lds(const Instruction &i) {
  return i.lds ? lds_handler<Buffer, S> : load_handler<Buffer, S>;
}

template <Shape S>
Handler load_only(const Instruction &i) {
  if (i.lds) throw NotImplemented("lds");
  return load_handler<Buffer, S>;
}

}  // namespace

void register_mubuf(Registry &r) {
  TURBO_SIM_LOADS(r, buffer, Buffer);
  r.select(Op::buffer_load_ubyte, load_or_lds<Shape::U8>);
  r.select(Op::buffer_load_sbyte, load_or_lds<Shape::I8>);
  r.select(Op::buffer_load_ushort, load_or_lds<Shape::U16>);
  r.select(Op::buffer_load_sshort, load_or_lds<Shape::I16>);
  r.select(Op::buffer_load_dword, load_or_lds<Shape::D1>);
  r.select(Op::buffer_load_dwordx2, load_only<Shape::D2>);
  r.select(Op::buffer_load_dwordx3, load_or_lds<Shape::D3>);
  r.select(Op::buffer_load_dwordx4, load_or_lds<Shape::D4>);
  TURBO_SIM_STORES(r, buffer, Buffer);
  TURBO_SIM_ATOMICS(r, buffer, Buffer);
  // Caches are not simulated: memory is always coherent.
  r.set(Op::buffer_wbl2, [](Wave &, const Instruction &) {});
  r.set(Op::buffer_inv, [](Wave &, const Instruction &) {});
  // buffer_load_format_*, buffer_store_format_*: no kernel of the census converts formats in the buffer unit.
}

}  // namespace turbo_sim
