// SPDX-License-Identifier: MIT
//
// What the kernels of quantisation share: magnitudes as integers, maxima over lanes, loads of any stride, groups.
#pragma once

#include "quant_args.h"
#include "turbo/vec.h"
#include "turbo/wave.h"

namespace turbo_quant {

using namespace turbo;

#define TURBO_MEMBER __device__ inline __attribute__((always_inline))

// --- magnitudes ------------------------------------------------------------------------------------------------------
//
// |x| as an unsigned integer of the element's size: ordered as |x| is, NaN above infinity above every number. A maximum
// of integers thus keeps a NaN, does not depend on the order, and takes two 16-bit elements at a time (v_pk_max_u16).

template <class T>
struct MagnitudeOf {
  using type = unsigned short;
};
template <>
struct MagnitudeOf<float> {
  using type = unsigned;
};
template <class T>
using Magnitude = typename MagnitudeOf<T>::type;

template <class T, int N>
TURBO_DEVICE vec<Magnitude<T>, N> magnitude(vec<T, N> x) {
  using M = Magnitude<T>;
  return bits<vec<M, N>>(x) & M(M(~M(0)) >> 1);
}

// As the bits of a float32.
template <class T>
TURBO_DEVICE unsigned float_bits(Magnitude<T> m) {
  if constexpr (sizeof(T) == 4) return m;
  return bits<unsigned>(to_float(bits<T>(m)));
}

constexpr unsigned kInfinity = 0x7f800000u;  // bits of amax from here on: the block holds NaN or infinity

template <class M, int N>
TURBO_DEVICE M largest(vec<M, N> m) {
  if constexpr (N == 1) {
    return m[0];
  } else {
    vec<M, N / 2> low, high;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      low[i] = m[i];
      high[i] = m[i + N / 2];
    }
    return largest<M, N / 2>(__builtin_elementwise_max(low, high));
  }
}

// --- maxima over lanes -----------------------------------------------------------------------------------------------

template <int Control>
TURBO_DEVICE unsigned dpp_move(unsigned x) {
  return unsigned(__builtin_amdgcn_update_dpp(int(x), int(x), Control, 0xf, 0xf, false));
}

// x of lane ^ Mask, for 16 and 32. ds_bpermute_b32: through the LDS hardware, without memory.
template <int Mask>
TURBO_DEVICE unsigned across(unsigned x) {
  static_assert(Mask == 16 || Mask == 32, "nearer lanes are reached by DPP");
  return unsigned(__builtin_amdgcn_ds_bpermute((lane_index() ^ Mask) * 4, int(x)));
}

// x of lane ^ 4, by way of the mirror image of each 8 lanes.
TURBO_DEVICE unsigned lane_xor_4(unsigned x) {
  return dpp_move<dpp::row_half_mirror>(dpp_move<dpp::quad_perm(3, 2, 1, 0)>(x));
}

constexpr int kRowRotate8 = 0x128;  // row_ror:8: lane ^ 8

// The largest of each aligned group of Lanes lanes, in all of them; each step joins two groups that are uniform
// already.
template <int Lanes>
TURBO_DEVICE unsigned lanes_max(unsigned x) {
  if constexpr (Lanes >= 2) x = __builtin_elementwise_max(x, dpp_move<dpp::quad_perm(1, 0, 3, 2)>(x));
  if constexpr (Lanes >= 4) x = __builtin_elementwise_max(x, dpp_move<dpp::quad_perm(2, 3, 0, 1)>(x));
  if constexpr (Lanes >= 8) x = __builtin_elementwise_max(x, dpp_move<dpp::row_half_mirror>(x));
  if constexpr (Lanes >= 16) x = __builtin_elementwise_max(x, dpp_move<kRowRotate8>(x));
  if constexpr (Lanes >= 32) x = __builtin_elementwise_max(x, across<16>(x));
  if constexpr (Lanes >= 64) x = __builtin_elementwise_max(x, across<32>(x));
  return x;
}

// --- loads -----------------------------------------------------------------------------------------------------------

// N adjacent elements, at most 16 bytes at a time.
template <int N, class T>
TURBO_DEVICE vec<T, N> load_vector(const global<T> *p) {
  constexpr int Part = N < kVectorOf<T> ? N : kVectorOf<T>;
  vec<T, N> x;
#pragma unroll
  for (int i = 0; i < N; i += Part) {
    const vec<T, Part> part = load<Part>(p + i);
#pragma unroll
    for (int j = 0; j < Part; ++j) x[i + j] = part[j];
  }
  return x;
}

// The first `count` of N elements `stride` apart, zeros for the others; with `vector` they are adjacent and aligned.
template <int N, class T>
TURBO_DEVICE vec<T, N> load_some(const global<T> *p, long long stride, long long count, bool vector) {
  if (vector && count >= N) return load_vector<N>(p);
  vec<T, N> x = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) x[i] = p[i * stride];
  }
  return x;
}

// The first `count` of N elements to adjacent places; with `vector` they are aligned.
template <int N, class T>
TURBO_DEVICE void store_some(global<T> *p, vec<T, N> x, long long count, bool vector) {
  if (vector && count >= N) {
    constexpr int Part = N < kVectorOf<T> ? N : kVectorOf<T>;
#pragma unroll
    for (int i = 0; i < N; i += Part) {
      vec<T, Part> part;
#pragma unroll
      for (int j = 0; j < Part; ++j) part[j] = x[i + j];
      store<Part>(p + i, part);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) p[i] = x[i];
    }
  }
}

// --- tiles -----------------------------------------------------------------------------------------------------------

// Which tile a work-group has.
struct TileIndex {
  long long batch;
  unsigned row, column;

  TURBO_MEMBER TileIndex(const Source &s, unsigned index) {
    column = index % s.column_tiles;
    const unsigned rest = index / s.column_tiles;
    row = rest % s.row_tiles;
    batch = rest / s.row_tiles;
  }
};

// The rows of a tile. With groups, tiles are those of the column copy, in which each group begins at a tile; what is
// behind the last group then belongs to no group: it is read for the row copy, and is zero in the column copy.
struct TileRows {
  long long source;  // first row in x
  int count;         // rows of x
  bool grouped;      // part of the column copy

  TURBO_MEMBER TileRows(const Source &s, unsigned tile) {
    const long long first = (long long)tile * kTile;
    source = first;
    long long end = s.rows;
    grouped = true;
    if (s.group_offs != nullptr) {
      int group = 0, above = s.groups;  // how many groups end at or before `first`
      while (group < above) {
        const int middle = (group + above) / 2;
        if (s.group_offs_padded[middle + 1] <= first) {
          group = middle + 1;
        } else {
          above = middle;
        }
      }
      source = s.group_offs[group] + first - s.group_offs_padded[group];
      grouped = group < s.groups;
      if (grouped) end = __builtin_elementwise_min(end, s.group_offs[group + 1]);
    }
    const long long left = end - source;
    count = left < 0 ? 0 : left > kTile ? kTile : int(left);
  }
};

template <class T>
TURBO_DEVICE const global<T> *element(const Source &s, long long batch, long long row, long long column) {
  return (const global<T> *)s.x + batch * s.batch_stride + row * s.row_stride + column * s.column_stride;
}

}  // namespace turbo_quant
