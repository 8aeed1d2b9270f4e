# SPDX-License-Identifier: MIT
"""The native library (HIP kernels) on torch tensors: tensors in, tensors out, no autograd, no choice of backend.

The extension ``_C`` takes integers and has never heard of torch. Here tensors are allocated, turned into addresses, and
statuses into errors. A CPU tensor is device memory only under a simulator: its architecture is active
(`turbo_core.simulated_arch`) and its library is named by ``TURBO_HIP_LIBRARY``.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import torch

from turbo_core import BackendUnavailableError, UnsupportedError, device_facts
from turbo_norm_act.values import NormGradients, NormResult, Wanted

__all__ = ["MAX_WIDTH", "norm_backward", "norm_forward", "reset", "why_not"]

ARCHS = ("gfx942", "gfx950")
MAX_WIDTH = 2**29  # of a row; kMaxDim in csrc/kernels/norm.cpp
LIBRARY_VARIABLE = "TURBO_HIP_LIBRARY"

_extension: ModuleType | None = None
_answers: dict[tuple[Any, ...], str | None] = {}
_simulator: tuple[str | None, str] | None = None  # library and architecture behind the CPU tensors at the last call


def _load() -> ModuleType:
    global _extension
    if _extension is None:
        _extension = importlib.import_module("turbo_norm_act.pytorch._C")
    return _extension


def reset() -> None:
    """Forget the HIP library and what is known of devices; a simulator calls it when it changes either."""
    _answers.clear()
    if _extension is not None:
        _extension.reset()


# --- can it run -------------------------------------------------------------------------------------------------------


def why_not(device: torch.device) -> str | None:
    """Why the HIP kernels cannot run on tensors of ``device``; None when they can."""
    facts = device_facts(device)
    key = (device, facts.arch, os.environ.get(LIBRARY_VARIABLE) if device.type == "cpu" else None)
    if key in _answers:
        return _answers[key]
    reason, lasting = _find_reason(device, facts.arch)
    if lasting:
        _answers[key] = reason
    return reason


def _find_reason(device: torch.device, arch: str) -> tuple[str | None, bool]:
    """The reason, and whether it will be the same next time (a missing HIP library may still be loaded by someone)."""
    if arch not in ARCHS:
        return f"the HIP kernels are for {' and '.join(ARCHS)}; {device} is {arch}", True
    try:
        extension = _load()
    except ImportError as error:
        return f"turbo-norm-act was installed without its native library: {error}", True
    if device.type == "cpu" and not os.environ.get(LIBRARY_VARIABLE):
        return f"CPU tensors stand for {arch}, but no simulator is active ({LIBRARY_VARIABLE} is not set)", False
    index = _index(device)
    if extension.check(index) != extension.OK:
        return extension.last_error(), False
    found = extension.device_arch(index)
    if found != arch:
        return f"the HIP library reports {found} for device {index}, torch {arch}", False
    return None, True


def _index(device: torch.device) -> int:
    """The HIP device index. Device 0 of a simulator is the CPU's memory; its architecture can change between calls."""
    global _simulator
    if device.type != "cpu":
        return torch.cuda.current_device() if device.index is None else device.index
    state = (os.environ.get(LIBRARY_VARIABLE), device_facts(device).arch)
    if state != _simulator:
        _load().reset()
        _simulator = state
    return 0


# --- a call -----------------------------------------------------------------------------------------------------------


def _checked(status: int) -> None:
    if status == 0:
        return
    extension = _load()
    text = extension.last_error()
    if status == extension.ERROR_ARGUMENT:
        raise UnsupportedError(text)
    if status in (extension.ERROR_NO_RUNTIME, extension.ERROR_NO_KERNEL):
        raise BackendUnavailableError(text)
    raise RuntimeError(text)


_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # turbo_dtype of turbo/abi.h


def _code(name: str, tensor: torch.Tensor) -> int:
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise UnsupportedError(f"{name}.dtype={tensor.dtype}: accepted are {', '.join(str(dtype) for dtype in _CODES)}")
    return code


def _where(tensor: torch.Tensor) -> tuple[int, int]:
    """Device index and stream for work on ``tensor``."""
    if tensor.device.type == "cpu":
        return _index(tensor.device), 0
    return _index(tensor.device), torch.cuda.current_stream(tensor.device).cuda_stream


