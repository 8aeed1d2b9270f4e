// SPDX-License-Identifier: MIT
#include "quantize_mx.h"

TURBO_QUANTIZE_MX_FORMAT(e2m1, turbo_quant::e2m1)
