// SPDX-License-Identifier: MIT
//
// Attention forward, bf16 or fp16, not causal or causal (bottom-right), head dim 64 or 128.
//
//   s_ij  = scale q_i . k_j           visible: j < sk, and if causal j <= i + sk - sq
//   lse_i = log(sum over visible j of exp(s_ij))                    in two numbers: the nearest float32, and the rest
//   o_i   = sum over visible j of exp(s_ij - lse_i) v_j
//
//   q, out [batches, sq, heads, D]; k, v [batches, sk, heads / group, D]; lse, lse_low [batches, heads, sq] float32
//
// A query that sees no key has o = 0, lse = -inf. Sums, softmax and lse are float32; exp(s_ij - m_i) is rounded to the
// element type for the second product, m_i a recent maximum of the row. Deterministic: keys in their order. Never run
// on AMD hardware.
//
// A work-group has 256 queries of a head, each of its 8 waves 32. Both products are transposed, S^T = K Q^T and O^T =
// V^T P^T: a lane then has one query, all of its statistics are one number in one register, and what it has of S^T is,
// rounded, its operand of the second product. NOTES-attention.md has the arithmetic.
#include "attention_tiles.h"
#include "turbo/wave.h"
#include "turbo/xcd.h"

namespace turbo_attention {

TURBO_DEVICE int least(int a, int b) { return a < b ? a : b; }
TURBO_DEVICE int most(int a, int b) { return a > b ? a : b; }
TURBO_DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }

TURBO_DEVICE f32x16 multiply(vec<bf16, 8> a, vec<bf16, 8> b, f32x16 c) { return mfma_f32_32x32x16_bf16(a, b, c); }
TURBO_DEVICE f32x16 multiply(vec<fp16, 8> a, vec<fp16, 8> b, f32x16 c) { return mfma_f32_32x32x16_fp16(a, b, c); }

// Order of the products of a step, the first with operands of K, the others with operands of V: operands are read four
// products ahead, no more, so that few registers hold them and no product waits for LDS.
template <int OfK, int OfV>
TURBO_DEVICE void schedule() {
  constexpr int ahead = 4, all = OfK + OfV;
  constexpr int reads_of_v = kHasLdsTranspose ? 2 : 1;  // instructions of an operand
  constexpr int instructions = kHasScaledMfma ? 1 : 2;  // of a product
  constexpr int mfma = 0x8, lds_read = 0x100;           // classes of __builtin_amdgcn_sched_group_barrier
#pragma unroll
  for (int i = 0; i < all + ahead; ++i) {
    if (i >= ahead) __builtin_amdgcn_sched_group_barrier(mfma, instructions, 0);
    if (i < OfK) __builtin_amdgcn_sched_group_barrier(lds_read, 1, 0);
    if (OfK <= i && i < all) __builtin_amdgcn_sched_group_barrier(lds_read, reads_of_v, 0);
  }
}

// --- lanes l and l ^ 32 have the same query --------------------------------------------------------------------------

TURBO_DEVICE float of_other_half(float x) {
#if defined(__gfx950__)
  const auto both = __builtin_amdgcn_permlane32_swap(bits<int>(x), bits<int>(x), false, false);
  return bits<float>(lane_index() < 32 ? both[1] : both[0]);
#else
  return shuffle(x, lane_index() ^ 32);
#endif
}

// --- probabilities to operands ---------------------------------------------------------------------------------------

// 8 numbers that are not negative, to the nearest. bf16 on gfx942 has no instruction: half of a unit in the last place
// is added and the upper halves are taken; ties go up.
template <class T>
TURBO_DEVICE vec<T, 8> round_positive(vec<float, 8> x) {
#if defined(__gfx942__)
  if constexpr (__is_same(T, bf16)) {
    const auto raw = bits<vec<unsigned, 8>>(x) + 0x8000u;
    vec<unsigned, 4> packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = __builtin_amdgcn_perm(raw[2 * i + 1], raw[2 * i], 0x07060302u);
    return bits<vec<T, 8>>(packed);
  }
#endif
  return from_float<T, 8>(x);
}

// --- one wave --------------------------------------------------------------------------------------------------------

// In units of log2: exp(x) = exp2(x log2(e)), and the factor is in args.scale.
constexpr double kLn2 = 0.693147180559945309;
// A maximum counts when it is larger by this: until then probabilities may reach 2^8, which float32 sums and 16-bit
// operands hold as well as 1, and O is not touched.
constexpr float kStale = 8.0f;

