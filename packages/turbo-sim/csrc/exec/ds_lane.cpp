// SPDX-License-Identifier: MIT
// Exchange between lanes through the LDS crossbar, transposed reads, reads and writes by lane number.
#include "exec/ds_common.h"

#include <type_traits>

namespace turbo_sim {
namespace {

// --- permutes: no LDS memory is touched

/// Each lane pulls from lane (address / 4) % 64; an inactive source gives 0.
void bpermute(Wave &w, const Instruction &i) {
  const uint64_t exec = w.exec();
  const LdsAddresses a(w, i, uint32_t(i.offset));
  const uint32_t *data = w.vgpr[i.src[1].reg];
  Rows<1> out;
  for_lanes(exec, [&](unsigned l) {
    const unsigned s = a.at[l] / 4 % kLanes;
    out.v[0][l] = exec >> s & 1 ? data[s] : 0;
  });
  out.deliver(w, i, exec);
}

/// Each lane pushes to lane (address / 4) % 64; the highest lane wins, a lane that nobody pushes to gets 0.
void permute(Wave &w, const Instruction &i) {
  const uint64_t exec = w.exec();
  const LdsAddresses a(w, i, uint32_t(i.offset));
  const uint32_t *data = w.vgpr[i.src[1].reg];
  Rows<1> out;
  for_lanes(exec, [&](unsigned l) { out.v[0][a.at[l] / 4 % kLanes] = data[l]; });
  out.deliver(w, i, exec);
}

template <class Source>
void swizzle(Wave &w, const Instruction &i, Source source) {
  const uint64_t exec = w.exec();
  const uint32_t *data = w.vgpr[i.src[0].reg];
  Rows<1> out;
  for_lanes(exec, [&](unsigned l) {
    const unsigned s = source(l);
    out.v[0][l] = exec >> s & 1 ? data[s] : 0;
  });
  out.deliver(w, i, exec);
}

void swizzle_quad(Wave &w, const Instruction &i) {
  const unsigned pattern = unsigned(i.offset);
  swizzle(w, i, [=](unsigned l) { return (l & ~3u) | (pattern >> 2 * (l & 3) & 3); });
}

void swizzle_mask(Wave &w, const Instruction &i) {
  const unsigned o = unsigned(i.offset), keep = o & 31, set = o >> 5 & 31, flip = o >> 10 & 31;
  swizzle(w, i, [=](unsigned l) { return (l & 32) | (((l & keep) | set) ^ flip); });
}

Handler select_swizzle(const Instruction &i) {
  const unsigned o = unsigned(i.offset);
  if (o < 0x8000) return swizzle_mask;
  if (o < 0x8100) return swizzle_quad;
  throw NotImplemented("ds_swizzle_b32 offset:" + std::to_string(o) + " (rotate and FFT modes)");
}

// --- transposed reads (gfx950)
// Each lane reads its own bytes; then, within 16 lanes, elements are exchanged: with E elements a lane, element j of lane i comes from
// lane i / E + (16 / E) * j, element i % E. One function for every element width.

template <unsigned N>
uint32_t element(const uint32_t (&lane)[N], unsigned k, unsigned bits) {
  const unsigned at = k * bits;
  uint64_t v = lane[at / 32];
  if (at / 32 + 1 < N) v |= uint64_t(lane[at / 32 + 1]) << 32;
  return uint32_t(v >> at % 32) & ((1u << bits) - 1);
}

template <unsigned N, unsigned Bits>
void read_transposed(Wave &w, const Instruction &i) {
  constexpr unsigned kBlock = 16, kElements = N * 32 / Bits, kStep = kBlock / kElements;
  const uint64_t exec = w.exec();
  for (unsigned b = 0; b < kLanes; b += kBlock) {
    const unsigned active = unsigned(exec >> b) & 0xffff;
    if (active && active != 0xffff) throw Fault("transposed read with part of 16 lanes active: not implemented");
  }
  const LdsAddresses a(w, i, uint32_t(i.offset));
  uint32_t in[kLanes][N] = {};
  for_lanes(exec, [&](unsigned l) { lds_read(w, i, a.at[l], in[l], N * 4, int(l)); });
  a.count(w, exec, N * 4);
  Rows<N> out;
  for (unsigned l = 0; l < kLanes; ++l) {
    const unsigned base = l & ~(kBlock - 1), n = l % kBlock, lane = base + n / kElements, at = n % kElements;
    if constexpr (Bits == 16 || Bits == 8) {  // the forms that kernels use
      using Element = std::conditional_t<Bits == 16, uint16_t, uint8_t>;
      Element e[kElements];
      for (unsigned j = 0; j < kElements; ++j)
        std::memcpy(&e[j], reinterpret_cast<const Element *>(in[lane + kStep * j]) + at, sizeof(Element));
      for (unsigned k = 0; k < N; ++k) std::memcpy(&out.v[k][l], reinterpret_cast<const char *>(e) + 4 * k, 4);
      continue;
    }
    for (unsigned j = 0; j < kElements; ++j) {
      const uint64_t e = element<N>(in[lane + kStep * j], at, Bits);
      const unsigned to = j * Bits;
      out.v[to / 32][l] |= uint32_t(e << to % 32);
      if (to % 32 + Bits > 32) out.v[to / 32 + 1][l] |= uint32_t(e >> (32 - to % 32));
    }
  }
  out.deliver(w, i, exec);
}

// --- address from the lane number: M0 + offset + 4 * lane

void read_addtid(Wave &w, const Instruction &i) {
  const uint64_t exec = w.exec();
  Rows<1> out;
  for_lanes(exec, [&](unsigned l) {
    lds_read(w, i, (w.m0() & 0xffff) + uint32_t(i.offset) + 4 * l, &out.v[0][l], 4, int(l));
  });
  out.deliver(w, i, exec);
}

/// Refuses GDS and the unknown forms.
template <Handler H>
Handler lds_only(const Instruction &i) {
  if (i.gds) throw NotImplemented("gds");
  return H;
}

}  // namespace

void register_ds_lanes(Registry &r) {
  r.set(Op::ds_bpermute_b32, bpermute);
  r.set(Op::ds_permute_b32, permute);
  r.select(Op::ds_swizzle_b32, select_swizzle);
  r.select(Op::ds_read_addtid_b32, lds_only<read_addtid>);
  r.select(Op::ds_read_b64_tr_b16, lds_only<read_transposed<2, 16>>);
  r.select(Op::ds_read_b64_tr_b8, lds_only<read_transposed<2, 8>>);
  r.select(Op::ds_read_b64_tr_b4, lds_only<read_transposed<2, 4>>);
  r.select(Op::ds_read_b96_tr_b6, lds_only<read_transposed<3, 6>>);
  // ds_write_addtid_b32: the opcode table has no data operand for it, so it stays unimplemented.
}

}  // namespace turbo_sim
