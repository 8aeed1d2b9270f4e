// SPDX-License-Identifier: MIT
//
// The order of work-groups. The hardware deals them to the XCDs (dies with an L2 each) in turn, so that neighbours by
// index share no L2.
#pragma once

#include "turbo/arch.h"

namespace turbo {

constexpr unsigned kXcds = 8;  // of MI300X, MI325X, MI350X and MI355X

// The work of this work-group, of `total`, as many as there are work-groups: each XCD gets a run of adjacent work. XCD x
// runs the work-groups x, x + kXcds, ...: total / kXcds of them, and one more where x < total % kXcds. A bijection for
// every total; on a device with fewer XCDs only less is shared.
TURBO_DEVICE unsigned xcd_order(unsigned total) {
  const unsigned id = block_index(), each = total / kXcds, more = total % kXcds;
  const unsigned xcd = id % kXcds;
  return xcd * each + (xcd < more ? xcd : more) + id / kXcds;
}

}  // namespace turbo