template <class T, int D, bool Causal>
class Wave {
  static constexpr int blocks = D / 32;  // of columns of O

  KeyReader<T, D> keys_;
  ValueReader<T, D> values_;
  vec<T, 8> q_[D / 16];
  f32x16 s_[2];  // S^T: register r of lane l is key 8 (r / 4) + 4 (l / 32) + r % 4 of its block
  vec<T, 8> p_[4];
  f32x16 o_[blocks] = {};          // O^T: likewise, columns
  float max_ = -__builtin_inff();  // of scaled scores
  float from_ = 0.0f;              // the same, but 0 while nothing was seen
  vec<float, 2> sum_ = {};         // of this lane's keys, of every second
  float scale_;
  int seen_;   // keys that this lane's query sees
  int clear_;  // keys that all queries of the wave see

 public:
  TURBO_METHOD Wave(const ForwardArgs &args, const global<unsigned char> *q, int first, local<unsigned char> *memory)
      : keys_(memory),
        values_(memory),
        scale_(args.scale),
        seen_(visible(args, first + lane_index() % 32)),
        clear_(visible(args, first)) {
    const int rows = most(least(args.sq - first, kWaveRows), 0), stride = int(args.q_strides.row);
    const Buffer from =
        make_buffer(q + first * args.q_strides.row, rows == 0 ? 0u : unsigned((rows - 1) * stride + D * 2));
    const int offset = lane_index() % 32 * stride + lane_index() / 32 * 16;
    const unsigned flip = args.negative ? 0x80008000u : 0;
#pragma unroll
    for (int s = 0; s < D / 16; ++s)
      q_[s] = bits<vec<T, 8>>(bits<vec<unsigned, 4>>(turbo::load<T, 8>(from, offset + s * 32)) ^ flip);
  }

  static TURBO_METHOD int visible(const ForwardArgs &args, int row) {
    return Causal ? most(least(args.sk, row + 1 + args.sk - args.sq), 0) : args.sk;
  }

  // Slots of K and V are those of the step: V is of the tile before, in the other one.
  template <int Slot, bool Scores, bool Values>
  TURBO_METHOD void multiply_tiles() {
    if constexpr (Scores) scores<Slot>();
    if constexpr (Values) values<1 - Slot>();
    schedule<Scores ? D / 8 : 0, Values ? 4 * blocks : 0>();
  }

