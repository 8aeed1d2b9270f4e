# SPDX-License-Identifier: MIT
"""The HIPBLASLT backend of grouped_gemm_fp8: torch's scaled grouped matrix product.

It multiplies E4M3 operands with ROWWISE scales, of groups that lie one after the other from row 0, and gives bf16. A
tensor's one scale is spread over its rows for it. What it leaves unwritten, rows behind the last group and the
gradients of groups without rows, is zeroed here by one more pass over the result each, since only the device knows
which they are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from turbo_core.device import device_facts
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.developer import BLAS_REACH, aligned
from turbo_grouped_gemm.calls import (
    GroupedGemmFp8Call,
    GroupedOperand,
    GroupedWgradFp8Call,
    gemm_specs,
    wgrad_specs,
)
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_blas import contiguous, group_ends

__all__ = ["run", "why_not"]

_ALIGNMENT = 16  # sizes, and bytes of addresses and strides
_MAX_GROUPS = 1024  # one thread of a block each
_GRANULARITIES = (ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE)
Call = GroupedGemmFp8Call | GroupedWgradFp8Call


def why_not(call: Call) -> str | None:
    """Why torch's product cannot take the call; None when it can."""
    first, second = _operands(call)
    return (
        _why_not_device(first.data.device)
        or _why_not_groups(call)
        or _why_not_types(call, first.data, second.data)
        or _why_not_memory(first.data, second.data)
    )


def run(call: Call) -> torch.Tensor:
    """Compute the call."""
    groups, rows, _, _ = call.sizes()
    if isinstance(call, GroupedGemmFp8Call):
        ends = group_ends(call.groups, rows)
        c = _multiply(call, ends, ())
        behind = torch.arange(rows, device=ends.device, dtype=torch.int32) >= ends[-1]
        return contiguous(c.masked_fill_(behind[:, None], 0), gemm_specs(call))
    ends = call.offs[1:].to(torch.int32)
    c = _multiply(call, ends, (groups,))
    empty = call.offs.diff() <= 0
    return contiguous(c.masked_fill_(empty[:, None, None], 0), wgrad_specs(call))


def _multiply(call: Call, ends: torch.Tensor, of_first: tuple[int, ...]) -> torch.Tensor:
    """torch's product; ``of_first``: the first dimensions of the first operand's scales."""
    product: Any = torch._scaled_grouped_mm
    first, second = _operands(call)
    c: torch.Tensor = product(
        aligned(first.data),
        aligned(second.data).mT,
        _scale(first, of_first),
        _scale(second, (call.sizes()[0],)),
        offs=ends,
        out_dtype=call.out_dtype,
        use_fast_accum=False,  # float32 sums to the end
    )
    return c


def _operands(call: Call) -> tuple[GroupedOperand, GroupedOperand]:
    return (call.a, call.b) if isinstance(call, GroupedGemmFp8Call) else (call.x, call.y)


def _scale(x: GroupedOperand, groups: tuple[int, ...]) -> torch.Tensor:
    """Scales of the rows of x, [rows] or [G,rows], and in one line where x itself has no groups."""
    scale = x.scale_inv
    if scale.dim() == 0:
        scale = scale.expand(*groups, x.data.shape[-2])
    scale = scale.reshape(*groups, x.data.shape[-2])
    return aligned(scale.contiguous() if x.data.dim() == 3 else scale.contiguous().view(-1))


def _why_not_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"operands are on {device.type}; torch's scaled grouped product needs a GPU"
    if not hasattr(torch, "_scaled_grouped_mm"):
        return f"torch {torch.__version__} has no scaled grouped product"
    facts = device_facts(device)
    if facts.arch not in ("sm_90", "gfx942", "gfx950"):
        return f"this is {facts.arch}; torch's scaled grouped product of FP8 is built for sm_90, gfx942 and gfx950"
    return _why_it_fails(device) if facts.vendor == "amd" else None


@functools.cache
def _why_it_fails(device: torch.device) -> str | None:
    """What torch says of a small product; its builds for ROCm may lack the kernels."""
    x = torch.zeros(_ALIGNMENT, _ALIGNMENT, device=device)
    payload = x.to(torch.float8_e4m3fnuz if device_facts(device).fp8_fnuz else torch.float8_e4m3fn)
    ends = torch.full((1,), _ALIGNMENT, dtype=torch.int32, device=device)
    product: Any = torch._scaled_grouped_mm
    try:
        product(payload, payload[None].mT, x[0], x[:1], offs=ends, out_dtype=torch.bfloat16)
    except (RuntimeError, NotImplementedError, ValueError) as refusal:
        return f"this build of torch says: {str(refusal).splitlines()[0]}"
    return None


def _why_not_groups(call: Call) -> str | None:
    if call.num_cu is not None:
        return f"num_cu is {call.num_cu}; torch's scaled grouped product uses all compute units"
    if call.schedule != "static":
        return f"schedule is {call.schedule!r}; torch's scaled grouped product has its own"
    if call.sizes()[0] > _MAX_GROUPS:
        return f"there are {call.sizes()[0]} groups; torch's scaled grouped product takes {_MAX_GROUPS}"
    if isinstance(call, GroupedWgradFp8Call):
        return None if call.out is None else "products come in bfloat16 only, too coarse to be added to a running sum"
    if call.bias is not None:
        return "there is a bias, which torch's scaled grouped product does not add"
    if call.groups.offs is not None:
        return (
            "groups have offsets, which may leave gaps; torch's scaled grouped product takes them one after the other"
        )
    if call.a_idx is not None or call.out_idx is not None:
        return "rows are taken by indices; torch's scaled grouped product takes them in order"
    return None


def _why_not_types(call: Call, first: torch.Tensor, second: torch.Tensor) -> str | None:
    if call.granularity not in _GRANULARITIES:
        return f"scales are {call.granularity.name}; torch's scaled grouped product takes ROWWISE and TENSORWISE"
    wanted = torch.float8_e4m3fnuz if device_facts(first.device).fp8_fnuz else torch.float8_e4m3fn
    for x in (first, second):
        if x.dtype is not wanted:
            return f"an operand is {x.dtype}; torch's scaled grouped product takes {wanted} here"
    if call.out_dtype is not torch.bfloat16:
        return f"out_dtype is {call.out_dtype}; torch's scaled grouped product gives torch.bfloat16"
    return None


def _why_not_memory(first: torch.Tensor, second: torch.Tensor) -> str | None:
    sizes = {first.shape[-1], *second.shape[-2:]}
    if first.dim() == second.dim():  # both contract over rows of groups; the rows of the first are columns of C
        sizes.add(first.shape[-2])
    if any(size % _ALIGNMENT for size in sizes):
        return f"sizes {sorted(sizes)} must be multiples of {_ALIGNMENT}"
    for x in (first, second):
        if x.numel() > BLAS_REACH:
            return f"an operand has {x.numel()} elements; torch's scaled grouped product is trusted with {BLAS_REACH}"
        outer = x.stride()[:-1]
        if x.stride(-1) != 1 or any(stride % _ALIGNMENT for stride in outer) or outer[-1] < x.shape[-1]:
            return f"an operand has strides {list(x.stride())}; 1 and multiples of {_ALIGNMENT} are needed"
    return None
