# SPDX-License-Identifier: MIT
"""The elementary functions as our Triton kernels compute them, on whole tensors: float32 inside, rounded once.

`sigmoid` is that of the gated activations; `exp`, `erf` and `rsqrt` are Triton's, which the activations and the
normalisations call; `log` and `sqrt` are Triton's too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turbo_core.triton.gates import sigmoid

__all__ = ["FUNCTIONS", "apply"]

FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "erf", "sigmoid")
_BLOCK = 1024


@triton.jit
def _kernel(x_ptr, y_ptr, N, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=1.0).to(tl.float32)
    if FUNCTION == "exp":
        y = tl.exp(x)
    elif FUNCTION == "log":
        y = tl.log(x)
    elif FUNCTION == "sqrt":
        y = tl.sqrt(x)
    elif FUNCTION == "rsqrt":
        y = tl.rsqrt(x)
    elif FUNCTION == "erf":
        y = tl.erf(x)
    else:
        y = sigmoid(x)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < N)


def apply(function: str, x: torch.Tensor) -> torch.Tensor:
    """``function`` of each element of x (contiguous)."""
    y = torch.empty_like(x)
    _kernel[(triton.cdiv(x.numel(), _BLOCK),)](x, y, x.numel(), FUNCTION=function, BLOCK=_BLOCK)
    return y
