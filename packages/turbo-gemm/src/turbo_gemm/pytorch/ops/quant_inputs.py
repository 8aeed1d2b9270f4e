# SPDX-License-Identifier: MIT
"""The operands that users pass to gemm_fp8 and gemm_fp4, taken apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_gemm.pytorch.ops.quant_operands import Copies, Scheme, quantize

__all__ = ["Input", "as_input", "copies_of"]


class Input(NamedTuple):
    """One operand; ``source`` is what its gradient belongs to."""

    source: torch.Tensor

    def plain(self) -> torch.Tensor:
        """The matrix in its original dtype."""
        return self.source


def as_input(op: str, name: str, x: Any) -> Input:
    """``x`` as an `Input`; what it may be is checked afterwards."""
    return Input(x)


def copies_of(
    op: str, name: str, x: Input, scheme: Scheme, wanted: tuple[bool, bool], trans_a: bool, trans_b: bool
) -> Copies:
    """The quantised copies of operand ``name`` (a or b)."""
    return quantize(x.source, scheme, name, wanted, trans_a, trans_b)
