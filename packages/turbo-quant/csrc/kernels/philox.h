// SPDX-License-Identifier: MIT
//
// Philox4x32-10: four random words from a counter and a key (Salmon et al., Parallel Random Numbers: As Easy as 1, 2,
// 3, SC11).
#pragma once

#include "turbo/types.h"

namespace turbo_quant {

using namespace turbo;

struct PhiloxKey {
  unsigned low, high;                // of the seed
  unsigned offset_low, offset_high;  // the upper half of the counter
};

TURBO_DEVICE vec<unsigned, 4> philox(PhiloxKey key, unsigned long counter) {
  unsigned c0 = unsigned(counter), c1 = unsigned(counter >> 32), c2 = key.offset_low, c3 = key.offset_high;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long first = 0xd2511f53ul * c0, second = 0xcd9e8d57ul * c2;
    c0 = unsigned(second >> 32) ^ c1 ^ key.low;
    c1 = unsigned(second);
    c2 = unsigned(first >> 32) ^ c3 ^ key.high;
    c3 = unsigned(first);
    key.low += 0x9e3779b9u;
    key.high += 0xbb67ae85u;
  }
  return {c0, c1, c2, c3};
}

}  // namespace turbo_quant
