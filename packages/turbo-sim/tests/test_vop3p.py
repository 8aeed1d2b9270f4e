# SPDX-License-Identifier: MIT
"""Packed, mixed-precision and dot instructions: op_sel, op_sel_hi, neg_lo, neg_hi, clamp."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from turbo_sim.testing import ALL, DEFAULT_MODE, lane_values, run_asm, why_no_assembler

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

PARTIAL = 0x8000_0F0F_5A5A_0001


def s16(x):
    return (x & 0xFFFF ^ 0x8000) - 0x8000


INTEGER = {
    "v_pk_add_u16": lambda a, b: a + b,
    "v_pk_add_i16": lambda a, b: a + b,
    "v_pk_sub_u16": lambda a, b: a - b,
    "v_pk_sub_i16": lambda a, b: a - b,
    "v_pk_mul_lo_u16": lambda a, b: a * b,
    "v_pk_lshlrev_b16": lambda a, b: b << (a & 15),
    "v_pk_lshrrev_b16": lambda a, b: b >> (a & 15),
    "v_pk_ashrrev_i16": lambda a, b: s16(b) >> (a & 15),
    "v_pk_max_u16": max,
    "v_pk_min_u16": min,
    "v_pk_max_i16": lambda a, b: max(s16(a), s16(b)),
    "v_pk_min_i16": lambda a, b: min(s16(a), s16(b)),
    "v_pk_mad_u16": lambda a, b, c: a * b + c,
    "v_pk_mad_i16": lambda a, b, c: a * b + c,
}
SATURATED = {
    "v_pk_add_u16": lambda a, b: min(a + b, 0xFFFF),
    "v_pk_sub_u16": lambda a, b: max(a - b, 0),
    "v_pk_add_i16": lambda a, b: max(-32768, min(32767, s16(a) + s16(b))),
    "v_pk_sub_i16": lambda a, b: max(-32768, min(32767, s16(a) - s16(b))),
}


def half(word: int, high: int) -> int:
    return word >> 16 if high else word & 0xFFFF


def check_integer(name, f, suffix=""):
    n = f.__code__.co_argcount if hasattr(f, "__code__") else 2
    sources = [lane_values("u32", k) for k in range(n)]
    old = lane_values("u32", 9)
    for sel, sel_hi in itertools.product(range(1 << n), (0, (1 << n) - 1, 1, 2)):
        lists = [",".join(str(m >> k & 1) for k in range(n)) for m in (sel, sel_hi)]
        for dst, mask in ((0, ALL), (1, PARTIAL)):
            v = {0: old} | {k + 1: x for k, x in enumerate(sources)}
            regs = ", ".join(f"v{k + 1}" for k in range(n))
            text = f"{name} v{dst}, {regs} op_sel:[{lists[0]}] op_sel_hi:[{lists[1]}]{suffix}"
            got = run_asm(text, v=v, exec_mask=mask).v[dst]
            for lane in range(64):
                x = [int(r[lane]) for r in sources]
                low = f(*(half(w, sel >> k & 1) for k, w in enumerate(x))) & 0xFFFF
                high = f(*(half(w, sel_hi >> k & 1) for k, w in enumerate(x))) & 0xFFFF
                want = low | high << 16 if mask >> lane & 1 else int(v[dst][lane])
                assert int(got[lane]) == want, (text, lane)


@pytest.mark.parametrize("name", INTEGER)
def test_packed_integers(name):
    check_integer(name, INTEGER[name])


@pytest.mark.parametrize("name", SATURATED)
def test_packed_integers_saturate(name):
    check_integer(name, SATURATED[name], " clamp")


def test_packed_constants():
    """An integer constant is sign-extended to 32 bits, an f16 one lies in the low half."""
    a = lane_values("u32", 1)
    out = run_asm(
        "v_pk_add_u16 v0, v1, -2\nv_pk_add_u16 v2, v1, 3\nv_pk_lshlrev_b16 v3, 8, v1 op_sel_hi:[0,1]\n"
        "v_pk_mul_f16 v4, v1, 2.0\nv_pk_mul_f16 v5, v1, 2.0 op_sel_hi:[1,0]",
        v={1: a & np.uint32(0x3FFF3FFF)},
    )
    a = a & np.uint32(0x3FFF3FFF)
    low, high = a & 0xFFFF, a >> 16
    np.testing.assert_array_equal(out.v[0], (low - 2) & 0xFFFF | ((high - 1 - 0) & 0xFFFF) << 16)
    np.testing.assert_array_equal(out.v[2], (low + 3) & 0xFFFF | high << 16)
    np.testing.assert_array_equal(out.v[3], low << 8 & 0xFFFF | (high << 8 & 0xFFFF) << 16)
    f = a.view(np.float16).reshape(64, 2)
    with np.errstate(invalid="ignore"):
        doubled = f * np.float16(2)
        np.testing.assert_array_equal(
            out.v[4].view(np.float16).reshape(64, 2), np.stack([doubled[:, 0], f[:, 1] * 0], 1)
        )
        np.testing.assert_array_equal(out.v[5].view(np.float16).reshape(64, 2), doubled)


# --- f16 ----------------------------------------------------------------------------------------------------------
def halves(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((64, 2)) * 2.0 ** rng.integers(-6, 6, (64, 2))).astype(np.float16)


def words(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32).reshape(64)


F16 = {
    "v_pk_add_f16": lambda a, b: (a.astype(np.float64) + b).astype(np.float16),
    "v_pk_mul_f16": lambda a, b: (a.astype(np.float64) * b).astype(np.float16),
    "v_pk_fma_f16": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float16),
    "v_pk_min_f16": np.minimum,
    "v_pk_max_f16": np.maximum,
}


@pytest.mark.parametrize("name", F16)
def test_packed_f16(name):
    n = 3 if "fma" in name else 2
    x = [halves(k) for k in range(n)]
    v = {k + 1: words(h) for k, h in enumerate(x)}
    regs = ", ".join(f"v{k + 1}" for k in range(n))
    for sel, sel_hi, neg_lo, neg_hi in ((0, 7, 0, 0), (1, 6, 0, 0), (2, 1, 1, 2), (7, 0, 2, 1), (0, 7, 3, 5)):
        lists = [",".join(str(m >> k & 1) for k in range(n)) for m in (sel, sel_hi, neg_lo, neg_hi)]
        text = f"{name} v0, {regs} op_sel:[{lists[0]}] op_sel_hi:[{lists[1]}] neg_lo:[{lists[2]}] neg_hi:[{lists[3]}]"
        got = run_asm(text, v=v).v[0].view(np.float16).reshape(64, 2)
        for column, (s, neg) in enumerate(((sel, neg_lo), (sel_hi, neg_hi))):
            args = [h[:, s >> k & 1] * np.float16(-1 if neg >> k & 1 else 1) for k, h in enumerate(x)]
            np.testing.assert_array_equal(got[:, column], F16[name](*args), text)
    clamped = run_asm(f"{name} v0, {regs} clamp", v=v).v[0].view(np.float16).reshape(64, 2)
    np.testing.assert_array_equal(clamped, np.clip(F16[name](*x), 0, 1))


@pytest.mark.parametrize("name,pick", [("v_pk_minimum3_f16", np.minimum), ("v_pk_maximum3_f16", np.maximum)])
def test_packed_minimum3(name, pick):
    a, b, c = (halves(k) for k in range(3))
    b[5, 1] = np.nan
    got = (
        run_asm(f"{name} v0, v1, v2, v3", v={1: words(a), 2: words(b), 3: words(c)})
        .v[0]
        .view(np.float16)
        .reshape(64, 2)
    )
    np.testing.assert_array_equal(got, pick(pick(a, b), c))


# --- f32 pairs ----------------------------------------------------------------------------------------------------
def pair(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 64)).astype(np.float32)


F32 = {
    "v_pk_add_f32": lambda a, b: a + b,
    "v_pk_mul_f32": lambda a, b: a * b,
    "v_pk_fma_f32": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
}


@pytest.mark.parametrize("name", F32)
def test_packed_f32(name):
    n = 3 if "fma" in name else 2
    x = [pair(k) for k in range(n)]
    v = {2 * k + 2 + r: h[r].view(np.uint32) for k, h in enumerate(x) for r in range(2)}
    regs = ", ".join(f"v[{2 * k + 2}:{2 * k + 3}]" for k in range(n))
    for sel, sel_hi, neg_lo, neg_hi in ((0, 7, 0, 0), (1, 6, 0, 0), (2, 1, 1, 2), (7, 0, 2, 1), (0, 5, 3, 5)):
        lists = [",".join(str(m >> k & 1) for k in range(n)) for m in (sel, sel_hi, neg_lo, neg_hi)]
        for dst in (0, 2, 4):
            selects = f"op_sel:[{lists[0]}] op_sel_hi:[{lists[1]}] neg_lo:[{lists[2]}] neg_hi:[{lists[3]}]"
            text = f"{name} v[{dst}:{dst + 1}], {regs} {selects}"
            out = run_asm(text, v=v)
            for row, (s, neg) in enumerate(((sel, neg_lo), (sel_hi, neg_hi))):
                args = [h[s >> k & 1] * np.float32(-1 if neg >> k & 1 else 1) for k, h in enumerate(x)]
                np.testing.assert_array_equal(out.v[dst + row].view(np.float32), F32[name](*args), text)


def test_packed_f32_with_scalars_and_overlap():
    a = pair(1)
    s = {4: int(np.float32(1.5).view(np.uint32)), 5: int(np.float32(-2.5).view(np.uint32))}
    v = {2: a[0].view(np.uint32), 3: a[1].view(np.uint32)}
    out = run_asm(
        "v_pk_mul_f32 v[0:1], v[2:3], s[4:5]\nv_pk_mul_f32 v[6:7], v[2:3], s[4:5] op_sel_hi:[1,0]\n"
        "v_pk_mul_f32 v[2:3], v[2:3], s[4:5] op_sel:[1,0] op_sel_hi:[0,0]",
        v=v,
        s=s,
    )
    for row, want in (
        (0, a[0] * 1.5),
        (1, a[1] * -2.5),
        (6, a[0] * 1.5),
        (7, a[1] * 1.5),
        (2, a[1] * 1.5),
        (3, a[0] * 1.5),
    ):
        np.testing.assert_array_equal(out.v[row].view(np.float32), want.astype(np.float32))


def test_packed_f32_constants():
    """A constant is the low half; its upper half is not documented and reads as NaN (0 for 0)."""
    a = pair(2)
    v = {2: a[0].view(np.uint32), 3: a[1].view(np.uint32)}
    out = run_asm(
        "v_pk_mul_f32 v[0:1], v[2:3], 4.0 op_sel_hi:[1,0]\nv_pk_fma_f32 v[4:5], v[2:3], v[2:3], 1.0\n"
        "v_pk_fma_f32 v[6:7], v[2:3], v[2:3], 0",
        v=v,
    ).v.view(np.float32)
    np.testing.assert_array_equal(out[0:2], a * 4)
    square = a.astype(np.float64) ** 2
    np.testing.assert_array_equal(out[4], (square[0] + 1).astype(np.float32))
    assert np.isnan(out[5]).all()
    np.testing.assert_array_equal(out[6:8], square.astype(np.float32))


def test_pk_mov():
    a, b = lane_values("u32", 1), lane_values("u32", 2)
    c, d = lane_values("u32", 3), lane_values("u32", 4)
    v = {2: a, 3: b, 4: c, 5: d}
    for s0, s1 in itertools.product((0, 1), repeat=2):
        out = run_asm(f"v_pk_mov_b32 v[2:3], v[2:3], v[4:5] op_sel:[{s0},{s1}]", v=v)
        assert out.v[2].tolist() == (b if s0 else a).tolist() and out.v[3].tolist() == (d if s1 else c).tolist()


# --- mixed precision ----------------------------------------------------------------------------------------------
def test_fma_mix():
    h, g = halves(1), halves(2)
    f = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    old = lane_values("u32", 7)
    v = {0: old, 1: words(h), 2: words(g), 3: f.view(np.uint32), 4: old, 5: old}
    out = run_asm(
        "v_fma_mix_f32 v10, v1, v2, v3 op_sel_hi:[1,1,0]\n"
        "v_fma_mix_f32 v11, -v1, |v2|, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]\n"
        "v_fma_mixlo_f16 v4, v1, v2, v3 op_sel:[0,1,0] op_sel_hi:[1,1,0]\n"
        "v_fma_mixhi_f16 v5, v3, v3, v1 op_sel_hi:[0,0,1]\n"
        "v_fma_mix_f32 v12, v3, v3, v3 clamp\n"
        "v_fma_mix_f32 v13, v3, 1.0, v1 op_sel_hi:[0,1,1]",
        v=v,
    )
    wide = lambda x: x.astype(np.float64)  # noqa: E731
    fma = lambda x, y, z: (wide(x) * wide(y) + wide(z)).astype(np.float32)  # noqa: E731
    np.testing.assert_array_equal(out.v[10].view(np.float32), fma(h[:, 0], g[:, 0], f))
    np.testing.assert_array_equal(out.v[11].view(np.float32), fma(-h[:, 1], np.abs(g[:, 0]), f))
    lo = fma(h[:, 0], g[:, 1], f).astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(out.v[4], (old & 0xFFFF0000) | lo)
    hi = fma(f, f, h[:, 0]).astype(np.float16).view(np.uint16).astype(np.uint32)
    np.testing.assert_array_equal(out.v[5], (old & 0xFFFF) | hi << 16)
    np.testing.assert_array_equal(out.v[12].view(np.float32), np.clip(fma(f, f, f), 0, 1))
    np.testing.assert_array_equal(out.v[13].view(np.float32), fma(f, np.ones(64), h[:, 0]))


# --- dot products -------------------------------------------------------------------------------------------------
def elements(words_: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    n = 32 // bits
    x = np.stack([words_ >> np.uint32(bits * k) & np.uint32((1 << bits) - 1) for k in range(n)], 1).astype(np.int64)
    return (x ^ (1 << (bits - 1))) - (1 << (bits - 1)) if signed else x


DOTS = {
    "v_dot2_i32_i16": (16, True),
    "v_dot2_u32_u16": (16, False),
    "v_dot4_i32_i8": (8, True),
    "v_dot4_u32_u8": (8, False),
    "v_dot8_i32_i4": (4, True),
    "v_dot8_u32_u4": (4, False),
}


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("name", DOTS)
def test_integer_dots(name, clamp):
    bits, signed = DOTS[name]
    a, b, c = (lane_values("u32", k) for k in range(3))
    got = run_asm(f"{name} v3, v1, v2, v3" + (" clamp" if clamp else ""), v={1: a, 2: b, 3: c}, exec_mask=PARTIAL).v[3]
    start = c.view(np.int32).astype(np.int64) if signed else c.astype(np.int64)
    total = (elements(a, bits, signed) * elements(b, bits, signed)).sum(1) + start
    if clamp:
        total = np.clip(total, -(2**31) if signed else 0, 2**31 - 1 if signed else 2**32 - 1)
    active = np.array([PARTIAL >> k & 1 for k in range(64)], bool)
    np.testing.assert_array_equal(got, np.where(active, total & 0xFFFFFFFF, c))


@pytest.mark.parametrize("name,bits", [("v_dot2c_i32_i16", 16), ("v_dot4c_i32_i8", 8), ("v_dot8c_i32_i4", 4)])
def test_accumulating_integer_dots(name, bits):
    a, b, c = (lane_values("u32", k) for k in range(3))
    got = run_asm(f"{name} v3, v1, v2", v={1: a, 2: b, 3: c}).v[3]
    total = (elements(a, bits, True) * elements(b, bits, True)).sum(1) + c.view(np.int32)
    np.testing.assert_array_equal(got, total & 0xFFFFFFFF)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_float_dots(kind):
    t = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((64, 2)).astype(t) for _ in range(2))
    c = rng.standard_normal(64).astype(np.float32)
    v = {1: words(a), 2: words(b), 3: c.view(np.uint32), 4: c.view(np.uint32)}
    out = run_asm(f"v_dot2_f32_{kind} v0, v1, v2, v3\nv_dot2c_f32_{kind} v4, v1, v2", v=v, mode=DEFAULT_MODE)
    want = ((a.astype(np.float64) * b.astype(np.float64)).sum(1) + c).astype(np.float32)
    np.testing.assert_array_equal(out.v[0].view(np.float32), want)
    np.testing.assert_array_equal(out.v[4].view(np.float32), want)
