// SPDX-License-Identifier: MIT
//
// One piece of 16 elements of an MX copy: rotation, scale byte (with the neighbour lane, whose piece is the other half
// of the block), payload, and where both are stored.
//
//   byte = clamp(((bits(amax) + half an ulp) >> 23) - E_max, 0, 254), 255 where amax is not finite
//   q    = round_to_format(x * 2^(127 - byte))                                  see turbo_quant.h
#pragma once

#include "hadamard.h"
#include "philox.h"
#include "quant_device.h"
#include "quant_formats.h"

namespace turbo_quant {

template <class F>
constexpr int kLargestExponent = F::mantissa == 3   ? 8
                                 : F::mantissa == 2 ? 15
                                                    : 2;  // E_max

template <class F>
constexpr int kPieceBytes = kIsFp4<F> ? 8 : 16;  // of payload

// The byte of a block. Rounding amax up by half an ulp of the format leaves x * 2^(127 - byte) below (2 - ulp / 2)
// 2^E_max: e5m2 and e2m1 round no such number beyond their largest, e4m3, whose largest is smaller by a step, must
// saturate.
template <class F>
TURBO_DEVICE unsigned block_byte(unsigned amax) {
  const int byte = int((amax + (1u << (22 - F::mantissa))) >> 23) - kLargestExponent<F>;
  return amax >= kInfinity ? 255u : unsigned(byte < 0 ? 0 : byte);
}

constexpr unsigned kNanByte = 255;

// Which piece of a copy.
struct PieceAt {
  long long batch, line;
  long long piece;  // along the line
};

template <class F>
TURBO_DEVICE long long payload_offset(const MxCopy &copy, PieceAt at) {
  const long long line_bytes = copy.length * kPieceBytes<F> / 16, byte = at.piece * kPieceBytes<F>;
  const long long batch = at.batch * copy.lines * line_bytes;
  if (!(copy.flags & kMxShuffleOut)) return batch + at.line * line_bytes + byte;
  // tiles of 16 lines x 32 bytes, each as two halves of 16 x 16
  return batch + at.line / 16 * 16 * line_bytes + byte / 32 * 512 + byte % 32 / 16 * 256 + at.line % 16 * 16 +
         byte % 16;
}

TURBO_DEVICE long long scale_offset(const MxCopy &copy, PieceAt at) {
  const long long column = at.piece / 2, batch = at.batch * copy.scale_batch;
  if (!(copy.flags & kMxShuffleScale)) return batch + at.line * copy.scale_pitch + column;
  return batch + at.line / 32 * 32 * copy.scale_pitch + column / 8 * 256 + column % 4 * 64 + at.line % 16 * 4 +
         column % 8 / 4 * 2 + at.line % 32 / 16;
}

template <class F, class Encode>
TURBO_DEVICE vec<unsigned, kPieceBytes<F> / 4> pack(Encode encode) {
  constexpr int per_word = kIsFp4<F> ? 8 : 4;
  vec<unsigned, kPieceBytes<F> / 4> packed = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) packed[i / per_word] |= encode(i) << i % per_word * (32 / per_word);
  return packed;
}

template <class F>
TURBO_DEVICE vec<unsigned, kPieceBytes<F> / 4> encode_piece(vec<float, 16> v) {
  if constexpr (kIsFp4<F>) {
    return {encode_fp4x8(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)),
            encode_fp4x8(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15))};
  } else {
    return {encode4<F>(__builtin_shufflevector(v, v, 0, 1, 2, 3)),
            encode4<F>(__builtin_shufflevector(v, v, 4, 5, 6, 7)),
            encode4<F>(__builtin_shufflevector(v, v, 8, 9, 10, 11)),
            encode4<F>(__builtin_shufflevector(v, v, 12, 13, 14, 15))};
  }
}

// Element i of the copy takes word i % 4 of counter i / 4.
template <class F>
TURBO_DEVICE vec<unsigned, kPieceBytes<F> / 4> encode_piece_stochastic(vec<float, 16> v, PhiloxKey key,
                                                                       unsigned long first) {
  vec<unsigned, 16> words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const vec<unsigned, 4> four = philox(key, first / 4 + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) words[4 * i + j] = four[j];
  }
  return pack<F>([&](int i) { return encode_stochastic<F>(v[i], words[i]); });
}

// Quantises and stores a piece. `amax` is that of its tile with kMxTile, else that of the piece; with Special the
// rotation and the stochastic rounding that the copy's flags ask for. Where nothing is `present` (past the last group,
// x is zeros) all bits are 0, also where a rotation makes -0. All lanes must come here; those with `wanted` store.
template <class F, bool Special>
TURBO_DEVICE void quantize_piece(const MxCopy &copy, PieceAt at, vec<float, 16> v, unsigned amax, int sign_mask,
                                 PhiloxKey key, bool present, bool wanted) {
  if constexpr (Special) {
    if (copy.flags & kMxRht) {
      v = hadamard(flip_signs(v, sign_mask));
      amax = largest<unsigned, 16>(magnitude<float, 16>(v));
    }
  }
  amax = lanes_max<2>(amax);
  const unsigned byte = present ? block_byte<F>(amax) : 0;
  v *= bits<float>((254u - byte) << 23);
  vec<unsigned, kPieceBytes<F> / 4> packed;
  if (Special && (copy.flags & kMxStochastic)) {
    const long long first = (at.batch * copy.lines + at.line) * copy.length + at.piece * 16;
    packed = encode_piece_stochastic<F>(v, key, (unsigned long)first);
  } else {
    packed = encode_piece<F>(v);
  }
  if (!present || byte == kNanByte) packed = 0;
  if (!wanted) return;
  store<kPieceBytes<F> / 4>((global<unsigned> *)(copy.payload + payload_offset<F>(copy, at)), packed);
  if (at.piece % 2 == 0) copy.scale[scale_offset(copy, at)] = (unsigned char)byte;
}

}  // namespace turbo_quant
