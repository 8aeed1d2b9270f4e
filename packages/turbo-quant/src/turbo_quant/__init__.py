# SPDX-License-Identifier: MIT
"""The quant ops of Turbo. Importing it imports no torch until a name is used."""

from turbo_core.lazy import attach

__all__ = [
    "dequantize_fp4",
    "dequantize_fp8",
    "hadamard_transform",
    "quantize_fp4",
    "quantize_fp4_with_trans",
    "quantize_fp8",
    "quantize_fp8_with_trans",
    "random_sign_mask",
    "rng_state",
]

# public name -> module that defines it
__getattr__, __dir__ = attach(__name__, dict.fromkeys(__all__, "turbo_quant.pytorch.ops"))
