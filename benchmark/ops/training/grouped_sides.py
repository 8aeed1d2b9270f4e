# SPDX-License-Identifier: MIT
"""Who takes turns in the benchmark of grouped GEMM: Turbo, torch's grouped matmul, and a loop of `torch.mm`.

Each side computes, for x [R,K], w [G,N,K] and dy [R,N] whose rows lie group after group,

    forward    y [R,N]       y[r] = x[r] w[g]^T for the rows r of group g; differentiable
    dgrad      dx [R,K]      dx[r] = dy[r] w[g]
    wgrad      dw [G,N,K]    dw[g] = dy_g^T x_g

The loop is told the lengths on the host for nothing; a training loop would have to wait for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from turbo_grouped_gemm import grouped_gemm
from turbo_grouped_gemm.calls import GroupedWgradCall
from turbo_grouped_gemm.calls import Groups as CallGroups
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_impl import GroupedGemmDispatcher

__all__ = [
    "GroupedMm",
    "Groups",
    "Inputs",
    "Linear",
    "Loop",
    "Parts",
    "Turbo",
    "gradient_parts",
    "groups_of",
    "op_parts",
    "parts_or_none",
]


@dataclass(frozen=True)
class Groups:
    """Lengths of groups, as each side wants them.

    Attributes:
        lens: [G] int64 on the device.
        ends: [G] int32 on the device, the row behind each group.
        bounds: first row of each group and the row behind it, on the host.
    """

    lens: Tensor
    ends: Tensor
    bounds: list[tuple[int, int]]


def groups_of(lens: list[int], device: torch.device) -> Groups:
    """The groups of these lengths, one after the other."""
    ends = list(accumulate(lens))
    bounds = list(zip([0, *ends], ends))
    return Groups(torch.tensor(lens, device=device), torch.tensor(ends, dtype=torch.int32, device=device), bounds)


@dataclass(frozen=True)
class Inputs:
    """x [R,K], w [G,N,K], which have gradients, and dy [R,N]; and the groups of the rows."""

    x: Tensor
    w: Tensor
    dy: Tensor
    groups: Groups


Linear = Callable[[Tensor, Tensor, Groups], Tensor]  # x, w, groups -> y
Parts = dict[str, Callable[[int], Any]]  # what is timed; each call is given its number and picks its inputs by it


class Side(Protocol):
    """What is compared."""

    def forward(self, x: Tensor, w: Tensor, groups: Groups) -> Tensor: ...

    def dgrad(self, dy: Tensor, w: Tensor, groups: Groups) -> Tensor: ...

    def wgrad(self, dy: Tensor, x: Tensor, groups: Groups) -> Tensor: ...


@dataclass(frozen=True)
class Turbo:
    """turbo-grouped-gemm under a schedule; its wgrad is the product alone, without an output to add to."""

    schedule: str = "static"

    def forward(self, x: Tensor, w: Tensor, groups: Groups) -> Tensor:
        return grouped_gemm(x, w, groups.lens, trans_b=True, schedule=self.schedule)

    def dgrad(self, dy: Tensor, w: Tensor, groups: Groups) -> Tensor:
        return grouped_gemm(dy, w, groups.lens, schedule=self.schedule)

    def wgrad(self, dy: Tensor, x: Tensor, groups: Groups) -> Tensor:
        rows = CallGroups(groups.lens, None)
        return GroupedGemmDispatcher.run(GroupedWgradCall(dy, x, rows, x.dtype, None, None, schedule=self.schedule))


class GroupedMm:
    """torch's grouped matmul."""

    def forward(self, x: Tensor, w: Tensor, groups: Groups) -> Tensor:
        y: Tensor = torch._grouped_mm(x, w.transpose(1, 2), offs=groups.ends)
        return y

    def dgrad(self, dy: Tensor, w: Tensor, groups: Groups) -> Tensor:
        dx: Tensor = torch._grouped_mm(dy, w, offs=groups.ends)
        return dx

    def wgrad(self, dy: Tensor, x: Tensor, groups: Groups) -> Tensor:
        dw: Tensor = torch._grouped_mm(dy.t(), x, offs=groups.ends)
        return dw


class Loop:
    """`torch.mm` for one group after the other, into one result."""

    def forward(self, x: Tensor, w: Tensor, groups: Groups) -> Tensor:
        y: Tensor = _LoopLinear.apply(x, w, groups)  # type: ignore[no-untyped-call]
        return y

    def dgrad(self, dy: Tensor, w: Tensor, groups: Groups) -> Tensor:
        return _loop(dy, w, groups)

    def wgrad(self, dy: Tensor, x: Tensor, groups: Groups) -> Tensor:
        dw = dy.new_empty(len(groups.bounds), dy.shape[1], x.shape[1])
        for group, (start, end) in enumerate(groups.bounds):
            torch.mm(dy[start:end].t(), x[start:end], out=dw[group])
        return dw


def _loop(a: Tensor, b: Tensor, groups: Groups) -> Tensor:
    """a_g b[g] for each group g; a [R,K], b [G,K,N]."""
    c = a.new_empty(a.shape[0], b.shape[2])
    for group, (start, end) in enumerate(groups.bounds):
        torch.mm(a[start:end], b[group], out=c[start:end])
    return c


class _LoopLinear(torch.autograd.Function):
    """y and its gradients by loops."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, groups: Groups) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.groups = groups
        return _loop(x.detach(), w.detach().transpose(1, 2), groups)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return Loop().dgrad(dy, w, ctx.groups), Loop().wgrad(dy, x, ctx.groups), None


def op_parts(sets: list[Inputs], linear: Linear) -> Parts:
    """The forward, and both gradients through autograd."""
    outputs = [linear(s.x, s.w, s.groups) for s in sets]

    def forward(number: int) -> Tensor:
        s = sets[number % len(sets)]
        with torch.no_grad():
            return linear(s.x, s.w, s.groups)

    def backward(number: int) -> tuple[Tensor, ...]:
        s = sets[number % len(sets)]
        return torch.autograd.grad(outputs[number % len(sets)], (s.x, s.w), s.dy, retain_graph=True)

    return {"Forward": forward, "Backward": backward}


def gradient_parts(sets: list[Inputs], side: Side) -> Parts:
    """The gradients separately, as the product that each is."""

    def dgrad(number: int) -> Tensor:
        s = sets[number % len(sets)]
        with torch.no_grad():
            return side.dgrad(s.dy, s.w, s.groups)

    def wgrad(number: int) -> Tensor:
        s = sets[number % len(sets)]
        with torch.no_grad():
            return side.wgrad(s.dy, s.x, s.groups)

    return {"Dgrad": dgrad, "Wgrad": wgrad}


def parts_or_none(name: str, case: str, make: Callable[[], Parts]) -> Parts | None:
    """A peer's parts, each tried once; None, with a line that says why, where it cannot take the case."""
    try:
        parts = make()
        for call in parts.values():
            call(0)
    except Exception as error:  # whatever a peer lacks must not end the run
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        print(f"{name} cannot take {case}: {reason}", file=sys.stderr)
        return None
    return parts
