# SPDX-License-Identifier: MIT
"""Triton kernels and their launches; no autograd."""