  // Scores of tile t to probabilities.
  TURBO_METHOD void softmax(int t) {
    if ((t + 1) * kTileKeys > clear_) hide(seen_ - t * kTileKeys - lane_index() / 32 * 4);
    float largest = s_[0][0];
#pragma unroll
    for (int i = 1; i < 32; ++i) largest = __builtin_fmaxf(largest, s_[i / 16][i % 16]);
    largest = __builtin_fmaxf(largest, of_other_half(largest)) * scale_;
    if (__builtin_amdgcn_ballot_w64(largest > max_ + kStale) != 0) raise(largest);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      vec<float, 8> p;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {  // in pairs: v_pk_fma_f32 and v_pk_add_f32 do two
        const vec<float, 2> s = {s_[b / 2][b % 2 * 8 + i], s_[b / 2][b % 2 * 8 + i + 1]};
        const vec<float, 2> exponent = s * scale_ - from_;
        const vec<float, 2> pair = {__builtin_amdgcn_exp2f(exponent[0]), __builtin_amdgcn_exp2f(exponent[1])};
        sum_ += pair;
        p[i] = pair[0];
        p[i + 1] = pair[1];
      }
      p_[b] = round_positive<T>(p);
    }
  }

  // Both halves of the wave: 1 / sum for O, and lse. Its second number keeps the logarithm of the sum beside large scores,
  // whose rounding is larger: weights of exp(s - lse) alone would not sum to 1.
  TURBO_METHOD void finish(global<float> *lse, global<float> *lse_low, int row, int rows) {
    const float mine = sum_[0] + sum_[1], total = mine + of_other_half(mine);
    if (lane_index() < 32 && row < rows) {
      const bool blind = total == 0.0f;
      const double exact = blind ? 0.0 : kLn2 * (double(from_) + double(__builtin_log2f(total)));
      const float nearest = float(exact);
      lse[row] = blind ? -__builtin_inff() : nearest;
      lse_low[row] = float(exact - double(nearest));
    }
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
#pragma unroll
    for (int d = 0; d < blocks; ++d) o_[d] *= inverse;
  }

  // O as rows of 16-byte chunks, swizzled as K is, to this wave's part of LDS.
  TURBO_METHOD void put(local<unsigned char> *part) const {
    const int row = lane_index() % 32, half = lane_index() / 32;
#pragma unroll
    for (int d = 0; d < blocks; ++d) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const vec<float, 4> x = {o_[d][4 * c], o_[d][4 * c + 1], o_[d][4 * c + 2], o_[d][4 * c + 3]};
        store<4>((local<T> *)(part + row * Layout<D>::row_bytes + swizzle_k<D>(row, 4 * d + c) * 16 + half * 8),
                 from_float<T, 4>(x));
      }
    }
  }

 private:
  template <int Slot>
  TURBO_METHOD void scores() {
    s_[0] = s_[1] = f32x16{};
#pragma unroll
    for (int s = 0; s < D / 16; ++s) {
#pragma unroll
      for (int block = 0; block < 2; ++block) s_[block] = multiply(keys_(Slot, block, s), q_[s], s_[block]);
    }
  }

  template <int Slot>
  TURBO_METHOD void values() {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int d = 0; d < blocks; ++d) o_[d] = multiply(values_(Slot, b, d), p_[b], o_[d]);
    }
  }

  // Scores of keys from `seen` on become -inf.
  TURBO_METHOD void hide(int seen) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = i / 16 * 32 + i % 16 / 4 * 8 + i % 4;
      if (key >= seen) s_[i / 16][i % 16] = -__builtin_inff();
    }
  }

  TURBO_METHOD void raise(float largest) {
    const float before = max_;
    max_ = __builtin_fmaxf(max_, largest);
    from_ = max_ == -__builtin_inff() ? 0.0f : max_;
    const float factor = __builtin_amdgcn_exp2f(before - from_);
    sum_ *= factor;
#pragma unroll
    for (int d = 0; d < blocks; ++d) o_[d] *= factor;
  }
};

// --- the loop --------------------------------------------------------------------------------------------------------

// Step t multiplies K of tile t, and V of tile t - 1 by the probabilities of tile t - 1, then makes probabilities of
// tile t. There are two groups of four waves, one wave of each on every SIMD; the second runs half a step behind the
// first:
//
//   interval      2t                2t + 1            2t + 2              2t + 3          s_barrier between intervals
//   leading       multiply t        softmax t         multiply t + 1      softmax t + 1
//   following     softmax t - 1     multiply t        softmax t           multiply t + 1
//
// so that on a SIMD one wave has work for the matrix unit while the other one has it for the vector ALU. K of tile t +
// 1 goes to where tile t - 1 was, V of tile t to where t - 2 was: both were read last in interval 2t - 1. All waves ask
// for them in interval 2t and wait for them at the end of 2t + 1.
template <class T, int D, bool Causal>
class Loop {
  KeyFetcher<D> key_fetcher_;
  ValueFetcher<T, D> value_fetcher_;
  Wave<T, D, Causal> &wave_;
  const int tiles_;
  const bool leading_;

 public:
  TURBO_METHOD Loop(const ForwardArgs &args, const global<unsigned char> *k, const global<unsigned char> *v,
                    local<unsigned char> *memory, Wave<T, D, Causal> &wave, int tiles)
      : key_fetcher_(k, args.k_strides.row, args.sk, memory),
        value_fetcher_(v, args.v_strides.row, args.sk, memory),
        wave_(wave),
        tiles_(tiles),
        leading_(wave_index() < kWaves / 2) {}

  TURBO_METHOD void run() {
    fetch<0>(0);
    wait_fetched();
    bare_barrier();
    if (!leading_) {
      fetch<1>(1);
      bare_barrier();
    }
    step<0, true, false>(0);
    for (int t = 1; t < tiles_; t += 2) {
      step<1, true, true>(t);
      if (t + 1 == tiles_) break;
      step<0, true, true>(t + 1);
    }
    if (tiles_ % 2 == 0)
      last<0>();
    else
      last<1>();
  }

 private:
  // What step t multiplies. Slot is t % 2.
  template <int Slot>
  TURBO_METHOD void fetch(int t) {
    if (t < tiles_) key_fetcher_(Layout<D>::k(Slot));
    if (0 < t && t <= tiles_) value_fetcher_(Layout<D>::v(1 - Slot));
  }

