// SPDX-License-Identifier: MIT
// Launch ABI, work-groups over host threads, waves of a group between barriers.
#include "core/checks.h"
#include "core/launch.h"
#include "isa/disasm.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <random>
#include <thread>

namespace turbo_sim {
namespace {

constexpr uint64_t kBudget = 1 << 20;  // instructions of one wave before the others get their turn

struct Aligned {
  void operator()(void *p) const { std::free(p); }
};

/// What the launch has in common for all workers.
struct Context {
  Context(const CodeObject &o, const Kernel &k, const LaunchArgs &a, const Options &p)
      : object(o), kernel(k), args(a), options(p) {}
  const CodeObject &object;
  const Kernel &kernel;
  const LaunchArgs &args;
  const Options &options;
  Launch launch;
  const uint8_t *kernarg = nullptr;
  const uint8_t *packet = nullptr;  // AQL dispatch packet
  const uint8_t *queue = nullptr;
  uint32_t items = 0, waves = 0;
  uint64_t groups = 0;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr error;
};

/// One host thread: registers of a work-group's waves, LDS, shadows.
class Runner {
 public:
  explicit Runner(Context &c) : c_(c) {
    const uint32_t n = c.waves;
    waves_.reset(static_cast<Wave *>(std::aligned_alloc(64, sizeof(Wave) * n)));
    if (!waves_) throw std::bad_alloc();
    for (uint32_t k = 0; k < n; ++k) new (&waves_.get()[k]) Wave;
    lds_.resize(c.launch.lds_bytes + 64);
    worker_.launch = &c.launch;
    worker_.checks = c.options.checks;
    worker_.costs_on = c.options.costs;
    worker_.pc_counts.assign(c.launch.code->insts.size(), 0);
    if (c.options.costs) worker_.pc_memory.assign(c.launch.code->insts.size(), 0);
    const uint32_t register_checks = check_bit(Check::Uninit) | check_bit(Check::Wait) | check_bit(Check::Hazard);
    if (c.options.checks & register_checks) checks_.resize(n);
    if (c.options.checks & (check_bit(Check::Uninit) | check_bit(Check::Wait) | check_bit(Check::Race)))
      shadow_.bytes.resize(c.launch.lds_bytes);
    shadow_.waves = waves_.get();
    shadow_.count = n;
    scratch_.resize(size_t(c.launch.scratch_bytes) * kLanes * n);
  }

  Worker &worker() { return worker_; }

  void run() {
    for (;;) {
      const uint64_t g = c_.next.fetch_add(1);
      if (g >= c_.groups || c_.stop.load(std::memory_order_relaxed)) return;
      begin_group(g);
      run_group(g);
    }
  }

 private:
  void begin_group(uint64_t g) {
    const uint32_t *grid = c_.args.grid;
    group_ = WorkGroup();
    group_.id[0] = uint32_t(g % grid[0]);
    group_.id[1] = uint32_t(g / grid[0] % grid[1]);
    group_.id[2] = uint32_t(g / grid[0] / grid[1]);
    group_.waves = c_.waves;
    group_.lds_size = c_.launch.lds_bytes;
    group_.lds = lds_.data();
    std::fill(lds_.begin(), lds_.end(), uint8_t(0));
    if (!shadow_.bytes.empty()) {
      std::fill(shadow_.bytes.begin(), shadow_.bytes.end(), LdsByte());
      group_.shadow = &shadow_;
    }
    for (uint32_t k = 0; k < c_.waves; ++k) begin_wave(waves_.get()[k], k);
  }

