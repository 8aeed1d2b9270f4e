# SPDX-License-Identifier: MIT
"""Conversions against numpy, ml_dtypes and exact arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turbo_sim.testing import ALL, DEFAULT_MODE, FP16_OVFL, lane_values, native, put, run_asm, why_no_assembler

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

FP8 = {
    ("gfx942", "fp8"): ml_dtypes.float8_e4m3fnuz,
    ("gfx942", "bf8"): ml_dtypes.float8_e5m2fnuz,
    ("gfx950", "fp8"): ml_dtypes.float8_e4m3fn,
    ("gfx950", "bf8"): ml_dtypes.float8_e5m2,
}
PARTIAL = 0x8000_0F0F_5A5A_0001


def f32(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def equal_floats(got: np.ndarray, want: np.ndarray) -> None:
    """Bit equality; any NaN equals any NaN."""
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


def saturate(x: float, low: int, high: int, how=math.trunc) -> int:
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return high if x > 0 else low
    return max(low, min(high, how(x)))


I32, U32 = (-(2**31), 2**31 - 1), (0, 2**32 - 1)
TO_INT = {
    "v_cvt_i32_f32": ("f32", I32, math.trunc),
    "v_cvt_u32_f32": ("f32", U32, math.trunc),
    "v_cvt_i32_f64": ("f64", I32, math.trunc),
    "v_cvt_u32_f64": ("f64", U32, math.trunc),
    "v_cvt_flr_i32_f32": ("f32", I32, math.floor),
    "v_cvt_rpi_i32_f32": ("f32", I32, lambda x: math.floor(x + 0.5)),
    "v_cvt_i16_f16": ("f16", (-32768, 32767), math.trunc),
    "v_cvt_u16_f16": ("f16", (0, 65535), math.trunc),
}


def as_floats(kind: str, codes: np.ndarray) -> np.ndarray:
    if kind == "f64":
        return codes.view(np.float64)
    if kind == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float64)
    return codes.view(np.float32).astype(np.float64)


@pytest.mark.parametrize("name", TO_INT)
def test_float_to_integer(name):
    kind, (low, high), how = TO_INT[name]
    bits = 0xFFFF if kind == "f16" else 0xFFFFFFFF
    for seed in range(6):
        a = lane_values(kind, seed)
        v: dict[int, np.ndarray] = {}
        put(v, 2, a)
        source = "v[2:3]" if kind == "f64" else "v2"
        got = run_asm(f"{name} v0, {source}", v=v).v[0]
        with np.errstate(invalid="ignore"):
            want = [saturate(float(x), low, high, how) & bits for x in as_floats(kind, a)]
        assert got.tolist() == want


FROM_INT = {
    "v_cvt_f32_i32": lambda x: x.view(np.int32).astype(np.float32),
    "v_cvt_f32_u32": lambda x: x.astype(np.float32),
    "v_cvt_f32_ubyte0": lambda x: (x & 255).astype(np.float32),
    "v_cvt_f32_ubyte1": lambda x: (x >> 8 & 255).astype(np.float32),
    "v_cvt_f32_ubyte2": lambda x: (x >> 16 & 255).astype(np.float32),
    "v_cvt_f32_ubyte3": lambda x: (x >> 24).astype(np.float32),
    "v_cvt_off_f32_i4": lambda x: (((x & 15) ^ 8).astype(np.float32) - 8) / 16,
    "v_cvt_f32_f16": lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32),
    "v_cvt_f32_bf16": lambda x: (x << np.uint32(16)).view(np.float32),
}


@pytest.mark.parametrize("name", FROM_INT)
def test_to_f32(name):
    for seed in range(6):
        a = lane_values("f16" if name.endswith("f16") else "u32", seed)
        if name == "v_cvt_f32_f16":
            a = a | np.uint32(0xABCD0000)
        got = run_asm(f"{name} v0, v1", v={1: a}).v[0]
        with np.errstate(invalid="ignore"):
            equal_floats(f32(got), FROM_INT[name](a))


@pytest.mark.parametrize("rounding", range(4))
def test_integer_to_f32_follows_mode(rounding):
    a = np.array([0x01000001, 0x01000003, 0x7FFFFFFF, 0x80000001, 0xFEFFFFFF, 0xFFFFFFFF] * 11, np.uint32)[:64]
    got = f32(run_asm("v_cvt_f32_i32 v0, v1", v={1: a}, mode=DEFAULT_MODE | rounding).v[0]).astype(np.float64)
    exact = a.view(np.int32).astype(np.float64)
    if rounding == 0:
        np.testing.assert_array_equal(got, exact.astype(np.float32).astype(np.float64))
    check = {1: got >= exact, 2: got <= exact, 3: np.abs(got) <= np.abs(exact)}.get(rounding)
    assert check is None or check.all()


def test_f64_conversions():
    a, n = lane_values("f32", 1), lane_values("u32", 2)
    d = lane_values("f64", 3)
    v: dict[int, np.ndarray] = {1: a, 2: n}
    put(v, 4, d)
    text = "v_cvt_f64_f32 v[6:7], v1\nv_cvt_f32_f64 v8, v[4:5]\nv_cvt_f64_i32 v[10:11], v2\nv_cvt_f64_u32 v[12:13], v2"
    out = run_asm(text, v=v)
    with np.errstate(all="ignore"):
        want = a.view(np.float32).astype(np.float64)
        nan = np.isnan(want)
        np.testing.assert_array_equal(out.v64(6).view(np.float64)[~nan], want[~nan])
        assert np.isnan(out.v64(6).view(np.float64)[nan]).all()
        equal_floats(f32(out.v[8]), d.view(np.float64).astype(np.float32))
    np.testing.assert_array_equal(out.v64(10).view(np.float64), n.view(np.int32).astype(np.float64))
    np.testing.assert_array_equal(out.v64(12).view(np.float64), n.astype(np.float64))


def f16_of(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(np.float16).view(np.uint16).astype(np.uint32)


@pytest.mark.parametrize("ovfl", [False, True])
@pytest.mark.parametrize("rounding", range(4))
def test_cvt_f16_f32(rounding, ovfl):
    """MODE's 16-bit rounding; FP16_OVFL clamps what overflows, not infinities."""
    mode = DEFAULT_MODE | rounding << 2 | (FP16_OVFL if ovfl else 0)
    for seed in range(4):
        a = lane_values("f32", seed)
        got = run_asm("v_cvt_f16_f32 v0, v1", v={0: lane_values("u32", 9), 1: a}, mode=mode).v[0]
        want = native().encode_format(f32(a).astype(np.float64), "f16", rounding, 1 if ovfl else 0)
        nan = np.isnan(f32(a))
        np.testing.assert_array_equal(got[~nan], want[~nan])  # upper half: zeros
        assert ((got[nan] & 0x7FFF) > 0x7C00).all() and (got[nan] >> 16 == 0).all()
        if rounding == 0 and not ovfl:
            np.testing.assert_array_equal(got[~nan], f16_of(f32(a))[~nan])


