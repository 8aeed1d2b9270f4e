# SPDX-License-Identifier: MIT
"""turbo-sim: runs gfx942 and gfx950 machine code on a CPU."""

__version__ = "0.1.0"
