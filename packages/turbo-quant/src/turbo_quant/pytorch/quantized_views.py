# SPDX-License-Identifier: MIT
"""Views of a quantised tensor: which keep its blocks together, and what becomes of payload, scales and axis.

Nothing is rounded: a view re-labels. An MX payload along -2 is stored transposed, so exchanging the last two
dimensions of the tensor leaves its payload and scales as they are and only turns the axis round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from turbo_core import UnsupportedError
from turbo_core.low_precision import ScalingGranularity
from turbo_quant.pytorch.quantized_tensor import Parts, QuantizedTensor

__all__ = ["permute", "select", "transpose", "view"]

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
MX_BLOCKWISE = ScalingGranularity.MX_BLOCKWISE


def _refuse(x: QuantizedTensor, what: str) -> UnsupportedError:
    return UnsupportedError(f"{what} of {x!r} would tear its blocks apart; dequantize() first")


def permute(x: QuantizedTensor, dims: Sequence[int]) -> Parts:
    """Dimension i of the result is dims[i] of x."""
    rank = x.dim()
    dims = [dim % rank for dim in dims]
    q, scale, shape, axis, _ = x.parts()
    if dims == list(range(rank)):
        return x.parts()
    shape, stride = tuple(shape[dim] for dim in dims), tuple(x.stride(dim) for dim in dims)
    if x.granularity is TENSORWISE:
        return Parts(q.permute(dims), scale, shape, None, stride)
    if x.granularity is ROWWISE and axis is not None:
        return Parts(q.permute(dims), scale.permute(dims), shape, dims.index(axis % rank) - rank, stride)
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    if dims != swapped or x.is_grouped_tensor:  # groups are of rows: as columns they would mean something else
        raise _refuse(x, f"permute({dims})")
    axis = None if axis is None else -3 - axis
    if x.granularity is MX_BLOCKWISE:
        return Parts(q, scale, shape, axis, stride)
    return Parts(q.permute(dims), scale.permute(dims), shape, axis, stride)


def transpose(x: QuantizedTensor, dim0: int, dim1: int) -> Parts:
    """Two dimensions exchanged."""
    dims = list(range(x.dim()))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return permute(x, dims)


def _full_shape(x: QuantizedTensor, size: Sequence[int]) -> tuple[int, ...]:
    """``size`` with its -1 found."""
    if -1 not in size:
        return tuple(size)
    known = -math.prod(size)
    return tuple(x.numel() // known if n == -1 else n for n in size)


def view(x: QuantizedTensor, size: Sequence[int]) -> Parts:
    """x with another shape of as many elements, where every block stays a block."""
    q, scale, old, axis, _ = x.parts()
    new = _full_shape(x, size)
    if new == old:
        return x.parts()
    if math.prod(new) != math.prod(old):
        raise UnsupportedError(f"view({list(size)}) of {x!r}: the numbers of elements differ")
    refusal = _refuse(x, f"view({list(size)})")
    if x.granularity is TENSORWISE:
        return Parts(q.reshape(new), scale, new, None)
    if x.is_grouped_tensor or not new:
        raise refusal
    if x.granularity is ROWWISE and axis is not None:
        before = math.prod(old[: axis % len(old)])
        for dim, n in enumerate(new):
            if n == old[axis] and math.prod(new[:dim]) == before:
                return Parts(q.reshape(new), scale.reshape(*new[:dim], 1, *new[dim + 1 :]), new, dim - len(new))
        raise refusal
    # blocks lie in the last dimension, or in the last two: what is before those may be regrouped
    tile = x.scaling_recipe is not None and x.scaling_recipe.use_2d_block
    shuffled = x.scaling_recipe is not None and (x.scaling_recipe.shuffle_scale or x.scaling_recipe.shuffle_out)
    kept = 1 if axis == -1 and not tile and not shuffled else 2
    if len(new) not in (2, 3) or new[-kept:] != old[-kept:]:
        raise refusal
    leading = new[: len(new) - kept]
    return Parts(q.reshape(*leading, *q.shape[-kept:]), scale.reshape(*leading, *scale.shape[-kept:]), new, axis)


def select(x: QuantizedTensor, dim: int, index: int) -> Parts:
    """One of the leading dimension's tensors."""
    q, scale, shape, axis, stride = x.parts()
    if dim % x.dim() != 0 or x.dim() < 2 or (x.dim() == 2 and x.granularity is not TENSORWISE) or axis == -x.dim():
        raise _refuse(x, f"select({dim}, {index})")
    if x.granularity is not TENSORWISE:
        scale = scale.select(0, index)
    return Parts(q.select(0, index), scale, shape[1:], axis, stride and stride[1:])