PACKS = {
    "v_cvt_pk_f16_f32": f16_of,
    "v_cvt_pk_bf16_f32": lambda x: x.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32),
    "v_cvt_pkrtz_f16_f32": lambda x: native().encode_format(x.astype(np.float64), "f16", 3, 0),
}


@pytest.mark.parametrize("name", PACKS)
def test_packs_of_two(name):
    for seed in range(4):
        a, b = lane_values("f32", seed), lane_values("f32", seed + 50)
        got = run_asm(f"{name} v0, v1, -|v2|", v={0: a, 1: a, 2: b}, mode=DEFAULT_MODE | 0b1101).v[0]
        minus_b = f32(b | np.uint32(0x80000000))
        for half, x in ((got & 0xFFFF, f32(a)), (got >> 16, minus_b)):
            nan = np.isnan(x)
            np.testing.assert_array_equal(half[~nan], PACKS[name](x)[~nan])
            limit = 0x7F80 if "bf16" in name else 0x7C00
            assert ((half[nan] & 0x7FFF) > limit).all()


def test_pknorm_and_pack():
    x, y = np.linspace(-1.5, 1.5, 64).astype(np.float32), np.linspace(1.5, -1.5, 64).astype(np.float32)
    v = {1: x.view(np.uint32), 2: y.view(np.uint32), 3: lane_values("u32", 1)}
    out = run_asm(
        "v_cvt_pknorm_i16_f32 v4, v1, v2\nv_cvt_pknorm_u16_f32 v5, v1, v2\nv_pack_b32_f16 v6, v1, v2\n"
        "v_pack_b32_f16 v7, -v1, |v2| op_sel:[1,1,0]\nv_cvt_pk_u8_f32 v8, v9, 2, v3",
        v=v | {9: np.linspace(-5, 300, 64).astype(np.float32).view(np.uint32)},
    )
    snorm = lambda z: np.rint(np.clip(z, -1, 1) * np.float32(32767)).astype(np.int64) & 0xFFFF  # noqa: E731
    unorm = lambda z: np.rint(np.clip(z, 0, 1) * np.float32(65535)).astype(np.int64)  # noqa: E731
    np.testing.assert_array_equal(out.v[4], snorm(x) | snorm(y) << 16)
    np.testing.assert_array_equal(out.v[5], unorm(x) | unorm(y) << 16)
    np.testing.assert_array_equal(out.v[6], (v[1] & 0xFFFF) | v[2] << np.uint32(16))
    np.testing.assert_array_equal(out.v[7], ((v[1] >> 16) ^ 0x8000) | (v[2] & 0x7FFF0000))
    u8 = np.clip(np.rint(np.linspace(-5, 300, 64).astype(np.float32)), 0, 255).astype(np.uint32)
    np.testing.assert_array_equal(out.v[8], (v[3] & 0xFF00FFFF) | u8 << 16)


