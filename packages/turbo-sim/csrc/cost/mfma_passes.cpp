// SPDX-License-Identifier: MIT
#include "cost/mfma_passes.h"

#include <cstring>

namespace turbo_sim {

unsigned mfma_passes(Arch arch, const Instruction &i) {
  const char *n = op_name(i.op);
  auto has = [&](const char *part) { return std::strstr(n, part) != nullptr; };
  if (has("_f8f6f4")) {
    const bool fp8 = i.cbsz < 2 || i.blgp < 2;  // formats: 0 fp8, 1 bf8, 2 fp6, 3 bf6, 4 fp4
    const unsigned base = has("32x32x64") ? 8 : 4;
    return fp8 ? 2 * base : base;
  }
  if (has("f64_16x16x4")) return arch == Arch::gfx950 ? 16 : 8;
  if (has("f64_4x4x4")) return 4;
  if (has("_4x4x")) return 2;
  // Several blocks at once: as many passes as their output needs.
  if (has("_2b_")) return 16;
  if (has("_4b_")) return 8;
  const unsigned base = has("_32x32x") ? 8 : 4;
  const char *last = std::strrchr(n, '_');
  return last && !std::strcmp(last, "_f32") ? 2 * base : base;  // f32 operands at half rate
}

}  // namespace turbo_sim
