# SPDX-License-Identifier: MIT
"""Random operands of grouped FP8 and MX products, and what they stand for in float64.

Scales differ from each other: equal ones would hide a scale that is applied to the wrong block.
"""

from __future__ import annotations

import torch

from turbo_core import device_facts
from turbo_core.low_precision import MX_BLOCK_SIZE, ScalingGranularity
from turbo_core.number_formats import fp8_formats
from turbo_grouped_gemm.calls import GroupedOperand

__all__ = ["NAN_BYTE", "SCALINGS", "padded_offs", "random_operand", "scaling_fields"]

# name -> (granularity, block_size); MX by the formats of both operands
SCALINGS = {
    "tensorwise": (ScalingGranularity.TENSORWISE, 0),
    "rowwise": (ScalingGranularity.ROWWISE, 0),
    "blockwise": (ScalingGranularity.BLOCKWISE, 128),
    "mxfp8": (ScalingGranularity.MX_BLOCKWISE, MX_BLOCK_SIZE),
    "mxfp4": (ScalingGranularity.MX_BLOCKWISE, MX_BLOCK_SIZE),
}
NAN_BYTE = 0xFF  # of OCP FP8 and of E8M0; FNUZ types have 0x80
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
_MX_TYPES = {"e4m3": ("fp8e4nv", torch.float8_e4m3fn), "e5m2": ("fp8e5", torch.float8_e5m2)}


def scaling_fields(scaling: str) -> tuple[ScalingGranularity, int]:
    """(granularity, block_size) as calls have them."""
    return SCALINGS[scaling]


def padded_offs(lens: list[int], multiple: int = 128) -> list[int]:
    """[G+1]: where each group begins when the rows of each are rounded up to ``multiple``."""
    offs = [0]
    for size in lens:
        offs.append(offs[-1] + -(-size // multiple) * multiple)
    return offs


def random_operand(
    shape: tuple[int, ...], scaling: str, kind: str, device: torch.device, *, tiles: bool = False, groups: int = 0
) -> tuple[GroupedOperand, torch.Tensor]:
    """A payload [..., rows, K] with its scales, and its values in float64 on the CPU.

    kind: ``e4m3`` or ``e5m2``; MXFP4 is e2m1 whatever it says. tiles: BLOCKWISE with scales for 128 x 128 elements.
    groups: ROWWISE scales [groups, rows], which the values do not have in them.
    """
    *lead, rows, K = shape
    if scaling.startswith("mx"):
        return _mx_operand(shape, "e2m1" if scaling == "mxfp4" else kind, device)
    fnuz = "fnuz" if device_facts(device).fp8_fnuz else ""
    dtype: torch.dtype = getattr(torch, f"float8_{kind}{fnuz or ('fn' if kind == 'e4m3' else '')}")
    data = torch.randn(shape, device=device).to(dtype)
    values = data.cpu().double()
    if scaling == "tensorwise":
        scale = torch.rand((), device=device) + 0.25
        return GroupedOperand(data, scale), values * scale.cpu().double()
    if scaling == "rowwise":
        scale = torch.rand((groups, rows) if groups else (*lead, rows, 1), device=device) + 0.25
        return GroupedOperand(data, scale), values if groups else values * scale.cpu().double()
    scale = torch.rand((*lead, -(-rows // 128) if tiles else rows, -(-K // 128)), device=device) + 0.25
    spread = scale.cpu().double().repeat_interleave(128, -1)[..., :K]
    if tiles:
        spread = spread.repeat_interleave(128, -2)[..., :rows, :]
    return GroupedOperand(data, scale), values * spread


def _mx_operand(shape: tuple[int, ...], kind: str, device: torch.device) -> tuple[GroupedOperand, torch.Tensor]:
    scale = torch.randint(115, 124, (*shape[:-1], shape[-1] // MX_BLOCK_SIZE), dtype=torch.uint8)
    if kind == "e2m1":
        codes = torch.randint(0, 16, shape)
        data, values = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8), _E2M1[codes]
    else:
        name, dtype = _MX_TYPES[kind]
        table = torch.from_numpy(fp8_formats()[name].values).double()
        finite = torch.nonzero(table.isfinite() & (table.abs() < 32)).squeeze(1)
        codes = finite[torch.randint(0, len(finite), shape)]
        data, values = codes.to(torch.uint8).view(dtype), table[codes]
    wide = values * torch.exp2(scale.double() - 127).repeat_interleave(MX_BLOCK_SIZE, -1)
    return GroupedOperand(data.to(device), scale.to(device)), wide