  void begin_wave(Wave &w, uint32_t id) {
    const Kernel &k = c_.kernel;
    std::memset(w.sgpr, 0, sizeof w.sgpr);
    std::memset(w.vgpr, 0, std::min(256u, c_.launch.vgprs + c_.launch.agprs) * sizeof w.vgpr[0]);
    std::memset(w.vgpr[kAgprBase], 0, c_.launch.agprs * sizeof w.vgpr[0]);
    w.pc = c_.launch.entry;
    w.scc = 0;
    w.id = id;
    w.group = &group_;
    w.worker = &worker_;
    w.stop = Stop::Yield;
    w.scratch_stride = c_.launch.scratch_bytes;
    w.scratch = scratch_.data() + size_t(c_.launch.scratch_bytes) * kLanes * id;
    // MODE from the descriptor: FLOAT_MODE, DX10_CLAMP, IEEE, FP16_OVFL.
    w.mode.set((k.rsrc1 >> 12 & 0xff) | (k.rsrc1 >> 21 & 1) << 8 | (k.rsrc1 >> 23 & 1) << 9 |
               (k.rsrc1 >> 26 & 1) << 23);
    w.checks = nullptr;
    if (!checks_.empty()) {
      w.checks = &checks_[id];
      w.checks->reset();
    }

    // User SGPRs, in the order of the property bits.
    unsigned s = 0;
    auto pair = [&](const void *p) {
      define(w, s, 2);
      w.write64(s, reinterpret_cast<uint64_t>(p));
      s += 2;
    };
    if (k.properties & 1) {  // private segment buffer: scratch is architected, the descriptor is not used
      define(w, s, 4);
      s += 4;
    }
    if (k.properties & 2) pair(c_.packet);
    if (k.properties & 4) pair(c_.queue);
    if (k.properties & 8) pair(c_.kernarg);
    if (k.properties & 16) pair(nullptr);  // dispatch id 0
    if (k.properties & 32) pair(nullptr);  // flat scratch init
    if (k.properties & 64) {
      define(w, s, 1);
      w.sgpr[s++] = c_.launch.scratch_bytes;
    }
    for (unsigned p = 0; p < k.preload_dwords && s < k.user_sgprs(); ++p) {  // preloaded kernel arguments
      define(w, s, 1);
      std::memcpy(&w.sgpr[s++], c_.kernarg + (k.preload_offset + p) * 4, 4);
    }
    s = k.user_sgprs();
    for (unsigned axis = 0; axis < 3; ++axis) {
      if (!(k.rsrc2 >> (7 + axis) & 1)) continue;
      define(w, s, 1);
      w.sgpr[s++] = group_.id[axis];
    }
    if (k.rsrc2 >> 10 & 1) {  // work-group info: only the number of waves is of use
      define(w, s, 1);
      w.sgpr[s++] = c_.waves;
    }

    // Work-item ids, packed 10 bits each in v0; EXEC covers the items that exist.
    const uint32_t *b = c_.args.block;
    uint64_t exec = 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      const uint32_t n = id * kLanes + l;
      if (n >= c_.items) break;
      exec |= uint64_t(1) << l;
      w.vgpr[0][l] = n % b[0] | (n / b[0] % b[1]) << 10 | (n / b[0] / b[1]) << 20;
    }
    w.write64(kExec, exec);
    define(w, kExec, 2);
    if (w.checks) w.checks->vdef[0] = ~uint64_t(0);
  }

  static void define(Wave &w, unsigned index, unsigned n) {
    if (w.checks)
      for (unsigned k = 0; k < n; ++k) w.checks->sundef[index + k] = 0;
  }

  void run_group(uint64_t g) {
    std::mt19937_64 random(c_.options.seed * 0x9e3779b97f4a7c15ull + g);
    Wave *w = waves_.get();
    uint32_t alive = c_.waves, waiting = 0;
    std::vector<uint64_t> steps(c_.options.max_steps ? c_.waves : 0);
    while (alive) {
      const uint32_t first = c_.options.seed ? uint32_t(random() % c_.waves) : 0;
      const uint32_t turns = c_.options.seed ? 1 : c_.waves;
      for (uint32_t t = 0; t < turns; ++t) {
        Wave &v = w[(first + t) % c_.waves];
        if (v.stop != Stop::Yield) continue;
        const uint64_t budget = c_.options.seed ? 1 + random() % 48 : c_.options.quantum ? c_.options.quantum : kBudget;
        const uint64_t ran = step(v, budget);
        if (v.stop == Stop::EndProgram) --alive;
        if (v.stop == Stop::Barrier) ++waiting;
        if (!steps.empty() && (steps[v.id] += ran) > c_.options.max_steps)
          fail(v, "more than " + std::to_string(c_.options.max_steps) + " instructions in one wave (endless loop?)");
      }
      if (c_.stop.load(std::memory_order_relaxed)) return;
      if (waiting && waiting == alive) {  // waves that have ended do not count
        ++group_.epoch;
        for (uint32_t k = 0; k < c_.waves; ++k)
          if (w[k].stop == Stop::Barrier) w[k].stop = Stop::Yield;
        waiting = 0;
      }
    }
  }

