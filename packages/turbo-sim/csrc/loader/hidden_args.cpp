// SPDX-License-Identifier: MIT
// Implicit kernel arguments of the HSA ABI (code object version 5): what HIP's blockDim, gridDim and printf use.
#include "core/launch.h"

#include <algorithm>
#include <cstring>

namespace turbo_sim {

void fill_hidden_args(const Kernel &k, const LaunchArgs &a, std::vector<uint8_t> &kernarg) {
  kernarg.resize(std::max<size_t>({kernarg.size(), k.kernarg_bytes, k.kernarg_metadata_bytes}));
  const unsigned dims = a.grid[2] * a.block[2] > 1 ? 3 : a.grid[1] * a.block[1] > 1 ? 2 : 1;
  for (const KernelArg &arg : k.args) {
    if (arg.kind.rfind("hidden_", 0) != 0) continue;
    const std::string what = arg.kind.substr(7);
    const unsigned axis = what.empty() ? 3u : unsigned(what.back() - 'x');  // ..._x, ..._y, ..._z
    uint64_t v = 0;
    if (what.rfind("block_count_", 0) == 0 && axis < 3)
      v = a.grid[axis];
    else if (what.rfind("group_size_", 0) == 0 && axis < 3)
      v = a.block[axis];
    else if (what == "grid_dims")
      v = dims;
    else if (what == "private_base")
      v = kPrivateAperture >> 32;
    else if (what == "shared_base")
      v = kSharedAperture >> 32;
    else if (what == "dynamic_lds_size")
      v = a.shared_bytes;
    // remainder_*: grids are whole work-groups; global_offset_*: 0; host call buffers, heaps and queues: none.
    if (arg.offset + arg.size <= kernarg.size() && arg.size <= 8)
      std::memcpy(kernarg.data() + arg.offset, &v, arg.size);
  }
}

}  // namespace turbo_sim
