# SPDX-License-Identifier: MIT
"""Dispatchers and backends (`*_impl.py`) and the reference in plain PyTorch (`reference.py`)."""