def _matrix(name: str, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``tensor`` as the kernels take it beside ``like``: same shape, dtype and device, adjacent elements in a row."""
    if tensor.shape != like.shape or tensor.dtype != like.dtype or tensor.device != like.device:
        expected = f"{tuple(like.shape)} {like.dtype} on {like.device}"
        raise UnsupportedError(
            f"{name} is {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}; {expected} is needed"
        )
    return tensor if tensor.stride(1) == 1 or tensor.shape[1] <= 1 else tensor.contiguous()


def _vector(name: str, tensor: torch.Tensor, size: int, device: torch.device) -> torch.Tensor:
    if tensor.shape != (size,) or tensor.device != device:
        raise UnsupportedError(f"{name} is {tuple(tensor.shape)} on {tensor.device}; ({size},) on {device} is needed")
    return tensor.contiguous()


def _statistic(name: str, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """mean or rstd of the rows of ``like``."""
    if tensor.dtype != torch.float32:
        raise UnsupportedError(f"{name}.dtype={tensor.dtype}: torch.float32 is needed")
    return _vector(name, tensor, like.shape[0], like.device)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _row_stride(tensor: torch.Tensor | None) -> int:
    """Elements from row to row. A single row's is never used and may be anything: it must not spoil the alignment."""
    return 0 if tensor is None or tensor.shape[0] <= 1 else tensor.stride(0)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def norm_forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
    *,
    center: bool,
    zero_centered: bool,
) -> NormResult:
    """y, s, mean and rstd of x [rows, D]: LayerNorm with ``center``, else RMSNorm, which has no mean and no beta.

    s = x + residual (None without one); mean and rstd float32 [rows]; y = (s - mean) rstd gamma + beta. Any row
    strides; gamma and beta [D] of their own dtypes, or None. What is returned is new and contiguous.
    """
    rows, dim = x.shape
    x = _matrix("x", x, x)
    if residual is not None:
        residual = _matrix("residual", residual, x)
    if gamma is not None:
        gamma = _vector("gamma", gamma, dim, x.device)
    if beta is not None:
        beta = _vector("beta", beta, dim, x.device)
    code = _code("x", x)
    gamma_code = 0 if gamma is None else _code("gamma", gamma)
    beta_code = 0 if beta is None else _code("beta", beta)
    y = _empty(x)
    s = None if residual is None else _empty(x)
    rstd = torch.empty((rows,), dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if center else None
    if y.numel() == 0:
        return NormResult(y, s, None if mean is None else mean.zero_(), rstd.zero_())
    index, stream = _where(x)
    extension = _load()
    run = extension.layernorm_forward if center else extension.rmsnorm_forward
    status = run(
        x.data_ptr(),
        _row_stride(x),
        _address(residual),
        _row_stride(residual),
        _address(gamma),
        _address(beta),
        y.data_ptr(),
        _address(s),
        _address(mean),
        rstd.data_ptr(),
        rows,
        dim,
        code,
        gamma_code,
        beta_code,
        eps,
        zero_centered,
        index,
        stream,
    )
    _checked(status)
    return NormResult(y, s, mean, rstd)


def norm_backward(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    gamma: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    *,
    zero_centered: bool,
    wanted: Wanted,
) -> NormGradients:
    """dx (the gradient of x, and of residual), dgamma and dbeta for the y of `norm_forward`; mean: LayerNorm.

    ds is the gradient that reaches s directly, or None. dgamma has gamma's dtype. What is not ``wanted`` is None (dx is
    computed all the same). Equal inputs give equal bits.
    """
    rows, dim = s.shape
    s = _matrix("s", s, s)
    dy = _matrix("dy", dy, s)
    if ds is not None:
        ds = _matrix("ds", ds, s)
    if gamma is not None:
        gamma = _vector("gamma", gamma, dim, s.device)
    if wanted.dgamma is not None and (gamma is None or gamma.dtype != wanted.dgamma):
        has = "there is no gamma" if gamma is None else f"gamma is {gamma.dtype}"
        raise UnsupportedError(f"dgamma of {wanted.dgamma} is wanted, but {has}")
    mean = None if mean is None else _statistic("mean", mean, s)
    rstd = _statistic("rstd", rstd, s)
    code = _code("s", s)
    gamma_code = 0 if gamma is None else _code("gamma", gamma)
    dx = _empty(s)
    dgamma, dbeta = (
        None if dtype is None else torch.empty((dim,), dtype=dtype, device=s.device) for dtype in wanted[1:]
    )
    beta_code = 0 if dbeta is None else _code("dbeta", dbeta)
    gradients = [gradient for gradient in (dgamma, dbeta) if gradient is not None]
    if dx.numel() == 0:
        for gradient in gradients:
            gradient.zero_()
        return NormGradients(dx if wanted.dx else None, dgamma, dbeta)
    extension = _load()
    partials, partial = 0, None
    if gradients:
        partials = extension.norm_backward_partials(rows, dim, code)
        partial = torch.empty((len(gradients), partials, dim), dtype=torch.float32, device=s.device)
    index, stream = _where(s)
    run = extension.rmsnorm_backward if mean is None else extension.layernorm_backward
    status = run(
        dy.data_ptr(),
        _row_stride(dy),
        _address(ds),
        _row_stride(ds),
        s.data_ptr(),
        _row_stride(s),
        _address(gamma),
        _address(mean),
        rstd.data_ptr(),
        dx.data_ptr(),
        _address(dgamma),
        _address(dbeta),
        _address(partial),
        partials,
        rows,
        dim,
        code,
        gamma_code,
        beta_code,
        zero_centered,
        index,
        stream,
    )
    _checked(status)
    return NormGradients(dx if wanted.dx else None, dgamma, dbeta)