  uint64_t step(Wave &v, uint64_t budget) {
    try {
      return run_wave(v, c_.options.max_steps ? std::min(budget, c_.options.max_steps + 1) : budget);
    } catch (const Fault &e) {
      fail(v, e.what());
    }
  }

  [[noreturn]] void fail(const Wave &v, const std::string &what) {
    const Code &code = *c_.launch.code;
    const Instruction &i = code.insts[v.pc ? v.pc - 1 : 0];
    char pc[32];
    std::snprintf(pc, sizeof pc, "0x%x", i.offset_in_code);
    const std::string line = c_.object.source_of(i.offset_in_code);
    throw Fault("kernel " + c_.launch.kernel + ", work-group (" + std::to_string(group_.id[0]) + ", " +
                std::to_string(group_.id[1]) + ", " + std::to_string(group_.id[2]) + "), wave " + std::to_string(v.id) +
                ", pc " + pc + " `" + disassemble(code.arch, i) + "`" + (line.empty() ? "" : " (" + line + ")") + ": " +
                what);
  }

  Context &c_;
  Worker worker_;
  WorkGroup group_;
  LdsShadow shadow_;
  std::unique_ptr<Wave, Aligned> waves_;
  std::vector<uint8_t> lds_, scratch_;
  std::vector<WaveChecks> checks_;
};

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument(what); }

void validate(Context &c) {
  const LaunchArgs &a = c.args;
  const Kernel &k = c.kernel;
  uint64_t items = 1;
  c.groups = 1;
  for (unsigned d = 0; d < 3; ++d) {
    if (!a.block[d] || a.block[d] > 1024)
      refuse("kernel " + k.name + ": block dimension " + std::to_string(a.block[d]) + " is not in 1..1024");
    items *= a.block[d];
    c.groups *= a.grid[d];
  }
  if (items > 1024)
    refuse("kernel " + k.name + ": " + std::to_string(items) + " work-items in a work-group, the limit is 1024");
  if (k.max_workgroup && items > k.max_workgroup)
    refuse("kernel " + k.name + ": " + std::to_string(items) +
           " work-items in a work-group, it was compiled for at most " + std::to_string(k.max_workgroup));
  c.items = uint32_t(items);
  c.waves = (c.items + kLanes - 1) / kLanes;
  const uint64_t lds = uint64_t(k.lds_bytes) + a.shared_bytes;
  if (lds > lds_limit(c.object.arch))
    refuse("kernel " + k.name + ": " + std::to_string(lds) + " bytes of LDS, " + arch_name(c.object.arch) + " has " +
           std::to_string(lds_limit(c.object.arch)));
  c.launch.lds_bytes = uint32_t(lds);
}

void describe_registers(Context &c) {
  const Kernel &k = c.kernel;
  const uint32_t total = std::min(k.total_vgprs(), 512u), arch = std::min(k.arch_vgprs(), std::min(total, 256u));
  c.launch.vgprs = arch;
  c.launch.agprs = std::min(total - arch, 256u);
  c.launch.sgprs = 102;
}

}  // namespace

uint32_t lds_limit(Arch a) { return a == Arch::gfx942 ? 65536 : 163840; }

