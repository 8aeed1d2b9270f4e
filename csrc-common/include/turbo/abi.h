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

/* Element types of tensors. */
typedef enum { TURBO_FLOAT32 = 0, TURBO_FLOAT16 = 1, TURBO_BFLOAT16 = 2 } turbo_dtype;

#endif
