# SPDX-License-Identifier: MIT
"""Every code of every narrow format, every rounding mode, against exact fractions and ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from turbo_sim.testing import native

ml_dtypes = pytest.importorskip("ml_dtypes")

# name: exponent bits, mantissa bits, bias, kind, ml_dtypes or numpy type
FORMATS = {
    "f16": (5, 10, 15, "ieee", np.float16),
    "bf16": (8, 7, 127, "ieee", ml_dtypes.bfloat16),
    "fp8_e4m3fn": (4, 3, 7, "fn", ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": (5, 2, 15, "ieee", ml_dtypes.float8_e5m2),
    "fp8_e4m3fnuz": (4, 3, 8, "fnuz", ml_dtypes.float8_e4m3fnuz),
    "fp8_e5m2fnuz": (5, 2, 16, "fnuz", ml_dtypes.float8_e5m2fnuz),
    "fp6_e2m3": (2, 3, 1, "none", ml_dtypes.float6_e2m3fn),
    "fp6_e3m2": (3, 2, 3, "none", ml_dtypes.float6_e3m2fn),
    "fp4_e2m1": (2, 1, 1, "none", ml_dtypes.float4_e2m1fn),
}
NEAREST, UP, DOWN, ZERO = range(4)
IEEE, CLAMP, CLAMP_ALL = range(3)


def width(name: str) -> int:
    exponent, mantissa, *_ = FORMATS[name]
    return 1 + exponent + mantissa


def codes(name: str) -> np.ndarray:
    return np.arange(1 << width(name), dtype=np.uint32)


def dtype_values(name: str, c: np.ndarray) -> np.ndarray:
    t = FORMATS[name][4]
    return c.astype(np.uint16 if width(name) == 16 else np.uint8).view(t).astype(np.float64)


def grid(name: str) -> list[tuple[Fraction, int]]:
    """(value, code) of all finite non-negative codes, ascending."""
    c = codes(name)
    v = dtype_values(name, c)
    half = 1 << (width(name) - 1)
    return sorted((Fraction(x), int(k)) for x, k in zip(v[:half], c[:half]) if math.isfinite(x))


def expected_code(name: str, x: float, mode: int, overflow: int) -> int:
    """Rounding by search among the exact values of the format."""
    _, mantissa, _, kind, _ = FORMATS[name]
    table = GRIDS[name]
    sign = (1 << (width(name) - 1)) if math.copysign(1, x) < 0 else 0
    largest, top = table[-1]
    infinity = {"ieee": sign | (top + 1), "fn": sign | 0x7F, "fnuz": 1 << (width(name) - 1), "none": sign | top}[kind]
    if math.isinf(x):
        return sign | top if overflow == CLAMP_ALL else infinity
    m = abs(Fraction(x))
    toward_zero = mode == ZERO or (mode == UP and x < 0) or (mode == DOWN and x > 0)
    away = not toward_zero and mode != NEAREST
    step = largest - table[-2][0]
    if m > largest:
        if kind == "none" or overflow != IEEE or toward_zero:
            if overflow == IEEE and kind != "none" and not toward_zero:
                raise AssertionError
            return sign | top
        # One more step exists as far as rounding is concerned.
        if mode == NEAREST and m < largest + step / 2:
            return sign | top
        if mode == NEAREST and m == largest + step / 2 and top % 2 == 0:
            return sign | top
        return infinity
    low = max((t for t in table if t[0] <= m), key=lambda t: t[0])
    if low[0] == m:
        code = low[1]
    else:
        high = min((t for t in table if t[0] > m), key=lambda t: t[0])
        if mode == NEAREST:
            below, above = m - low[0], high[0] - m
            code = low[1] if below < above or (below == above and low[1] % 2 == 0) else high[1]
        else:
            code = high[1] if away else low[1]
    if kind == "fnuz" and code == 0:
        return 0
    return sign | code


GRIDS = {name: grid(name) for name in FORMATS if width(name) < 16}


@pytest.mark.parametrize("name", FORMATS)
def test_decode_of_every_code(name):
    got = native().decode_format(codes(name), name).astype(np.float64)
    want = dtype_values(name, codes(name))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    same = ~np.isnan(want)
    np.testing.assert_array_equal(got[same], want[same])
    np.testing.assert_array_equal(np.signbit(got[same]), np.signbit(want[same]))


@pytest.mark.parametrize("overflow", [IEEE, CLAMP, CLAMP_ALL])
@pytest.mark.parametrize("mode", [NEAREST, UP, DOWN, ZERO])
@pytest.mark.parametrize("name", GRIDS)
def test_encode_small_formats(name, mode, overflow):
    """All values, all midpoints, points just beside both, overflow, infinities, subnormal doubles."""
    points = [float(v) for v, _ in GRIDS[name]]
    points += [points[-1] + (points[-1] - points[-2])]
    points += [(a + b) / 2 for a, b in zip(points, points[1:])]
    points += [math.nextafter(p, math.inf) for p in points] + [math.nextafter(p, -math.inf) for p in points if p > 0]
    points += [1e-320, 1e-30, 1e30, 1e308, math.inf]
    points += [-p for p in points]
    got = native().encode_format(np.array(points), name, mode, overflow)
    want = [expected_code(name, p, mode, overflow) for p in points]
    bad = [(p, int(g), w) for p, g, w in zip(points, got, want) if g != w]
    assert not bad, bad[:5]


@pytest.mark.parametrize("name", FORMATS)
def test_encode_nearest_equals_ml_dtypes(name):
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [
            rng.standard_normal(20000) * 2.0 ** rng.integers(-30, 20, 20000),
            rng.integers(0, 2**32, 40000, dtype=np.uint32).view(np.float32).astype(np.float64),
        ]
    )
    x = x[np.isfinite(x)]
    if FORMATS[name][3] == "none":
        x = np.clip(x, -GRIDS[name][-1][0].__float__(), float(GRIDS[name][-1][0]))
    x = x.astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        raw = x.astype(np.float32).astype(FORMATS[name][4])
    want = raw.view(np.uint16 if width(name) == 16 else np.uint8).astype(np.uint32)
    got = native().encode_format(x, name, NEAREST, IEEE)
    nan = np.isnan(raw.astype(np.float32))
    np.testing.assert_array_equal(got[~nan], want[~nan] & ((1 << width(name)) - 1))
    assert np.isnan(native().decode_format(got[nan], name)).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_round_trip_of_16_bit_codes(name):
    c = codes(name)
    v = native().decode_format(c, name)
    finite = ~np.isnan(v)
    for mode in range(4):
        np.testing.assert_array_equal(native().encode_format(v[finite].astype(np.float64), name, mode, IEEE), c[finite])


@pytest.mark.parametrize("mode", [UP, DOWN, ZERO])
def test_directed_rounding_of_f16(mode):
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(20000) * 2.0 ** rng.integers(-28, 17, 20000)).astype(np.float64)
    got = native().decode_format(native().encode_format(x, "f16", mode, CLAMP), "f16").astype(np.float64)
    inside = np.abs(x) <= 65504
    if mode == UP:
        assert (got[inside] >= x[inside]).all()
    elif mode == DOWN:
        assert (got[inside] <= x[inside]).all()
    else:
        assert (np.abs(got[inside]) <= np.abs(x[inside])).all()
    with np.errstate(over="ignore"):
        nearest = x.astype(np.float16).astype(np.float64)
    ulp = np.maximum(2.0**-24, 2.0 ** (np.floor(np.log2(np.abs(x))) - 10))
    assert (np.abs(got - nearest)[inside] <= ulp[inside]).all()


def test_fast_paths_equal_general_ones():
    rng = np.random.default_rng(3)
    bits = np.concatenate(
        [
            rng.integers(0, 2**32, 300000, dtype=np.uint32),
            np.arange(0x33000000, 0x33000000 + 4096, dtype=np.uint32),  # around half of f16's smallest subnormal
            np.arange(0x477FE000, 0x47801000, 1, dtype=np.uint32),  # around f16's largest
            np.arange(0x387FF000, 0x38801000, dtype=np.uint32),  # around f16's smallest normal
            np.array([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 1, 0x807FFFFF], np.uint32),
        ]
    )
    x = bits.view(np.float32)
    nan = np.isnan(x)
    n = native()
    for fast, name in ((n.f32_to_f16, "f16"), (n.f32_to_bf16, "bf16")):
        np.testing.assert_array_equal(fast(x)[~nan], n.encode_format(x[~nan].astype(np.float64), name, NEAREST, IEEE))
        assert np.isnan(n.decode_format(fast(x[nan]), name)).all()
    c = codes("f16")
    np.testing.assert_array_equal(n.f16_to_f32(c).view(np.uint32), n.decode_format(c, "f16").view(np.uint32))


def sample_of_floats() -> np.ndarray:
    rng = np.random.default_rng(5)
    near = (rng.standard_normal(200000) * 2.0 ** rng.integers(-30, 20, 200000)).astype(np.float32)
    exact = np.concatenate([[float(v) for v, _ in grid_] for grid_ in GRIDS.values()]).astype(np.float32)
    middles = np.concatenate([(np.sort(exact)[1:] + np.sort(exact)[:-1]) / 2, exact]).astype(np.float32)
    sides = np.concatenate(
        [np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)), middles]
    )
    bits = rng.integers(0, 2**32, 200000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([near, sides, -sides, bits, np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)])
    return x[~np.isnan(x)]


@pytest.mark.parametrize("overflow", [IEEE, CLAMP, CLAMP_ALL])
@pytest.mark.parametrize("name", GRIDS)
def test_fast_narrow_encoder(name, overflow):
    x, n = sample_of_floats(), native()
    np.testing.assert_array_equal(
        n.encode_narrow(x, name, overflow), n.encode_format(x.astype(np.float64), name, NEAREST, overflow)
    )
    nan = np.array([np.nan, -np.nan], np.float32)
    np.testing.assert_array_equal(
        n.encode_narrow(nan, name, overflow), n.encode_format(nan.astype(np.float64), name, NEAREST, overflow)
    )


def test_fast_f16_toward_zero():
    x, n = sample_of_floats(), native()
    np.testing.assert_array_equal(n.f32_to_f16_toward_zero(x), n.encode_format(x.astype(np.float64), "f16", ZERO, IEEE))


@pytest.mark.parametrize("name", ["fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "fp4_e2m1", "bf16", "f16"])
def test_stochastic_rounding(name):
    """Zero noise truncates, full noise rounds everything inexact up, and the share of ups is the remainder."""
    bits = 23 - FORMATS[name][1]
    rng = np.random.default_rng(4)
    x = rng.uniform(-3.0, 3.0, 4000).astype(np.float32).astype(np.float64)
    n = native()
    zero = n.encode_stochastic(x, name, np.zeros(x.size, np.uint32), bits, IEEE)
    np.testing.assert_array_equal(zero, n.encode_format(x, name, ZERO, IEEE))
    full = n.encode_stochastic(x, name, np.full(x.size, (1 << bits) - 1, np.uint32), bits, IEEE)
    away = np.where(x > 0, n.encode_format(x, name, UP, IEEE), n.encode_format(x, name, DOWN, IEEE))
    np.testing.assert_array_equal(full, away)
    value = 1.3
    noise = np.arange(0, 1 << bits, max(1, (1 << bits) >> 12), dtype=np.uint32)
    up = n.encode_stochastic(np.full(noise.size, value), name, noise, bits, IEEE)
    low, high = (n.decode_format(n.encode_format(np.array([value]), name, m, IEEE), name)[0] for m in (ZERO, UP))
    share = (n.decode_format(up, name) == high).mean()
    assert abs(share - (value - low) / (high - low)) < 2e-3


def test_e8m0():
    got = native().decode_e8m0(np.arange(256, dtype=np.uint32))
    np.testing.assert_array_equal(got[:255], 2.0 ** (np.arange(255) - 127.0))
    assert np.isnan(got[255])
