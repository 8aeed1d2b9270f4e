// SPDX-License-Identifier: MIT
// The arithmetic of the matrix instructions, on plain register arrays (no wave, no decoding).
//
// Formula: D[i][j] = C[i][j] + sum over k of A[i][k] * B[k][j], for each block.
//
// A register is 64 lanes; register r of an operand starts at `base + 64 * r`.
//   A, B   lane l holds row (column) l % M; lane groups g = l / M hold consecutive runs of K, or, in forms with several
//          blocks, the blocks. 8-bit f8f6f4 operands are split: bytes 0-15 hold k = 16 g + i,
//          bytes 16-31 K/2 + 16 g + i;
//          4-bit and 6-bit ones hold k = 32 g + i.
//   C, D   16x16: row 4 (l / 16) + r, column l % 16.  32x32: row 8 (r / 4) + 4 (l / 32) + r % 4, column l % 32.
//          4x4 (16 blocks): row r, column l % 4, block l / 4.  f64 16x16: row 4 r + l / 16 (r counts 64-bit registers).
//
// Numerics: products are exact in double (f64 excepted), summed in double together with C, and rounded once to float.
// Hardware sums in groups with fewer bits, so results agree within a tolerance, not bit for bit. Subnormals are
// kept and MODE is ignored, as on CDNA3. A NaN result is 0x7FC00000. xf32 drops the low 13 bits of its inputs. i8 sums
// are exact and wrap at 32 bits. f64 is a chain of fused multiply-adds in ascending k.
#pragma once

#include <cstdint>

namespace turbo_sim {

enum class Element : uint8_t {
  f64,
  f32,
  xf32,
  f16,
  bf16,
  i8,
  e4m3,
  e5m2,
  e4m3fnuz,
  e5m2fnuz,  // 8-bit, K contiguous per lane
  e4m3_split,
  e5m2_split,  // 8-bit operands of f8f6f4 (OCP)
  e2m3,
  e3m2,
  e2m1  // 6-bit and 4-bit operands of f8f6f4
};

struct MfmaForm {
  uint8_t m;  // rows = columns of a block
  uint8_t k;
  uint8_t blocks;
};

// Operands. `c_stride` is 64, or 0 for a constant C (one array of 64 equal values; f64: two arrays).
// `scale_a`, `scale_b`: 64 lanes of e8m0 bytes (already selected), lane l scaling row l % M of K block l / M, or null.
struct MfmaOperands {
  const uint32_t *a;
  const uint32_t *b;
  const uint32_t *c;
  uint32_t c_stride = 64;
  uint32_t *d;
  const uint8_t *scale_a = nullptr;
  const uint8_t *scale_b = nullptr;
  uint32_t a_broadcast_log2 = 0;   // CBSZ of multi-block forms: 2^n blocks share the A of one
  uint32_t a_broadcast_block = 0;  // ABID: which of them
  uint32_t negate = 0;             // f64: bit 0 A, bit 1 B, bit 2 C
};

void mfma_float(const MfmaForm &form, Element a, Element b, const MfmaOperands &operands);
void mfma_i8(const MfmaForm &form, const MfmaOperands &operands);
void mfma_f64(const MfmaForm &form, const MfmaOperands &operands);

// Registers (32-bit) that one operand takes.
int mfma_input_registers(const MfmaForm &form, Element element);
int mfma_output_registers(const MfmaForm &form, bool is_f64);

}  // namespace turbo_sim
