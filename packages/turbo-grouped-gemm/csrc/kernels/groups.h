// SPDX-License-Identifier: MIT
//
// Which tile of which group: found by each work-group on the device, from the lengths and offsets of the groups.
//
// Tiles are numbered through: those of group 0, then of group 1, and so on; behind them come, where the groups are rows, the
// tiles of the rows that belong to no group. A wave looks at 64 groups at a time, one a lane; all waves find the same.
//
// Whatever lengths and offsets say, nothing outside of the rows or columns that there are is named.
#pragma once

#define TURBO_MANY_TILES
#include "grouped_gemm_args.h"
#include "turbo/gemm/pipeline.h"
#include "turbo/wave.h"

namespace turbo_grouped_gemm {

using namespace turbo;
using namespace turbo::gemm;

constexpr int kNoGroup = -1, kNoTile = -2;

struct Place {
  int group;             // or kNoGroup: rows of C that are zeros; or kNoTile: there is none of this number
  unsigned first, size;  // rows or columns
  unsigned tile;         // of the group's
};

// From 0 to `limit`.
TURBO_DEVICE unsigned read_index(const global<void> *from, int wide, unsigned at, unsigned limit) {
  const long long x = wide ? ((const global<long long> *)from)[at] : ((const global<int> *)from)[at];
  const long long most = limit;
  return unsigned(x < 0 ? 0 : x < most ? x : most);
}

TURBO_DEVICE unsigned uniform(unsigned x) { return unsigned(__builtin_amdgcn_readfirstlane(int(x))); }
TURBO_DEVICE unsigned of_lane(unsigned x, int lane) { return unsigned(__builtin_amdgcn_readlane(int(x), lane)); }

// --- groups of rows --------------------------------------------------------------------------------------------------

struct Rows {
  unsigned first, end, next;  // of a group, and where the next one begins
};

// Of this lane's group g, the group of lane 0 a multiple of 64: so cut that groups are in order and apart. `before` is where
// the first of these 64 may begin, and becomes where the one after them may. All lanes must be active.
TURBO_DEVICE Rows rows_of_lane(const GroupedGemmArgs &args, unsigned g, unsigned &before) {
  const unsigned size = unsigned(args.size);
  const bool valid = g < unsigned(args.groups), first_lane = lane_index() == 0;
  const auto add = [&](unsigned x, unsigned y) { return x + y < size ? x + y : size; };
  const auto later = [](unsigned x, unsigned y) { return x > y ? x : y; };
  const unsigned rows = valid ? read_index(args.lens, args.wide_lens, g, size) : 0u;
  Rows found;
  if (args.offs == nullptr) {
    found.end = wave_scan(first_lane ? add(before, rows) : rows, add);
    found.first = bits<unsigned>(shuffle(bits<float>(found.end), lane_index() - 1));
    if (first_lane) found.first = before;
    found.next = found.end;
  } else {
    const unsigned at = valid ? read_index(args.offs, args.wide_offs, g, size) : 0u;
    const unsigned next = valid ? read_index(args.offs, args.wide_offs, g + 1, size) : 0u;
    found.first = wave_scan(first_lane ? later(before, at) : at, later);
    found.next = later(found.first, next);
    found.end = found.first + rows < found.next ? found.first + rows : found.next;
  }
  before = of_lane(found.next, kWaveSize - 1);
  return found;
}

template <int TileM>
TURBO_DEVICE unsigned tiles_of(unsigned rows) {
  return (rows + TileM - 1) / TileM;
}

// Looks for row tile `row_tile` in the groups, or in the gaps behind their rows. If it is there, it is `found`; else `row_tile`
// becomes smaller by all tiles. `end` becomes where the last group ends.
template <int TileM, bool Gaps>
TURBO_DEVICE bool find_tile(const GroupedGemmArgs &args, unsigned &row_tile, unsigned &end, Place &found) {
  const unsigned groups = unsigned(args.groups);
  end = 0;
#pragma unroll 1
  for (unsigned from = 0; from < groups; from += kWaveSize) {
    const unsigned g = from + unsigned(lane_index());
    const Rows rows = rows_of_lane(args, g, end);
    const unsigned first = Gaps ? rows.end : rows.first;
    const unsigned last = !Gaps ? rows.end : g + 1 < groups ? rows.next : unsigned(args.size);
    const unsigned size = g < groups ? last - first : 0u, tiles = tiles_of<TileM>(size);
    const unsigned until = wave_scan(tiles, [](unsigned x, unsigned y) { return x + y; });
    const unsigned long mask = __builtin_amdgcn_ballot_w64(until > row_tile);
    if (mask != 0) {
      const int lane = __builtin_ctzl(mask);
      found = {Gaps ? kNoGroup : int(from) + lane, of_lane(first, lane), of_lane(size, lane),
               row_tile - (of_lane(until, lane) - of_lane(tiles, lane))};
      return true;
    }
    row_tile -= of_lane(until, kWaveSize - 1);
  }
  return false;
}

// Tile number `at`. Rows of no group are those before the first group, and behind each.
template <int TileM>
TURBO_DEVICE Place place_in_rows(const GroupedGemmArgs &args, unsigned at) {
  const unsigned tiles_n = unsigned(args.gemm.tiles_n), size = unsigned(args.size);
  unsigned row_tile = uniform(at / tiles_n), end = 0;
  const unsigned column = at - row_tile * tiles_n;
  Place found{kNoTile, 0, 0, 0};
  if (!find_tile<TileM, false>(args, row_tile, end, found)) {
    const bool packed = args.offs == nullptr || args.groups == 0;  // one run of rows is left
    const unsigned first = packed ? end : 0u;
    const unsigned last = packed ? size : uniform(read_index(args.offs, args.wide_offs, 0, size));
    const unsigned tiles = tiles_of<TileM>(last - first);
    if (row_tile < tiles) {
      found = {kNoGroup, first, last - first, row_tile};
    } else if (!packed) {
      row_tile -= tiles;
      find_tile<TileM, true>(args, row_tile, end, found);
    }
  }
  found.tile = found.tile * tiles_n + column;
  return found;
}

// --- groups of columns -----------------------------------------------------------------------------------------------

// Groups begin at multiples of 128, in which `first` and `size` count.
TURBO_DEVICE Place place_in_columns(const GroupedGemmArgs &args, unsigned at) {
  const unsigned tiles = unsigned(args.gemm.tiles_m) * unsigned(args.gemm.tiles_n);
  const unsigned g = uniform(at / tiles), size = unsigned(args.size);
  if (g >= unsigned(args.groups)) return {kNoTile, 0, 0, 0};
  const unsigned first = uniform(read_index(args.offs, args.wide_offs, g, size)) / 128;
  const unsigned end = uniform(read_index(args.offs, args.wide_offs, g + 1, size)) / 128;
  return {int(g), first, first < end ? end - first : 0u, at - g * tiles};
}

}  // namespace turbo_grouped_gemm
