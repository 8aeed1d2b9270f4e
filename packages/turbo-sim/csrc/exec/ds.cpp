// SPDX-License-Identifier: MIT
// LDS reads and writes: one and two addresses, sub-dword, with the lane's number as address.
#include "exec/ds_common.h"

namespace turbo_sim {
namespace {

// --- reads

template <unsigned N>
void read_rows(Wave &w, const Instruction &i, uint32_t offset, uint64_t mask, Rows<N> &out) {
  const LdsAddresses a(w, i, offset);
  for_lanes(mask, [&](unsigned l) {
    uint32_t d[N];
    lds_read(w, i, a.at[l], d, N * 4, int(l));
    for (unsigned k = 0; k < N; ++k) out.v[k][l] = d[k];
  });
  a.count(w, mask, N * 4);
}

template <unsigned N>
void read(Wave &w, const Instruction &i) {
  const uint64_t mask = w.exec();
  Rows<N> out;
  read_rows(w, i, uint32_t(i.offset), mask, out);
  out.deliver(w, i, mask);
}

/// Two addresses; offsets count elements, or 64 elements.
template <unsigned N, unsigned Scale>
void read2(Wave &w, const Instruction &i) {
  const uint64_t mask = w.exec();
  Rows<N> first, second;
  read_rows(w, i, i.offset0 * Scale * N * 4u, mask, first);
  read_rows(w, i, i.offset1 * Scale * N * 4u, mask, second);
  first.deliver(w, i, mask);
  second.deliver(w, i, mask, N);
}

/// T: uint8_t, int8_t, uint16_t, int16_t: zero or sign extended by the conversion.
template <class T>
void read_small(Wave &w, const Instruction &i) {
  const uint64_t mask = w.exec();
  const LdsAddresses a(w, i, uint32_t(i.offset));
  Rows<1> out;
  for_lanes(mask, [&](unsigned l) {
    T v;
    lds_read(w, i, a.at[l], &v, sizeof v, int(l));
    out.v[0][l] = uint32_t(int32_t(v));
  });
  a.count(w, mask, sizeof(T));
  out.deliver(w, i, mask);
}

// --- writes

template <unsigned N>
void write_rows(Wave &w, const Instruction &i, uint32_t offset, const Operand &data) {
  const uint64_t mask = w.exec();
  const LdsAddresses a(w, i, offset);
  const uint32_t (*rows)[kLanes] = &w.vgpr[data.reg];
  for_lanes(mask, [&](unsigned l) {
    uint32_t d[N];
    for (unsigned k = 0; k < N; ++k) d[k] = rows[k][l];
    lds_write(w, i, a.at[l], d, N * 4, int(l));
  });
  a.count(w, mask, N * 4);
}

template <unsigned N>
void write(Wave &w, const Instruction &i) {
  write_rows<N>(w, i, uint32_t(i.offset), i.src[1]);
}

template <unsigned N, unsigned Scale>
void write2(Wave &w, const Instruction &i) {
  write_rows<N>(w, i, i.offset0 * Scale * N * 4u, i.src[1]);
  write_rows<N>(w, i, i.offset1 * Scale * N * 4u, i.src[2]);
}

/// Byte or half, from the low or (d16_hi) the high half of the register.
template <class T, unsigned Shift>
void write_small(Wave &w, const Instruction &i) {
  const uint64_t mask = w.exec();
  const LdsAddresses a(w, i, uint32_t(i.offset));
  const uint32_t *data = w.vgpr[i.src[1].reg];
  for_lanes(mask, [&](unsigned l) {
    const T v = T(data[l] >> Shift);
    lds_write(w, i, a.at[l], &v, sizeof v, int(l));
  });
  a.count(w, mask, sizeof(T));
}

/// GDS is another memory, which compilers for these architectures do not use.
template <Handler H>
Handler lds_only(const Instruction &i) {
  if (i.gds) throw NotImplemented("gds");
  return H;
}

Handler refuse_d16(const Instruction &) {
  throw NotImplemented("d16 load: whether the other half of the register survives depends on SRAM ECC");
}

}  // namespace

void register_ds(Registry &r) {
  r.select(Op::ds_read_b32, lds_only<read<1>>);
  r.select(Op::ds_read_b64, lds_only<read<2>>);
  r.select(Op::ds_read_b96, lds_only<read<3>>);
  r.select(Op::ds_read_b128, lds_only<read<4>>);
  r.select(Op::ds_read2_b32, lds_only<read2<1, 1>>);
  r.select(Op::ds_read2_b64, lds_only<read2<2, 1>>);
  r.select(Op::ds_read2st64_b32, lds_only<read2<1, 64>>);
  r.select(Op::ds_read2st64_b64, lds_only<read2<2, 64>>);
  r.select(Op::ds_read_u8, lds_only<read_small<uint8_t>>);
  r.select(Op::ds_read_i8, lds_only<read_small<int8_t>>);
  r.select(Op::ds_read_u16, lds_only<read_small<uint16_t>>);
  r.select(Op::ds_read_i16, lds_only<read_small<int16_t>>);
  r.select(Op::ds_write_b32, lds_only<write<1>>);
  r.select(Op::ds_write_b64, lds_only<write<2>>);
  r.select(Op::ds_write_b96, lds_only<write<3>>);
  r.select(Op::ds_write_b128, lds_only<write<4>>);
  r.select(Op::ds_write2_b32, lds_only<write2<1, 1>>);
  r.select(Op::ds_write2_b64, lds_only<write2<2, 1>>);
  r.select(Op::ds_write2st64_b32, lds_only<write2<1, 64>>);
  r.select(Op::ds_write2st64_b64, lds_only<write2<2, 64>>);
  r.select(Op::ds_write_b8, lds_only<write_small<uint8_t, 0>>);
  r.select(Op::ds_write_b16, lds_only<write_small<uint16_t, 0>>);
  r.select(Op::ds_write_b8_d16_hi, lds_only<write_small<uint8_t, 16>>);
  r.select(Op::ds_write_b16_d16_hi, lds_only<write_small<uint16_t, 16>>);
  for (Op op : {Op::ds_read_u8_d16, Op::ds_read_u8_d16_hi, Op::ds_read_i8_d16, Op::ds_read_i8_d16_hi,
                Op::ds_read_u16_d16, Op::ds_read_u16_d16_hi})
    r.select(op, refuse_d16);
  r.set(Op::ds_nop, [](Wave &, const Instruction &) {});
  register_ds_atomics(r);
  register_ds_lanes(r);
}

}  // namespace turbo_sim
