# SPDX-License-Identifier: MIT
"""The PyTorch front end: modules call ops, ops call kernels, kernels call triton/ or the native library."""
