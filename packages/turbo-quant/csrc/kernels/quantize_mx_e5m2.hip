// SPDX-License-Identifier: MIT
#include "quantize_mx.h"

TURBO_QUANTIZE_MX_FORMAT(e5m2, turbo::fp8_e5m2)
