// SPDX-License-Identifier: MIT
// Exported functions of the simulator itself, for its Python part (ctypes).
#include "hip/state.h"

using namespace turbo_sim;
using namespace turbo_sim::hip;

namespace {
thread_local std::string text;
}

/// One setting (arch, checks, threads, seed, max_steps, bounds, findings, record). Returns "" or what is wrong.
TURBO_SIM_API const char *turbo_sim_set(const char *key, const char *value) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  text.clear();
  try {
    set(s, key, value);
  } catch (const std::invalid_argument &e) {
    text = e.what();
  }
  return text.c_str();
}

TURBO_SIM_API const char *turbo_sim_arch() {
  text = state().arch;
  return text.c_str();
}

/// Announces memory: for the next launch only, or until it is withdrawn.
TURBO_SIM_API void turbo_sim_announce(uint64_t address, uint64_t bytes, const char *name, int next_launch_only) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  (next_launch_only ? s.next_launch : s.announced).push_back({address, address + bytes, name, true});
}
TURBO_SIM_API void turbo_sim_withdraw(uint64_t address) {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  std::erase_if(s.announced, [&](const Allocation &a) { return a.begin == address; });
}
TURBO_SIM_API void turbo_sim_withdraw_next() {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.next_launch.clear();
}

/// From now on torch's CPU tensors have bounds in launches that announce nothing. 0 where torch is not loaded or built
/// otherwise.
TURBO_SIM_API int turbo_sim_track_torch() { return track_torch(); }

/// Text of this thread's last error, whole ("" after none): callers of HIP often cut it.
TURBO_SIM_API const char *turbo_sim_last_text() { return error_text(kLaunchFailure); }

TURBO_SIM_API uint64_t turbo_sim_counter(const char *which) {
  State &s = state();
  const std::string name = which;
  return name == "instructions" ? s.instructions
         : name == "launches"   ? s.launches
         : name == "findings"   ? s.findings
                                : 0;
}

/// Profiles recorded so far as a JSON list; they are forgotten.
TURBO_SIM_API const char *turbo_sim_take_profiles() {
  State &s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  text = "[";
  for (const std::string &p : s.profiles) text += (text.size() > 1 ? ",\n" : "") + p;
  text += "]";
  s.profiles.clear();
  return text.c_str();
}
