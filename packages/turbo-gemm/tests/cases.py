# SPDX-License-Identifier: MIT
"""Shapes of the dense GEMM, for tests and benchmarks alike. Neither torch nor triton is needed to read them.

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

# Sub-views with an odd storage offset: (M, N, K, trans_a, trans_b).
MISALIGNED = (
    (256, 256, 256, False, False),
    (256, 512, 128, True, False),
    (512, 256, 128, False, True),
)

# (hidden, intermediate, query heads, key/value heads, head size, vocabulary)
MODELS = {
    "Llama-3.1-8B": (4096, 14336, 32, 8, 128, 128256),
    "Llama-3.1-70B": (8192, 28672, 64, 8, 128, 128256),
}


def layer_gemms(model: str, tokens: int = 8192) -> dict[str, tuple[int, int, int]]:
    """The five forward GEMMs of a layer of `model` for `tokens` rows (micro-batch size x sequence length)."""
    hidden, intermediate, heads, kv_heads, head_dim, vocabulary = MODELS[model]
    return {
        "qkv": (tokens, (heads + 2 * kv_heads) * head_dim, hidden),
        "attn_out": (tokens, hidden, heads * head_dim),
        "gate_up": (tokens, 2 * intermediate, hidden),
        "down": (tokens, hidden, intermediate),
        "lm_head": (tokens, vocabulary, hidden),
    }


SQUARE = {"4096^3": (4096, 4096, 4096), "8192^3": (8192, 8192, 8192)}


def benchmark_shapes(tokens: int = 8192) -> dict[str, tuple[int, int, int]]:
    """The shapes of the speed table: squares and the layers of every model."""
    shapes = dict(SQUARE)
    for model in MODELS:
        shapes.update({f"{model} {name}": mnk for name, mnk in layer_gemms(model, tokens).items()})
    return shapes
