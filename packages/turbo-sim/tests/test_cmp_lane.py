# SPDX-License-Identifier: MIT
"""Compares, classes, selects, and instructions that cross lanes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from turbo_sim.testing import AGPR, ALL, EXEC, VCC, lane_values, put, run_asm, why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

PARTIAL = 0x8000_0F0F_5A5A_0001
INT = {
    "f": lambda a, b: False,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "t": lambda a, b: True,
}


def ordered(a, b):
    return not (math.isnan(a) or math.isnan(b))


FLOAT = {
    "f": lambda a, b: False,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: ordered(a, b) and a != b,
    "ge": lambda a, b: a >= b,
    "o": ordered,
    "u": lambda a, b: not ordered(a, b),
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (ordered(a, b) and a != b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: not (ordered(a, b) and a == b),
    "nlt": lambda a, b: not a < b,
    "tru": lambda a, b: True,
}


def value(t: str, code: int):
    bits = int(t[1:])
    code &= (1 << bits) - 1
    if t[0] == "f":
        kind = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
        return float(np.array(code, kind).view(f"f{bits // 8}"))
    return code - (1 << bits) if t[0] == "i" and code >> (bits - 1) else code


CASES = [(r, t) for t in ("i16", "u16", "i32", "u32", "i64", "u64") for r in INT]
CASES += [(r, t) for t in ("f16", "f32", "f64") for r in FLOAT]


@pytest.mark.parametrize("cmpx", [False, True])
@pytest.mark.parametrize("relation,t", CASES)
def test_compare(relation, t, cmpx):
    f = (FLOAT if t[0] == "f" else INT)[relation]
    name = f"v_cmp{'x' if cmpx else ''}_{relation}_{t}"
    kind = t if t in ("f16", "f32", "f64", "i64", "u64") else "u32"
    wide = t.endswith("64")
    for seed, mask in itertools.product(range(3), (ALL, PARTIAL)):
        a, b = lane_values(kind, seed), lane_values(kind, seed + 60)
        b = np.where(np.arange(64) % 4 == 0, a, b)  # equal lanes are otherwise rare
        v: dict[int, np.ndarray] = {}
        put(v, 2, a), put(v, 4, b)
        x, y = ("v[2:3]", "v[4:5]") if wide else ("v2", "v4")
        want = sum(
            1 << lane for lane in range(64) if mask >> lane & 1 and f(value(t, int(a[lane])), value(t, int(b[lane])))
        )
        for text, at in ((f"{name}_e32 vcc, {x}, {y}", VCC), (f"{name}_e64 s[10:11], {x}, {y}", 10)):
            out = run_asm(text, v=v, exec_mask=mask, vcc=ALL, s={10: 0xFFFFFFFF, 11: 0xFFFFFFFF})
            assert out.s64(at) == want, text
            assert out.s64(EXEC) == (want if cmpx else mask)


def test_compare_modifiers():
    a, b = lane_values("f32", 1), lane_values("f32", 2)
    got = run_asm("v_cmp_lt_f32_e64 s[10:11], -|v1|, |v2|", v={1: a, 2: b}).s64(10)
    want = sum(1 << k for k in range(64) if -abs(value("f32", int(a[k]))) < abs(value("f32", int(b[k]))))
    assert got == want


def classify(code: int, bits: int) -> int:
    e, m = {16: (5, 10), 32: (8, 23), 64: (11, 52)}[bits]
    negative, field, fraction = code >> (bits - 1), code >> m & ((1 << e) - 1), code & ((1 << m) - 1)
    if field == (1 << e) - 1:
        return (1 if fraction >> (m - 1) else 0) if fraction else (2 if negative else 9)
    if field:
        return 3 if negative else 8
    return (4 if negative else 7) if fraction else (5 if negative else 6)


@pytest.mark.parametrize("t", ["f16", "f32", "f64"])
def test_class(t):
    bits = int(t[1:])
    for seed in range(4):
        a, m = lane_values(t, seed), lane_values("u32", seed) & np.uint32(0x3FF)
        v: dict[int, np.ndarray] = {6: m}
        put(v, 2, a)
        source = "v[2:3]" if bits == 64 else "v2"
        out = run_asm(f"v_cmp_class_{t}_e64 s[10:11], {source}, v6\nv_cmpx_class_{t}_e64 s[12:13], {source}, v6", v=v)
        want = sum(1 << k for k in range(64) if int(m[k]) >> classify(int(a[k]), bits) & 1)
        assert out.s64(10) == out.s64(12) == out.s64(EXEC) == want


# --- select -------------------------------------------------------------------------------------------------------
def test_cndmask():
    a, b = lane_values("u32", 1), lane_values("u32", 2)
    select = 0x0123_4567_89AB_CDEF
    lanes = np.array([select >> k & 1 for k in range(64)], bool)
    out = run_asm(
        "v_cndmask_b32_e32 v0, v1, v2, vcc\nv_cndmask_b32_e64 v3, -v1, |v2|, s[6:7]\nv_cndmask_b32_e64 v4, 0, 1.0, vcc",
        v={1: a, 2: b},
        vcc=select,
        s={6: select & 0xFFFFFFFF, 7: select >> 32},
    )
    np.testing.assert_array_equal(out.v[0], np.where(lanes, b, a))
    np.testing.assert_array_equal(out.v[3], np.where(lanes, b & 0x7FFFFFFF, a ^ 0x80000000))
    np.testing.assert_array_equal(out.v[4], np.where(lanes, 0x3F800000, 0))
    out = run_asm("v_cndmask_b32_e32 v2, v1, v2, vcc", v={1: a, 2: b}, vcc=select, exec_mask=PARTIAL)
    active = np.array([PARTIAL >> k & 1 for k in range(64)], bool)
    np.testing.assert_array_equal(out.v[2], np.where(active & ~lanes, a, b))


# --- lanes to and from scalars ------------------------------------------------------------------------------------
def test_readlane_and_writelane_ignore_exec():
    a = lane_values("u32", 3)
    out = run_asm(
        "v_readlane_b32 s0, v1, 5\nv_readlane_b32 s1, v1, s10\nv_readlane_b32 s2, v1, m0\n"
        "v_writelane_b32 v2, s11, 9\nv_writelane_b32 v2, -7, s10",
        v={1: a, 2: a},
        s={10: 63 + 64, 11: 0xCAFE, 124: 17},
        exec_mask=1,
    )
    assert [int(x) for x in out.s[:3]] == [a[5], a[63], a[17]]
    want = a.copy()
    want[9], want[63] = 0xCAFE, 0xFFFFFFF9
    np.testing.assert_array_equal(out.v[2], want)


@pytest.mark.parametrize("mask,lane", [(ALL, 0), (PARTIAL & ~1, 17), (1 << 63, 63), (0, 0)])
def test_readfirstlane(mask, lane):
    a = lane_values("u32", 4)
    lane = (mask & -mask).bit_length() - 1 if mask else 0
    assert run_asm("v_readfirstlane_b32 s0, v1", v={1: a}, exec_mask=mask).s[0] == a[lane]


def test_mbcnt():
    text = "v_mbcnt_lo_u32_b32 v0, s4, 0\nv_mbcnt_hi_u32_b32 v0, s5, v0"
    mask = 0xF0F0_1234_8765_4321
    out = run_asm(text, s={4: mask & 0xFFFFFFFF, 5: mask >> 32}).v[0]
    assert out.tolist() == [bin(mask & ((1 << k) - 1)).count("1") for k in range(64)]
    assert run_asm("v_mbcnt_lo_u32_b32 v0, -1, 0\nv_mbcnt_hi_u32_b32 v0, -1, v0").v[0].tolist() == list(range(64))


@pytest.mark.parametrize("rows", [16, 32])
def test_permlane_swap(rows):
    """Odd rows (the upper half) of the first register trade places with even rows (the lower half) of the second."""
    a, b = lane_values("u32", 5), lane_values("u32", 6)
    out = run_asm(f"v_permlane{rows}_swap_b32 v0, v1", v={0: a, 1: b})
    want_a, want_b = a.copy(), b.copy()
    for base in range(0, 64, 2 * rows):
        want_a[base + rows : base + 2 * rows] = b[base : base + rows]
        want_b[base : base + rows] = a[base + rows : base + 2 * rows]
    np.testing.assert_array_equal(out.v[0], want_a)
    np.testing.assert_array_equal(out.v[1], want_b)


def test_swap_and_accvgpr():
    a, b = lane_values("u32", 7), lane_values("u32", 8)
    out = run_asm("v_swap_b32 v0, v1", v={0: a, 1: b}, exec_mask=PARTIAL)
    active = np.array([PARTIAL >> k & 1 for k in range(64)], bool)
    np.testing.assert_array_equal(out.v[0], np.where(active, b, a))
    np.testing.assert_array_equal(out.v[1], np.where(active, a, b))
    out = run_asm(
        "v_accvgpr_write_b32 a3, v0\nv_accvgpr_read_b32 v2, a3\nv_accvgpr_mov_b32 a4, a3\nv_accvgpr_write_b32 a5, -3",
        v={0: a, 2: b},
    )
    np.testing.assert_array_equal(out.v[2], a)
    np.testing.assert_array_equal(out.v[AGPR + 4], a)
    assert set(out.v[AGPR + 5].tolist()) == {0xFFFFFFFD}


def test_nop():
    a = lane_values("u32", 9)
    np.testing.assert_array_equal(run_asm("v_nop", v={0: a}).v[0], a)
