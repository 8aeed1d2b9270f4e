# SPDX-License-Identifier: MIT
"""What one product of groups of rows asks of a backend, plain or of quantised operands.

Rows belong to G groups (the experts of a mixture), each with a matrix of its own. There are two kinds of product:

    GroupedGemmCall    C[r] = A[r] B[g]         for the rows r of group g: forward, and the gradient of A
    GroupedWgradCall   C[g] = X_g^T Y_g         a contraction over the rows of group g: the gradient of B

Shape suffixes: R rows of A, S rows that belong to groups (S = R without ``a_idx``), G groups, K contraction, N columns
of C; P rows of padded groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_core.calls import Spec
from turbo_core.low_precision import ScalingGranularity

if TYPE_CHECKING:
    import torch

__all__ = [
    "GroupedGemmCall",
    "GroupedGemmFp8Call",
    "GroupedOperand",
    "GroupedWgradCall",
    "GroupedWgradFp8Call",
    "Groups",
    "gemm_specs",
    "wgrad_specs",
]


class Groups(NamedTuple):
    """Which rows belong to which group. Only the device knows: no backend may wait for the values.

    Group g owns the rows offs[g] to offs[g] + lens[g] - 1 and has room up to offs[g + 1]. The rows in between, and
    those before offs[0] and from offs[G] on, belong to no group: they are never read, and in a result they are zeros.
    What points outside of the rows that there are is cut off.

    Attributes:
        lens: [G], int64 or int32, at least 0.
        offs: [G+1], likewise, ascending; None: the groups lie one after the other from row 0, without gaps.
    """

    lens: torch.Tensor
    offs: torch.Tensor | None


class GroupedGemmCall(NamedTuple):
    """C[r] = A[r] op(b[g]) (+ bias[g]) for each row r of group g; sums in float32, rounded once.

    Attributes:
        a: [R,K]; bf16, fp16 or fp32, any strides.
        b: [G,K,N], or [G,N,K] with ``trans_b``; likewise, and not necessarily the dtype of a.
        bias: [G,N] or None; bf16, fp16 or fp32.
        groups: of the S rows.
        out_dtype: dtype of C; bf16, fp16 or fp32.
        a_idx: [S] int64 or int32, or None: row s of the groups is row a_idx[s] of a; a row may be named any number of
            times. Read for rows that belong to a group only.
        out_idx: [S] likewise or None: row s of the groups becomes row out_idx[s] of C; no row of a group may be named
            twice. Rows of C that none names are zeros.
        out_rows: rows of C; S without ``out_idx``.
        num_cu: the most compute units to use; None: all.
        schedule: ``static``: each program has its tiles; ``work_steal``: programs take the next tile from a counter.
            The bits of C are the same.
        role: ``forward`` or ``dgrad``, for messages only.
    """

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    groups: Groups
    trans_b: bool
    out_dtype: torch.dtype
    a_idx: torch.Tensor | None
    out_idx: torch.Tensor | None
    out_rows: int
    num_cu: int | None = None
    schedule: str = "static"
    role: str = "forward"

    def sizes(self) -> tuple[int, int, int, int]:
        """G, S, N, K."""
        rows = (self.a if self.a_idx is None else self.a_idx).shape[0]
        n, k = self.b.shape[1:] if self.trans_b else self.b.shape[:0:-1]
        return self.b.shape[0], rows, n, k


class GroupedWgradCall(NamedTuple):
    """C[g] = X_g^T Y_g, added to ``out`` where that is given; sums in float32, rounded once. An empty group: zeros.

    Attributes:
        x: [R,X]; bf16, fp16 or fp32, any strides; X_g are its rows of group g.
        y: [R',Y]; likewise, and not necessarily the dtype of x.
        groups: of the S rows.
        out_dtype: dtype of C (of ``out`` where that is given); bf16, fp16 or fp32.
        x_idx: [S] int64 or int32, or None: row s of the groups is row x_idx[s] of x.
        y_idx: likewise of y.
        out: [G,X,Y] or None, any strides; C is added to it.
        num_cu, schedule: see `GroupedGemmCall`.
    """

    x: torch.Tensor
    y: torch.Tensor
    groups: Groups
    out_dtype: torch.dtype
    x_idx: torch.Tensor | None
    y_idx: torch.Tensor | None
    out: torch.Tensor | None = None
    num_cu: int | None = None
    schedule: str = "static"

    def sizes(self) -> tuple[int, int, int, int]:
        """G, S, X, Y."""
        rows = (self.x if self.x_idx is None else self.x_idx).shape[0]
        return self.groups.lens.shape[0], rows, self.x.shape[1], self.y.shape[1]


class GroupedOperand(NamedTuple):
    """A quantised operand, its contraction last; payloads and scales are those of `turbo_quant.calls`.

    ======  =====================  =============================================================================
    of      payload                scale_inv by granularity (float32 multipliers, x = q * scale_inv; MX: E8M0)
    ======  =====================  =============================================================================
    a       [R,K]                  TENSORWISE 0-dim; ROWWISE [R,1]; BLOCKWISE [R,ceil(K/block)]; MX [R,Kp/32]
    b       [G,N,K]                0-dim; [G,N,1]; tiles [G,ceil(N/block),ceil(K/block)]; [G,N,Kp/32]
    x, y    [X,P]                  0-dim; [G,X]; [X,ceil(P/block)]; [X,P/32]
    ======  =====================  =============================================================================

    Any strides. FP8; MX: K is padded to 128 (Kp), two values of e2m1 a byte (half as many columns). In x and y, group
    g has the columns offs[g] to offs[g+1] - 1 of the padded groups, a multiple of 128 (0 for an empty one), filled up
    with zeros.
    """

    data: torch.Tensor
    scale_inv: torch.Tensor


class GroupedGemmFp8Call(NamedTuple):
    """`GroupedGemmCall` of quantised operands, FP8, MXFP8 or MXFP4.

    Attributes:
        a, b: see `GroupedOperand`; b is what is multiplied as [G,N,K], however it is stored.
        granularity: how much of an operand shares a scale; block_size: 128 for BLOCKWISE, 32 for MX, else 0.
        others: see `GroupedGemmCall`.
    """

    a: GroupedOperand
    b: GroupedOperand
    bias: torch.Tensor | None
    groups: Groups
    granularity: ScalingGranularity
    block_size: int
    out_dtype: torch.dtype
    a_idx: torch.Tensor | None
    out_idx: torch.Tensor | None
    out_rows: int
    num_cu: int | None = None
    schedule: str = "static"
    role: str = "forward"

    def is_mx(self) -> bool:
        """Whether the operands are MX: scales of 32 elements each."""
        return self.granularity is ScalingGranularity.MX_BLOCKWISE

    def sizes(self) -> tuple[int, int, int, int]:
        """G, S, N, K; K as stored, that is padded, for MX, and in bytes for e2m1."""
        rows = (self.a.data if self.a_idx is None else self.a_idx).shape[0]
        return (self.b.data.shape[0], rows, *self.b.data.shape[1:])


class GroupedWgradFp8Call(NamedTuple):
    """`GroupedWgradCall` of quantised operands; C [G,X,Y].

    Attributes:
        x, y: see `GroupedOperand`.
        offs: [G+1] int64, where each padded group begins in x and y.
        others: see `GroupedWgradCall` and `GroupedGemmFp8Call`.
    """

    x: GroupedOperand
    y: GroupedOperand
    offs: torch.Tensor
    granularity: ScalingGranularity
    block_size: int
    out_dtype: torch.dtype
    out: torch.Tensor | None = None
    num_cu: int | None = None
    schedule: str = "static"

    def is_mx(self) -> bool:
        """Whether the operands are MX: scales of 32 elements each."""
        return self.granularity is ScalingGranularity.MX_BLOCKWISE

    def sizes(self) -> tuple[int, int, int, int]:
        """G, P, X, Y; P as stored, that is in bytes for e2m1."""
        x, y = self.x.data, self.y.data
        return self.offs.shape[0] - 1, x.shape[1], x.shape[0], y.shape[0]


def gemm_specs(call: GroupedGemmCall | GroupedGemmFp8Call) -> Spec:
    """C [out_rows,N], contiguous."""
    return Spec((call.out_rows, call.sizes()[2]), call.out_dtype)


def wgrad_specs(call: GroupedWgradCall | GroupedWgradFp8Call) -> Spec:
    """C [G,X,Y], contiguous."""
    G, _, X, Y = call.sizes()
    return Spec((G, X, Y), call.out_dtype)
