# SPDX-License-Identifier: MIT
"""`scale_rows`: registered as ``torch.ops.turbo_template.scale_rows``, with gradients of any order.

The op works on rows: leading dimensions are flattened before it and restored behind it.
"""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import OpInfo, UnsupportedError
from turbo_core.library import Differentiable, OpLibrary
from turbo_template.calls import ScaleRows, ScaleRowsBackward, ScaleRowsGradients, backward_specs, forward_specs
from turbo_template.pytorch.kernels.scale_rows_impl import ScaleRowsDispatcher, run_backward, run_forward

__all__ = ["SCALE_ROWS", "scale_rows"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# --- gradients ------------------------------------------------------------------------------------------------------


def _saves(call: ScaleRows, y: torch.Tensor, needs: Any) -> tuple[Any, ...]:
    return call.x if needs.scale else None, call.scale


def _backward(saved: tuple[Any, ...], dy: torch.Tensor, needs: Any) -> dict[str, Any]:
    x, scale = saved
    found = {"residual": dy if needs.residual else None}
    if needs.x or needs.scale:
        found["x"], found["scale"] = _gradients(ScaleRowsBackward(dy, x, scale, needs.x))
    return found


def _second_saves(call: ScaleRowsBackward, result: ScaleRowsGradients, needs: Any) -> tuple[Any, ...]:
    return call.dy, call.x, call.scale


def _second(saved: tuple[Any, ...], grads: ScaleRowsGradients, needs: Any) -> dict[str, Any]:
    """Gradients of dx = dy * scale and dscale = sum of dy * x, of the same two ops again."""
    dy, x, scale = saved
    ddx, ddscale = grads
    found: dict[str, Any] = {}
    if needs.dy:
        found["dy"] = None if ddx is None else _scale_rows(ScaleRows(ddx, scale, None))
        if ddscale is not None:
            found["dy"] = _scale_rows(ScaleRows(x, ddscale, found["dy"]))
    if needs.x and ddscale is not None:
        found["x"] = _scale_rows(ScaleRows(dy, ddscale, None))
    if needs.scale and ddx is not None:
        found["scale"] = _gradients(ScaleRowsBackward(dy, ddx, scale, False)).dscale
    return found


_library = OpLibrary("turbo_template")
_gradients = _library.op(
    "scale_rows_backward",
    ScaleRowsBackward,
    run_backward,
    backward_specs,
    Differentiable(_second, _second_saves, "scale_rows"),
    result=ScaleRowsGradients,
)
_scale_rows = _library.op(
    "scale_rows", ScaleRows, run_forward, forward_specs, Differentiable(_backward, _saves, "scale_rows")
)

# --- the public function --------------------------------------------------------------------------------------------


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}"
    return repr(value)


def _is_like(value: Any, x: torch.Tensor, shape: torch.Size, dtypes: tuple[torch.dtype, ...]) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.shape == shape and value.dtype in dtypes and value.device == x.device
    )


def _call(x: Any, scale: Any, residual: Any) -> ScaleRows:
    """The checked call, leading dimensions flattened."""
    if not isinstance(x, torch.Tensor) or x.dim() == 0 or x.dtype not in DTYPES:
        raise UnsupportedError(
            f"scale_rows: x is {_what(x)}; a tensor of at least 1 dimension in one of {', '.join(map(str, DTYPES))} "
            "is accepted"
        )
    rows = x.shape[:-1]
    if not _is_like(scale, x, rows, DTYPES):
        raise UnsupportedError(
            f"scale_rows: scale is {_what(scale)}; a tensor of shape {list(rows)} on {x.device} in one of "
            f"{', '.join(map(str, DTYPES))} is accepted"
        )
    if residual is not None and not _is_like(residual, x, x.shape, (x.dtype,)):
        raise UnsupportedError(
            f"scale_rows: residual is {_what(residual)}; None or one like x, {_what(x)}, is accepted"
        )
    if x.dim() == 2:
        return ScaleRows(x, scale, residual)
    shape = (rows.numel(), x.shape[-1])
    return ScaleRows(x.reshape(shape), scale.reshape(shape[0]), None if residual is None else residual.reshape(shape))


def scale_rows(x: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """y = x * scale[..., None] + residual: every row by a factor of its own; differentiable in all three.

    Args:
        x: [..., D] in bfloat16, float16 or float32; any strides, zero sizes, more than 2**31 elements.
        scale: [...], the leading dimensions of x, in any of the three dtypes.
        residual: like x; None: nothing is added.

    Returns:
        y [..., D] in x's dtype, contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend set in code cannot take the call.

    Arithmetic is float32, rounded once; the gradient of scale is summed in float32. Bit-equal from run to run on one
    backend and device.
    """
    y: torch.Tensor = _scale_rows(_call(x, scale, residual))
    return y if x.dim() == 2 else y.view(x.shape)


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(x: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor | None = None) -> dict[str, Any]:
    call = _call(x, scale, residual)
    dy = torch.empty_like(call.x, memory_format=torch.contiguous_format)
    return {"forward": call, "backward": ScaleRowsBackward(dy, call.x, call.scale, True)}


def _example(device: torch.device) -> dict[str, Any]:
    x = torch.empty((1, 1), dtype=torch.bfloat16, device=device).expand(4096, 4096)
    return _calls(x, torch.empty((4096,), dtype=torch.float32, device=device))


SCALE_ROWS = OpInfo("scale_rows", ScaleRowsDispatcher, _calls, _example)
