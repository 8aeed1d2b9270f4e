// SPDX-License-Identifier: MIT
// An AMDGPU code object, loaded: its memory image, decoded code, kernels with descriptors and metadata.
#pragma once

#include "core/machine.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace turbo_sim {

/// Not a code object, or one that this device cannot run.
struct LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct KernelArg {
  uint32_t offset = 0, size = 0;
  std::string name, kind, access;  // kind: "global_buffer", "by_value", "hidden_block_count_x", ...
};

struct Kernel {
  std::string name;
  // Kernel descriptor
  uint32_t lds_bytes = 0, scratch_bytes = 0, kernarg_bytes = 0;
  uint64_t entry_address = 0;  // host address of the first instruction
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  uint16_t properties = 0, preload_dwords = 0, preload_offset = 0;
  // Metadata note; 0 / empty where there is none
  std::vector<KernelArg> args;
  uint32_t max_workgroup = 0, vgpr_count = 0, agpr_count = 0, sgpr_count = 0, vgpr_spills = 0, sgpr_spills = 0;
  uint32_t kernarg_metadata_bytes = 0;

  uint32_t total_vgprs() const { return ((rsrc1 & 63) + 1) * 8; }  // both files together, allocated
  uint32_t arch_vgprs() const { return ((rsrc3 & 63) + 1) * 4; }   // AGPRs begin here
  uint32_t user_sgprs() const { return rsrc2 >> 1 & 31; }
};

struct SourceLine {
  uint32_t offset;  // from the start of the code
  uint32_t file, line;
};

class CodeObject {
 public:
  /// Loads an ELF code object, or the entry for `arch` of an uncompressed clang offload bundle.
  /// With `arch` given ("gfx942"), a code object for another architecture is a LoadError.
  static std::shared_ptr<CodeObject> load(const uint8_t *p, size_t size, const std::string &arch = "");

  /// One kernel "kernel" from bare machine code: kernel arguments at s[0:1], work-group ids in s2, s3, s4. For tests.
  static std::shared_ptr<CodeObject> from_text(Arch, const uint8_t *p, size_t size, uint32_t lds_bytes,
                                               uint32_t scratch_bytes, uint32_t vgprs, uint32_t agprs);

  Arch arch = Arch::gfx950;
  Code code;
  std::vector<Kernel> kernels;
  std::map<std::string, std::pair<uint64_t, uint64_t>> globals;  // data symbols: host address, size
  std::vector<std::string> files;
  std::vector<SourceLine> lines;  // sorted by offset; empty without debug lines

  const Kernel *find(const std::string &name) const;
  std::string source_of(uint32_t offset) const;  // "file.py:12" or ""
  uint64_t image_begin() const { return reinterpret_cast<uint64_t>(image_.get()); }
  uint64_t image_end() const { return image_begin() + image_size_; }

 private:
  struct Free {
    void operator()(uint8_t *p) const;
  };
  std::unique_ptr<uint8_t, Free> image_;
  uint64_t image_size_ = 0;
  friend struct ElfReader;
};

const char *arch_name(Arch);

}  // namespace turbo_sim
