# SPDX-License-Identifier: MIT
"""How a result is judged: tolerances by dtype, SNR in dB, and a comparison whose failure says where.

All arithmetic is float64 and runs block by block, so a tensor of more than 2**31 elements is compared on its own
device with a few hundred MiB of temporaries, and an operator's error is never hidden by the error of the metric.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 1 << 22
"""Elements compared at a time: 32 MiB per float64 temporary."""

_TOLERANCES: dict[str, float] = {  # rtol = atol
    "float64": 1e-10,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 1e-2,
    "float8": 1e-1,
    "float4": 0.5,
}


def get_tolerances(dtype: torch.dtype) -> dict[str, float]:
    """{"rtol": t, "atol": t} for a result of this dtype; integers and bool must be equal."""
    if not dtype.is_floating_point and not dtype.is_complex and "float" not in str(dtype):
        return {"rtol": 0.0, "atol": 0.0}
    name = str(dtype).removeprefix("torch.")
    for key, value in _TOLERANCES.items():
        if name == key or name.startswith(f"{key}_"):
            return {"rtol": value, "atol": value}
    raise ValueError(f"get_tolerances: no tolerance is defined for {dtype}")


def _blocks(shape: torch.Size, limit: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cover `shape` in row-major order, each of at most `limit` elements (no copy of strided inputs)."""
    if 0 in shape:
        return
    inner = 1
    split = len(shape)
    while split > 0 and inner * shape[split - 1] <= limit:
        split -= 1
        inner *= shape[split]
    if split == 0:
        yield tuple(slice(0, size) for size in shape)
        return
    step = max(1, limit // inner)
    tail = tuple(slice(0, size) for size in shape[split:])
    for outer in itertools.product(*(range(size) for size in shape[: split - 1])):
        head = tuple(slice(i, i + 1) for i in outer)
        for start in range(0, shape[split - 1], step):
            yield (*head, slice(start, min(start + step, shape[split - 1])), *tail)


def _check_shapes(actual: Tensor, expected: Tensor, what: str) -> None:
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")


def compute_snr(ref: Tensor, x: Tensor) -> float:
    """Signal-to-noise ratio in dB: 10 log10(sum ref^2 / sum (ref - x)^2), in float64.

    inf when equal (zero-size tensors are equal); -inf when x holds NaN or inf, or when ref is all zero and x is not.
    A reference that is not finite raises ValueError: no ratio would mean anything.
    """
    _check_shapes(x, ref, "compute_snr")
    signal = noise = 0.0
    for block in _blocks(ref.shape, _BLOCK):
        r = ref.detach()[block].to(torch.float64)
        diff = r - x.detach()[block].to(device=ref.device, dtype=torch.float64)
        block_signal, block_noise = torch.stack([r.square().sum(), diff.square().sum()]).tolist()
        if not math.isfinite(block_signal):
            raise ValueError("compute_snr: the reference holds NaN or inf")
        signal += block_signal
        noise += block_noise
    if not math.isfinite(noise):
        return -math.inf
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf


def assert_snr(actual: Tensor, expected: Tensor, threshold: float, what: str = "out") -> None:
    """Fails unless compute_snr(expected, actual) > threshold (dB)."""
    _check_shapes(actual, expected, what)
    snr = compute_snr(expected, actual)
    if not snr > threshold:
        bad = int((~torch.isfinite(actual.detach().to(torch.float32))).sum())
        note = f"; {bad} element(s) of it are not finite" if bad else ""
        facts = f"shape {tuple(actual.shape)}, {actual.dtype}{note}"
        raise AssertionError(f"{what}: SNR {snr:.2f} dB, must be above {threshold:g} dB; {facts}")


class _Report:
    """What assert_close has seen so far: counts, first and worst bad element, and the box that holds all bad ones."""

    def __init__(self, rank: int) -> None:
        self.bad = 0
        self.nan_only_actual = 0
        self.first: tuple[tuple[int, ...], float, float] | None = None
        self.worst: tuple[tuple[int, ...], float, float] | None = None
        self.worst_score = -1.0
        self.low = [2**63] * rank
        self.high = [-1] * rank

    def add(self, block: tuple[slice, ...], a: Tensor, e: Tensor, bad: Tensor, score: Tensor) -> None:
        base = [s.start for s in block]

        def element(flat: int) -> tuple[tuple[int, ...], float, float]:
            local = []
            rest = flat
            for size in reversed(bad.shape):
                local.append(rest % size)
                rest //= size
            at = tuple(b + i for b, i in zip(base, reversed(local)))
            return at, a.reshape(-1)[flat].item(), e.reshape(-1)[flat].item()

        flat_bad = bad.reshape(-1)
        self.bad += int(flat_bad.sum())
        self.nan_only_actual += int((a.isnan() & ~e.isnan()).sum())
        if self.first is None:
            self.first = element(int(flat_bad.to(torch.uint8).argmax()))
        worst = int(score.reshape(-1).argmax())
        if float(score.reshape(-1)[worst]) > self.worst_score:
            self.worst_score = float(score.reshape(-1)[worst])
            self.worst = element(worst)
        for dim in range(bad.ndim):
            hits = bad.movedim(dim, 0).reshape(bad.shape[dim], -1).any(dim=1).nonzero()
            self.low[dim] = min(self.low[dim], base[dim] + int(hits[0]))
            self.high[dim] = max(self.high[dim], base[dim] + int(hits[-1]))


def _compare(block: tuple[slice, ...], a: Tensor, e: Tensor, rtol: float, atol: float, report: _Report) -> None:
    """Judges one block; touches `report` only when something is bad (one synchronisation a block when all is well)."""
    if not (a.dtype.is_floating_point or e.dtype.is_floating_point) and rtol == atol == 0:
        bad = a != e  # integers beyond 2**53 have no exact float64
        if bool(bad.any()):
            a64, e64 = a.to(torch.float64), e.to(torch.float64)
            report.add(block, a64, e64, bad, torch.where(bad, (a64 - e64).abs(), -1.0))
        return
    a, e = a.to(torch.float64), e.to(torch.float64)
    allowed = e.abs().mul_(rtol).add_(atol)
    error = (a - e).abs()
    finite = a.isfinite() & e.isfinite()
    same = (a == e) | (a.isnan() & e.isnan())  # inf equals inf of the same sign only
    bad = ~(same | (finite & (error <= allowed)))
    if bool(bad.any()):
        score = error if rtol == atol == 0 else error / allowed
        score = torch.where(finite, score, math.inf)
        report.add(block, a, e, bad, torch.where(bad, score.nan_to_num(nan=math.inf, posinf=math.inf), -1.0))


def assert_close(
    actual: Tensor,
    expected: Tensor,
    *,
    dtype: torch.dtype | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    what: str = "out",
) -> None:
    """Fails unless |actual - expected| <= atol + rtol * |expected| everywhere; NaN must meet NaN, inf the same inf.

    Tolerances come from `dtype` (default: actual's), each overridden by rtol or atol. The message names the first bad
    coordinate, the worst one (largest error relative to what is allowed) with both values, how many are bad, and the
    box of coordinates that holds them, which tells a wrong tile from noise.
    """
    _check_shapes(actual, expected, what)
    defaults = get_tolerances(actual.dtype if dtype is None else dtype) if None in (rtol, atol) else {}
    rtol = defaults["rtol"] if rtol is None else rtol
    atol = defaults["atol"] if atol is None else atol
    actual, expected = actual.detach(), expected.detach()
    report = _Report(actual.ndim)
    for block in _blocks(actual.shape, _BLOCK):
        _compare(block, actual[block], expected[block].to(actual.device), rtol, atol, report)
    if report.bad == 0:
        return
    assert report.first is not None and report.worst is not None
    lines = [
        f"{what}: {report.bad} of {actual.numel()} elements ({100 * report.bad / actual.numel():.3g} %) are wrong; "
        f"shape {tuple(actual.shape)}, {actual.dtype} against {expected.dtype}, rtol={rtol:g}, atol={atol:g}"
    ]
    for label, (at, a, e) in (("first bad", report.first), ("worst", report.worst)):
        limit = atol + rtol * abs(e)
        lines.append(
            f"  {label} {at}: actual {a:.9g}, expected {e:.9g}, |difference| {abs(a - e):.4g}, allowed {limit:.4g}"
        )
    box = ", ".join(f"{low}:{high + 1}" for low, high in zip(report.low, report.high))
    lines.append(f"  all bad elements lie in [{box}]")
    if report.nan_only_actual:
        lines.append(f"  {report.nan_only_actual} NaN where the reference has a number")
    raise AssertionError("\n".join(lines))
