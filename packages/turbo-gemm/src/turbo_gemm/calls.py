# SPDX-License-Identifier: MIT
"""What one GEMM asks of a backend: C[M,N] = A[M,K] B[K,N], forward or gradient, plain or of quantised operands.

Shape suffixes: M rows of C, N columns of C, K contraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_core.calls import Spec
from turbo_core.low_precision import ScalingGranularity

if TYPE_CHECKING:
    import torch

__all__ = ["GemmCall", "GemmFp8Call", "Operand", "mx_format", "specs"]


def _layout(trans_a: bool, trans_b: bool) -> str:
    return "".join("T" if flag else "N" for flag in (trans_a, trans_b))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class GemmCall(NamedTuple):
    """C = op(a) op(b) (+ bias), added to ``out`` where that is given; sums in float32, rounded once.

    Attributes:
        a: [M,K], or [K,M] with ``trans_a``; bf16, fp16 or fp32, any strides.
        b: [K,N], or [N,K] with ``trans_b``; likewise, and not necessarily the dtype of a.
        bias: [N] or None; bf16, fp16 or fp32.
        out_dtype: dtype of C (of ``out`` where that is given); bf16, fp16 or fp32.
        out: [M,N] or None; C is added to it.
        role: ``forward``, ``dgrad`` or ``wgrad``, for messages only.
    """

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    trans_a: bool
    trans_b: bool
    out_dtype: torch.dtype
    out: torch.Tensor | None = None
    role: str = "forward"

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """op(a) [M,K] and op(b) [K,N] as views."""
        return (self.a.t() if self.trans_a else self.a), (self.b.t() if self.trans_b else self.b)

    def sizes(self) -> tuple[int, int, int]:
        """M, N, K."""
        m, k = self.a.shape[::-1] if self.trans_a else self.a.shape
        return m, self.b.shape[0 if self.trans_b else 1], k

    def describe(self) -> str:
        """The call in a few words, for messages."""
        m, n, k = self.sizes()
        extras = (", bias" if self.bias is not None else "") + (", accumulated" if self.out is not None else "")
        types = f"{_name(self.a.dtype)} x {_name(self.b.dtype)} -> {_name(self.out_dtype)}"
        return f"M={m} N={n} K={k} {_layout(self.trans_a, self.trans_b)}, {types}{extras}, {self.a.device}"


class Operand(NamedTuple):
    """A quantised matrix, [R,K] with R the M or N of its product; payloads and scales are those of `turbo_quant.calls`.

    Attributes:
        data: [R,K] for a and [K,R] for b, the other way round with ``trans``; FP8, any strides. MX: always [R,Kp], or
            [R,Kp/2] bytes of e2m1, K padded to 128 (so b has ``trans``).
        scale_inv: float32 multipliers, x = q * scale_inv. TENSORWISE: 0-dim. ROWWISE: [R,1]. BLOCKWISE:
            [R,ceil(K/block)], with ``tiles`` [ceil(R/block),ceil(K/block)]. The last two are transposed where K comes
            first in ``data``. MX: E8M0 [R,Kp/32].
        trans: stored transposed.
        tiles: BLOCKWISE with one scale for block x block elements.
    """

    data: torch.Tensor
    scale_inv: torch.Tensor
    trans: bool = False
    tiles: bool = False

    def transposed(self) -> Operand:
        """The transpose as a view."""
        scale = self.scale_inv
        return Operand(self.data.t(), scale.t() if scale.dim() else scale, not self.trans, self.tiles)


def mx_format(payload: torch.Tensor) -> str:
    """``e4m3``, ``e5m2`` or ``e2m1``; a torch without the FP4 type keeps e2m1 payloads in uint8."""
    return {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}.get(_name(payload.dtype), "e2m1")


class GemmFp8Call(NamedTuple):
    """C = op(a) op(b) (+ bias) of quantised operands, FP8, MXFP8 or MXFP4, added to ``out`` where that is given.

    Sums are in float32 and rounded once.

    Attributes:
        a: [M,K], or [K,M] with ``a.trans``.
        b: [K,N], or [N,K] with ``b.trans``.
        bias: [N] or None; bf16, fp16 or fp32.
        granularity: how much of an operand shares a scale.
        block_size: edge of a block for BLOCKWISE, 32 for MX, else 0.
        out_dtype: dtype of C (of ``out`` where that is given); bf16, fp16 or fp32.
        out: [M,N] or None; C is added to it.
        preshuffled: MXFP4 whose scales, and the payload of b, are in the order of AITER's kernels.
        role: ``forward``, ``dgrad`` or ``wgrad``, for messages only.
    """

    a: Operand
    b: Operand
    bias: torch.Tensor | None
    granularity: ScalingGranularity
    block_size: int
    out_dtype: torch.dtype
    out: torch.Tensor | None = None
    preshuffled: bool = False
    role: str = "forward"

    def is_mx(self) -> bool:
        """Whether the operands are MX: scales of 32 elements each, payloads with K last."""
        return self.granularity is ScalingGranularity.MX_BLOCKWISE

    def rows(self) -> tuple[Operand, Operand]:
        """Both operands as views with K last: A [M,K] and B^T [N,K], scales likewise."""
        return (self.a.transposed() if self.a.trans else self.a), (self.b if self.b.trans else self.b.transposed())

    def sizes(self) -> tuple[int, int, int]:
        """M, N, K; K as stored, that is padded, for MX."""
        a, b = self.a, self.b
        m, k = a.data.shape[::-1] if a.trans else a.data.shape
        packed = 2 if self.is_mx() and mx_format(a.data) == "e2m1" else 1
        return m, b.data.shape[0 if b.trans else 1], k * packed

    def describe(self) -> str:
        """The call in a few words, for messages."""
        a, b = self.a, self.b
        m, n, k = self.sizes()
        types = " x ".join(mx_format(x.data) if self.is_mx() else _name(x.data.dtype) for x in (a, b))
        scales = self.granularity.name
        if self.granularity is ScalingGranularity.BLOCKWISE:
            scales += f" {self.block_size}, " + " x ".join("tiles" if x.tiles else "row blocks" for x in (a, b))
        extras = (", bias" if self.bias is not None else "") + (", accumulated" if self.out is not None else "")
        extras += ", preshuffled" if self.preshuffled else ""
        what = f"{scales}, {types} -> {_name(self.out_dtype)}{extras}"
        return f"M={m} N={n} K={k} {_layout(a.trans, b.trans)}, {what}, {a.data.device}"


def specs(call: GemmCall | GemmFp8Call) -> Spec:
    """C [M,N], contiguous."""
    m, n, _ = call.sizes()
    return Spec((m, n), call.out_dtype)
