# SPDX-License-Identifier: MIT
"""The PyTorch front end: modules call ops, ops call kernels, kernels call triton/ or the native library."""

from turbo_core.requirements import require_torch

require_torch()