# --- fp8 ----------------------------------------------------------------------------------------------------------
def fp8_inputs(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(64) * 2.0 ** rng.integers(-18, 18, 64)).astype(np.float32)
    x[:12] = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 240, 248, 57344, 65000]
    return x


def fp8_code(x: np.ndarray, dtype, ovfl: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        if ovfl:
            top = float(ml_dtypes.finfo(dtype).max)
            x = np.clip(x, -top, top)  # NaN stays
        return x.astype(dtype).view(np.uint8).astype(np.uint32)


@pytest.mark.parametrize("ovfl", [False, True])
@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("arch,kind", FP8)
def test_cvt_pk_fp8_f32(arch, kind, high, ovfl):
    dtype = FP8[arch, kind]
    a, b, old = fp8_inputs(1), np.roll(fp8_inputs(2), 17), lane_values("u32", 5)
    sel = " op_sel:[0,0,1]" if high else ""
    mode = DEFAULT_MODE | (FP16_OVFL if ovfl else 0) | 0b1111  # rounding does not matter
    out = run_asm(
        f"v_cvt_pk_{kind}_f32 v0, v1, v2{sel}",
        arch=arch,
        v={0: old, 1: a.view(np.uint32), 2: b.view(np.uint32)},
        mode=mode,
        exec_mask=PARTIAL,
    ).v[0]
    pair = fp8_code(a, dtype, ovfl) | fp8_code(b, dtype, ovfl) << 8
    want = (old & 0xFFFF) | pair << 16 if high else (old & 0xFFFF0000) | pair
    for lane in range(64):
        g, w = int(out[lane]), int(want[lane]) if PARTIAL >> lane & 1 else int(old[lane])
        if g != w:  # NaN codes may differ in sign
            for k in range(4):
                x, y = (np.array(n >> (8 * k) & 255, np.uint8).view(dtype) for n in (g, w))
                assert np.isnan(float(x)) and np.isnan(float(y)) or float(x) == float(y), (lane, hex(g), hex(w))


@pytest.mark.parametrize("arch,kind", FP8)
def test_cvt_from_fp8(arch, kind):
    dtype = FP8[arch, kind]
    codes = np.arange(256, dtype=np.uint32).reshape(4, 64)
    word = codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24
    value = lambda c: c.astype(np.uint8).view(dtype).astype(np.float32)  # noqa: E731
    text = f"v_cvt_f32_{kind}_e32 v1, v0\nv_cvt_pk_f32_{kind}_e32 v[6:7], v0\n"
    text += "\n".join(f"v_cvt_f32_{kind}_sdwa v{2 + k}, v0 src0_sel:BYTE_{k}" for k in range(4))
    text += (
        f"\nv_cvt_pk_f32_{kind}_sdwa v[8:9], v0 src0_sel:WORD_1\nv_cvt_pk_f32_{kind}_sdwa v[10:11], v0 src0_sel:WORD_0"
    )
    out = run_asm(text, arch=arch, v={0: word})
    for row, k in ((1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 0), (7, 1), (8, 2), (9, 3), (10, 0), (11, 1)):
        equal_floats(f32(out.v[row]), value(codes[k]))


@pytest.mark.parametrize("arch,kind", FP8)
def test_cvt_sr_fp8(arch, kind):
    """Zero noise truncates, full noise rounds away; the byte that op_sel[3:2] names, the others kept."""
    x = np.random.default_rng(3).uniform(-7, 7, 64).astype(np.float32)
    old = lane_values("u32", 8)
    name = {"fp8": "e4m3", "bf8": "e5m2"}[kind] + ("fnuz" if arch == "gfx942" else "fn" if kind == "fp8" else "")
    for noise, direction in ((0, 3), (0xFFFFFFFF, None)):
        for byte in range(4):
            sel = f"op_sel:[0,0,{byte & 1},{byte >> 1}]"
            out = run_asm(
                f"v_cvt_sr_{kind}_f32 v0, v1, v2 {sel}",
                arch=arch,
                v={0: old, 1: x.view(np.uint32), 2: np.full(64, noise, np.uint32)},
            ).v[0]
            code = lambda m: native().encode_format(x.astype(np.float64), f"fp8_{name}", m, 0)  # noqa: E731
            want = code(3) if direction == 3 else np.where(x > 0, code(1), code(2))
            np.testing.assert_array_equal(out >> (8 * byte) & 255, want)
            keep = 0xFFFFFFFF ^ 255 << (8 * byte)
            np.testing.assert_array_equal(out & keep, old & keep)


# --- transcendental -----------------------------------------------------------------------------------------------
FUNCTIONS = {
    "exp": np.exp2,
    "log": np.log2,
    "rcp": lambda x: 1 / x,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": lambda x: np.sin(2 * np.pi * x),
    "cos": lambda x: np.cos(2 * np.pi * x),
}


def flush(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**-126, np.copysign(0, x), x).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("t", ["f32", "f16"])
def test_transcendental(name, t):
    for seed in range(6):
        a = lane_values(t, seed)
        if name in ("sin", "cos"):
            a = np.random.default_rng(seed).uniform(-4, 4, 64).astype(np.float32).view(np.uint32)
            if t == "f16":
                a = f16_of(a.view(np.float32))
        got = run_asm(f"v_{name}_{t} v0, v1", v={1: a}).v[0]
        x = flush(f32(a)).astype(np.float64) if t == "f32" else a.astype(np.uint16).view(np.float16).astype(np.float64)
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name](x)
            want = flush(want.astype(np.float32)) if t == "f32" else want.astype(np.float16).astype(np.float32)
        result = f32(got) if t == "f32" else got.astype(np.uint16).view(np.float16).astype(np.float32)
        if name in ("sin", "cos"):
            np.testing.assert_allclose(result, want, atol=2e-7 if t == "f32" else 1e-3)
        else:
            nan = np.isnan(want)
            np.testing.assert_array_equal(np.isnan(result), nan)
            np.testing.assert_allclose(result[~nan], want[~nan], rtol=1.3e-7, atol=0)
            np.testing.assert_array_equal(np.signbit(result[~nan]), np.signbit(want[~nan]))


