// SPDX-License-Identifier: MIT
// How execution files offer their handlers. One register_* function per file, listed in registry.cpp.
#pragma once

#include "isa/instruction.h"

#include <stdexcept>
#include <string>

namespace turbo_sim {

/// Thrown by a selector for a form that is not implemented. The text names the modifier, e.g. "omod".
/// The loader then binds a handler that stops the launch with "<disassembly>: not implemented: <text>" when it is
/// reached.
struct NotImplemented : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Chooses a handler for one decoded instruction (e.g. a fast one if ins.plain), or throws NotImplemented.
using Selector = Handler (*)(const Instruction &);

class Registry {
 public:
  /// The handler deals with every form of the opcode that can be decoded.
  void set(Op op, Handler h);
  /// The selector is asked for each decoded instruction.
  void select(Op op, Selector s);
  /// Handler for a decoded instruction; throws NotImplemented.
  Handler bind(const Instruction &) const;
  bool implemented(Op op) const;

 private:
  Handler handlers_[size_t(Op::count)] = {};
  Selector selectors_[size_t(Op::count)] = {};
};

/// The process-wide table, filled on first use.
const Registry &registry();

// Registration functions, one per execution file (add yours here and in registry.cpp).
void register_salu(Registry &);     // exec/salu*.cpp
void register_control(Registry &);  // exec/control.cpp: branches, waits, barriers, hwreg
void register_smem(Registry &);     // exec/smem.cpp
void register_valu(Registry &);     // exec/valu.cpp: all vop_*.cpp and vop3p*.cpp
void register_mfma(Registry &);     // exec/mfma.cpp
void register_ds(Registry &);       // exec/ds*.cpp
void register_mubuf(Registry &);    // exec/mubuf.cpp
void register_flat(Registry &);     // exec/flat.cpp: FLAT, GLOBAL, SCRATCH

}  // namespace turbo_sim
