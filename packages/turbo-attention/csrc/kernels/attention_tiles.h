// SPDX-License-Identifier: MIT
//
// Tiles of K and V: from memory to LDS, and from LDS to operands of matrix instructions. NOTES-attention.md has the
// layouts.
//
//   K   rows of keys in their order; 16-byte chunks of a row in an order that depends on the row (swizzled)
//   V   gfx950: likewise, read transposed by ds_read_b64_tr_b16
//       gfx942: transposed on the way in, through registers: rows of columns d, each 64 keys
//
// Operands of both products, of lane l with g = l / 32 (turbo/mfma.h): K at step s is row l % 32, d = 16 s + 8 g +
// 0..7. V^T at step b is row d = l % 32 and the keys 16 b + 4 g + 0..3 and 16 b + 8 + 4 g + 0..3, because these are the
// keys that lane l has of S^T, and a product may permute its inner index.
#pragma once

#include "attention_args.h"
#include "turbo/lds_dma.h"
#include "turbo/mfma.h"
#include "turbo/vec.h"

namespace turbo_attention {

using namespace turbo;

template <int D>
struct Layout {
  static constexpr int row_bytes = D * 2;
  static constexpr int tile_bytes = kTileKeys * row_bytes;  // of K, and of V
  static constexpr int chunks = row_bytes / 16;             // of a row
  static constexpr int k(int slot) { return slot * tile_bytes; }
  static constexpr int v(int slot) { return (2 + slot) * tile_bytes; }
  static constexpr int bytes = 4 * tile_bytes;
  static constexpr int rows_per_sweep = kLdsBanks * 4 > row_bytes ? kLdsBanks * 4 / row_bytes : 1;  // of all banks
};

// Chunk that lies at `position` of a row of K, and the other way round: lanes that read the same chunk of adjacent rows
// meet each bank once.
template <int D>
TURBO_DEVICE int swizzle_k(int row, int position) {
  return position ^ (row / Layout<D>::rows_per_sweep & (Layout<D>::chunks - 1));
}

// Of V on gfx950. A transposed read takes 64 adjacent bytes of 4 rows in one half of the wave, and of the next 4 rows
// in the other: the rows go to different quarters (D = 64: halves) of the banks, the halves of the wave to different
// parts of these.
template <int D>
TURBO_DEVICE int swizzle_v(int row, int position) {
  const int quarter = D == 128 ? row & 3 : row >> 1 & 1;
  return position ^ (quarter << 2 | (row >> 2 & 1) << 1);
}

// --- one operand's tiles, from memory to LDS by DMA ------------------------------------------------------------------

enum class Operand { k, v };

template <int D, Operand Kind>
class Fetcher {
  static constexpr int bytes = kLdsDmaMaxBytes;                   // of a lane
  static constexpr int rows = 64 * bytes / Layout<D>::row_bytes;  // of an instruction of a wave
  static constexpr int count = kTileKeys / (rows * kWaves);       // instructions of a wave
  static_assert(count * rows * kWaves == kTileKeys, "a tile is whole instructions of all waves");
  // Rows that all waves fetch at once may shift the swizzle by half of the chunks, or not at all.
  static constexpr int patterns = kWaves * rows / Layout<D>::rows_per_sweep % Layout<D>::chunks == 0 ? 1 : 2;

 public:
  TURBO_METHOD Fetcher(const global<unsigned char> *first, long long stride, int keys, local<unsigned char> *memory)
      : next_(first), stride_(stride), left_(keys), start_(int(reinterpret_cast<unsigned long>(memory))) {
    const int byte = lane_index() * bytes;
#pragma unroll
    for (int i = 0; i < patterns; ++i) {
      const int row = (i * kWaves + wave_index()) * rows + byte / Layout<D>::row_bytes;
      const int position = byte % Layout<D>::row_bytes / 16;
      const int chunk = Kind == Operand::k ? swizzle_k<D>(row, position) : swizzle_v<D>(row, position);
      offset_[i] = row * int(stride) + chunk * 16 + byte % 16;
    }
  }

  // The next tile, to byte `to` of `memory`. Rows behind the last key become 0.
  TURBO_METHOD void operator()(int to) {
    const int here = left_ < kTileKeys ? left_ : kTileKeys;
    const Descriptor from = describe(next_, unsigned((here - 1) * stride_ + Layout<D>::row_bytes));
#pragma unroll
    for (int i = 0; i < count; ++i) {
      int further = i / patterns * patterns * kWaves * rows * int(stride_);
      asm("" : "+s"(further));  // a scalar until it is needed: else one register for each i is kept over the loop
      fetch_to_lds<bytes>(from, offset_[i % patterns] + further,
                          start_ + to + (i * kWaves + wave_index()) * rows * Layout<D>::row_bytes);
    }
    next_ += kTileKeys * stride_;
    left_ -= kTileKeys;
  }

 private:
  const global<unsigned char> *next_;
  long long stride_;
  int left_, start_;
  int offset_[patterns];
};

template <int D>
using KeyFetcher = Fetcher<D, Operand::k>;

// --- K as operand: rows of S^T ---------------------------------------------------------------------------------------

template <class T, int D>
class KeyReader {
 public:
  static constexpr int steps = D / 16;

  TURBO_METHOD explicit KeyReader(local<unsigned char> *memory) {
    const int row = lane_index() % 32;
#pragma unroll
    for (int s = 0; s < steps; ++s)
      at_[s] = memory + row * Layout<D>::row_bytes + swizzle_k<D>(row, 2 * s + lane_index() / 32) * 16;
  }

