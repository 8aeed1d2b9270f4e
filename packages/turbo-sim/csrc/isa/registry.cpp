// SPDX-License-Identifier: MIT
#include "isa/registry.h"

namespace turbo_sim {

void Registry::set(Op op, Handler h) { handlers_[size_t(op)] = h; }
void Registry::select(Op op, Selector s) { selectors_[size_t(op)] = s; }
bool Registry::implemented(Op op) const { return handlers_[size_t(op)] || selectors_[size_t(op)]; }

Handler Registry::bind(const Instruction &i) const {
  if (Selector s = selectors_[size_t(i.op)]) return s(i);
  if (Handler h = handlers_[size_t(i.op)]) return h;
  throw NotImplemented(op_name(i.op));
}

const Registry &registry() {
  static const Registry table = [] {
    Registry r;
    register_salu(r);
    register_control(r);
    register_smem(r);
    register_valu(r);
    register_mfma(r);
    register_ds(r);
    register_mubuf(r);
    register_flat(r);
    return r;
  }();
  return table;
}

}  // namespace turbo_sim
