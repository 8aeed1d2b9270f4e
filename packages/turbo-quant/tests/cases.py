# SPDX-License-Identifier: MIT
"""Shapes, data and options of turbo-quant's tests and benchmark, and the comparison bit for bit.

Every backend answers the same calls with the same bits: TORCH is held to the numpy oracle (turbo_testing.quant_oracle),
the others to TORCH.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from turbo_core import BackendUnavailableError
from turbo_core.low_precision import ScalingGranularity, ScalingRecipe
from turbo_quant import dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8
from turbo_quant.calls import MxDirection
from turbo_quant.formats import fp4_dtype

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
MX_FORMATS = ("e4m3", "e5m2", "e2m1")
TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX_BLOCKWISE = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE

# [B,R,C]: every remainder as rows and as columns, one element, one row, one column, batches
SHAPES_CPU = [
    (1, 1, 1), (1, 1, 33), (1, 33, 1), (2, 31, 100), (1, 100, 31), (1, 127, 129), (2, 129, 127), (1, 64, 256),
    (1, 3, 4097), (1, 4099, 2), (3, 2, 128),
]  # fmt: skip
SHAPES_GPU = [*SHAPES_CPU, (1, 7169, 7167), (4, 1000, 2880), (1, 4096, 7168), (1, 1, 100001)]
BENCHMARK_SHAPES = [(1, 16384, 7168), (1, 8192, 8192), (1, 4096, 14336)]

SPECIAL = ("random", "zeros", "negative_zero", "tiny", "huge", "nan", "inf", "spike", "ties")


class FloatCase(NamedTuple):
    """Options of a `QuantizeFloatCall`, in its order."""

    name: str
    granularity: ScalingGranularity
    block_size: int
    row: bool
    column: bool
    tile: bool = False
    group_offs: None = None
    group_offs_padded: None = None
    amax: None = None
    k_major: bool = False


class MxCase(NamedTuple):
    """Options of a `QuantizeMxCall`."""

    name: str
    row: MxDirection | None
    column: MxDirection | None
    sign_mask: int = 0


FLOAT_CASES = [
    FloatCase("tensorwise", TENSORWISE, 0, True, False),
    FloatCase("rowwise", ROWWISE, 0, True, False),
    FloatCase("columnwise", ROWWISE, 0, False, True),
    FloatCase("rowwise-dual", ROWWISE, 0, True, True),
    FloatCase("block128-row", BLOCKWISE, 128, True, False),
    FloatCase("block128-column", BLOCKWISE, 128, False, True),
    FloatCase("block128-dual", BLOCKWISE, 128, True, True),
    FloatCase("block64-dual", BLOCKWISE, 64, True, True),
    FloatCase("tile128", BLOCKWISE, 128, True, False, True),
    FloatCase("tile32", BLOCKWISE, 32, True, False, True),
    FloatCase("tensorwise-kmajor", TENSORWISE, 0, True, True, k_major=True),
    FloatCase("tensorwise-kmajor-column", TENSORWISE, 0, False, True, k_major=True),
    FloatCase("rowwise-kmajor", ROWWISE, 0, True, True, k_major=True),
    FloatCase("rowwise-kmajor-column", ROWWISE, 0, False, True, k_major=True),
    FloatCase("block128-kmajor", BLOCKWISE, 128, True, True, k_major=True),
    FloatCase("block64-kmajor-row", BLOCKWISE, 64, True, False, k_major=True),
    FloatCase("tile128-kmajor", BLOCKWISE, 128, True, True, True, k_major=True),
    FloatCase("tile32-kmajor-column", BLOCKWISE, 32, False, True, True, k_major=True),
]
_PLAIN, _TILE = MxDirection(), MxDirection(tile=True)
_ROTATED, _STOCHASTIC = MxDirection(rht=True), MxDirection(stochastic=True)
MX_CASES = [
    MxCase("row", _PLAIN, None),
    MxCase("column", None, _PLAIN),
    MxCase("dual", _PLAIN, _PLAIN),
    MxCase("tile-dual", _TILE, _TILE),
    MxCase("tile-row", _TILE, None),
    MxCase("row, rotated column", _PLAIN, _ROTATED, 0x9C35),
    MxCase("rotated row", _ROTATED, None, 0xFFFF),
    MxCase("stochastic dual", _STOCHASTIC, _STOCHASTIC),
    MxCase(
        "stochastic rotated dual", MxDirection(rht=True, stochastic=True), MxDirection(rht=True, stochastic=True), 1
    ),
    MxCase("shuffled scales", MxDirection(shuffle_scale=True), MxDirection(shuffle_scale=True)),
]
GROUPS = [
    # rows of x, group lens; rows past the last group hold NaN
    (64, (32, 0, 16, 0)),
    (300, (129, 0, 1, 128, 33)),
    (40, (0, 0, 0)),
    (17, (17,)),
]


class GroupCase(NamedTuple):
    """Rows of x, and the groups' lens, offs and named rows.

    offs: None: the groups lie one after the other. idx: None: the groups count x's own rows.
    """

    name: str
    rows: int
    lens: tuple[int, ...]
    offs: tuple[int, ...] | None = None
    idx: tuple[int, ...] | None = None


K_MAJOR_GROUPS = [
    GroupCase("tail", 300, (129, 0, 1, 128, 33)),
    GroupCase("one", 17, (17,)),
    GroupCase("all empty", 40, (0, 0, 0)),
    GroupCase("no groups", 20, ()),
    GroupCase("gaps", 400, (100, 0, 130, 0, 1), (10, 110, 111, 285, 300, 310)),
    GroupCase("masked", 384, (3, 128, 0), (0, 128, 256, 384)),
    GroupCase("past the rows", 50, (30, 40)),
    GroupCase("negative", 140, (20, 130, -3), (-5, 20, 150, 150)),
    GroupCase("named", 40, (30, 0, 9), None, tuple(i * 7 % 33 for i in range(45))),
    GroupCase("named with gaps", 3, (2, 130), (1, 5, 140), tuple(i % 3 for i in range(140))),
    GroupCase("named out of range", 10, (3, 2), None, (9, 10, -1, 0, 2**31 - 1)),
    GroupCase("none named", 10, (0, 0), None, ()),
]


RECIPES = {
    "plain": ScalingRecipe(),
    "tile": ScalingRecipe(use_2d_block=True),
    "rotated": ScalingRecipe(use_rht=True),
    "shuffled": ScalingRecipe(shuffle_scale=True, shuffle_out=True),
    "stochastic": ScalingRecipe(use_sr=True),
}


def functions(dtype: torch.dtype) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(quantise, dequantise) for a payload dtype."""
    return (quantize_fp4, dequantize_fp4) if dtype in (fp4_dtype(), torch.uint8) else (quantize_fp8, dequantize_fp8)