  // Keys 32 `block` + 0..31 of the tile in `slot`, step `s` of D.
  TURBO_METHOD vec<T, 8> operator()(int slot, int block, int s) const {
    return load<8>((const local<T> *)(at_[s] + Layout<D>::k(slot) + block * 32 * Layout<D>::row_bytes));
  }

 private:
  const local<unsigned char> *at_[steps];
};

// --- V as operand: rows of O^T ---------------------------------------------------------------------------------------

#if defined(__gfx950__)

template <class T, int D>
class ValueFetcher : public Fetcher<D, Operand::v> {
 public:
  using Fetcher<D, Operand::v>::Fetcher;
  TURBO_METHOD void arrive() {}  // the data went past the registers
};

template <class T, int D>
class ValueReader {
 public:
  TURBO_METHOD explicit ValueReader(local<unsigned char> *memory) {
    const int lane = lane_index(), row = lane / 32 * 4 + lane % 16 / 4;
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      const int chunk = 4 * d + lane / 16 % 2 * 2 + lane % 4 / 2;
      at_[d] = memory + row * Layout<D>::row_bytes + swizzle_v<D>(row, chunk) * 16 + lane % 2 * 8;
    }
  }

  // Columns 32 d + 0..31 of V, keys 16 b + 0..15 of the tile in `slot`.
  TURBO_METHOD vec<T, 8> operator()(int slot, int b, int d) const {
    local<unsigned char> *at = at_[d] + Layout<D>::v(slot) + b * 16 * Layout<D>::row_bytes;
    const vec<T, 4> low = load_transposed((local<T> *)at);
    const vec<T, 4> high = load_transposed((local<T> *)(at + 8 * Layout<D>::row_bytes));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }

 private:
  local<unsigned char> *at_[D / 32];
};

#else

// LDS: row d has 64 keys, 8 chunks of 16 bytes; chunk 2 b + g is the operand of step b for lanes of g. XOR with the
// row, and with the row / 8, for reads of adjacent rows and for writes of every fourth.
TURBO_DEVICE int swizzle_columns(int d, int chunk) { return chunk ^ ((d ^ d >> 3) & 7); }

constexpr int kColumnBytes = kTileKeys * 2;

// A lane takes 4 keys x 4 columns, transposes them and writes 4 x 4 keys. Lanes 0..7 have adjacent columns, lanes 8..15
// the same of 8 keys further on, so that 16 lanes write to different banks.
template <class T, int D>
class ValueFetcher {
 public:
  TURBO_METHOD ValueFetcher(const global<unsigned char> *first, long long stride, int keys,
                            local<unsigned char> *memory)
      : next_(first), stride_(stride), left_(keys), memory_(memory) {
    const int lane = lane_index(), high = lane >> 4, wave = wave_index();
    const int quad = lane % 8 + 8 * (D == 128 ? high : high & 1);
    const int chunk = D == 128 ? wave : 2 * wave + (high >> 1);  // D = 64: of waves 0..3, and there is no other
    const int half = lane >> 3 & 1;
    offset_ = (16 * (chunk >> 1) + 8 * half + 4 * (chunk & 1)) * int(stride) + quad * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int d = 4 * quad + j;
      to_[j] = d * kColumnBytes + swizzle_columns(d, chunk) * 16 + half * 8;
    }
  }

  // Asks for the next tile; arrive() puts it to LDS.
  TURBO_METHOD void operator()(int to) {
    if (!takes_part()) return;
    const int here = left_ < kTileKeys ? left_ : kTileKeys;
    const Buffer from = make_buffer(next_, unsigned((here - 1) * stride_ + Layout<D>::row_bytes));
#pragma unroll
    for (int j = 0; j < 4; ++j) keys_[j] = turbo::load<T, 4>(from, offset_ + j * int(stride_));
    slot_ = to;
    next_ += kTileKeys * stride_;
    left_ -= kTileKeys;
  }

  TURBO_METHOD void arrive() {
    if (!takes_part()) return;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      store<4>((local<T> *)(memory_ + slot_ + to_[j]), vec<T, 4>{keys_[0][j], keys_[1][j], keys_[2][j], keys_[3][j]});
  }

 private:
  static TURBO_METHOD bool takes_part() { return D == 128 || wave_index() < kWaves / 2; }

  const global<unsigned char> *next_;
  long long stride_;
  int left_, slot_ = 0, offset_;
  local<unsigned char> *memory_;
  int to_[4];
  vec<T, 4> keys_[4];
};

template <class T, int D>
class ValueReader {
 public:
  TURBO_METHOD explicit ValueReader(local<unsigned char> *memory) {
    const int row = lane_index() % 32;
#pragma unroll
    for (int b = 0; b < 4; ++b)
      at_[b] = memory + row * kColumnBytes + swizzle_columns(row, 2 * b + lane_index() / 32) * 16;
  }

  // Columns 32 d + 0..31 of V, keys 16 b + 0..15 of the tile in `slot`. An odd d changes bit 2 of the chunk's place.
  TURBO_METHOD vec<T, 8> operator()(int slot, int b, int d) const {
    return load<8>((const local<T> *)(at_[b ^ (d & 1) << 1] + Layout<D>::v(slot) + d * 32 * kColumnBytes));
  }

 private:
  const local<unsigned char> *at_[4];
};

#endif

}  // namespace turbo_attention
