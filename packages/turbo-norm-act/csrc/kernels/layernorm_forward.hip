// SPDX-License-Identifier: MIT
#include "norm_forward.h"

TURBO_NORM_FORWARD_OF_TYPE(layernorm, true, bf16, bf16)
TURBO_NORM_FORWARD_OF_TYPE(layernorm, true, fp16, fp16)
TURBO_NORM_FORWARD_OF_TYPE(layernorm, true, fp32, float)
