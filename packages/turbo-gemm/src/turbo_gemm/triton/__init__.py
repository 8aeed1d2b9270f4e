# SPDX-License-Identifier: MIT
"""Triton kernels of turbo-gemm and their launchers. Import a module of this folder only where triton is present."""
