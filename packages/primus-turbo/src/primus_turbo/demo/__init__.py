# SPDX-License-Identifier: MIT
"""``python -m primus_turbo demo``: a small language model trained on Turbo and on plain torch, which must agree.

A program and no interface: what it is made of may change with every version.
"""