@pytest.mark.parametrize("name,same", [("rcp_iflag", "rcp"), ("exp_legacy", "exp"), ("log_legacy", "log")])
def test_transcendental_variants(name, same):
    """They differ from their namesakes in exception flags or in the last bits alone."""
    a = lane_values("f32", 7)
    got = [run_asm(f"v_{op}_f32 v0, v1", v={1: a}).v[0] for op in (name, same)]
    assert np.array_equal(*got) and len(np.unique(got[0])) > 20


@pytest.mark.parametrize("name,f", [("rcp", lambda x: 1 / x), ("rsq", lambda x: 1 / np.sqrt(x)), ("sqrt", np.sqrt)])
def test_transcendental_f64(name, f):
    a = lane_values("f64", 4)
    v: dict[int, np.ndarray] = {}
    put(v, 2, a)
    got = run_asm(f"v_{name}_f64 v[0:1], v[2:3]", v=v).v64(0).view(np.float64)
    with np.errstate(all="ignore"):
        want = f(a.view(np.float64))
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan], want[~nan])


# --- division as compilers expand it ------------------------------------------------------------------------------
DIVIDE_F32 = """
v_div_scale_f32 v3, s[4:5], v2, v2, v1
v_div_scale_f32 v4, vcc, v1, v2, v1
v_rcp_f32 v5, v3
v_fma_f32 v6, -v3, v5, 1.0
v_fma_f32 v5, v6, v5, v5
v_mul_f32 v6, v4, v5
v_fma_f32 v7, -v3, v6, v4
v_fma_f32 v6, v7, v5, v6
v_fma_f32 v7, -v3, v6, v4
v_div_fmas_f32 v7, v7, v5, v6
v_div_fixup_f32 v0, v7, v2, v1
"""
DIVIDE_F64 = """
v_div_scale_f64 v[6:7], s[4:5], v[4:5], v[4:5], v[2:3]
v_rcp_f64 v[8:9], v[6:7]
v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0
v_fma_f64 v[8:9], v[8:9], v[10:11], v[8:9]
v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0
v_fma_f64 v[8:9], v[8:9], v[10:11], v[8:9]
v_div_scale_f64 v[10:11], vcc, v[2:3], v[4:5], v[2:3]
v_mul_f64 v[12:13], v[10:11], v[8:9]
v_fma_f64 v[6:7], -v[6:7], v[12:13], v[10:11]
v_div_fmas_f64 v[6:7], v[6:7], v[8:9], v[12:13]
v_div_fixup_f64 v[0:1], v[6:7], v[4:5], v[2:3]
"""


