// SPDX-License-Identifier: MIT
#include "quantize_mx.h"

TURBO_QUANTIZE_MX_FORMAT(e4m3, turbo::fp8_e4m3)
