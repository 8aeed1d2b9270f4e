# SPDX-License-Identifier: MIT
"""What the expert MLPs accept, in any precision. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

import math
from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_gemm.developer import DTYPES, check_main_grad
from turbo_grouped_gemm.calls_mlp import Gate
from turbo_grouped_gemm.pytorch.ops.grouped_arguments import Rows, checked_rows
from turbo_grouped_gemm.pytorch.ops.grouped_checks import Names, check_operand, what_is

__all__ = ["GPT_OSS_ALPHA", "check_weights_main_grad", "checked_gate", "checked_mlp_rows", "checked_probs"]

GPT_OSS_ALPHA = 1.702
_NAMES = Names("x", "w1", "trans_w1")


def _number(op: str, name: str, value: Any, least: float, accepted: str) -> float:
    """``value`` as a float, of a traced call as the symbol that it is."""
    numeric = isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool)
    if not numeric or not value >= least:
        raise UnsupportedError(f"{op}: {name}={value!r}; None and {accepted} are accepted")
    return float(value) if isinstance(value, int) else value


def checked_gate(op: str, activation: Any, clamp_limit: Any, limit: Any, alpha: Any) -> Gate:
    """The formula of ``activation`` with its numbers."""
    if activation not in (None, "swiglu", "geglu"):
        raise UnsupportedError(f"{op}: activation={activation!r}; None, 'swiglu' and 'geglu' are accepted")
    if clamp_limit is not None:
        clamp_limit = _number(op, "clamp_limit", clamp_limit, 0.0, "numbers that are not negative")
    if limit is None:
        if alpha is not None:
            raise UnsupportedError(f"{op}: alpha={alpha!r} without limit; alpha is read only with a limit")
        bound = math.inf if clamp_limit is None else clamp_limit
        return Gate("gelu_tanh" if activation == "geglu" else "silu", bound, 0.0)
    if activation == "geglu" or clamp_limit is not None:
        raise UnsupportedError(
            f"{op}: limit={limit!r} with activation={activation!r}, clamp_limit={clamp_limit!r}; None is accepted, or "
            "'swiglu' without clamp_limit"
        )
    limit = _number(op, "limit", limit, 0.0, "numbers that are not negative")
    alpha = GPT_OSS_ALPHA if alpha is None else _number(op, "alpha", alpha, -math.inf, "numbers")
    return Gate("clamped", limit, alpha)


def checked_mlp_rows(
    op: str,
    x: Any,
    w1: Any,
    w2: Any,
    group_lens: Any,
    group_offs: Any,
    trans_w1: bool,
    trans_w2: bool,
    out_dtype: Any,
    num_cu: Any,
    schedule: Any,
    a_idx: Any,
    out_idx: Any,
    out_rows: Any,
) -> Rows:
    """The rows, where all operands fit together."""
    rows = checked_rows(
        op, x, w1, group_lens, group_offs, trans_w1, out_dtype, num_cu, None, schedule, a_idx, out_idx, out_rows, _NAMES
    )
    check_operand(op, "w2", w2, (3,))
    columns, features = w1.shape[1 if trans_w1 else 2], w2.shape[2 if trans_w2 else 1]
    if w2.device != x.device or w2.shape[0] != w1.shape[0] or columns != 2 * features:
        raise UnsupportedError(
            f"{op}: w1 is {what_is(w1)}, trans_w1={trans_w1}, and w2 {what_is(w2)}, trans_w2={trans_w2}; w1 with the "
            "columns of the gate and of up, w2 with as many rows as one of them has, of as many groups, on one device"
        )
    return rows


def checked_probs(op: str, probs: Any, rows: Rows) -> torch.Tensor | None:
    """``probs`` as [S]; given so, with a last dimension of 1, or as the rows of a masked x are."""
    if probs is None:
        return None
    shapes = [(rows.size,), (rows.size, 1)]
    if rows.masked is not None:
        shapes = [rows.masked, (*rows.masked, 1), *shapes]
    fits = isinstance(probs, torch.Tensor) and probs.shape in shapes
    if not fits or probs.dtype not in DTYPES or probs.device != rows.a.device:
        accepted = ", ".join(map(str, DTYPES))
        raise UnsupportedError(
            f"{op}: probs is {what_is(probs)}; None or a tensor of shape {list(shapes[0])} (or with a last dimension "
            f"of 1) in one of {accepted}, on {rows.a.device}, is accepted"
        )
    flat: torch.Tensor = probs.reshape(rows.size)
    return flat


def check_weights_main_grad(op: str, w1: torch.Tensor, w2: torch.Tensor, pattern: str | None) -> None:
    """Both weights have what the fused accumulation needs."""
    if pattern is None:
        return
    for weight in (w1, w2):
        check_main_grad(weight, pattern, op)
