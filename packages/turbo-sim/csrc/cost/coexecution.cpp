// SPDX-License-Identifier: MIT
#include "cost/coexecution.h"

#include "cost/mfma_passes.h"

#include <algorithm>
#include <cstring>

namespace turbo_sim {

unsigned held_cycles(Arch arch, const Instruction &i) {
  const char *last = std::strrchr(op_name(i.op), '_');
  if (last && (!std::strcmp(last, "_f32") || !std::strcmp(last, "_f64"))) return 4 * mfma_passes(arch, i);
  const unsigned bytes = 4u * std::max(i.src[0].dwords, i.src[1].dwords);
  return 4 * (1 + bytes / 16);
}

bool runs_alone(const Instruction &i) {
  const char *name = op_name(i.op);
  if (i.cls == InstClass::Trans || !std::strncmp(name, "v_dot", 5)) return true;
  return !std::strncmp(name, "v_pk_", 5) && (std::strstr(name, "_f32") || std::strstr(name, "_b32"));
}

}  // namespace turbo_sim