  TURBO_METHOD void arrive(int t) {
    wait_fetched();
    if (t <= tiles_) value_fetcher_.arrive();
    wait_lds();
  }

  template <int Slot, bool Scores, bool Values>
  TURBO_METHOD void step(int t) {
    if (leading_) fetch<1 - Slot>(t + 1);
    __builtin_amdgcn_s_setprio(1);  // the other wave of this SIMD takes the issue slots that are left
    wave_.template multiply_tiles<Slot, Scores, Values>();
    __builtin_amdgcn_s_setprio(0);
    if (!leading_) arrive(t + 1);
    bare_barrier();
    if (!leading_) fetch<Slot>(t + 2);
    if constexpr (Scores) wave_.softmax(t);
    if (leading_) arrive(t + 1);
    bare_barrier();
  }

  template <int Slot>
  TURBO_METHOD void last() {
    step<Slot, false, true>(tiles_);
    if (leading_) bare_barrier();  // both groups arrive equally often
  }
};

// --- the work-group --------------------------------------------------------------------------------------------------

struct Place {
  int batch, head, first;  // first query
};

// Each XCD gets a run of adjacent heads, so that key heads are read into few L2s. Causal: the last queries of a head, which
// see most, come first.
template <bool Causal>
TURBO_DEVICE Place place(const ForwardArgs &args) {
  const unsigned at = xcd_order(unsigned(args.work));
  const unsigned row = at / unsigned(args.tiles), tile = at % unsigned(args.tiles);
  const unsigned heads = unsigned(args.heads);
  return {int(row / heads), int(row % heads), int(Causal ? unsigned(args.tiles) - 1 - tile : tile) * kTileRows};
}

// 32 rows of O from LDS, 16 bytes a lane.
template <int D>
TURBO_DEVICE void write_rows(const local<unsigned char> *part, global<unsigned char> *out, long long stride, int rows) {
  constexpr int chunks = Layout<D>::chunks, per_pass = 64 / chunks;
  const int chunk = lane_index() % chunks;
#pragma unroll
  for (int i = 0; i < kWaveRows / per_pass; ++i) {
    const int row = i * per_pass + lane_index() / chunks;
    if (row >= rows) continue;
    const auto x = load<16>(part + row * Layout<D>::row_bytes + swizzle_k<D>(row, chunk) * 16);
    store<16>(out + row * stride + chunk * 16, x);
  }
}

template <class T, int D, bool Causal>
TURBO_DEVICE void forward(const ForwardArgs &args) {
  __shared__ __attribute__((aligned(16))) unsigned char shared_bytes[Layout<D>::bytes];
  auto *memory = (local<unsigned char> *)shared_bytes;
  const Place at = place<Causal>(args);
  const auto head_of = [&](auto *tensor, const Strides &strides, int head) {
    return tensor + at.batch * strides.batch + head * strides.head;
  };
  const int first = at.first + wave_index() * kWaveRows, key_head = at.head / args.group;
  const int tiles = ceil_div(Wave<T, D, Causal>::visible(args, least(at.first + kTileRows, args.sq) - 1), kTileKeys);
  Wave<T, D, Causal> wave(args, head_of(args.q, args.q_strides, at.head), first, memory);
  if (tiles > 0) {
    Loop<T, D, Causal> loop(args, head_of(args.k, args.k_strides, key_head), head_of(args.v, args.v_strides, key_head),
                            memory, wave, tiles);
    loop.run();
  }
  const int rows = least(args.sq - first, kWaveRows);
  const long long lse_row = at.batch * args.lse_batch + at.head * args.lse_head + first;
  wave.finish(args.lse + lse_row, args.lse_low + lse_row, lane_index(), rows);
  auto *part = memory + wave_index() * kWaveRows * Layout<D>::row_bytes;
  wave.put(part);
  wait_lds();
  write_rows<D>(part, head_of(args.out, args.out_strides, at.head) + first * args.out_strides.row, args.out_strides.row,
                rows);
}

constexpr bool full = false, causal = true;

#define TURBO_FORWARD(T, D, mask)                                                                  \
  TURBO_KERNEL(kWaves *kWaveSize, 2) void attention_forward_##T##_##D##_##mask(ForwardArgs args) { \
    forward<T, D, mask>(args);                                                                     \
  }
TURBO_ATTENTION_KERNELS(TURBO_FORWARD)

}  // namespace turbo_attention
