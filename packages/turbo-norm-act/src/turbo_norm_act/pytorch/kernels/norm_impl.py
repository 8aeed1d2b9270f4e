# SPDX-License-Identifier: MIT
"""The backends of RMSNorm and LayerNorm and the choice among them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from turbo_core import AutoKernelDispatcher, BackendType, KernelBackend, PrecisionType, device_facts, why_no_triton
from turbo_core.tuning import call_key
from turbo_norm_act.pytorch.kernels.reference import norm_backward_reference, norm_forward_reference
from turbo_norm_act.values import NormGradients, NormResult, Wanted

__all__ = ["NormBackward", "NormDispatcher", "NormForward", "run_backward", "run_forward"]

HIP_ARCHS = ("gfx942", "gfx950")
MAX_WIDTH = 2**30  # column indices of the kernels are 32-bit


class NormForward(NamedTuple):
    """y of x [rows, D] (and s = x + residual).

    Attributes:
        x, residual: [rows, D], last stride 1; bf16, fp16 or fp32.
        gamma, beta: [D], contiguous, any of the three dtypes.
        center: LayerNorm; else RMSNorm.
    """

    x: torch.Tensor
    residual: torch.Tensor | None
    gamma: torch.Tensor | None
    beta: torch.Tensor | None
    eps: float
    zero_centered: bool
    center: bool

    @property
    def data(self) -> torch.Tensor:
        return self.x


class NormBackward(NamedTuple):
    """The gradients that are ``wanted`` of a norm of s [rows, D]; ds is what reaches s on its other path."""

    dy: torch.Tensor
    ds: torch.Tensor | None
    s: torch.Tensor
    gamma: torch.Tensor | None
    mean: torch.Tensor | None
    rstd: torch.Tensor
    zero_centered: bool
    wanted: Wanted

    @property
    def data(self) -> torch.Tensor:
        return self.s

    @property
    def center(self) -> bool:
        return self.mean is not None


Call = NormForward | NormBackward


class TurboBackend(KernelBackend):
    """HIP kernels of the native library."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        from turbo_norm_act.pytorch.kernels import native

        if call.data.shape[1] > native.MAX_WIDTH:
            return f"D={call.data.shape[1]}; up to {native.MAX_WIDTH} is accepted"
        return native.why_not(call.data.device)

    @classmethod
    def execute(cls, call: Call) -> NormResult | NormGradients:
        from turbo_norm_act.pytorch.kernels import native

        if isinstance(call, NormForward):
            x, residual, gamma, beta, eps, zero_centered, center = call
            return native.norm_forward(x, residual, gamma, beta, eps, center=center, zero_centered=zero_centered)
        dy, ds, s, gamma, mean, rstd, zero_centered, wanted = call
        return native.norm_backward(dy, ds, s, gamma, mean, rstd, zero_centered=zero_centered, wanted=wanted)


class TritonBackend(KernelBackend):
    """Our Triton kernels."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        if call.data.shape[1] > MAX_WIDTH:
            return f"D={call.data.shape[1]}; up to {MAX_WIDTH} is accepted"
        return why_no_triton(call.data.device)

    @classmethod
    def execute(cls, call: Call) -> NormResult | NormGradients:
        from turbo_norm_act.triton import norm

        if isinstance(call, NormForward):
            x, residual, gamma, beta, eps, zero_centered, center = call
            return norm.norm_forward(x, residual, gamma, beta, eps, center=center, zero_centered=zero_centered)
        dy, ds, s, gamma, mean, rstd, zero_centered, wanted = call
        return norm.norm_backward(dy, ds, s, gamma, mean, rstd, zero_centered=zero_centered, wanted=wanted)


class TorchBackend(KernelBackend):
    """The reference: float32 on any device."""

    @classmethod
    def why_not(cls, call: Call) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Call) -> NormResult | NormGradients:
        if isinstance(call, NormForward):
            x, residual, gamma, beta, eps, zero_centered, center = call
            return norm_forward_reference(x, residual, gamma, beta, eps, center=center, zero_centered=zero_centered)
        dy, ds, s, gamma, mean, rstd, zero_centered, wanted = call
        return norm_backward_reference(dy, ds, s, gamma, mean, rstd, zero_centered=zero_centered, wanted=wanted)


class NormDispatcher(AutoKernelDispatcher):
    """Chooses the backend of one norm, forward or backward."""

    op = "norm"
    family = "norm_act"
    backends = {
        BackendType.TURBO: TurboBackend,
        BackendType.TRITON: TritonBackend,
        BackendType.TORCH: TorchBackend,
    }

    @classmethod
    def precision(cls, call: Call) -> PrecisionType:
        return PrecisionType.BF16_FP16_FP32

    @classmethod
    def default_backend(cls, call: Call) -> BackendType:
        """HIP on the Instinct GPUs, Triton on other GPUs, plain torch on a CPU."""
        facts = device_facts(call.data.device)
        if facts.vendor == "cpu":
            return BackendType.TORCH
        return BackendType.TURBO if facts.arch in HIP_ARCHS else BackendType.TRITON

    @classmethod
    def make_key(cls, call: Call) -> Hashable:
        return call_key(call.data.device, cls.role(call), call)

    @classmethod
    def describe(cls, call: Call) -> str:
        rows, D = call.data.shape
        name = "layernorm" if call.center else "rmsnorm"
        dtype = str(call.data.dtype).removeprefix("torch.")
        gamma = "no gamma" if call.gamma is None else f"gamma {str(call.gamma.dtype).removeprefix('torch.')}"
        return f"{name} {cls.role(call)}, rows={rows} D={D}, {dtype}, {gamma}, {call.data.device}"

    @classmethod
    def role(cls, call: Call) -> str:
        return "forward" if isinstance(call, NormForward) else "backward"


def unit_stride(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """``tensor`` if its last stride is 1 (or read as such, where the last size is 1), else a contiguous copy."""
    if tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor
    return tensor.contiguous()


def run_forward(call: NormForward) -> NormResult:
    """Compute ``call`` on the backend chosen for it; without elements no backend is asked."""
    x, residual, gamma, beta, *_ = call
    if x.numel():
        call = call._replace(
            x=unit_stride(x), residual=unit_stride(residual), gamma=unit_stride(gamma), beta=unit_stride(beta)
        )
        result: Any = NormDispatcher.dispatch(call)
        return result
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.zeros((x.shape[0],), dtype=torch.float32, device=x.device)
    s = None if residual is None else torch.empty_like(y)
    return NormResult(y, s, torch.zeros_like(rstd) if call.center else None, rstd)


def run_backward(call: NormBackward) -> NormGradients:
    """Likewise."""
    if call.s.numel():
        call = call._replace(
            dy=unit_stride(call.dy), ds=unit_stride(call.ds), s=unit_stride(call.s), gamma=unit_stride(call.gamma)
        )
        result: Any = NormDispatcher.dispatch(call)
        return result
    s, wanted = call.s, call.wanted
    width = (s.shape[1],)
    return NormGradients(
        torch.empty(s.shape, dtype=s.dtype, device=s.device) if wanted.dx else None,
        *(None if dtype is None else torch.zeros(width, dtype=dtype, device=s.device) for dtype in wanted[1:]),
    )
