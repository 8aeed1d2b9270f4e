// SPDX-License-Identifier: MIT
// Vector memory: what buffer, global, flat and scratch instructions have in common once each lane's address is known.
#pragma once

#include "core/machine.h"
#include "core/operands.h"
#include "exec/atomics.h"
#include "isa/registry.h"

#include <atomic>
#include <bit>

namespace turbo_sim {

/// Where each lane goes.
struct Targets {
  alignas(64) uint64_t at[kLanes];  // address (scratch: byte of the lane's own scratch)
  uint64_t exec = 0;                // active lanes: a load writes their registers
  uint64_t mask = 0;                // of these, lanes that access memory; the others load 0 and store nothing
  uint64_t lds = 0;                 // of mask: FLAT lanes whose address is in the LDS aperture (low half: LDS address)
  uint64_t scratch = 0;             // of mask: lanes whose low half addresses scratch
  bool partial = false;             // some lane has only leading dwords in a buffer's range:
  uint8_t dwords[kLanes];           //   how many
};

/// Width of what a lane loads or stores, and how it meets the register.
enum class Shape : uint8_t { U8, I8, U16, I16, D1, D2, D3, D4, B8High, B16High };
constexpr unsigned shape_bytes(Shape s) {
  switch (s) {
    case Shape::U8:
    case Shape::I8:
    case Shape::B8High: return 1;
    case Shape::U16:
    case Shape::I16:
    case Shape::B16High: return 2;
    default: return 4 * (unsigned(s) - unsigned(Shape::D1) + 1);
  }
}

void vmem_load(Wave &, const Instruction &, const Targets &, Shape);
void vmem_store(Wave &, const Instruction &, const Targets &, Shape);
/// Memory to LDS at M0 + offset + lane * size; sub-dword data is extended to a dword.
void vmem_load_lds(Wave &, const Instruction &, const Targets &, Shape);

/// Pointer for an atomic of one lane, or null; a misaligned address stops the launch.
uint8_t *atomic_target(Wave &, const Instruction &, const Targets &, unsigned lane, unsigned bytes);
void count_atomic(Wave &, const Targets &, unsigned bytes);

template <class T, atomics::Next<T> F>
void vmem_atomic(Wave &w, const Instruction &i, const Targets &t) {
  constexpr unsigned kDwords = sizeof(T) / 4;
  const Operand &data = i.src[3];
  auto value = [&](unsigned row, unsigned l) {
    T v = w.vgpr[row][l];
    if constexpr (kDwords == 2) v |= T(w.vgpr[row + 1][l]) << 32;
    return v;
  };
  uint32_t out[kDwords][kLanes] = {};
  for (uint64_t m = t.mask; m; m &= m - 1) {
    const unsigned l = unsigned(std::countr_zero(m));
    uint8_t *p = atomic_target(w, i, t, l, sizeof(T));
    if (!p) continue;
    const T a = value(data.reg, l), b = data.dwords > kDwords ? value(data.reg + kDwords, l) : T(0);
    std::atomic_ref<T> cell(*reinterpret_cast<T *>(p));
    T old = cell.load(std::memory_order_relaxed);
    while (!cell.compare_exchange_weak(old, F(old, a, b))) {
    }
    out[0][l] = uint32_t(old);
    if constexpr (kDwords == 2) out[1][l] = uint32_t(old >> 32);
  }
  if (w.worker->costs_on) count_atomic(w, t, sizeof(T));
  if (!i.dst.present()) return;
  for (unsigned k = 0; k < kDwords; ++k) deliver_vgpr(w, i, i.dst.reg + k, out[k], t.exec);
}

// --- one instruction = address space + operation
// Space::resolve(w, i, bytes, whole, targets): `whole` means that a buffer's range check is all or nothing.

template <class Space, Shape S>
void load_handler(Wave &w, const Instruction &i) {
  Targets t;
  Space::resolve(w, i, shape_bytes(S), false, t);
  vmem_load(w, i, t, S);
}
template <class Space, Shape S>
void store_handler(Wave &w, const Instruction &i) {
  Targets t;
  Space::resolve(w, i, shape_bytes(S), false, t);
  vmem_store(w, i, t, S);
}
template <class Space, Shape S>
void lds_handler(Wave &w, const Instruction &i) {
  Targets t;
  Space::resolve(w, i, shape_bytes(S), false, t);
  vmem_load_lds(w, i, t, S);
}
template <class Space, class T, atomics::Next<T> F>
void atomic_handler(Wave &w, const Instruction &i) {
  Targets t;
  Space::resolve(w, i, sizeof(T), true, t);
  vmem_atomic<T, F>(w, i, t);
}

[[noreturn]] inline Handler refuse_d16_load(const Instruction &) {
  throw NotImplemented("d16 load: whether the other half of the register survives depends on SRAM ECC");
}

// Register all loads, stores or atomics of a family whose mnemonics begin with `p`.
#define TURBO_SIM_LOADS(r, p, Space)                                                                                  \
  r.set(Op::p##_load_ubyte, load_handler<Space, Shape::U8>);                                                          \
  r.set(Op::p##_load_sbyte, load_handler<Space, Shape::I8>);                                                          \
  r.set(Op::p##_load_ushort, load_handler<Space, Shape::U16>);                                                        \
  r.set(Op::p##_load_sshort, load_handler<Space, Shape::I16>);                                                        \
  r.set(Op::p##_load_dword, load_handler<Space, Shape::D1>);                                                          \
  r.set(Op::p##_load_dwordx2, load_handler<Space, Shape::D2>);                                                        \
  r.set(Op::p##_load_dwordx3, load_handler<Space, Shape::D3>);                                                        \
  r.set(Op::p##_load_dwordx4, load_handler<Space, Shape::D4>);                                                        \
  for (Op op : {Op::p##_load_ubyte_d16, Op::p##_load_ubyte_d16_hi, Op::p##_load_sbyte_d16, Op::p##_load_sbyte_d16_hi, \
                Op::p##_load_short_d16, Op::p##_load_short_d16_hi})                                                   \
  r.select(op, refuse_d16_load)
#define TURBO_SIM_STORES(r, p, Space)                                      \
  r.set(Op::p##_store_byte, store_handler<Space, Shape::U8>);              \
  r.set(Op::p##_store_byte_d16_hi, store_handler<Space, Shape::B8High>);   \
  r.set(Op::p##_store_short, store_handler<Space, Shape::U16>);            \
  r.set(Op::p##_store_short_d16_hi, store_handler<Space, Shape::B16High>); \
  r.set(Op::p##_store_dword, store_handler<Space, Shape::D1>);             \
  r.set(Op::p##_store_dwordx2, store_handler<Space, Shape::D2>);           \
  r.set(Op::p##_store_dwordx3, store_handler<Space, Shape::D3>);           \
  r.set(Op::p##_store_dwordx4, store_handler<Space, Shape::D4>)
#define TURBO_SIM_ATOMIC(r, op, Space, type, function) r.set(Op::op, atomic_handler<Space, type, atomics::function>)
#define TURBO_SIM_ATOMIC_PAIR(r, op, Space, function) \
  TURBO_SIM_ATOMIC(r, op, Space, uint32_t, function); \
  TURBO_SIM_ATOMIC(r, op##_x2, Space, uint64_t, function)
#define TURBO_SIM_ATOMICS(r, p, Space)                                       \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_swap, Space, swap);                    \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_cmpswap, Space, cmpswap);              \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_add, Space, add);                      \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_sub, Space, sub);                      \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_smin, Space, smin);                    \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_umin, Space, umin);                    \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_smax, Space, smax);                    \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_umax, Space, umax);                    \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_and, Space, bit_and);                  \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_or, Space, bit_or);                    \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_xor, Space, bit_xor);                  \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_inc, Space, inc);                      \
  TURBO_SIM_ATOMIC_PAIR(r, p##_atomic_dec, Space, dec);                      \
  TURBO_SIM_ATOMIC(r, p##_atomic_add_f32, Space, uint32_t, fadd);            \
  TURBO_SIM_ATOMIC(r, p##_atomic_pk_add_f16, Space, uint32_t, pk_add_f16);   \
  TURBO_SIM_ATOMIC(r, p##_atomic_pk_add_bf16, Space, uint32_t, pk_add_bf16); \
  TURBO_SIM_ATOMIC(r, p##_atomic_add_f64, Space, uint64_t, fadd);            \
  TURBO_SIM_ATOMIC(r, p##_atomic_min_f64, Space, uint64_t, fmin);            \
  TURBO_SIM_ATOMIC(r, p##_atomic_max_f64, Space, uint64_t, fmax)

}  // namespace turbo_sim
