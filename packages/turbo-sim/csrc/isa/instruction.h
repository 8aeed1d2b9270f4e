// SPDX-License-Identifier: MIT
// A pre-decoded GFX9 instruction: everything that an execution handler needs, resolved once when code is loaded.
#pragma once

#include <cstdint>

namespace turbo_sim {

struct Wave;
struct Instruction;

/// Executes one instruction for one wave. Bound at pre-decode time (see registry.h).
using Handler = void (*)(Wave &, const Instruction &);

enum class Arch : uint8_t { gfx942 = 0, gfx950 = 1 };

/// Base mnemonics (encoding suffixes _e32/_e64/_dpp/_sdwa folded). Op::v_add_f32 is VOP2 and VOP3 alike.
enum class Op : uint16_t {
  invalid = 0,
#define OP(name, ...) name,
#include "isa/opcodes.def"
#undef OP
  count
};

/// The encoding that the instruction was found in.
enum class Format : uint8_t {
  Invalid,
  SOP1,
  SOP2,
  SOPC,
  SOPK,
  SOPP,
  SMEM,
  VOP1,
  VOP2,
  VOPC,   // 32-bit forms, with DPP or SDWA word if has_dpp / has_sdwa
  VOP3,   // 64-bit form of VOP1/2/C and the VOP3-only opcodes, also with a scalar destination (VOP3B)
  VOP3P,  // packed and mixed-precision
  MFMA,   // VOP3P-MAI, also v_accvgpr_*; scaled forms are 16 bytes
  DS,
  MUBUF,
  MTBUF,
  FLAT,
  GLOBAL,
  SCRATCH,
  VOP3PX2  // only in opcodes.def: scaled MFMA, 16 bytes; decoded as MFMA
};

enum class Kind : uint8_t {
  None,      // operand absent ("off" for saddr/vaddr)
  Scalar,    // reg = index into Wave::sgpr (SGPRs, 102 flat_scratch, 104 xnack, 106 VCC, 108 ttmp, 124 M0, 126 EXEC)
  Vgpr,      // reg = row of Wave::vgpr, 0..255
  Agpr,      // reg = row of Wave::vgpr, 256..511 (already offset: treat as Vgpr)
  Constant,  // inline constant: value holds the bits, already in the operand's own type (f16, f32 or f64 pattern)
  Literal,   // 32-bit literal: value as Constant (f64: shifted to the high half; i64 sign-, b64/u64 zero-extended)
  Special    // reg = SpecialReg, value depends on the wave's state
};

enum class SpecialReg : uint8_t {
  SharedBase,
  SharedLimit,
  PrivateBase,
  PrivateLimit,
  PopsExitingWaveId,
  Vccz,
  Execz,
  Scc,
  LdsDirect
};

/// Type of an operand as far as constants, modifiers and disassembly care.
enum class Type : uint8_t { None, B8, B16, F16, BF16, B32, I32, F32, B64, I64, F64, Packed16, PackedF16, PackedF32 };

struct Operand {
  Kind kind = Kind::None;
  uint8_t dwords = 0;  // registers that the operand covers (1 for 16-bit and 32-bit operands)
  uint16_t reg = 0;
  Type type = Type::None;
  uint64_t value = 0;

