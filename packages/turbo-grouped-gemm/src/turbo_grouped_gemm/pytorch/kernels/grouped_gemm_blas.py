# SPDX-License-Identifier: MIT
"""The HIPBLASLT backend of grouped products: torch's own grouped matrix product of bf16.

It takes groups that lie one after the other from row 0, told by where they end. What it leaves unwritten, rows behind
the last group and the gradients of groups without rows, is zeroed here by one more pass over the result each, since
only the device knows which they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from turbo_core.calls import empty
from turbo_core.device import device_facts
from turbo_gemm.developer import BLAS_REACH
from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups, gemm_specs, wgrad_specs

__all__ = ["aligned", "contiguous", "group_ends", "run", "why_not"]

_ALIGNMENT = 16  # bytes, of addresses and strides
_ON_ROCM = "ROCM_ALLOW_GROUP_GEMM_CK"  # torch's: without it the groups are read on the host


def why_not(call: GroupedGemmCall | GroupedWgradCall) -> str | None:
    """Why torch's product cannot take the call; None when it can."""
    if isinstance(call, GroupedGemmCall):
        operands, indices = {"a": call.a, "b": call.b}, (call.a_idx, call.out_idx)
        if call.bias is not None:
            return "there is a bias, which torch's grouped product does not add"
    else:
        operands, indices = {"x": call.x, "y": call.y}, (call.x_idx, call.y_idx)
    reason = _why_not_device(next(iter(operands.values())).device)
    if reason is not None:
        return reason
    if call.groups.offs is not None:
        return "groups have offsets, which may leave gaps; torch's grouped product takes groups one after the other"
    if any(index is not None for index in indices):
        return "rows are taken by indices; torch's grouped product takes them in order"
    if call.num_cu is not None:
        return f"num_cu is {call.num_cu}; torch's grouped product uses all compute units"
    if call.schedule != "static":
        return f"schedule is {call.schedule!r}; torch's grouped product has its own"
    dtypes = {name: x.dtype for name, x in operands.items()}
    if isinstance(call, GroupedGemmCall) or call.out is None:
        dtypes["out_dtype"] = call.out_dtype
    for name, dtype in dtypes.items():
        if dtype != torch.bfloat16:
            return f"{name} is {dtype}; torch's grouped product takes and gives torch.bfloat16"
    for name, x in operands.items():
        if x.numel() > BLAS_REACH:
            return f"{name} has {x.numel()} elements; torch's grouped product is trusted with {BLAS_REACH}"
        if _layout(x) is None and x.shape[-1] * x.element_size() % _ALIGNMENT:
            return f"{name} has shape {list(x.shape)}, strides {list(x.stride())}; rows of a multiple of 8 are needed"
    return None


@functools.cache
def _product() -> Callable[..., torch.Tensor] | None:
    """torch's grouped product: a function of torch.nn.functional since 2.10, a private one before."""
    product: Any = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    return product


def _why_not_device(device: torch.device) -> str | None:
    if _product() is None:
        return f"torch {torch.__version__} has no grouped product (2.8 and newer have)"
    facts = device_facts(device)
    if facts.vendor == "nvidia":
        new_enough = int(facts.arch.removeprefix("sm_")) >= 90
        return None if new_enough else f"torch's grouped product needs sm_90; {device} is {facts.arch}"
    if facts.vendor == "amd" and os.environ.get(_ON_ROCM) != "1":
        return f"torch reads the groups on the host unless {_ON_ROCM}=1"
    if device.type == "cpu" and not _runs_on_cpu():
        return f"torch {torch.__version__} has no grouped product for the CPU"
    return None


@functools.cache
def _runs_on_cpu() -> bool:
    product: Any = _product()
    x = torch.zeros(1, 8, 8, dtype=torch.bfloat16)
    try:
        product(x[0], x, offs=torch.ones(1, dtype=torch.int32))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _layout(x: torch.Tensor) -> bool | None:
    """Whether the last two dimensions of x are stored transposed; None where torch takes neither order."""
    for transposed, (rows, columns) in ((False, (-2, -1)), (True, (-1, -2))):
        outer = x.stride()[:-2] + (x.stride(rows),)
        aligned = all(stride * x.element_size() % _ALIGNMENT == 0 for stride in outer)
        if x.stride(columns) == 1 and x.stride(rows) >= x.shape[columns] and aligned:
            return transposed
    return None


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, at an address and with strides that torch takes; a copy where it has others, as an expanded gradient has."""
    transposed = _layout(x) if x.dim() > 1 else False
    if transposed is not None and x.data_ptr() % _ALIGNMENT == 0:
        return x
    return (
        x.mT.clone(memory_format=torch.contiguous_format).mT
        if transposed
        else x.clone(memory_format=torch.contiguous_format)
    )


def group_ends(groups: Groups, rows: int) -> torch.Tensor:
    """int32 [G]: the row behind the last of each group, no further than the rows go."""
    return groups.lens.clamp(min=0).cumsum(0).clamp(max=rows).to(torch.int32)


def run(call: GroupedGemmCall | GroupedWgradCall) -> torch.Tensor:
    """Compute the call. What is added to ``out`` has been rounded to bf16."""
    product: Any = _product()
    _, rows, _, _ = call.sizes()
    ends = group_ends(call.groups, rows)
    if isinstance(call, GroupedGemmCall):
        b_GKN = call.b.mT if call.trans_b else call.b
        c: torch.Tensor = product(aligned(call.a), aligned(b_GKN), offs=ends)
        behind = torch.arange(rows, device=ends.device, dtype=torch.int32) >= ends[-1]
        return contiguous(c.masked_fill_(behind[:, None], 0), gemm_specs(call))
    c = product(aligned(call.x).t(), aligned(call.y), offs=ends)
    c = c.masked_fill_((call.groups.lens <= 0)[:, None, None], 0)
    return contiguous(c, wgrad_specs(call)) if call.out is None else call.out.add_(c)


def contiguous(c: torch.Tensor, spec: Any) -> torch.Tensor:
    """c without the padding that torch gives its rows."""
    return c if c.is_contiguous() else empty(spec, c.device).copy_(c)
