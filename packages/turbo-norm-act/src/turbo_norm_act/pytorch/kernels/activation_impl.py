# SPDX-License-Identifier: MIT
"""The backends of the gated activations and the choice among them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch

from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType, device_facts, why_no_triton
from turbo_core.tuning import call_key
from turbo_norm_act.pytorch.kernels.reference import glu_backward_reference, glu_forward_reference
from turbo_norm_act.values import Formula

__all__ = ["GluBackward", "GluDispatcher", "GluForward", "halves", "run_backward", "run_forward"]

MAX_WIDTH = 2**30  # column indices of the kernels are 32-bit, and interleaved columns count twice


class GluForward(NamedTuple):
    """act(gate) up probs, zero in masked rows.

    Attributes:
        gate, up: [T, H], of one column stride.
        probs: [T], contiguous, or None.
        row_mask: [T], integer, contiguous, or None.
    """

    gate: torch.Tensor
    up: torch.Tensor
    probs: torch.Tensor | None
    row_mask: torch.Tensor | None
    formula: Formula


class GluBackward(NamedTuple):
    """Its gradients, written to dgate, dup [T, H] (column stride of gate) and dprobs float32 [T] unless None."""

    dout: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    probs: torch.Tensor | None
    row_mask: torch.Tensor | None
    formula: Formula
    dgate: torch.Tensor | None
    dup: torch.Tensor | None
    dprobs: torch.Tensor | None


Call = GluForward | GluBackward


class TritonBackend(KernelBackend):
    """Our Triton kernels."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        if call.gate.shape[1] > MAX_WIDTH:
            return f"H={call.gate.shape[1]}; up to {MAX_WIDTH} is accepted"
        return why_no_triton(call.gate.device)

    @classmethod
    def execute(cls, call: Call) -> torch.Tensor | None:
        from turbo_norm_act.triton import activation

        if isinstance(call, GluForward):
            return activation.glu_forward(*call)
        activation.glu_backward(*call)
        return None


class TorchBackend(KernelBackend):
    """The reference: float32 on any device."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Call) -> torch.Tensor | None:
        if isinstance(call, GluForward):
            return glu_forward_reference(*call)
        glu_backward_reference(*call)
        return None


class GluDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one gated activation, forward or backward.

    There is no HIP kernel: one pass that reads and writes each element once is bound by memory, and Triton's is.
    """

    op = "glu"
    family = "norm_act"
    backends = {
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """Triton on a GPU, plain torch on a CPU."""
        return BackendType.TORCH if device_facts(call.gate.device).vendor == "cpu" else BackendType.TRITON

    @classmethod
    def make_key(cls, call: Call) -> Hashable:
        return call_key(call.gate.device, cls.role(call), call)

    @classmethod
    def describe(cls, call: Call) -> str:
        T, H = call.gate.shape
        extras = (", probs" if call.probs is not None else "") + (", row_mask" if call.row_mask is not None else "")
        dtype = str(call.gate.dtype).removeprefix("torch.")
        return f"{call.formula.activation} {cls.role(call)}, T={T} H={H}, {dtype}{extras}, {call.gate.device}"

    @classmethod
    def role(cls, call: Call) -> str:
        return "forward" if isinstance(call, GluForward) else "backward"


def halves(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up of a packed x [T, 2H]: its halves, or its even and odd columns."""
    if interleaved:
        return x[:, 0::2], x[:, 1::2]
    H = x.shape[1] // 2
    return x[:, :H], x[:, H:]


def unit_stride(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` if its last stride is 1, else a contiguous copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _vector(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor).contiguous()


def _operands(x: torch.Tensor, up: torch.Tensor | None, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if up is None:
        return halves(unit_stride(x), interleaved)
    return unit_stride(x), unit_stride(up)


def run_forward(
    x: torch.Tensor,
    up: torch.Tensor | None,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    interleaved: bool,
) -> torch.Tensor:
    """out [T, H] on the backend chosen for the call; without elements no backend is asked."""
    gate, second = _operands(x, up, interleaved)
    if not gate.numel():
        return torch.empty(gate.shape, dtype=x.dtype, device=x.device)
    return GluDispatcher.dispatch(GluForward(gate, second, _vector(probs), _vector(row_mask), formula))


def run_backward(
    dout: torch.Tensor,
    x: torch.Tensor,
    up: torch.Tensor | None,
    probs: torch.Tensor | None,
    row_mask: torch.Tensor | None,
    formula: Formula,
    interleaved: bool,
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """dx (packed as x is), dup (of a second tensor) and dprobs (in probs' dtype), those that are ``wanted``."""
    need_x, need_up, need_probs = wanted
    gate, second = _operands(x, up, interleaved)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if need_x else None
    dup = torch.empty(x.shape, dtype=x.dtype, device=x.device) if need_up else None
    dprobs = torch.empty((x.shape[0],), dtype=torch.float32, device=x.device) if need_probs else None
    if not gate.numel():
        return dx, dup, None if dprobs is None or probs is None else dprobs.zero_().to(probs.dtype)
    into = (dx, dup) if up is not None or dx is None else halves(dx, interleaved)
    GluDispatcher.dispatch(
        GluBackward(unit_stride(dout), gate, second, _vector(probs), _vector(row_mask), formula, *into, dprobs)
    )
    return dx, dup, None if dprobs is None or probs is None else dprobs.to(probs.dtype)
