# SPDX-License-Identifier: MIT
"""What one GEMM of quantised operands asks of a backend.

Shape suffixes: M rows of C, N columns of C, K contraction.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch

from turbo_core import device_facts
from turbo_core.low_precision import ScalingGranularity

__all__ = ["QuantGemmCall", "mx_format"]

_MX_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def mx_format(payload: torch.Tensor) -> str:
    """``e4m3``, ``e5m2`` or ``e2m1``; a torch without the FP4 type keeps e2m1 payloads in uint8."""
    return _MX_FORMATS.get(payload.dtype, "e2m1")


class QuantGemmCall(NamedTuple):
    """C[M,N] = dequantised op(a) op(b) (+ bias[N]), added to ``out`` where that is given; sums in float32.

    Payloads and scales are those of `turbo_quant.calls`; scales multiply (x = q * scale_inv).

    Attributes:
        a: [M,K], or [K,M] with ``trans_a``; FP8, any strides. MX: always [M,Kp], or [M,Kp/2] bytes of e2m1, with K
            padded to 128.
        a_scale_inv: TENSORWISE: 0-dim. ROWWISE: [M,1], or [1,M] with ``trans_a``. BLOCKWISE: blocks along K,
            [M,ceil(K/block)], or [ceil(K/block),M] with ``trans_a``; with ``a_tiles`` one scale per tile of
            block x block, in the order in which a is stored. MX: E8M0 [M,Kp/32].
        b: [K,N], or [N,K] with ``trans_b``. MX: always [N,Kp], and ``trans_b`` is set.
        b_scale_inv: TENSORWISE: 0-dim. ROWWISE: [1,N], or [N,1] with ``trans_b``. BLOCKWISE: [ceil(K/block),N], or
            [N,ceil(K/block)] with ``trans_b``; tiles with ``b_tiles``. MX: E8M0 [N,Kp/32].
        bias: [N] or None.
        out_dtype: dtype of C (of ``out`` where that is given).
        granularity: how much of an operand shares a scale.
        block_size: edge of a block for BLOCKWISE, 32 for MX, else 0.
        out: [M,N] or None; C is added to it.
        role: ``forward``, ``dgrad`` or ``wgrad``, for messages only.
        preshuffled: MXFP4 whose scales, and the payload of b, are in the order of AITER's kernels.
    """

    a: torch.Tensor
    a_scale_inv: torch.Tensor
    b: torch.Tensor
    b_scale_inv: torch.Tensor
    trans_a: bool
    trans_b: bool
    bias: torch.Tensor | None
    out_dtype: torch.dtype
    granularity: ScalingGranularity
    block_size: int = 0
    a_tiles: bool = False
    b_tiles: bool = False
    out: torch.Tensor | None = None
    role: str = "forward"
    preshuffled: bool = False

    def is_mx(self) -> bool:
        """Whether the operands are MX: scales of 32 elements each, payloads K-major."""
        return self.granularity is ScalingGranularity.MX_BLOCKWISE

    def sizes(self) -> tuple[int, int, int]:
        """M, N, K; K as stored, that is padded, for MX."""
        m, k = self.a.shape[::-1] if self.trans_a else self.a.shape
        packed = 2 if self.is_mx() and mx_format(self.a) == "e2m1" else 1
        return m, self.b.shape[0 if self.trans_b else 1], k * packed

    def layout(self) -> str:
        """``NT`` and the like."""
        return "".join("T" if flag else "N" for flag in (self.trans_a, self.trans_b))

    def key(self) -> Hashable:
        """Everything that can change which backend wins."""
        facts = device_facts(self.a.device)
        return (
            facts.arch,
            facts.name,
            self.granularity.value,
            self.block_size,
            self.preshuffled,
            *((t.shape, t.stride(), t.dtype) for t in (self.a, self.a_scale_inv, self.b, self.b_scale_inv)),
            self.trans_a,
            self.trans_b,
            self.a_tiles,
            self.b_tiles,
            None if self.bias is None else self.bias.dtype,
            self.out_dtype,
            None if self.out is None else self.out.stride(),
        )

    def describe(self) -> str:
        """The call in a few words, for messages."""
        m, n, k = self.sizes()
        a, b = (mx_format(t) if self.is_mx() else _name(t.dtype) for t in (self.a, self.b))
        scales = self.granularity.name
        if self.granularity is ScalingGranularity.BLOCKWISE:
            scales += f" {self.block_size}, " + " x ".join(
                "tiles" if t else "pieces" for t in (self.a_tiles, self.b_tiles)
            )
        extras = (", bias" if self.bias is not None else "") + (", accumulated" if self.out is not None else "")
        extras += ", preshuffled" if self.preshuffled else ""
        types = f"{a} x {b} -> {_name(self.out_dtype)}"
        return f"M={m} N={n} K={k} {self.layout()}, {scales}, {types}{extras}, {self.a.device}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