def gate(dtype: torch.dtype) -> float:
    """The SNR in dB that a payload dtype keeps."""
    return {torch.float8_e4m3fn: 25.0, torch.float8_e5m2: 20.0}.get(dtype, 10.0)


def run(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The result; the test is skipped, with the reason, where the backend named refuses the call."""
    import pytest

    try:
        return function(*arguments, **keywords)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def every(cases: list[Any], shapes: list[tuple[int, int, int]], others: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Each case with each shape, the dtypes and the kinds of data taken in turn, so that all of them are met."""
    turns = itertools.cycle(others)
    data = itertools.cycle(itertools.product(SPECIAL, DTYPES))
    return [(case, shape, next(turns), *next(data)) for case in cases for shape in shapes]


def draw(kind: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Data with what goes wrong first: see the names."""
    x = torch.randn(shape) * torch.exp2(torch.randint(-6, 7, (*shape[:-1], 1)).float())
    flat = x.view(-1)
    largest = torch.finfo(dtype).max
    if kind == "zeros":
        x[..., ::2, :] = 0  # rows of zeros among others
        if shape[-2] < 2:
            x.zero_()
    elif kind == "negative_zero":
        flat[::3] = -0.0
    elif kind == "tiny":
        x *= 6e-35 / x.abs().max() if dtype is not torch.float16 else 2e-7
        flat[::5] *= 2.0**-10  # subnormals of float32
    elif kind == "huge":
        x = torch.sign(x) * largest * torch.rand(shape).clamp(min=0.5)
        flat = x.view(-1)
        flat[-1] = largest
    elif kind in ("nan", "inf"):
        flat[[0, flat.numel() // 2]] = torch.nan if kind == "nan" else -torch.inf
    elif kind == "spike":
        x.fill_(0.5)
        flat[-1] = 100.0
    elif kind == "ties":  # multiples of a small step, half of which lie between two codes
        x = torch.randint(-64, 65, shape) / 16
        x.view(-1)[-1] = 7.0
    return x.to(dtype).to(device)


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same [B,R,C] values at other strides: transposed, with gaps, from an odd offset."""
    B, R, C = x.shape
    memory = torch.full((B * C * (R + 3) + 3,), torch.nan, dtype=x.dtype, device=x.device)
    view = memory.as_strided((B, C, R), (C * (R + 3), R + 3, 1), 3)
    view.copy_(x.transpose(1, 2))
    return view.transpose(1, 2)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """uint8 of a contiguous copy, a last dimension for the bytes of an element; all NaN of float32 are one."""
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.dtype.itemsize > 1:
        tensor = torch.where(tensor.isnan(), torch.nan, tensor)
    return tensor.cpu().reshape(-1, 1).view(torch.uint8).view(*tensor.shape, tensor.dtype.itemsize)


def assert_same_bits(actual: Any, expected: Any, what: str = "out") -> None:
    """Fails unless both are None, or of one shape, dtype and the same bits; a sequence is compared item by item.

    ``expected`` may be a numpy array of bytes or of float32. The message names the first difference.
    """
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), f"{what}: {len(actual)} items, {len(expected)} expected"
        names = getattr(expected, "_fields", range(len(expected)))
        for name, one, other in zip(names, actual, expected):
            assert_same_bits(one, other, f"{what}.{name}")
        return
    if expected is None or actual is None:
        assert actual is expected, f"{what}: {type(actual)} against {type(expected)}"
        return
    if not isinstance(expected, torch.Tensor):
        expected = torch.from_numpy(expected).reshape(actual.shape)
        if expected.dtype is torch.uint8:
            expected = expected.view(actual.dtype)
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, expected {expected.dtype}"
    a, e = as_bytes(actual), as_bytes(expected)
    wrong = (a != e).any(-1).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{what}: {len(wrong)} of {actual.numel()} elements of {list(actual.shape)} {actual.dtype} differ; first "
            f"at {at}: {a[at].flip(-1).tolist()}, expected {e[at].flip(-1).tolist()} (bytes, high first)"
        )
