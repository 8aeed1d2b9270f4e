# SPDX-License-Identifier: MIT
"""The backend TURBO of the norms, HIP kernels: tensors become addresses, the rest is `turbo_core.native`."""

from __future__ import annotations

import torch

from turbo_core.calls import outputs
from turbo_core.native import NativeLibrary, address, float_code
from turbo_norm_act.calls import (
    NormBackward,
    NormCall,
    NormForward,
    NormGradients,
    NormResult,
    norm_gradient_specs,
    norm_specs,
)

__all__ = ["MAX_WIDTH", "library", "reset", "run", "why_not"]

MAX_WIDTH = 2**29  # of a row; kMaxDim in csrc/kernels/norm.cpp

library = NativeLibrary("turbo_norm_act")
reset = library.reset


def why_not(call: NormCall) -> str | None:
    if call.data.shape[1] > MAX_WIDTH:
        return f"D={call.data.shape[1]}; up to {MAX_WIDTH} is accepted"
    return library.why_not(call.data.device)


def run(call: NormCall) -> NormResult | NormGradients:
    """Allocates the result and launches; equal inputs give equal bits."""
    return _forward(call) if isinstance(call, NormForward) else _backward(call)


def _row_stride(tensor: torch.Tensor | None) -> int:
    """Elements from row to row. A single row's is never used and may be anything: it must not spoil the alignment."""
    return 0 if tensor is None or tensor.shape[0] <= 1 else tensor.stride(0)


def _parameter(name: str, tensor: torch.Tensor | None) -> dict[str, int]:
    """gamma or beta as the C interface takes it."""
    code = 0 if tensor is None else float_code(f"{name}.dtype", tensor.dtype)
    return {name: address(tensor), f"{name}_dtype": code}


def _forward(call: NormForward) -> NormResult:
    x, residual = call.x, call.residual
    result: NormResult = outputs(norm_specs(call), x.device)
    code = float_code("x.dtype", x.dtype)
    index, stream = library.where(x)
    launch = library.extension.layernorm_forward if call.center else library.extension.rmsnorm_forward
    status = launch(
        index,
        stream,
        x=x.data_ptr(),
        x_stride=_row_stride(x),
        residual=address(residual),
        residual_stride=_row_stride(residual),
        **_parameter("gamma", call.gamma),
        **_parameter("beta", call.beta),
        y=result.y.data_ptr(),
        s=address(result.s),
        mean=address(result.mean),
        rstd=result.rstd.data_ptr(),
        rows=x.shape[0],
        dim=x.shape[1],
        dtype=code,
        eps=call.eps,
        zero_centered=call.zero_centered,
    )
    library.check(status)
    return result


def _backward(call: NormBackward) -> NormGradients:
    """dx is computed where it is not wanted, too."""
    s, dy, ds = call.s, call.dy, call.ds
    rows, dim = s.shape
    result: NormGradients = outputs(norm_gradient_specs(call), s.device)
    dx = torch.empty(s.shape, dtype=s.dtype, device=s.device) if result.dx is None else result.dx
    code = float_code("s.dtype", s.dtype)
    index, stream = library.where(s)
    extension = library.extension
    parameters = (result.dgamma is not None) + (result.dbeta is not None)
    partials = extension.norm_backward_partials(rows, dim, code) if parameters else 0
    partial = torch.empty((parameters, partials, dim), dtype=torch.float32, device=s.device) if parameters else None
    launch = extension.layernorm_backward if call.center else extension.rmsnorm_backward
    status = launch(
        index,
        stream,
        dy=dy.data_ptr(),
        dy_stride=_row_stride(dy),
        ds=address(ds),
        ds_stride=_row_stride(ds),
        s=s.data_ptr(),
        s_stride=_row_stride(s),
        **_parameter("gamma", call.gamma),
        mean=address(call.mean),
        rstd=call.rstd.data_ptr(),
        dx=dx.data_ptr(),
        dgamma=address(result.dgamma),
        dbeta=address(result.dbeta),
        beta_dtype=0 if result.dbeta is None else float_code("beta.dtype", result.dbeta.dtype),
        partial=address(partial),
        partials=partials,
        rows=rows,
        dim=dim,
        dtype=code,
        zero_centered=call.zero_centered,
    )
    library.check(status)
    return result
