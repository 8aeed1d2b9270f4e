// SPDX-License-Identifier: MIT
// Operand access: register file, constants, DPP, SDWA, op_sel, and the merging writes.
#include "core/operands.h"

#include <bit>

namespace turbo_sim {

// --- DPP -----------------------------------------------------------------------------------------------------------
namespace {

constexpr int kNoLane = -1;

/// Lane that lane `l` reads under a dpp_ctrl, or kNoLane where there is none. Unknown controls are refused when an
/// instruction is bound (see dpp_supported).
int dpp_source(unsigned ctrl, unsigned l) {
  const unsigned n = ctrl & 15, in_row = l & 15, row = l & ~15u;
  if (ctrl < 0x100) return int((l & ~3u) | (ctrl >> (2 * (l & 3)) & 3));  // quad_perm
  switch (ctrl >> 4) {
    case 0x10: return in_row + n < 16 ? int(l + n) : kNoLane;  // row_shl
    case 0x11: return in_row >= n ? int(l - n) : kNoLane;      // row_shr
    case 0x12: return int(row | ((in_row + 16 - n) & 15));     // row_ror
    case 0x15: return int(row | n);                            // row_newbcast
    default: break;
  }
  switch (ctrl) {
    case 0x130: return l < 63 ? int(l + 1) : kNoLane;            // wave_shl:1
    case 0x134: return int((l + 1) & 63);                        // wave_rol:1
    case 0x138: return l > 0 ? int(l - 1) : kNoLane;             // wave_shr:1
    case 0x13c: return int((l + 63) & 63);                       // wave_ror:1
    case 0x140: return int(row | (15 - in_row));                 // row_mirror
    case 0x141: return int((l & ~7u) | (7 - (l & 7)));           // row_half_mirror
    case 0x142: return l >= 16 ? int((l & 0x30) - 1) : kNoLane;  // row_bcast:15, to the next row
    case 0x143: return l >= 32 ? int((l & 0x20) - 1) : kNoLane;  // row_bcast:31, to rows 2 and 3
    default: return kNoLane;
  }
}

/// All controls, worked out once: the lane that each lane reads (itself where there is none) and which lanes have one.
struct DppTable {
  struct Entry {
    uint8_t from[kLanes];
    uint64_t has_source;
  };
  Entry entries[0x160];
  DppTable() {
    for (unsigned ctrl = 0; ctrl < 0x160; ++ctrl) {
      Entry &e = entries[ctrl];
      e.has_source = 0;
      for (unsigned l = 0; l < kLanes; ++l) {
        const int s = dpp_source(ctrl, l);
        e.from[l] = uint8_t(s == kNoLane ? int(l) : s);
        if (s != kNoLane) e.has_source |= 1ull << l;
      }
    }
  }
};
const DppTable::Entry &dpp_entry(unsigned ctrl) {
  static const DppTable table;
  return table.entries[ctrl < 0x160 ? ctrl : 0];
}

/// Lanes whose source exists: inside its range and active.
uint64_t dpp_valid(const Wave &w, const Instruction &i) {
  const DppTable::Entry &e = dpp_entry(i.dpp_ctrl);
  const uint64_t exec = w.exec();
  if (exec == ~0ull) return e.has_source;
  uint64_t valid = 0;
  for (unsigned l = 0; l < kLanes; ++l) valid |= (exec >> e.from[l] & 1) << l;
  return valid & e.has_source;
}

/// All lanes are read before any is written: the result goes to tmp. Lanes without a source get 0.
void apply_dpp(const Wave &w, const Instruction &i, const uint32_t *in, Lanes &tmp) {
  const DppTable::Entry &e = dpp_entry(i.dpp_ctrl);
  Lanes out;
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = in[e.from[l]];
  const uint64_t valid = dpp_valid(w, i);
  if (valid != ~0ull)
    for (unsigned l = 0; l < kLanes; ++l) out.v[l] = valid >> l & 1 ? out.v[l] : 0;
  std::memcpy(tmp.v, out.v, sizeof tmp.v);
}

// --- SDWA ----------------------------------------------------------------------------------------------------------
struct Field {
  unsigned shift, width;
};
Field field_of(Sel sel) {
  if (sel <= BYTE_3) return {8u * sel, 8};
  if (sel == DWORD) return {0, 32};
  return {16u * (sel - WORD_0), 16};
}

void apply_select(const uint32_t *in, Sel sel, bool sext, Lanes &tmp) {
  const Field f = field_of(sel);
  const unsigned up = 32 - f.width;
  if (sext)
    for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = uint32_t(int32_t(in[l] >> f.shift << up) >> up);
  else
    for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = in[l] >> f.shift << up >> up;
}

void fill(Lanes &tmp, uint32_t value) {
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = value;
}

/// neg and abs of source n as masks: bits to keep, bits to flip.
template <class T>
void apply_signs(const Instruction &i, unsigned n, T sign, const T *in, T *out) {
  const T keep = i.abs >> n & 1 ? T(~sign) : T(~T(0)), flip = i.neg >> n & 1 ? sign : T(0);
  for (unsigned l = 0; l < kLanes; ++l) out[l] = (in[l] & keep) ^ flip;
}
bool has_signs(const Instruction &i, unsigned n) { return (i.abs | i.neg) >> n & 1; }

}  // namespace

// --- sources -------------------------------------------------------------------------------------------------------
const uint32_t *row32(const Wave &w, const Operand &o, unsigned row, Lanes &tmp) {
  if (o.is_vector()) return w.vgpr[o.reg + row];
  if (o.kind == Kind::Scalar)
    fill(tmp, w.sgpr[o.reg + row]);
  else
    fill(tmp, uint32_t((o.kind == Kind::Special ? special_value(w, SpecialReg(o.reg)) : o.value) >> (32 * row)));
  return tmp.v;
}

const uint32_t *src32(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  const uint32_t *in = row32(w, i.src[n], 0, tmp);
  if (i.has_dpp && n == 0) {
    apply_dpp(w, i, in, tmp);
    return tmp.v;
  }
  if (i.has_sdwa && n < 2 && i.src_sel[n] != DWORD) {
    apply_select(in, i.src_sel[n], i.sext >> n & 1, tmp);
    return tmp.v;
  }
  return in;
}

const uint32_t *srcf32(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  const uint32_t *in = src32(w, i, n, tmp);
  if (!has_signs(i, n)) return in;
  apply_signs<uint32_t>(i, n, 0x80000000u, in, tmp.v);
  return tmp.v;
}

const uint32_t *src16(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  const uint32_t *in = src32(w, i, n, tmp);
  const unsigned shift = !i.has_sdwa && (i.op_sel >> n & 1) ? 16 : 0;
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = in[l] >> shift & 0xFFFF;
  return tmp.v;
}

const uint32_t *srcf16(const Wave &w, const Instruction &i, unsigned n, Lanes &tmp) {
  src16(w, i, n, tmp);
  if (has_signs(i, n)) apply_signs<uint32_t>(i, n, 0x8000u, tmp.v, tmp.v);
  return tmp.v;
}

const uint64_t *src64(const Wave &w, const Instruction &i, unsigned n, Lanes64 &tmp) {
  Lanes tl, th;
  const uint32_t *low = row32(w, i.src[n], 0, tl), *high = row32(w, i.src[n], 1, th);
  if (i.has_dpp && n == 0) {
    apply_dpp(w, i, low, tl);
    apply_dpp(w, i, high, th);
    low = tl.v, high = th.v;
  }
  for (unsigned l = 0; l < kLanes; ++l) tmp.v[l] = uint64_t(low[l]) | uint64_t(high[l]) << 32;
  return tmp.v;
}

const uint64_t *srcf64(const Wave &w, const Instruction &i, unsigned n, Lanes64 &tmp) {
  src64(w, i, n, tmp);
  if (has_signs(i, n)) apply_signs<uint64_t>(i, n, 1ull << 63, tmp.v, tmp.v);
  return tmp.v;
}

// --- destinations --------------------------------------------------------------------------------------------------
uint64_t write_mask(const Wave &w, const Instruction &i) {
  uint64_t mask = w.exec();
  if (!i.has_dpp) return mask;
  if (!i.bound_ctrl) mask &= dpp_valid(w, i);
  if (i.row_mask != 0xf || i.bank_mask != 0xf)
    for (unsigned l = 0; l < kLanes; ++l)
      if (!(i.row_mask >> (l / 16) & 1) || !(i.bank_mask >> (l / 4 % 4) & 1)) mask &= ~(1ull << l);
  return mask;
}

void write_row(Wave &w, const Operand &o, unsigned row, const uint32_t *values, uint64_t mask) {
  merge(w.vgpr[o.reg + row], values, mask);
}

namespace {
/// SDWA result: `width` low bits of each value go to the selected field.
void write_sdwa(Wave &w, const Instruction &i, const uint32_t *values) {
  const Field f = field_of(i.dst_sel);
  if (f.width == 32) return write_row(w, i.dst, 0, values, w.exec());
  const uint32_t field = ((1u << f.width) - 1) << f.shift;
  const uint32_t *old = w.vgpr[i.dst.reg];
  const unsigned up = 32 - f.width - f.shift;
  Lanes out;
  for (unsigned l = 0; l < kLanes; ++l) {
    const uint32_t placed = values[l] << f.shift & field;
    switch (i.dst_unused) {
      case UNUSED_PRESERVE: out.v[l] = (old[l] & ~field) | placed; break;
      case UNUSED_SEXT: out.v[l] = uint32_t(int32_t(placed << up) >> up); break;
      default: out.v[l] = placed;
    }
  }
  write_row(w, i.dst, 0, out.v, w.exec());
}
}  // namespace

void write32(Wave &w, const Instruction &i, const uint32_t *values) {
  if (i.has_sdwa) return write_sdwa(w, i, values);
  write_row(w, i.dst, 0, values, write_mask(w, i));
}

void writef32(Wave &w, const Instruction &i, uint32_t *values) {
  if (i.omod) {
    const float scale = i.omod == 1 ? 2.0f : i.omod == 2 ? 4.0f : 0.5f;
    for (unsigned l = 0; l < kLanes; ++l) values[l] = std::bit_cast<uint32_t>(std::bit_cast<float>(values[l]) * scale);
  }
  if (i.clamp) {
    const bool zero_nan = w.mode.dx10_clamp;
    for (unsigned l = 0; l < kLanes; ++l) {
      const float x = std::bit_cast<float>(values[l]);
      const float limited = x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
      values[l] = x != x && !zero_nan ? values[l] : std::bit_cast<uint32_t>(x != x ? 0.0f : limited);
    }
  }
  write32(w, i, values);
}

void write16(Wave &w, const Instruction &i, const uint32_t *values, bool keep_other_half) {
  Lanes out;
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = values[l] & 0xFFFF;
  if (i.has_sdwa) return write_sdwa(w, i, out.v);
  const bool high = i.op_sel >> 3 & 1;
  const uint32_t *old = w.vgpr[i.dst.reg];
  const uint32_t kept = !keep_other_half ? 0u : high ? 0x0000FFFFu : 0xFFFF0000u;
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = (high ? out.v[l] << 16 : out.v[l]) | (old[l] & kept);
  write_row(w, i.dst, 0, out.v, write_mask(w, i));
}

void write64(Wave &w, const Instruction &i, const uint64_t *values) {
  Lanes low, high;
  for (unsigned l = 0; l < kLanes; ++l) low.v[l] = uint32_t(values[l]), high.v[l] = uint32_t(values[l] >> 32);
  const uint64_t mask = write_mask(w, i);
  write_row(w, i.dst, 0, low.v, mask);
  write_row(w, i.dst, 1, high.v, mask);
}

void write_lane_mask(Wave &w, const Operand &sdst, uint64_t bits) { w.write64(sdst.reg, bits); }

}  // namespace turbo_sim
