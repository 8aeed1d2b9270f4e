# SPDX-License-Identifier: MIT
"""The native library (HIP kernels) on torch tensors: tensors in, tensors out, no autograd, no choice of backend.

Here tensors are checked, allocated and turned into addresses; the rest is `turbo_core.native.NativeLibrary`.
"""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError
from turbo_core.native import NativeLibrary, address, float_code
from turbo_norm_act.values import NormGradients, NormResult, Wanted

__all__ = ["MAX_WIDTH", "norm_backward", "norm_forward", "reset", "why_not"]

MAX_WIDTH = 2**29  # of a row; kMaxDim in csrc/kernels/norm.cpp

_library = NativeLibrary("turbo_norm_act")
reset = _library.reset
why_not = _library.why_not


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
    code = float_code("x.dtype", x.dtype)
    gamma_code = 0 if gamma is None else float_code("gamma.dtype", gamma.dtype)
    beta_code = 0 if beta is None else float_code("beta.dtype", beta.dtype)
    y = _empty(x)
    s = None if residual is None else _empty(x)
    rstd = torch.empty((rows,), dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if center else None
    if y.numel() == 0:
        return NormResult(y, s, None if mean is None else mean.zero_(), rstd.zero_())
    index, stream = _library.where(x)
    extension = _library.extension
    run = extension.layernorm_forward if center else extension.rmsnorm_forward
    status = run(
        index,
        stream,
        x=x.data_ptr(),
        x_stride=_row_stride(x),
        residual=address(residual),
        residual_stride=_row_stride(residual),
        gamma=address(gamma),
        beta=address(beta),
        y=y.data_ptr(),
        s=address(s),
        mean=address(mean),
        rstd=rstd.data_ptr(),
        rows=rows,
        dim=dim,
        dtype=code,
        gamma_dtype=gamma_code,
        beta_dtype=beta_code,
        eps=eps,
        zero_centered=zero_centered,
    )
    _library.check(status)
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
    code = float_code("s.dtype", s.dtype)
    gamma_code = 0 if gamma is None else float_code("gamma.dtype", gamma.dtype)
    dx = _empty(s)
    dgamma, dbeta = (
        None if dtype is None else torch.empty((dim,), dtype=dtype, device=s.device) for dtype in wanted[1:]
    )
    beta_code = 0 if dbeta is None else float_code("dbeta.dtype", dbeta.dtype)
    gradients = [gradient for gradient in (dgamma, dbeta) if gradient is not None]
    if dx.numel() == 0:
        for gradient in gradients:
            gradient.zero_()
        return NormGradients(dx if wanted.dx else None, dgamma, dbeta)
    extension = _library.extension
    partials, partial = 0, None
    if gradients:
        partials = extension.norm_backward_partials(rows, dim, code)
        partial = torch.empty((len(gradients), partials, dim), dtype=torch.float32, device=s.device)
    index, stream = _library.where(s)
    run = extension.rmsnorm_backward if mean is None else extension.layernorm_backward
    status = run(
        index,
        stream,
        dy=dy.data_ptr(),
        dy_stride=_row_stride(dy),
        ds=address(ds),
        ds_stride=_row_stride(ds),
        s=s.data_ptr(),
        s_stride=_row_stride(s),
        gamma=address(gamma),
        mean=address(mean),
        rstd=rstd.data_ptr(),
        dx=dx.data_ptr(),
        dgamma=address(dgamma),
        dbeta=address(dbeta),
        partial=address(partial),
        partials=partials,
        rows=rows,
        dim=dim,
        dtype=code,
        gamma_dtype=gamma_code,
        beta_dtype=beta_code,
        zero_centered=zero_centered,
    )
    _library.check(status)
    return NormGradients(dx if wanted.dx else None, dgamma, dbeta)
