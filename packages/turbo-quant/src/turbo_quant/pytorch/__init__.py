# SPDX-License-Identifier: MIT
"""PyTorch front end: modules call ops, ops call kernels, kernels call Triton or the native library."""

from turbo_core.requirements import require_torch

require_torch()
