// SPDX-License-Identifier: MIT
#include "norm_forward.h"

TURBO_NORM_FORWARD_OF_TYPE(rmsnorm, false, bf16, bf16)
TURBO_NORM_FORWARD_OF_TYPE(rmsnorm, false, fp16, fp16)
TURBO_NORM_FORWARD_OF_TYPE(rmsnorm, false, fp32, float)
