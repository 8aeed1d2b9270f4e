/* SPDX-License-Identifier: MIT
 *
 * Types and codes that the C interfaces of all Turbo kernel libraries have in common. Plain C, no other header.
 */
#ifndef TURBO_ABI_H
#define TURBO_ABI_H

/* What a function of a kernel library returns. The text that goes with a code other than TURBO_OK is in the library's
 * ..._last_error(), per thread. */
typedef enum {
  TURBO_OK = 0,
  TURBO_ERROR_ARGUMENT = 1,   /* an argument is outside what the function accepts; nothing was launched */
  TURBO_ERROR_NO_RUNTIME = 2, /* no HIP run time, or one without a function that is needed */
  TURBO_ERROR_NO_KERNEL = 3,  /* no code object for the device's architecture, or it lacks the kernel */
  TURBO_ERROR_HIP = 4         /* a HIP call failed; the text names it and HIP's own reason */
} turbo_status;

/* Element types of tensors. A function says which of them it takes. */
typedef enum {
  TURBO_FLOAT32 = 0,
  TURBO_FLOAT16 = 1,
  TURBO_BFLOAT16 = 2,
  TURBO_FLOAT8_E4M3 = 3, /* OCP: torch's float8_e4m3fn */
  TURBO_FLOAT8_E5M2 = 4,
  TURBO_FLOAT8_E4M3_FNUZ = 5,
  TURBO_FLOAT8_E5M2_FNUZ = 6
} turbo_dtype;

/* Formats of MX payloads, OCP's: 8 bits an element, or two e2m1 in a byte, the first in the low nibble. */
typedef enum { TURBO_MX_E4M3 = 0, TURBO_MX_E5M2 = 1, TURBO_MX_E2M1 = 2 } turbo_mx_format;

#define TURBO_API __attribute__((visibility("default")))

/* What every library has beside its kernels, each with the library's name in front:
 *   ..._abi_version   raised when a struct or the meaning of a function changes
 *   ..._last_error    text of this thread's last failure; valid until its next one
 *   ..._check         TURBO_OK when kernels can run on the device
 *   ..._device_arch   architecture of the device as text ("gfx950"), cut to `size` bytes with its final zero
 *   ..._reset         forgets the HIP library, the devices and the loaded code objects: for simulators and tests that
 *                     put another library or architecture behind a device index; not while a launch is under way */
#define TURBO_LIBRARY_FUNCTIONS(library)                                          \
  TURBO_API int library##_abi_version(void);                                      \
  TURBO_API const char *library##_last_error(void);                               \
  TURBO_API turbo_status library##_check(int device);                             \
  TURBO_API turbo_status library##_device_arch(int device, char *name, int size); \
  TURBO_API void library##_reset(void);

#endif