  bool is_vector() const { return kind == Kind::Vgpr || kind == Kind::Agpr; }
  bool is_constant() const { return kind == Kind::Constant || kind == Kind::Literal; }
  bool present() const { return kind != Kind::None; }
};

/// SDWA select values.
enum Sel : uint8_t { BYTE_0, BYTE_1, BYTE_2, BYTE_3, WORD_0, WORD_1, DWORD };
/// SDWA dst_unused values.
enum Unused : uint8_t { UNUSED_PAD, UNUSED_SEXT, UNUSED_PRESERVE };

/// What the checker, the counters and the cost model need to know about an opcode.
enum class InstClass : uint8_t { Salu, Smem, Branch, Wait, Barrier, Message, Valu, Trans, Mfma, Lds, Vmem, Other };

/// Operand placement, by format:
///   SOP*      dst, src[0..1]; SOPK: imm; SOPP: imm, branches: target
///   SMEM      dst (loads), src[0] = sbase (2 or 4 SGPRs), src[1] = soffset SGPR or None, src[3] = store data; offset
///   VOP*      dst (VGPR; SGPR for v_readlane / v_readfirstlane), src[0..2];
///             sdst = carry-out, VOPC result or v_div_scale flag (VCC made explicit in the 32-bit forms);
///             carry-in of v_addc/v_subb and the selector of v_cndmask are src[2] (VCC explicit in the 32-bit forms);
///             v_fmac/v_mac: the accumulator is dst itself, src[2] is None; v_madmk/v_fmamk: the literal is src[1],
///             v_madak/v_fmaak: the literal is src[2] (so all of them are D = src0 * src1 + src2);
///             v_swap, v_permlane*_swap: dst and src[0] are both read and written
///   MFMA      dst, src[0] = A, src[1] = B, src[2] = C; scaled: src[3] = scale of A, src[4] = scale of B
///   DS        src[0] = address, src[1] = data0, src[2] = data1, dst; offset (16 bit) or offset0 / offset1
///   MUBUF     src[0] = vaddr (1 or 2 VGPRs, None without offen and idxen; index first), src[1] = descriptor (4 SGPRs),
///             src[2] = soffset; loads: dst; stores and atomics: src[3] = data, atomics with sc0: dst too; offset
///   FLAT...   src[0] = vaddr (None: off), src[1] = saddr (None: off), src[3] = store/atomic data, dst; offset
struct Instruction {
  Handler exec = nullptr;
  Op op = Op::invalid;
  Format format = Format::Invalid;
  InstClass cls = InstClass::Other;
  uint8_t size = 0;             // bytes: 4, 8, 12 or 16
  uint32_t offset_in_code = 0;  // byte offset from the start of the code section
  uint32_t index = 0;           // own position in Code::insts
  int32_t target = -1;          // branch target as an index into Code::insts

  Operand dst, sdst, src[5];

  // Modifiers. Bit i of neg/abs/op_sel/op_sel_hi belongs to src[i]; op_sel bit 3 is the destination's.
  uint8_t neg = 0;     // VOP3: neg; VOP3P: neg_lo; also SDWA/DPP neg
  uint8_t neg_hi = 0;  // VOP3P only
  uint8_t abs = 0;     // VOP3, SDWA, DPP, v_mad_mix (there bits come from neg_hi's place)
  uint8_t op_sel = 0;
  uint8_t op_sel_hi = 0;  // VOP3P and scaled MFMA
  uint8_t omod = 0;       // 0 none, 1 *2, 2 *4, 3 /2
  bool clamp = false;
  bool has_dpp = false, has_sdwa = false;
  bool plain = true;  // no modifier at all: no neg/abs/clamp/omod/op_sel/DPP/SDWA

  uint16_t dpp_ctrl = 0;  // raw 9-bit dpp_ctrl
  uint8_t row_mask = 0xf, bank_mask = 0xf;
  bool bound_ctrl = false;  // the encoded bit: 1 = out-of-range lanes read 0, 0 = they are not written
  Sel dst_sel = DWORD, src_sel[2] = {DWORD, DWORD};
  Unused dst_unused = UNUSED_PAD;
  uint8_t sext = 0;  // SDWA: bit i sign-extends src[i]

  uint8_t cbsz = 0, abid = 0,
          blgp = 0;    // MFMA; cbsz/blgp are the A/B formats in the f8f6f4 forms. v_bitop3: see bitop3
  uint8_t bitop3 = 0;  // truth table of v_bitop3_*

  int32_t offset = 0;  // memory immediate offset, sign already applied
  uint8_t offset0 = 0, offset1 = 0;
  int32_t imm = 0;                            // SOPK/SOPP simm16, sign-extended; s_setreg's hwreg word is imm & 0xffff
  bool sc0 = false, sc1 = false, nt = false;  // sc0 = "glc" on SMEM and MUBUF; on atomics: return the old value
  bool lds = false, offen = false, idxen = false, gds = false;
};

const char *op_name(Op);
const char *format_name(Format);

}  // namespace turbo_sim
