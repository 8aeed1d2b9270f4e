// SPDX-License-Identifier: MIT
// What the vector ALU files share: which modifiers a handler takes, MODE's rounding and subnormals, NaN rules, and the
// loop over 64 lanes. A handler is the mnemonic's own name in an anonymous namespace; the X-macro lists of each file
// define it and register it, so that the table of semantics is read in one place.
#pragma once

#include "core/operands.h"
#include "core/wave.h"
#include "isa/registry.h"

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace turbo_sim {

// --- modifiers that a handler deals with ---------------------------------------------------------------------------
enum Allow : unsigned {
  kInt = 0,
  kNegAbs = 1,  // neg and abs
  kOmod = 2,
  kClamp = 4,
  kOpSel = 8,  // VOP3 op_sel (16-bit halves, byte selects)
  kFloat = kNegAbs | kOmod | kClamp,
};

/// Throws NotImplemented naming the first modifier of the instruction that is not in `allow`.
void require_modifiers(const Instruction &, unsigned allow);

template <Handler H, unsigned ALLOW>
Handler bind_checked(const Instruction &i) {
  require_modifiers(i, ALLOW);
  return H;
}

// --- MODE ----------------------------------------------------------------------------------------------------------
/// Host rounding for the lifetime of the object (MODE's code). Costs nothing for round-to-nearest.
class RoundingScope {
 public:
  explicit RoundingScope(uint8_t round) : active_(round != 0) {
    static constexpr int kHost[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    if (active_) set(kHost[round]);
  }
  ~RoundingScope() {
    if (active_) set(FE_TONEAREST);
  }
  RoundingScope(const RoundingScope &) = delete;
  RoundingScope &operator=(const RoundingScope &) = delete;

 private:
  // The barriers keep the compiler from moving lane loops across the change.
  static void set(int host) {
    asm volatile("" ::: "memory");
    std::fesetround(host);
    asm volatile("" ::: "memory");
  }
  bool active_;
};

inline bool keep_input_denormals(uint8_t denorm) { return denorm & 1; }
inline bool keep_output_denormals(uint8_t denorm) { return denorm & 2; }

inline uint32_t flush32(uint32_t bits) { return (bits & 0x7F800000u) == 0 ? bits & 0x80000000u : bits; }
inline uint64_t flush64(uint64_t bits) { return (bits >> 52 & 0x7FF) == 0 ? bits & (1ull << 63) : bits; }
inline uint32_t flush16(uint32_t bits) { return (bits & 0x7C00u) == 0 ? bits & 0x8000u : bits; }

// --- NaN -----------------------------------------------------------------------------------------------------------
constexpr uint32_t kNaN32 = 0x7FC00000u;
constexpr uint64_t kNaN64 = 0x7FF8000000000000ull;

inline bool is_nan32(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }
inline bool is_nan64(uint64_t bits) { return (bits & ~(1ull << 63)) > 0x7FF0000000000000ull; }
inline bool is_snan32(uint32_t bits) { return is_nan32(bits) && !(bits & 0x400000u); }
inline bool is_snan64(uint64_t bits) { return is_nan64(bits) && !(bits & (1ull << 51)); }

/// NaN results: the first NaN among the sources, made quiet; 0x7FC00000 if the operation itself made it (x86 makes a
/// negative one). Sources may be null.
void settle_nans32(uint32_t *out, const uint32_t *a, const uint32_t *b = nullptr, const uint32_t *c = nullptr);
void settle_nans64(uint64_t *out, const uint64_t *a, const uint64_t *b = nullptr, const uint64_t *c = nullptr);

// --- lanes ---------------------------------------------------------------------------------------------------------
inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline double as_double(uint64_t bits) { return std::bit_cast<double>(bits); }
inline uint64_t as_bits(double value) { return std::bit_cast<uint64_t>(value); }

/// 64 flags (0 or 1) to a lane mask.
inline uint64_t pack_flags(const uint8_t *flags) {
  uint64_t mask = 0;
  for (unsigned byte = 0; byte < 8; ++byte) {
    uint64_t eight;
    std::memcpy(&eight, flags + 8 * byte, 8);
    mask |= (eight * 0x0102040810204080ull >> 56) << (8 * byte);
  }
  return mask;
}

/// Row of the destination register as it is before the instruction (v_fmac and v_dot*c accumulate there).
inline const uint32_t *destination_row(const Wave &w, const Instruction &i, unsigned row = 0) {
  return w.vgpr[i.dst.reg + row];
}

/// f32 source n: modifiers, then MODE's input flush.
const uint32_t *source_f32(const Wave &, const Instruction &, unsigned n, Lanes &tmp);
const uint64_t *source_f64(const Wave &, const Instruction &, unsigned n, Lanes64 &tmp);
const uint32_t *source_f16(const Wave &, const Instruction &, unsigned n, Lanes &tmp);
/// The accumulator of v_fmac_f32 / v_fmac_f64 with MODE's input flush.
const uint32_t *accumulator_f32(const Wave &, const Instruction &, Lanes &tmp);
const uint64_t *accumulator_f64(const Wave &, const Instruction &, Lanes64 &tmp);

/// f32 result: MODE's output flush, omod, clamp, EXEC.
void result_f32(Wave &, const Instruction &, uint32_t *values);
/// The same for f64 and for f16 in the low halves (`keep_high`: the register's upper half is preserved).
void result_f64(Wave &, const Instruction &, uint64_t *values);
void result_f16(Wave &, const Instruction &, uint32_t *values, bool keep_high);
/// The arithmetic part of result_f16: flush, omod, clamp.
void settle_f16(const Wave &, const Instruction &, uint32_t *values);

// Raw 32-bit loops.
template <class F>
inline void unary32(Wave &w, const Instruction &i, F f) {
  Lanes ta, out;
  const uint32_t *a = src32(w, i, 0, ta);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l]);
  write32(w, i, out.v);
}
template <class F>
inline void binary32(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, out;
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l], b[l]);
  write32(w, i, out.v);
}
template <class F>
inline void ternary32(Wave &w, const Instruction &i, F f) {
  Lanes ta, tb, tc, out;
  const uint32_t *a = src32(w, i, 0, ta), *b = src32(w, i, 1, tb), *c = src32(w, i, 2, tc);
  for (unsigned l = 0; l < kLanes; ++l) out.v[l] = f(a[l], b[l], c[l]);
  write32(w, i, out.v);
}

// --- registration, one function per file ---------------------------------------------------------------------------
void register_vop_int(Registry &);
void register_vop_int16(Registry &);
void register_vop_int64(Registry &);
void register_vop_f32(Registry &);
void register_vop_trans(Registry &);
void register_vop_f64(Registry &);
void register_vop_f16(Registry &);
void register_vop_div(Registry &);
void register_vop_cvt(Registry &);
void register_vop_cvt_fp8(Registry &);
void register_vop_cvt_scale(Registry &);
void register_vop_cmp(Registry &);
void register_vop_lane(Registry &);
void register_vop3p(Registry &);
void register_vop3p_dot(Registry &);

}  // namespace turbo_sim
