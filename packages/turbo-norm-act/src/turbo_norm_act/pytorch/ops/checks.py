# SPDX-License-Identifier: MIT
"""What the ops accept. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from turbo_core import UnsupportedError

__all__ = ["check_activation", "check_clamp", "check_clamp_limit", "check_norm", "check_probs", "promoted", "rows_of"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MASK_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_ACCEPTED = ", ".join(map(str, DTYPES))


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}"
    return repr(value)


def _check_data(op: str, name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        raise UnsupportedError(f"{op}: {name} is {_what(value)}; a tensor of at least 1 dimension is accepted")
    if value.dtype not in DTYPES:
        raise UnsupportedError(f"{op}: {name}.dtype={value.dtype}; accepted are {_ACCEPTED}")


def _check_same(op: str, name: str, value: Any, x: torch.Tensor, x_name: str) -> None:
    _check_data(op, name, value)
    if value.shape != x.shape or value.device != x.device:
        raise UnsupportedError(
            f"{op}: {name} is {_what(value)}; {x_name} is {_what(x)}, and they must be of one shape on one device"
        )


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """x with its leading dimensions flattened to one."""
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def promoted(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in the dtype that torch gives to their sum."""
    dtype = torch.promote_types(x.dtype, other.dtype)
    return x.to(dtype), other.to(dtype)


def _check_vector(
    op: str, name: str, value: Any, size: int, x: torch.Tensor, dtypes: tuple[torch.dtype, ...] = DTYPES
) -> None:
    if value is None:
        return
    if (
        not isinstance(value, torch.Tensor)
        or value.shape != (size,)
        or value.dtype not in dtypes
        or value.device != x.device
    ):
        accepted = ", ".join(map(str, dtypes))
        raise UnsupportedError(
            f"{op}: {name} is {_what(value)}; None or a tensor of shape [{size}] on {x.device} in one of {accepted} "
            f"is accepted"
        )


def _number(op: str, name: str, value: Any, least: float, accepted: str) -> float:
    """``value`` as a float (of a traced call as the symbol that it is): what float() takes without a sync."""
    if type(value) is float and value >= least:
        return value
    taken = value
    if isinstance(value, torch.Tensor):
        constant = value.dim() == 0 and value.device.type == "cpu" and not value.requires_grad
        taken = value.item() if constant else None
    elif not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        taken = float(value) if isinstance(value, numbers.Real) else None
    if isinstance(taken, bool) or not isinstance(taken, (int, float, torch.SymInt, torch.SymFloat)):
        raise UnsupportedError(f"{op}: {name}={value!r}; {accepted} is accepted")
    if not taken >= least:
        raise UnsupportedError(f"{op}: {name}={value!r}; {accepted} is accepted")
    return float(taken) if isinstance(taken, int) else taken


def check_norm(op: str, x: Any, residual: Any, gamma: Any, beta: Any, eps: Any, has_residual: bool = False) -> float:
    """What the norms accept; returns eps as a number."""
    _check_data(op, "x", x)
    if has_residual:
        _check_same(op, "residual", residual, x, "x")
    _check_vector(op, "gamma", gamma, x.shape[-1], x)
    _check_vector(op, "beta", beta, x.shape[-1], x)
    return _number(op, "eps", eps, 0.0, "a number that is not negative")


def check_activation(op: str, x: Any, up: Any, interleaved: bool = False) -> None:
    _check_data(op, "x", x)
    if up is not None:
        _check_same(op, "up", up, x, "x")
        if interleaved:
            raise UnsupportedError(f"{op}: interleaved=True with up given; one packed tensor is accepted")
    elif x.shape[-1] % 2:
        raise UnsupportedError(f"{op}: x.shape[-1]={x.shape[-1]}; gate and up packed in it make it even (or give up)")


def _per_row(op: str, name: str, value: Any, x: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> torch.Tensor | None:
    """``value`` as [T]: it has that shape, or the leading dimensions of x; a last dimension of 1 is dropped."""
    if value is None:
        return None
    leading = tuple(x.shape[:-1])
    tokens = math.prod(leading)
    shapes = (leading, (*leading, 1), (tokens,), (tokens, 1))
    fits = isinstance(value, torch.Tensor) and tuple(value.shape) in shapes
    if not fits or value.dtype not in dtypes or value.device != x.device:
        accepted = ", ".join(map(str, dtypes))
        raise UnsupportedError(
            f"{op}: {name} is {_what(value)}; None or a tensor of shape {[tokens]} or {list(leading)} (or with a last "
            f"dimension of 1) on {x.device} in one of {accepted} is accepted"
        )
    rows: torch.Tensor = value.reshape(tokens)
    return rows


def check_probs(op: str, x: Any, probs: Any, row_mask: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What the forms with probs accept; returns probs and row_mask as [T]."""
    check_activation(op, x, None)
    return _per_row(op, "probs", probs, x, DTYPES), _per_row(op, "row_mask", row_mask, x, MASK_DTYPES)


def check_clamp(op: str, limit: Any, alpha: Any) -> tuple[float | None, float | None]:
    """What the gates accept as limit and alpha; returns both as numbers."""
    if limit is None:
        if alpha is not None:
            raise UnsupportedError(
                f"{op}: alpha={alpha!r} without limit; alpha is read only with a limit (inf: no clamp)"
            )
        return None, None
    limit = _number(op, "limit", limit, 0.0, "None or a number that is not negative")
    return limit, None if alpha is None else _number(op, "alpha", alpha, -math.inf, "None or a number")


def check_clamp_limit(op: str, clamp_limit: Any, limit: float | None = None) -> float:
    """What the gates accept as clamp_limit; returns it as a number, inf for None."""
    if clamp_limit is None:
        return math.inf
    if limit is not None:
        raise UnsupportedError(f"{op}: clamp_limit={clamp_limit!r} with limit={limit!r}; one of the two is accepted")
    return _number(op, "clamp_limit", clamp_limit, 0.0, "None or a number that is not negative")
