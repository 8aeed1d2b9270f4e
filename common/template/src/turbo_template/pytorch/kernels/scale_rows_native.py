# SPDX-License-Identifier: MIT
"""`scale_rows` by the HIP kernels of csrc/kernels/scale_rows.hip: the backend TURBO.

Results are allocated and tensors turned into addresses; all else is done by csrc/kernels/scale_rows.cpp.
"""

from __future__ import annotations

import torch

from turbo_core.calls import empty, outputs
from turbo_core.native import address, float_code
from turbo_template.calls import (
    ScaleRows,
    ScaleRowsBackward,
    ScaleRowsCall,
    ScaleRowsGradients,
    backward_specs,
    forward_specs,
)
from turbo_template.pytorch.kernels.native import library

__all__ = ["run", "why_not"]


def why_not(call: ScaleRowsCall) -> str | None:
    """Why the kernels cannot run on the call's device."""
    return library.why_not(call.data.device)


def run(call: ScaleRowsCall) -> torch.Tensor | ScaleRowsGradients:
    """The forward or the backward; last strides are 1, and there is an element at least."""
    return _forward(call) if isinstance(call, ScaleRows) else _backward(call)


def _row_stride(tensor: torch.Tensor | None) -> int:
    """Elements from row to row. A single row's is never used and may be anything: it must not spoil the alignment."""
    return 0 if tensor is None or tensor.shape[0] <= 1 else tensor.stride(0)


def _forward(call: ScaleRows) -> torch.Tensor:
    x, scale, residual = call
    y = empty(forward_specs(call), x.device)
    index, stream = library.where(x)
    status = library.extension.scale_rows_forward(
        index,
        stream,
        x=x.data_ptr(),
        x_stride=_row_stride(x),
        scale=scale.data_ptr(),
        residual=address(residual),
        residual_stride=_row_stride(residual),
        y=y.data_ptr(),
        rows=x.shape[0],
        dim=x.shape[1],
        dtype=float_code("x.dtype", x.dtype),
        scale_dtype=float_code("scale.dtype", scale.dtype),
    )
    library.check(status)
    return y


def _backward(call: ScaleRowsBackward) -> ScaleRowsGradients:
    dy, x, scale, _ = call
    gradients = outputs(backward_specs(call), dy.device)
    index, stream = library.where(dy)
    status = library.extension.scale_rows_backward(
        index,
        stream,
        dy=dy.data_ptr(),
        dy_stride=_row_stride(dy),
        x=address(x),
        x_stride=_row_stride(x),
        scale=scale.data_ptr(),
        dx=address(gradients.dx),
        dscale=address(gradients.dscale),
        rows=dy.shape[0],
        dim=dy.shape[1],
        dtype=float_code("dy.dtype", dy.dtype),
        scale_dtype=float_code("scale.dtype", scale.dtype),
    )
    library.check(status)
    return gradients
