// SPDX-License-Identifier: MIT
// What torch's CPU allocator hands out, so that launches of a wheel's native library on CPU tensors have bounds.
//
// torch allocates CPU tensors with posix_memalign and free, called through libc10.so's own jump table. These two
// entries are pointed at functions that keep a list. Nothing else in the process is touched; where libc10 is absent or
// built otherwise, nothing is tracked and the bounds check falls back to the mappings of the process.
#include "hip/state.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace turbo_sim::hip {
namespace {

struct Table {
  std::mutex mutex;
  std::map<uint64_t, uint64_t> sizes;  // by address
};
Table &table() {
  static Table *t = new Table;  // tensors are freed until the very end of the process
  return *t;
}

int tracked_memalign(void **out, size_t alignment, size_t size) {
  const int error = ::posix_memalign(out, alignment, size);
  if (!error && *out) {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().sizes[reinterpret_cast<uint64_t>(*out)] = size;
  }
  return error;
}

void tracked_free(void *p) {
  if (p) {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().sizes.erase(reinterpret_cast<uint64_t>(p));
  }
  ::free(p);
}

void replace(uint64_t *slot, void *function) {
  const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uint64_t>(slot) & ~(page - 1);
  if (mprotect(reinterpret_cast<void *>(begin), page, PROT_READ | PROT_WRITE)) return;
  *slot = reinterpret_cast<uint64_t>(function);
}

/// Entries of one library for a symbol, in the relocations of its jump table and of its data.
unsigned redirect(const dl_phdr_info &info, const char *symbol, void *function) {
  const ElfW(Dyn) *dynamic = nullptr;
  for (int k = 0; k < info.dlpi_phnum; ++k)
    if (info.dlpi_phdr[k].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn) *>(info.dlpi_addr + info.dlpi_phdr[k].p_vaddr);
  if (!dynamic) return 0;
  const ElfW(Sym) *symbols = nullptr;
  const char *names = nullptr;
  const ElfW(Rela) * tables[2] = {};
  size_t bytes[2] = {};
  for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; ++d) {
    const uint64_t p = d->d_un.d_ptr;  // glibc has made these absolute
    if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym) *>(p);
    if (d->d_tag == DT_STRTAB) names = reinterpret_cast<const char *>(p);
    if (d->d_tag == DT_JMPREL) tables[0] = reinterpret_cast<const ElfW(Rela) *>(p);
    if (d->d_tag == DT_PLTRELSZ) bytes[0] = d->d_un.d_val;
    if (d->d_tag == DT_RELA) tables[1] = reinterpret_cast<const ElfW(Rela) *>(p);
    if (d->d_tag == DT_RELASZ) bytes[1] = d->d_un.d_val;
  }
  if (!symbols || !names) return 0;
  unsigned found = 0;
  for (unsigned t = 0; t < 2; ++t) {
    for (size_t k = 0; tables[t] && k < bytes[t] / sizeof(ElfW(Rela)); ++k) {
      const ElfW(Rela) &r = tables[t][k];
      const unsigned type = unsigned(ELF64_R_TYPE(r.r_info));
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
      if (std::strcmp(names + symbols[ELF64_R_SYM(r.r_info)].st_name, symbol)) continue;
      replace(reinterpret_cast<uint64_t *>(info.dlpi_addr + r.r_offset), function);
      ++found;
    }
  }
  return found;
}

}  // namespace

bool track_torch() {
  static bool done = false;
  static std::mutex once;
  std::lock_guard<std::mutex> lock(once);
  if (done) return true;
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *) {
        const char *slash = std::strrchr(info->dlpi_name, '/');
        if (std::strcmp(slash ? slash + 1 : info->dlpi_name, "libc10.so")) return 0;
        // free first: a block that is freed untracked would stay on the list.
        done = redirect(*info, "free", reinterpret_cast<void *>(&tracked_free)) &&
               redirect(*info, "posix_memalign", reinterpret_cast<void *>(&tracked_memalign));
        return 1;
      },
      nullptr);
  return done;
}

void append_torch_memory(std::vector<Allocation> &out) {
  std::lock_guard<std::mutex> lock(table().mutex);
  for (const auto &[begin, size] : table().sizes)
    out.push_back({begin, begin + size, "tensor of " + std::to_string(size) + " bytes", true});
}

}  // namespace turbo_sim::hip
