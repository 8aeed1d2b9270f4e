# SPDX-License-Identifier: MIT
"""What grouped products accept. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_gemm.developer import DTYPES

__all__ = [
    "AB",
    "SCHEDULES",
    "Names",
    "check_bias",
    "check_groups",
    "check_operand",
    "check_operands",
    "check_out_dtype",
    "check_row_indices",
    "check_schedule",
    "what_is",
]

INDEX_DTYPES = (torch.int64, torch.int32)
SCHEDULES = ("static", "work_steal")
_ACCEPTED = ", ".join(map(str, DTYPES))


def what_is(value: Any) -> str:
    """A value in a few words, for messages."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}"


class Names(NamedTuple):
    """What messages call the operands, and the flag of the second one's layout."""

    a: str = "a"
    b: str = "b"
    trans_b: str = "trans_b"


AB = Names()


def check_operands(op: str, a: Any, b: Any, trans_b: bool, names: Names = AB) -> None:
    """a [R,K] or [G,M,K] and b [G,K,N] or [G,N,K] are matrices that can be multiplied."""
    for name, tensor, dims in ((names.a, a, (2, 3)), (names.b, b, (3,))):
        check_operand(op, name, tensor, dims)
    if a.device != b.device:
        raise UnsupportedError(
            f"{op}: {names.a} is on {a.device} and {names.b} is on {b.device}; they must be on one device"
        )
    k_a, k_b = a.shape[-1], b.shape[2 if trans_b else 1]
    if k_a != k_b:
        raise UnsupportedError(
            f"{op}: K is {k_a} by {names.a} (shape {list(a.shape)}) and {k_b} by {names.b} (shape {list(b.shape)}, "
            f"{names.trans_b}={trans_b}); they must be equal"
        )
    if a.dim() == 3 and a.shape[0] != b.shape[0]:
        raise UnsupportedError(
            f"{op}: {names.a} has shape {list(a.shape)} and {names.b} {list(b.shape)}; {names.a} of 3 dimensions has a "
            f"matrix for each of the {b.shape[0]} of {names.b}"
        )


def check_operand(op: str, name: str, tensor: Any, dims: tuple[int, ...]) -> None:
    """``tensor`` has that many dimensions, and a dtype of products."""
    accepted = " or ".join(map(str, dims))
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(f"{op}: {name} is {tensor!r}; a tensor of {accepted} dimensions is accepted")
    if tensor.dim() not in dims:
        raise UnsupportedError(f"{op}: {name} has shape {list(tensor.shape)}; {accepted} dimensions are accepted")
    if tensor.dtype not in DTYPES:
        raise UnsupportedError(f"{op}: {name}.dtype={tensor.dtype}; accepted are {_ACCEPTED}")


def check_out_dtype(op: str, out_dtype: Any) -> None:
    """What C may be."""
    if out_dtype is not None and out_dtype not in DTYPES:
        raise UnsupportedError(f"{op}: out_dtype={out_dtype}; accepted are {_ACCEPTED} and None")


def check_bias(op: str, bias: Any, groups: int, n: int, device: torch.device) -> None:
    """bias [G,N], or None."""
    if bias is None:
        return
    if not isinstance(bias, torch.Tensor) or bias.shape != (groups, n) or bias.dtype not in DTYPES:
        raise UnsupportedError(
            f"{op}: bias is {what_is(bias)}; a tensor of shape [{groups}, {n}] in one of {_ACCEPTED} is accepted"
        )
    if bias.device != device:
        raise UnsupportedError(f"{op}: bias is on {bias.device} and a is on {device}; one device is needed")


def _check_index(op: str, name: str, value: Any, size: int | None, device: torch.device) -> None:
    # no `in`: sizes may be symbols of a compiler, which compares them with ==
    shape_fits = isinstance(value, torch.Tensor) and value.dim() == 1 and (size is None or value.shape[0] == size)
    if not shape_fits or value.dtype not in INDEX_DTYPES or value.device != device:
        shape = "of 1 dimension" if size is None else f"of shape [{size}]"
        raise UnsupportedError(
            f"{op}: {name} is {what_is(value)}; a tensor {shape}, int64 or int32, on {device} is accepted"
        )


def check_groups(
    op: str, group_lens: Any, group_offs: Any, groups: int, device: torch.device, masked: bool, name: str = "a"
) -> None:
    """group_lens [G] and group_offs [G+1], None where the operand is [G,M,K], which says where groups begin."""
    _check_index(op, "group_lens", group_lens, groups, device)
    if group_offs is None:
        return
    if masked:
        raise UnsupportedError(
            f"{op}: group_offs is {what_is(group_offs)}; None is accepted where {name} has 3 dimensions, which say it"
        )
    _check_index(op, "group_offs", group_offs, groups + 1, device)


def check_row_indices(
    op: str, rows: int, a_idx: Any, out_idx: Any, out_rows: Any, device: torch.device, masked: bool, of: str = "a"
) -> int:
    """a_idx [S], out_idx [S] and out_rows fit together; gives the rows of C. ``rows``: of a."""
    for name, index in (("a_idx", a_idx), ("out_idx", out_idx)):
        if index is not None and masked:
            raise UnsupportedError(f"{op}: {name} is {what_is(index)}; None is accepted where {of} has 3 dimensions")
    if a_idx is not None:
        _check_index(op, "a_idx", a_idx, None, device)
        rows = a_idx.shape[0]
    if out_idx is not None:
        _check_index(op, "out_idx", out_idx, rows, device)
    if out_rows is None:
        return rows
    if isinstance(out_rows, bool) or not isinstance(out_rows, (int, torch.SymInt)) or out_rows < 0:
        raise UnsupportedError(f"{op}: out_rows={out_rows!r}; None and numbers from 0 are accepted")
    if out_idx is None and out_rows != rows:
        raise UnsupportedError(f"{op}: out_rows={out_rows}; without out_idx None and {rows}, the rows, are accepted")
    return out_rows  # type: ignore[return-value]


def check_schedule(op: str, num_cu: Any, schedule: Any) -> None:
    """How the programs of a kernel share its work."""
    if schedule not in SCHEDULES:
        raise UnsupportedError(f"{op}: schedule={schedule!r}; accepted are {' and '.join(map(repr, SCHEDULES))}")
    if num_cu is None:
        return
    if isinstance(num_cu, bool) or not isinstance(num_cu, int) or num_cu < 1:
        raise UnsupportedError(f"{op}: num_cu={num_cu!r}; None and numbers from 1 are accepted")
    if schedule == "work_steal":
        raise UnsupportedError(f"{op}: num_cu={num_cu} with schedule='work_steal'; None is accepted with it")
