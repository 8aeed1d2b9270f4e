/* SPDX-License-Identifier: MIT
 *
 * A libamdhip64 for tests: it has the functions that the native library uses, executes nothing, and records what it
 * was asked. Tests talk to it through the fake_* functions (ctypes). Code objects are read as far as is needed to
 * answer like the real library: a kernel that is not in the file is not found, and the size of a kernel's arguments
 * comes from its descriptor.
 */
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  DEVICES = 8,
  ARCH_OFFSET = 1160,
  KERNEL_NAME = 128,
  ARGUMENTS = 512,
  LAUNCHES = 4096,
  MODULES = 256,
  FUNCTIONS = 1024
};
enum { INVALID_VALUE = 1, INVALID_DEVICE = 101, NO_BINARY = 209, NOT_FOUND = 500 };

typedef struct {
  char kernel[KERNEL_NAME];
  unsigned grid[3], block[3], lds;
  int device;
  void *stream;
  unsigned arguments_size;
  unsigned char arguments[ARGUMENTS];
} Launch;

typedef struct {
  int device;
  unsigned char *image; /* a copy: the caller may free his once the module is loaded */
} Module;

typedef struct {
  char kernel[KERNEL_NAME];
  int device;
  unsigned arguments_size;
} Function;

#ifndef FIRST_ARCH
#define FIRST_ARCH "gfx942:sramecc+:xnack-"
#endif

static char archs[DEVICES][64] = {FIRST_ARCH, "gfx950:sramecc+:xnack-"};
static Launch launches[LAUNCHES];
static Module modules[MODULES];
static Function functions[FUNCTIONS];
static int launch_count, module_count, function_count, set_device_count, last_error, fail_code;
static char fail_function[64];
static __thread int current_device;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* --- for the tests --- */

void fake_reset(void) {
  launch_count = module_count = function_count = set_device_count = last_error = fail_code = 0;
  fail_function[0] = '\0';
  current_device = 0;
}
void fake_arch(int device, const char *name) { snprintf(archs[device], sizeof archs[device], "%s", name); }
void fake_fail(const char *function, int code) {
  snprintf(fail_function, sizeof fail_function, "%s", function);
  fail_code = code;
}
int fake_launch_count(void) { return launch_count; }
const Launch *fake_launch(int index) { return &launches[index]; }
int fake_module_count(void) { return module_count; }
int fake_module_device(int index) { return modules[index].device; }
int fake_set_device_count(void) { return set_device_count; }
int fake_last_error(void) { return last_error; }
int fake_current_device(void) { return current_device; }

static int result(const char *function, int code) {
  if (code == 0 && fail_code != 0 && strcmp(fail_function, function) == 0) code = fail_code;
  if (code != 0) last_error = code;
  return code;
}

/* --- code objects --- */

/* File address of the bytes that have a virtual address; the images here are files that are read, not mapped
 * segments. */
static const unsigned char *at_address(const unsigned char *image, uint64_t address) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Phdr *segments = (const Elf64_Phdr *)(image + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) {
    const Elf64_Phdr *segment = &segments[i];
    if (segment->p_type == PT_LOAD && address >= segment->p_vaddr && address < segment->p_vaddr + segment->p_filesz)
      return image + segment->p_offset + (address - segment->p_vaddr);
  }
  return NULL;
}

/* The section headers are the last thing in the files that lld writes. */
static unsigned char *copy(const unsigned char *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const size_t size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  return memcpy(malloc(size), image, size);
}

/* Size of a kernel's arguments; -1 when the file has no such kernel. The descriptor is the symbol <kernel>.kd, and
 * the size its third 32-bit word. */
static int arguments_size(const unsigned char *image, const char *kernel) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  char wanted[KERNEL_NAME + 4];
  snprintf(wanted, sizeof wanted, "%s.kd", kernel);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
    const char *names = (const char *)image + sections[sections[i].sh_link].sh_offset;
    for (uint64_t s = 0; s < sections[i].sh_size / sizeof *symbols; ++s) {
      if (strcmp(names + symbols[s].st_name, wanted) == 0)
        return (int)((const uint32_t *)at_address(image, symbols[s].st_value))[2];
    }
  }
  return -1;
}

/* --- the HIP interface --- */

int hipGetDevice(int *device) {
  *device = current_device;
  return result("hipGetDevice", 0);
}

int hipSetDevice(int device) {
  if (device < 0 || device >= DEVICES || archs[device][0] == '\0') return result("hipSetDevice", INVALID_DEVICE);
  ++set_device_count;
  current_device = device;
  return result("hipSetDevice", 0);
}

int hipGetDevicePropertiesR0600(void *properties, int device) {
  if (device < 0 || device >= DEVICES || archs[device][0] == '\0')
    return result("hipGetDeviceProperties", INVALID_DEVICE);
  strcpy((char *)properties + ARCH_OFFSET, archs[device]);
  return result("hipGetDeviceProperties", 0);
}

int hipModuleLoadData(void **module, const void *image) {
  const int failed = result("hipModuleLoadData", memcmp(image, ELFMAG, SELFMAG) == 0 ? 0 : NO_BINARY);
  if (failed) return failed;
  usleep(20000); /* long enough for other threads to come by */
  pthread_mutex_lock(&mutex);
  Module *made = &modules[module_count++ % MODULES];
  pthread_mutex_unlock(&mutex);
  made->device = current_device;
  made->image = copy(image);
  *module = made;
  return 0;
}

int hipModuleGetFunction(void **function, void *module, const char *name) {
  const Module *from = module;
  const int size = arguments_size(from->image, name);
  const int failed = result("hipModuleGetFunction", size < 0 ? NOT_FOUND : 0);
  if (failed) return failed;
  pthread_mutex_lock(&mutex);
  Function *made = &functions[function_count++ % FUNCTIONS];
  pthread_mutex_unlock(&mutex);
  snprintf(made->kernel, sizeof made->kernel, "%s", name);
  made->device = from->device;
  made->arguments_size = (unsigned)size;
  *function = made;
  return 0;
}

int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned lds, void *stream, void **parameters, void **extra) {
  const Function *from = function;
  const int failed =
      result("hipModuleLaunchKernel", extra != NULL || from->device != current_device ? INVALID_VALUE : 0);
  if (failed) return failed;
  pthread_mutex_lock(&mutex);
  Launch *launch = &launches[launch_count++ % LAUNCHES];
  pthread_mutex_unlock(&mutex);
  *launch =
      (Launch){.grid = {gx, gy, gz}, .block = {bx, by, bz}, .lds = lds, .device = current_device, .stream = stream};
  strcpy(launch->kernel, from->kernel);
  launch->arguments_size = from->arguments_size;
  memcpy(launch->arguments, parameters[0], from->arguments_size < ARGUMENTS ? from->arguments_size : ARGUMENTS);
  return 0;
}

const char *hipGetErrorString(int error) {
  switch (error) {
    case INVALID_VALUE: return "invalid argument";
    case INVALID_DEVICE: return "invalid device ordinal";
    case NO_BINARY: return "no kernel image is available for execution on the device";
    case NOT_FOUND: return "named symbol not found";
    default: return "unspecified launch failure";
  }
}

int hipGetLastError(void) {
  const int error = last_error;
  last_error = 0;
  return error;
}