Report launch(const CodeObject &object, const Kernel &kernel, const LaunchArgs &args, const Options &options) {
  Context c(object, kernel, args, options);
  validate(c);
  describe_registers(c);
  Launch &l = c.launch;
  l.code = &object.code;
  l.options = &options;
  l.kernel = kernel.name;
  std::copy(args.grid, args.grid + 3, l.grid);
  std::copy(args.block, args.block + 3, l.block);
  l.scratch_bytes = (kernel.scratch_bytes + 15) / 16 * 16;
  // Kernels that have their arguments preloaded begin with 256 bytes that load them for firmware that cannot.
  const uint64_t entry = kernel.entry_address + (kernel.preload_dwords ? 256 : 0) - object.code.address;
  if (entry >= object.code.bytes.size() || object.code.index_of_dword[entry / 4] == kNoInst)
    refuse("kernel " + kernel.name + ": bad entry point");
  l.entry = object.code.index_of_dword[entry / 4];

  // Kernel arguments and the dispatch packet live where the wave can read them.
  std::vector<uint8_t> kernarg = args.kernarg;
  fill_hidden_args(kernel, args, kernarg);
  const size_t kernarg_size = kernarg.size();
  kernarg.resize(std::max<size_t>(kernarg_size, size_t(kernel.preload_offset + kernel.preload_dwords) * 4) + 64);
  std::unique_ptr<uint8_t, Aligned> block(
      static_cast<uint8_t *>(std::aligned_alloc(4096, (kernarg.size() + 4096 + 4095) / 4096 * 4096)));
  std::memset(block.get(), 0, 4096);
  std::memcpy(block.get() + 4096, kernarg.data(), kernarg.size());
  uint8_t *packet = block.get();
  for (unsigned d = 0; d < 3; ++d) {
    const uint16_t size = uint16_t(args.block[d]);
    const uint32_t items = args.grid[d] * args.block[d];
    std::memcpy(packet + 4 + 2 * d, &size, 2);
    std::memcpy(packet + 12 + 4 * d, &items, 4);
  }
  std::memcpy(packet + 24, &kernel.scratch_bytes, 4);
  std::memcpy(packet + 28, &l.lds_bytes, 4);
  c.packet = packet;
  c.queue = packet + 1024;
  c.kernarg = block.get() + 4096;

  l.map = options.memory;
  if (!l.map.empty()) {
    const uint64_t base = reinterpret_cast<uint64_t>(block.get());
    // A caller that knows no better gives whole mappings of the process, which hold these too: the map has no overlaps.
    auto add = [&](uint64_t begin, uint64_t end, const char *name, bool writable) {
      for (const Allocation &a : options.memory)
        if (begin < a.end && end > a.begin) return;
      l.map.push_back({begin, end, name, writable});
    };
    // Explicit arguments are what the caller gave; a kernel that loads them in larger pieces may read up to the next 64
    // bytes.
    add(base + 4096, base + 4096 + (kernarg_size + 63) / 64 * 64, "kernel arguments", false);
    add(base, base + 2048, "dispatch packet", false);
    add(object.image_begin(), object.image_end(), "code object", true);
    std::sort(l.map.begin(), l.map.end(), [](const Allocation &a, const Allocation &b) { return a.begin < b.begin; });
  }

  const auto start = std::chrono::steady_clock::now();
  uint32_t threads = options.threads ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  threads = uint32_t(std::min<uint64_t>(threads, std::max<uint64_t>(c.groups, 1)));
  std::vector<std::unique_ptr<Runner>> runners;
  for (uint32_t t = 0; t < threads; ++t) runners.push_back(std::make_unique<Runner>(c));
  auto body = [&](Runner &r) {
    try {
      r.run();
    } catch (...) {
      std::lock_guard<std::mutex> lock(c.mutex);
      if (!c.error) c.error = std::current_exception();
      c.stop = true;
    }
  };
  std::vector<std::thread> pool;
  for (uint32_t t = 1; t < threads; ++t) pool.emplace_back(body, std::ref(*runners[t]));
  body(*runners[0]);
  for (std::thread &t : pool) t.join();
  if (c.error) std::rethrow_exception(c.error);

  Report report;
  report.kernel = kernel.name;
  report.groups = c.groups;
  report.waves = c.groups * c.waves;
  report.lds_bytes = l.lds_bytes;
  report.pc_counts.assign(object.code.insts.size(), 0);
  if (options.costs) report.pc_memory.assign(object.code.insts.size(), 0);
  std::vector<Finding> findings;
  for (auto &r : runners) {
    Worker &w = r->worker();
    report.costs.add(w.costs);
    for (size_t k = 0; k < w.pc_counts.size(); ++k) report.pc_counts[k] += w.pc_counts[k];
    for (size_t k = 0; k < w.pc_memory.size(); ++k) report.pc_memory[k] += w.pc_memory[k];
    findings.insert(findings.end(), w.findings.begin(), w.findings.end());
  }
  if (options.checks & check_bit(Check::Registers)) check_allocation(l, report.pc_counts, findings);
  for (uint64_t n : report.pc_counts) report.instructions += n;
  report.findings = spell_out(object, l, std::move(findings));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace turbo_sim