@pytest.mark.parametrize("t,text", [("f32", DIVIDE_F32), ("f64", DIVIDE_F64)])
def test_division_is_correctly_rounded(t, text):
    """LLVM's expansion of an IEEE division, subnormal and overflowing quotients included."""
    for seed in range(40):
        a, b = lane_values(t, seed), lane_values(t, seed + 100)
        v: dict[int, np.ndarray] = {}
        if t == "f32":
            v = {1: a, 2: b}
            got = run_asm(text, v=v).v[0].view(np.float32)
            with np.errstate(all="ignore"):
                want = f32(a) / f32(b)
        else:
            put(v, 2, a), put(v, 4, b)
            got = run_asm(text, v=v).v64(0).view(np.float64)
            with np.errstate(all="ignore"):
                want = a.view(np.float64) / b.view(np.float64)
        nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), nan)
        bad = np.flatnonzero(~nan & (got != want))
        assert not bad.size, [(hex(int(a[k])), hex(int(b[k])), got[k], want[k]) for k in bad[:3]]
        np.testing.assert_array_equal(np.signbit(got[~nan]), np.signbit(want[~nan]))


def test_division_of_f16():
    """As compilers do it: in f32, then v_div_fixup_f16."""
    text = """v_cvt_f32_f16 v3, v1
    v_cvt_f32_f16 v4, v2
    v_rcp_f32 v5, v4
    v_mul_f32 v6, v3, v5
    v_fma_f32 v7, -v4, v6, v3
    v_fma_f32 v6, v7, v5, v6
    v_cvt_f16_f32 v6, v6
    v_div_fixup_f16 v0, v6, v2, v1"""
    for seed in range(10):
        a, b = lane_values("f16", seed), lane_values("f16", seed + 100)
        got = run_asm(text, v={1: a, 2: b}).v[0].astype(np.uint16).view(np.float16)
        with np.errstate(all="ignore"):
            want = (a.astype(np.uint16).view(np.float16) / b.astype(np.uint16).view(np.float16)).astype(np.float16)
        np.testing.assert_array_equal(got, want)


def test_conversions_respect_exec():
    old = lane_values("u32", 1)
    out = run_asm("v_cvt_f32_u32 v0, v1", v={0: old, 1: lane_values("u32", 2)}, exec_mask=ALL ^ 2).v[0]
    assert out[1] == old[1] and out[0] != old[0]
