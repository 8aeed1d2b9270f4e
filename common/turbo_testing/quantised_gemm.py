# SPDX-License-Identifier: MIT
"""Operands of quantised GEMMs with their exact values, and the judgement of a product of them.

Codes and scales are random and independent of each other: a kernel that pairs a block with a neighbour's scale is far
off, which it would not be with scales that hardly differ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FNUZ = {"e4m3": torch.float8_e4m3fnuz, "e5m2": torch.float8_e5m2fnuz}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


class Operand(NamedTuple):
    """Payload and scale as a kernel takes them, and what they stand for, float64 [rows, K]."""

    payload: torch.Tensor
    scale: torch.Tensor
    value: torch.Tensor


def mx_operand(rows: int, k: int, form: str, low: int = 118, high: int = 130) -> Operand:
    """Scale bytes in [low, high)."""
    scale = torch.randint(low, high, (rows, k // 32), dtype=torch.uint8)
    if form == "e2m1":
        payload = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
        codes = torch.stack([payload & 15, payload >> 4], -1).view(rows, k).long()
        value = torch.where(codes > 7, -E2M1[codes % 8], E2M1[codes % 8]).double()
    else:
        payload = torch.randn(rows, k).to(FP8[form])
        value = payload.double()
    return Operand(payload, scale, value * torch.exp2(scale.double() - 127).repeat_interleave(32, 1))


def fp8_operand(rows: int, k: int, dtype: torch.dtype, kind: str, tiles: bool = False) -> Operand:
    """``kind``: "tensor" (scale 0-dim), "row" [rows, 1], "block" [rows or tiles of 128, ceil(k / 128)]."""
    payload = torch.randn(rows, k).to(dtype)
    shape = {"tensor": (), "row": (rows, 1), "block": (-(-rows // 128) if tiles else rows, -(-k // 128))}[kind]
    scale = torch.exp2(torch.randint(-6, 4, shape).float()) * (1 + torch.rand(shape))
    spread = scale.double()
    if kind == "block":
        if tiles:
            spread = spread.repeat_interleave(128, 0)[:rows]
        spread = spread.repeat_interleave(128, 1)[:, :k]
    return Operand(payload, scale, payload.double() * spread)


def check_product(c: torch.Tensor, a: Operand, b: Operand, *, bias=None, before=None) -> None:
    """c = a b^T (+ bias) (+ before): float32 sums of K products, rounded once to c's dtype."""
    exact = a.value @ b.value.T
    magnitude = a.value.abs() @ b.value.abs().T
    for term in (bias, before):
        if term is not None:
            exact, magnitude = exact + term.double(), magnitude + term.double().abs()
    assert c.shape == exact.shape
    facts = torch.finfo(c.dtype)  # eps / 2: one rounding of a normal number; the second term: of a subnormal one
    allowed = 1.01 * facts.eps / 2 * exact.abs() + facts.smallest_normal * facts.eps + 1e-6 * magnitude
    wrong = ~((c.cpu().double() - exact).abs() <= allowed)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} are wrong, the first at {wrong.nonzero()[0].tolist()}"
    )
