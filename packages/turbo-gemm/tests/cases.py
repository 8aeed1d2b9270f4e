# SPDX-License-Identifier: MIT
"""Shapes of the dense GEMM. Neither torch nor triton is needed to read them; those of models are in benchmark/.

A case is (M, N, K): C[M, N] = A[M, K] B[K, N].
"""

from __future__ import annotations

from itertools import product

LAYOUTS = ((False, False), (False, True), (True, False), (True, True))  # (trans_a, trans_b): NN, NT, TN, TT
DTYPES = ("float32", "float16", "bfloat16")

# The whole matrix, for a GPU: 441 shapes.
FULL_M = (1, 16, 128, 256, 512, 1024, 2048)
FULL_N = (1, 16, 129, 512, 1024, 2048, 4096)
FULL_K = (1, 16, 127, 255, 512, 1024, 2048)
FULL = tuple(product(FULL_M, FULL_N, FULL_K))

# Thinned to what two CPU cores interpret in minutes. Every odd size meets every other, and each dimension
# is once below, at and above a tile.
CPU = (
    (1, 1, 1),
    (1, 129, 127),
    (16, 16, 16),
    (16, 1, 255),
    (127, 129, 1),
    (127, 16, 129),
    (128, 128, 128),
    (129, 127, 255),
    (255, 129, 16),
    (5, 123, 123),
    (256, 512, 256),
)

# Zero-size dimensions: K = 0 gives zeros (or the bias).
EMPTY = ((0, 16, 16), (16, 0, 16), (16, 16, 0), (0, 0, 16), (0, 16, 0), (1, 1, 0))

# One dimension at a time one short of and one past an edge: of the tiles that a CPU gets, and of scale blocks.
EDGES = tuple(
    tuple(size if dim == where else 16 for where in range(3))
    for dim in range(3)
    for edge in (32, 64, 128)
    for size in (edge - 1, edge + 1)
)

# Sub-views with an odd storage offset: (M, N, K, trans_a, trans_b).
MISALIGNED = (
    (256, 256, 256, False, False),
    (256, 512, 128, True, False),
    (512, 256, 128, False, True),
)

# --- quantised operands ---------------------------------------------------------------------------------------------

QUANT_FULL = tuple(
    product((176, 255, 256, 507, 512), (256, 352, 512, 1024, 2048, 4096), (128, 160, 256, 512, 576, 1024, 2048))
)
# every dimension below, at and above a block of 32 and of 128; (1, 1, 1) has one block in all
QUANT_CPU = (
    (1, 1, 1),
    (255, 512, 256),
    (176, 129, 160),
    (1, 16, 127),
    (33, 1, 31),
    (129, 100, 257),
)
QUANT_INTERPRETED = ((33, 17, 65), (16, 48, 160))

# FP8: remainders of 16-byte loads, tiles and scale blocks in every dimension.
FP8_CPU = ((1, 1, 1), (1, 129, 127), (64, 64, 128), (33, 65, 31), (129, 16, 255), (16, 130, 144))
FP8_FULL = tuple(product((1, 129, 256, 1000), (16, 127, 512), (16, 127, 128, 1040, 4096)))

# MX: K is a multiple of 128, the ops pad it.
MX_CPU = ((1, 1, 128), (64, 64, 128), (33, 65, 256), (130, 16, 384))
MX_FULL = tuple(product((1, 129, 512, 1000), (16, 127, 1024), (128, 384, 2048)))
