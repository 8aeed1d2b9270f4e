# SPDX-License-Identifier: MIT
"""Calls of turbo-gemm's backends from loose arguments, and Triton launches, for tests of one backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from turbo_core import device_facts
from turbo_core.calls import device_of
from turbo_core.launch import start
from turbo_core.low_precision import MX_BLOCK_SIZE, ScalingGranularity
from turbo_gemm.calls import GemmCall, GemmFp8Call, Operand

__all__ = ["fp8_call", "gemm_call", "launch", "mx_call"]

_MX_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.uint8}


def gemm_call(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> GemmCall:
    """C's dtype is by default ``out``'s, which C is added to, else the promoted one."""
    if out_dtype is None:
        out_dtype = torch.promote_types(a.dtype, b.dtype) if out is None else out.dtype
    return GemmCall(a, b, bias, trans_a, trans_b, out_dtype, out)


def fp8_call(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    granularity: ScalingGranularity,
    trans_a: bool = False,
    trans_b: bool = True,
    block_size: int = 0,
    a_tiles: bool = False,
    b_tiles: bool = False,
    out_dtype: torch.dtype = torch.float32,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> GemmFp8Call:
    """Float scales."""
    x, y = Operand(a, a_scale_inv, trans_a, a_tiles), Operand(b, b_scale_inv, trans_b, b_tiles)
    return GemmFp8Call(x, y, bias, granularity, block_size, out_dtype, out)


def mx_call(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    formats: tuple[str, str],
    out_dtype: torch.dtype = torch.float32,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> GemmFp8Call:
    """Payloads of bytes are taken for those ``formats``."""
    x, y = (
        Operand(data.view(_MX_TYPES[form]) if data.dtype == torch.uint8 else data, scale, trans)
        for data, scale, form, trans in ((a, a_scale, formats[0], False), (b, b_scale, formats[1], True))
    )
    return GemmFp8Call(x, y, bias, ScalingGranularity.MX_BLOCKWISE, MX_BLOCK_SIZE, out_dtype, out)


def launch(
    module: ModuleType, call: GemmCall | GemmFp8Call, tile: Any = None, c: torch.Tensor | None = None
) -> torch.Tensor:
    """C by the module's plan: with ``tile`` in place of its own choice, in the memory ``c``, where they are given."""
    found: torch.Tensor = start(*module.plan(call, device_facts(device_of(call)), tile, c))
    return found
