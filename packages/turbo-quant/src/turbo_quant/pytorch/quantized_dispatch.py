# SPDX-License-Identifier: MIT
"""What ATen's ops do with a `QuantizedTensor`; the table is at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from turbo_core import UnsupportedError
from turbo_core.low_precision import memory_dtype
from turbo_quant.pytorch import quantized_views as views
from turbo_quant.pytorch.ops.checks import DTYPES
from turbo_quant.pytorch.quantized_tensor import Parts, QuantizedTensor

__all__ = ["dispatch"]

aten = torch.ops.aten


def _as_bytes(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """``function``, which copies or allocates, on the bytes of payloads and scales."""
    return lambda tensor: function(tensor.view(memory_dtype(tensor.dtype))).view(tensor.dtype)


def _clone(x: QuantizedTensor, **_: Any) -> QuantizedTensor:
    return x.map_tensors(_as_bytes(torch.clone), torch.clone, x.dtype)


def _empty_like(x: QuantizedTensor, *, dtype: Any = None, device: Any = None, **_: Any) -> QuantizedTensor:
    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=device)

    def groups(tensor: torch.Tensor) -> torch.Tensor:
        """As they are: they belong to the shape. Of the meta device they have no values, and are empty groups."""
        target = torch.device(device or tensor.device)
        unknown = tensor.is_meta and target.type != "meta"
        return torch.zeros_like(tensor, device=target) if unknown else tensor.to(target)

    return x.map_tensors(_as_bytes(empty), groups, _orig_dtype(x, dtype))


def _to_copy(
    x: QuantizedTensor, *, dtype: Any = None, device: Any = None, non_blocking: bool = False, **_: Any
) -> QuantizedTensor:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, non_blocking=non_blocking, copy=True) if device is not None else tensor.clone()

    return x.map_tensors(_as_bytes(move), move, _orig_dtype(x, dtype))


def _orig_dtype(x: QuantizedTensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None and dtype not in DTYPES:
        accepted = ", ".join(map(str, DTYPES))
        raise UnsupportedError(f"QuantizedTensor.to: dtype={dtype}; accepted are {accepted}")
    return dtype or x.dtype


def _is_pinned(x: QuantizedTensor, device: Any = None) -> bool:
    return all(part.is_pinned() for part in x.parts_in_memory())


def _pin_memory(x: QuantizedTensor, device: Any = None) -> QuantizedTensor:
    return x.map_tensors(torch.Tensor.pin_memory, torch.Tensor.pin_memory, x.dtype)


def _record_stream(x: QuantizedTensor, stream: Any) -> None:
    for part in x.parts_in_memory():
        part.record_stream(stream)


def _same_kind(x: QuantizedTensor, y: QuantizedTensor) -> bool:
    """Whether payload and scales of y mean in x what they mean in y."""
    alike = x._constants() == y._constants() and x.quantized_axis == y.quantized_axis and x.shape == y.shape
    return alike and x.qdata.shape == y.qdata.shape and not x.padded_by_groups


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(target, QuantizedTensor):
        target.copy_(source.dequantize(), non_blocking)
        return target
    if not isinstance(source, QuantizedTensor) or not _same_kind(target, source):
        plain = source.dequantize() if isinstance(source, QuantizedTensor) else torch.as_tensor(source)
        source = QuantizedTensor.quantize(
            plain.to(target.device, target.dtype).expand(target.shape),
            target.real_dtype,
            target.granularity,
            axis=target.quantized_axis,
            group_lens=target.orig_group_lens,
            block_size=target.block_size,
            scaling_recipe=target.scaling_recipe,
            sign_mask=target.sign_mask,
        )
    target.qdata.copy_(source.qdata, non_blocking)
    target.scale_inv.copy_(source.scale_inv, non_blocking)
    return target


def _fill_(x: QuantizedTensor, value: float = 0.0) -> torch.Tensor:
    return _copy_(x, torch.full((), value, dtype=x.dtype, device=x.device))


def _view(function: Callable[..., Parts]) -> Callable[..., QuantizedTensor]:
    return lambda x, *args: x.with_parts(function(x, *args))


def _t(x: QuantizedTensor) -> Parts:
    return x.parts() if x.dim() < 2 else views.transpose(x, 0, 1)


def _as_strided(x: QuantizedTensor, size: Any, stride: Any, offset: Any = None) -> Parts:
    """Only what compiled functions make of an input that they give back: x itself, or its transpose."""
    last = x.dim() - 1
    for parts in (x.parts(), views.transpose(x, last - 1, last) if last > 0 else x.parts()):
        if parts.shape == tuple(size) and parts.stride == tuple(stride) and not offset:
            return parts
    raise UnsupportedError(f"as_strided({size}, {stride}) is not defined for {x!r}; call dequantize() on it first")


_TABLE: dict[Any, Callable[..., Any]] = {
    aten.view.default: _view(views.view),
    aten._unsafe_view.default: _view(views.view),
    aten.reshape.default: _view(views.view),
    aten.t.default: _view(_t),
    aten.transpose.int: _view(views.transpose),
    aten.permute.default: _view(views.permute),
    aten.as_strided.default: _view(_as_strided),
    aten.select.int: _view(views.select),
    aten.detach.default: _view(QuantizedTensor.parts),
    aten.alias.default: _view(QuantizedTensor.parts),
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten.fill_.Scalar: _fill_,
    aten.zero_.default: _fill_,
    aten.empty_like.default: _empty_like,
    aten.is_pinned.default: _is_pinned,
    aten._pin_memory.default: _pin_memory,
    aten.record_stream.default: _record_stream,
}


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer of ``func``, or a refusal that says what to do."""
    function = _TABLE.get(func)
    if function is None:
        raise UnsupportedError(f"{func} is not defined for a QuantizedTensor; call dequantize() on it first")
    return return_and_correct_aliasing(func, args, kwargs, function(*args, **kwargs))
