// SPDX-License-Identifier: MIT
//
// What the host launcher and the device code of the grouped GEMMs share: the argument struct.
#pragma once

#include "turbo/gemm/args.h"

namespace turbo_grouped_gemm {

// Bytes from group to group, and from one of its rows (where the groups are columns: 128 of them) to the next.
struct Steps {
  long long group, row;
};

// A GEMM for each group. Either the groups are rows of A and C, each with a B of its own, or they are columns of A and of B,
// whose product is a C for each group.
struct GroupedGemmArgs {
  turbo::gemm::GemmArgs gemm;  // where group 0 and row 0 begin; m or row_bytes is that of all groups together
  Steps a, b, a_scale, b_scale, bias, c;
  TURBO_GLOBAL(const void) lens;  // [groups], rows of each; null where the groups are columns
  TURBO_GLOBAL(const void) offs;  // [groups + 1], where each begins; null: one after the other
  int wide_lens, wide_offs;       // elements are of 64 bits, not of 32
  int groups;
  int size;                        // rows or columns that there are
  int pack_shift;                  // columns are 2^shift to a byte
  int work_groups;                 // of the grid
  TURBO_GLOBAL(unsigned) counter;  // 0 before the launch: work-groups take their next tiles from it; or null
};
static_assert(sizeof(GroupedGemmArgs) == 296, "the layout is part of the interface between two compilers");

}  // namespace turbo_grouped_gemm
