# SPDX-License-Identifier: MIT
"""Triton kernels and their launchers."""
