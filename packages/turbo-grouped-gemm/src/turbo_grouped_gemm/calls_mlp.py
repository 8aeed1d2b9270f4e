# SPDX-License-Identifier: MIT
"""What the steps of a fused expert MLP ask of a backend: its first projection with the gate, and their gradients.

    pre = x W1[g]   [S,2F], the gate in its first F columns and up in the others
    out = act(gate) up probs   [S,F]           y = out W2[g]

`turbo_core.triton.gates` says what act is, with its limits. Gates are computed from ``pre`` as it is stored, so ``out``
is the same to the bit wherever it is computed again. Shape suffixes as in `turbo_grouped_gemm.calls`. Rows of no group
are zeros in every result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_core.calls import Spec
from turbo_grouped_gemm.calls import GroupedGemmCall, Groups

if TYPE_CHECKING:
    import torch

__all__ = [
    "DgateCall",
    "Gate",
    "GateCall",
    "GateGradients",
    "GatedDgradCall",
    "GatedGemmCall",
    "GatedRows",
    "MlpCall",
    "dgate_specs",
    "gate_specs",
    "gated_dgrad_specs",
    "gated_specs",
    "inner_dgrad",
    "inner_gemm",
]


class Gate(NamedTuple):
    """The formula of a gate.

    Attributes:
        activation: silu, gelu, gelu_tanh or clamped.
        limit: the gate is at most this, up from -limit to limit; inf: as they are.
        alpha: read by ``clamped`` alone.
    """

    activation: str
    limit: float
    alpha: float


class GatedRows(NamedTuple):
    """out [S,F], and pre [S,2F] or None; contiguous."""

    out: torch.Tensor
    pre: torch.Tensor | None


class GateGradients(NamedTuple):
    """The gradient of pre [S,2F]; out [S,F] once more, and the gradient of probs [S], or None. Contiguous."""

    pre: torch.Tensor
    out: torch.Tensor | None
    probs: torch.Tensor | None


class GatedGemmCall(NamedTuple):
    """The first projection with the gate: out, and pre where a backward will read it. Sums in float32.

    Attributes:
        x: [R,K]; bf16, fp16 or fp32, any strides.
        w: [G,K,2F], or [G,2F,K] with ``trans_w``; likewise, and not necessarily the dtype of x.
        probs: [S], any stride, a factor of each row of the groups; bf16, fp16 or fp32; or None.
        groups: of the S rows.
        dtype: of out and pre; bf16, fp16 or fp32.
        x_idx: [S] int64 or int32, or None: row s of the groups is row x_idx[s] of x.
        keeps: whether pre is wanted.
        num_cu, schedule: see `GroupedGemmCall`.
    """

    x: torch.Tensor
    w: torch.Tensor
    probs: torch.Tensor | None
    groups: Groups
    gate: Gate
    trans_w: bool
    dtype: torch.dtype
    x_idx: torch.Tensor | None
    keeps: bool
    num_cu: int | None = None
    schedule: str = "static"

    def sizes(self) -> tuple[int, int, int, int]:
        """G, S, F, K."""
        G, S, columns, K = inner_gemm(self).sizes()
        return G, S, columns // 2, K


class GatedDgradCall(NamedTuple):
    """The gradient of the second projection's rows, taken through the gate: those of pre and of probs.

    Attributes:
        dy: [R,N], the gradient of y; bf16, fp16 or fp32, any strides.
        w: [G,F,N], or [G,N,F] with ``trans_w``; likewise, and not necessarily the dtype of dy.
        pre: [S,2F], contiguous, zeros in rows of no group; its dtype is that of the results.
        probs, groups, gate, num_cu, schedule: see `GatedGemmCall`.
        dy_idx: [S] or None: row s of the groups is row dy_idx[s] of dy.
        out, dprobs: whether they are wanted.
    """

    dy: torch.Tensor
    w: torch.Tensor
    pre: torch.Tensor
    probs: torch.Tensor | None
    groups: Groups
    gate: Gate
    trans_w: bool
    dy_idx: torch.Tensor | None
    out: bool
    dprobs: bool
    num_cu: int | None = None
    schedule: str = "static"

    def sizes(self) -> tuple[int, int, int, int]:
        """G, S, F, N."""
        return inner_dgrad(self).sizes()


class GateCall(NamedTuple):
    """The gate by itself: out of pre [S,2F], contiguous; others as in `GatedGemmCall`."""

    pre: torch.Tensor
    probs: torch.Tensor | None
    groups: Groups
    gate: Gate

    def sizes(self) -> tuple[int, int, int]:
        """G, S, F."""
        return self.groups.lens.shape[0], self.pre.shape[0], self.pre.shape[1] // 2


class DgateCall(NamedTuple):
    """The gradients of the gate by itself, of ``dout`` [S,F], contiguous; others as in `GatedDgradCall`."""

    dout: torch.Tensor
    pre: torch.Tensor
    probs: torch.Tensor | None
    groups: Groups
    gate: Gate
    out: bool
    dprobs: bool

    def sizes(self) -> tuple[int, int, int]:
        """G, S, F."""
        return self.groups.lens.shape[0], self.pre.shape[0], self.pre.shape[1] // 2


MlpCall = GatedGemmCall | GatedDgradCall | GateCall | DgateCall


def inner_gemm(call: GatedGemmCall) -> GroupedGemmCall:
    """The product inside, pre."""
    rows = (call.x if call.x_idx is None else call.x_idx).shape[0]
    return GroupedGemmCall(
        call.x, call.w, None, call.groups, call.trans_w, call.dtype, call.x_idx, None, rows, call.num_cu, call.schedule
    )


def inner_dgrad(call: GatedDgradCall) -> GroupedGemmCall:
    """The product inside, the gradient of out."""
    return GroupedGemmCall(
        call.dy, call.w, None, call.groups, not call.trans_w, call.pre.dtype, call.dy_idx, None, call.pre.shape[0],
        call.num_cu, call.schedule, "dgrad",
    )  # fmt: skip


def gated_specs(call: GatedGemmCall) -> GatedRows:
    """The result of ``call`` with a `Spec` in place of each tensor."""
    _, S, F, _ = call.sizes()
    pre = Spec((S, 2 * F), call.dtype) if call.keeps else None
    return GatedRows._make((Spec((S, F), call.dtype), pre))


def gate_specs(call: GateCall) -> Spec:
    """Likewise."""
    _, S, F = call.sizes()
    return Spec((S, F), call.pre.dtype)


def _gradient_specs(call: GatedDgradCall | DgateCall) -> GateGradients:
    S, columns = call.pre.shape
    out = Spec((S, columns // 2), call.pre.dtype) if call.out else None
    dprobs = Spec((S,), call.probs.dtype) if call.dprobs and call.probs is not None else None
    return GateGradients._make((Spec((S, columns), call.pre.dtype), out, dprobs))


def gated_dgrad_specs(call: GatedDgradCall) -> GateGradients:
    """Likewise."""
    return _gradient_specs(call)


def dgate_specs(call: DgateCall) -> GateGradients:
    """Likewise."""
    return _gradient_specs(call)
