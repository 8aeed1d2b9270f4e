# SPDX-License-Identifier: MIT
"""Sparse attention, forward and backward apart."""
