// SPDX-License-Identifier: MIT
//
// Reductions over a wave of 64 lanes and over a work-group.
//
// A wave reduces by DPP (data-parallel primitives): the second operand of a VALU instruction comes from another lane,
// at no extra cost and without LDS. Six steps give the total in lane 63:
//   row_shr:1, 2, 4, 8   lanes of a row of 16 take from the lane 1, 2, 4, 8 below; lane 15 has the row's total
//   row_bcast:15         lane 15 of rows 0 and 2 is added into rows 1 and 3
//   row_bcast:31         lane 31 is added into rows 2 and 3
// v_readlane_b32 then makes it a scalar, the same for all lanes. Every lane must be active, so call these only from
// control flow that is uniform over the wave. The order of additions is fixed: results are equal bit for bit from run
// to run.
#pragma once

#include "turbo/lds.h"
#include "turbo/types.h"

namespace turbo {

struct Sum {
  static constexpr float identity = 0.0f;
  TURBO_DEVICE float apply(float a, float b) { return a + b; }
};

// NaN is lost (v_max_f32 returns the number), as for amax of a tensor.
struct Max {
  static constexpr float identity = -__builtin_inff();
  TURBO_DEVICE float apply(float a, float b) { return __builtin_fmaxf(a, b); }
};

// --- a wave ----------------------------------------------------------------------------------------------------------

namespace dpp {
constexpr int row_shr(int lanes) { return 0x110 + lanes; }
constexpr int row_bcast15 = 0x142;
constexpr int row_bcast31 = 0x143;
constexpr int row_mirror = 0x140;
constexpr int row_half_mirror = 0x141;
constexpr int quad_perm(int a, int b, int c, int d) { return a | b << 2 | c << 4 | d << 6; }

// x of the lane that Control names; `rest` in lanes without a source and in rows outside RowMask.
template <int Control, int RowMask = 0xf>
TURBO_DEVICE float move(float x, float rest) {
  return bits<float>(__builtin_amdgcn_update_dpp(bits<int>(rest), bits<int>(x), Control, RowMask, 0xf, false));
}
}  // namespace dpp

// x of one lane, in all lanes; `lane` must be uniform. v_readlane_b32.
TURBO_DEVICE float read_lane(float x, int lane) { return bits<float>(__builtin_amdgcn_readlane(bits<int>(x), lane)); }

// x of lane `source`, which may differ from lane to lane. ds_bpermute_b32: goes through the LDS hardware, uses no
// memory.
TURBO_DEVICE float shuffle(float x, int source) {
  return bits<float>(__builtin_amdgcn_ds_bpermute(source * 4, bits<int>(x)));
}

template <class Op>
TURBO_DEVICE float wave_reduce(float x) {
  x = Op::apply(x, dpp::move<dpp::row_shr(1)>(x, Op::identity));
  x = Op::apply(x, dpp::move<dpp::row_shr(2)>(x, Op::identity));
  x = Op::apply(x, dpp::move<dpp::row_shr(4)>(x, Op::identity));
  x = Op::apply(x, dpp::move<dpp::row_shr(8)>(x, Op::identity));
  x = Op::apply(x, dpp::move<dpp::row_bcast15, 0xa>(x, Op::identity));
  x = Op::apply(x, dpp::move<dpp::row_bcast31, 0xc>(x, Op::identity));
  return read_lane(x, kWaveSize - 1);
}

TURBO_DEVICE float wave_sum(float x) { return wave_reduce<Sum>(x); }
TURBO_DEVICE float wave_max(float x) { return wave_reduce<Max>(x); }

// What lanes 0 to this one have together: combine(a, b) is associative, and 0 changes nothing in it.
template <class Combine>
TURBO_DEVICE unsigned wave_scan(unsigned x, Combine combine) {
  const auto step = [&](float other) { x = combine(x, bits<unsigned>(other)); };
  step(dpp::move<dpp::row_shr(1)>(bits<float>(x), 0.0f));
  step(dpp::move<dpp::row_shr(2)>(bits<float>(x), 0.0f));
  step(dpp::move<dpp::row_shr(4)>(bits<float>(x), 0.0f));
  step(dpp::move<dpp::row_shr(8)>(bits<float>(x), 0.0f));
  step(dpp::move<dpp::row_bcast15, 0xa>(bits<float>(x), 0.0f));
  step(dpp::move<dpp::row_bcast31, 0xc>(bits<float>(x), 0.0f));
  return x;
}

// --- a work-group ----------------------------------------------------------------------------------------------------

// Reduces over Threads work-items; the result is in all of them. One barrier per call: calls alternate between two sets
// of slots, so a wave that is already in the next call cannot overwrite what a slow one still reads (it would have to
// pass that call's barrier first). A kernel makes one BlockReduce and passes `call` = 0, 1, 2, ...
template <int Threads>
struct BlockReduce {
  static_assert(Threads % kWaveSize == 0 && Threads <= kMaxThreads, "a work-group is 1 to 16 whole waves");
  static constexpr int waves = Threads / kWaveSize;
  using Slots = float[2][waves];

  template <class Op>
  TURBO_DEVICE float apply(float x, Slots &slots, unsigned call) {
    x = wave_reduce<Op>(x);
    if constexpr (waves == 1) {
      return x;
    } else {
      float *set = slots[call % 2];
      if (lane_index() == 0) set[wave_index()] = x;
      barrier();
      float total = set[0];  // the same address in all lanes: a broadcast, free of bank conflicts
#pragma unroll
      for (int w = 1; w < waves; ++w) total = Op::apply(total, set[w]);
      return total;
    }
  }
};

}  // namespace turbo
