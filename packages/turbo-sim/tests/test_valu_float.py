# SPDX-License-Identifier: MIT
"""f16, f32 and f64 arithmetic against exact fractions: all of MODE's roundings, subnormals, modifiers, NaN rules."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from turbo_sim.testing import ALL, DEFAULT_MODE, FP16_OVFL, lane_values, put, run_asm, why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

PARTIAL = 0x8000_0F0F_5A5A_0001
NEAREST, UP, DOWN, ZERO = range(4)


class Format:
    def __init__(self, name: str, exponent: int, mantissa: int):
        self.name, self.e, self.m = name, exponent, mantissa
        self.bias = (1 << (exponent - 1)) - 1
        self.sign = 1 << (exponent + mantissa)
        self.inf = ((1 << exponent) - 1) << mantissa
        self.quiet = 1 << (mantissa - 1)

    def is_nan(self, code: int) -> bool:
        return (code & (self.sign - 1)) > self.inf

    def is_subnormal(self, code: int) -> bool:
        return 0 < code & (self.sign - 1) < 1 << self.m

    def value(self, code: int) -> Fraction | float:
        """Exact value; infinities and NaN as floats, zeros as floats to keep their sign."""
        magnitude, negative = code & (self.sign - 1), code & self.sign
        if magnitude > self.inf:
            return math.nan
        if magnitude == self.inf:
            return -math.inf if negative else math.inf
        if magnitude == 0:
            return -0.0 if negative else 0.0
        field, fraction = magnitude >> self.m, magnitude & ((1 << self.m) - 1)
        significand = fraction + (1 << self.m) if field else fraction
        x = Fraction(significand) * Fraction(2) ** ((field or 1) - self.bias - self.m)
        return -x if negative else x

    def encode(self, x: Fraction | float, mode: int = NEAREST, clamp_max: bool = False) -> int:
        if isinstance(x, float):
            if math.isnan(x):
                return self.inf | self.quiet
            sign = self.sign if math.copysign(1, x) < 0 else 0
            if math.isinf(x):
                return sign | self.inf
            if x == 0:
                return sign
            x = Fraction(x)
        sign = self.sign if x < 0 else 0
        m = abs(x)
        exponent = m.numerator.bit_length() - m.denominator.bit_length()
        if Fraction(2) ** exponent > m:
            exponent -= 1
        last = max(exponent, 1 - self.bias) - self.m
        units = m / Fraction(2) ** last
        low = math.floor(units)
        rest = units - low
        up = {
            NEAREST: rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1),
            UP: rest > 0 and not sign,
            DOWN: rest > 0 and bool(sign),
            ZERO: False,
        }[mode]
        units = low + up
        code = units if units < 1 << self.m else ((last + self.m + self.bias - 1) << self.m) + units
        if code >= self.inf:
            to_max = clamp_max or mode == ZERO or (mode == UP and sign) or (mode == DOWN and not sign)
            code = self.inf - 1 if to_max else self.inf
        return sign | code


F = {"f16": Format("f16", 5, 10), "f32": Format("f32", 8, 23), "f64": Format("f64", 11, 52)}


def zero(negative: bool) -> float:
    return -0.0 if negative else 0.0


def is_negative(x) -> bool:
    return math.copysign(1, x) < 0 if isinstance(x, float) else x < 0


def add(x, y, mode=NEAREST):
    if isinstance(x, float) and not math.isfinite(x) or isinstance(y, float) and not math.isfinite(y):
        return float(x if isinstance(x, float) else 0) + float(y if isinstance(y, float) else 0)
    total = Fraction(x) + Fraction(y)
    if total:
        return total
    if x == 0 and y == 0 and is_negative(x) == is_negative(y):
        return x
    return zero(mode == DOWN)


def mul(x, y):
    negative = is_negative(x) != is_negative(y)
    if any(isinstance(v, float) and math.isnan(v) for v in (x, y)):
        return math.nan
    if any(isinstance(v, float) and math.isinf(v) for v in (x, y)):
        return math.nan if x == 0 or y == 0 else (-math.inf if negative else math.inf)
    product = Fraction(x) * Fraction(y)
    return product if product else zero(negative)


def neg(x):
    return -x


def rint(x, how):
    if isinstance(x, float) and not math.isfinite(x):
        return x
    r = how(Fraction(x))
    return Fraction(r) if r else zero(is_negative(x))


# name: (arity, function of (rounding mode, values)); {} is the type
ARITHMETIC = {
    "v_add_{}": (2, lambda mode, a, b: add(a, b, mode)),
    "v_sub_{}": (2, lambda mode, a, b: add(a, neg(b), mode)),
    "v_subrev_{}": (2, lambda mode, a, b: add(b, neg(a), mode)),
    "v_mul_{}": (2, lambda mode, a, b: mul(a, b)),
    "v_fma_{}": (3, lambda mode, a, b, c: add(mul(a, b), c, mode)),
    "v_floor_{}": (1, lambda mode, a: rint(a, math.floor)),
    "v_ceil_{}": (1, lambda mode, a: rint(a, math.ceil)),
    "v_trunc_{}": (1, lambda mode, a: rint(a, math.trunc)),
    "v_rndne_{}": (1, lambda mode, a: rint(a, round)),
}
MISSING = {("v_sub_{}", "f64"), ("v_subrev_{}", "f64")}
CASES = [(pattern, t) for pattern in ARITHMETIC for t in F if (pattern, t) not in MISSING]
KEEPS_HIGH = {"v_fma_f16", "v_min3_f16", "v_max3_f16", "v_med3_f16"}


def mode_bits(t: str, rounding: int, denormals: int = 3) -> int:
    shift = 0 if t == "f32" else 2
    base = DEFAULT_MODE & ~(0b11 << (4 + shift))
    return base | rounding << shift | denormals << (4 + shift)


def register(t: str, row: int) -> str:
    return f"v[{row}:{row + 1}]" if t == "f64" else f"v{row}"


def run_op(text: str, t: str, sources, dst: int, old, mode: int, mask: int = ALL, arch: str = "gfx942"):
    v: dict[int, np.ndarray] = {}
    put(v, 0, old)
    for k, x in enumerate(sources):
        put(v, 2 * k + 2, x)
    out = run_asm(text, arch=arch, v=v, mode=mode, exec_mask=mask)
    return (out.v64(dst) if t == "f64" else out.v[dst]), v


def same(f: Format, got: int, want: int) -> bool:
    return f.is_nan(got) if f.is_nan(want) else got == want


def old_values(t: str) -> np.ndarray:
    return lane_values("u64" if t == "f64" else "u32", 77)


def check(name, t, sources, want_codes, suffix="", mode=DEFAULT_MODE, mask=ALL, operands=None):
    """Runs with a separate destination and with the destination on the first source."""
    f, old = F[t], old_values(t)
    args = operands or [register(t, 2 * k + 2) for k in range(len(sources))]
    for dst in (0, 2):
        text = f"{name} {register(t, dst)}, " + ", ".join(args) + suffix
        got, v = run_op(text, t, sources, dst, old, mode, mask)
        before = (v[dst].astype(np.uint64) | v[dst + 1].astype(np.uint64) << np.uint64(32)) if t == "f64" else v[dst]
        for lane in range(64):
            g, b = int(got[lane]), int(before[lane])
            if not mask >> lane & 1:
                assert g == b, (text, lane, "inactive lane written")
                continue
            if t == "f16":
                assert g >> 16 == (b >> 16 if name in KEEPS_HIGH else 0), (text, lane, "upper half")
                g &= 0xFFFF
            w = want_codes[lane]
            assert same(f, g, w), (text, lane, [hex(int(s[lane])) for s in sources], hex(g), hex(w))


def flush(f: Format, code: int) -> int:
    return code & f.sign if f.is_subnormal(code) else code


def expected(f, function, rounding, codes, denormals=3, clamp_max=False):
    if not denormals & 1:
        codes = [flush(f, c) for c in codes]
    r = f.encode(function(rounding, *(f.value(c) for c in codes)), rounding, clamp_max)
    return r if denormals & 2 else flush(f, r)


@pytest.mark.parametrize("rounding", [NEAREST, UP, DOWN, ZERO])
@pytest.mark.parametrize("pattern,t", CASES)
def test_arithmetic(pattern, t, rounding):
    arity, function = ARITHMETIC[pattern]
    f = F[t]
    for seed in range(6):
        sources = [lane_values(t, 7 * seed + k) for k in range(arity)]
        want = [expected(f, function, rounding, [int(s[lane]) for s in sources]) for lane in range(64)]
        check(pattern.format(t), t, sources, want, mode=mode_bits(t, rounding), mask=ALL if seed % 2 else PARTIAL)


@pytest.mark.parametrize("denormals", [0, 1, 2])
@pytest.mark.parametrize("pattern,t", CASES)
def test_subnormal_modes(pattern, t, denormals):
    arity, function = ARITHMETIC[pattern]
    f = F[t]
    for seed in range(3):
        sources = [lane_values(t, 11 * seed + k) for k in range(arity)]
        tiny = np.array([k * 37 % (1 << f.m) for k in range(64)], sources[0].dtype)
        sources[0] = np.where(np.arange(64) % 3 == 0, tiny, sources[0])
        want = [expected(f, function, NEAREST, [int(s[lane]) for s in sources], denormals) for lane in range(64)]
        check(pattern.format(t), t, sources, want, mode=mode_bits(t, NEAREST, denormals))


@pytest.mark.parametrize("t", F)
def test_neg_abs_and_scalars(t):
    f = F[t]
    a, b, c = (lane_values(t, 20 + k) for k in range(3))
    minus, absolute = (lambda x: x ^ f.sign), (lambda x: x & (f.sign - 1))
    variants = [
        (["-{}", "{}", "{}"], (minus, int, int)),
        (["|{}|", "-{}", "{}"], (absolute, minus, int)),
        (["-|{}|", "|{}|", "-|{}|"], (lambda x: minus(absolute(x)), absolute, lambda x: minus(absolute(x)))),
    ]
    for texts, changes in variants:
        operands = [text.format(register(t, 2 * k + 2)) for k, text in enumerate(texts)]
        want = [
            expected(f, ARITHMETIC["v_fma_{}"][1], NEAREST, [ch(int(s[lane])) for ch, s in zip(changes, (a, b, c))])
            for lane in range(64)
        ]
        check(f"v_fma_{t}", t, [a, b, c], want, operands=operands)
    one, half = f.encode(Fraction(1)), f.encode(Fraction(-1, 2))
    for text, code in (("1.0", one), ("-0.5", half), ("4.0", f.encode(Fraction(4)))):
        want = [
            expected(f, ARITHMETIC["v_fma_{}"][1], NEAREST, [code, int(b[lane]), int(c[lane])]) for lane in range(64)
        ]
        check(f"v_fma_{t}", t, [a, b, c], want, operands=[text, register(t, 4), register(t, 6)])


def test_integer_constants_are_bits():
    got = run_asm("v_add_f32 v0, 1, v1", v={1: np.zeros(64, np.uint32)}).v[0]
    assert set(got.tolist()) == {1}  # the smallest subnormal, not 1.0


@pytest.mark.parametrize("t", F)
@pytest.mark.parametrize("suffix,scale", [(" mul:2", 2), (" mul:4", 4), (" div:2", Fraction(1, 2))])
def test_omod(t, suffix, scale):
    f = F[t]
    a, b = (
        np.array([f.encode(Fraction(k * 3 - 90, 7)) for k in range(j, 64 + j)], lane_values(t, 0).dtype) for j in (0, 5)
    )
    rounded = [f.value(expected(f, ARITHMETIC["v_add_{}"][1], NEAREST, [int(x), int(y)])) for x, y in zip(a, b)]
    want = [f.encode(mul(r, Fraction(scale))) for r in rounded]
    check(f"v_add_{t}" + ("" if t == "f64" else "_e64"), t, [a, b], want, suffix=suffix)


@pytest.mark.parametrize("t", F)
def test_clamp(t):
    f = F[t]
    one = f.encode(Fraction(1))
    for seed in range(3):
        a, b = lane_values(t, seed), lane_values(t, seed + 30)
        want = []
        for x, y in zip(a, b):
            r = expected(f, ARITHMETIC["v_mul_{}"][1], NEAREST, [int(x), int(y)])
            want.append(0 if f.is_nan(r) or r & f.sign else min(r, one))
        check(f"v_mul_{t}" + ("" if t == "f64" else "_e64"), t, [a, b], want, suffix=" clamp")


def test_clamp_keeps_nan_without_dx10_clamp():
    nan = np.full(64, 0x7FC00000, np.uint32)
    out = run_asm("v_mul_f32_e64 v0, v1, v1 clamp", v={1: nan}, mode=DEFAULT_MODE & ~0x100)
    assert set(out.v[0].tolist()) == {0x7FC00000}


@pytest.mark.parametrize("text", ["v_add_f16 v0, v2, v4", "v_mul_f16 v0, v2, v4", "v_fma_f16 v0, v2, v4, v6"])
def test_fp16_ovfl_clamps_but_keeps_infinity(text):
    f = F["f16"]
    name = text.split()[0]
    arity, function = ARITHMETIC[name.replace("f16", "{}")]
    sources = [lane_values("f16", 60 + k) for k in range(arity)]
    big = np.full(64, 0x7B80, np.uint32)
    sources = [np.where(np.arange(64) % 2 == 0, big + k, s) for k, s in enumerate(sources)]
    want = [expected(f, function, NEAREST, [int(s[lane]) for s in sources], clamp_max=True) for lane in range(64)]
    check(name, "f16", sources, want, mode=DEFAULT_MODE | FP16_OVFL)


# --- NaN ----------------------------------------------------------------------------------------------------------
def test_nan_results():
    """The first NaN source, made quiet; a made NaN is 0x7FC00000."""
    a = np.array([0x7F800001, 0x3F800000, 0x7F800000, 0xFFC12345] * 16, np.uint32)
    b = np.array([0x7FC54321, 0xFFA00001, 0xFF800000, 0x7FC00001] * 16, np.uint32)
    got = run_asm("v_add_f32 v0, v1, v2", v={1: a, 2: b}).v[0][:4]
    assert [hex(x) for x in got] == ["0x7fc00001", "0xffe00001", "0x7fc00000", "0xffc12345"]
    got = run_asm("v_fma_f32 v0, v1, v2, v3", v={1: a, 2: np.zeros(64, np.uint32), 3: b}).v[0][:4]
    assert [hex(x) for x in got] == ["0x7fc00001", "0xffe00001", "0x7fc00000", "0xffc12345"]


# --- min, max, med ------------------------------------------------------------------------------------------------
def minimum(f, a, b, greatest, ieee):
    for x in (a, b):
        if ieee and f.is_nan(x) and not x & f.quiet:
            return x | f.quiet
    if f.is_nan(a):
        return b
    if f.is_nan(b):
        return a
    key = lambda c: (f.value(c), not c & f.sign)  # noqa: E731  (-0 below +0)
    return max(a, b, key=key) if greatest else min(a, b, key=key)


@pytest.mark.parametrize("ieee", [True, False])
@pytest.mark.parametrize("t", F)
@pytest.mark.parametrize("name", ["min", "max"])
def test_min_max(name, t, ieee):
    f = F[t]
    mode = DEFAULT_MODE if ieee else DEFAULT_MODE & ~0x200
    for seed in range(6):
        a, b = lane_values(t, seed), lane_values(t, seed + 40)
        want = [minimum(f, int(x), int(y), name == "max", ieee) for x, y in zip(a, b)]
        check(f"v_{name}_{t}", t, [a, b], want, mode=mode)


@pytest.mark.parametrize("t", ["f16", "f32"])
@pytest.mark.parametrize("name", ["min3", "max3", "med3"])
def test_three_way(name, t):
    f = F[t]
    for seed in range(6):
        sources = [lane_values(t, seed + 40 * k) for k in range(3)]
        want = []
        for x in zip(*sources):
            a, b, c = map(int, x)
            if name == "med3" and not any(map(f.is_nan, (a, b, c))):
                want.append(sorted((a, b, c), key=lambda k: (f.value(k), not k & f.sign))[1])
            else:
                greatest = name == "max3"
                want.append(minimum(f, minimum(f, a, b, greatest, True), c, greatest, True))
        check(f"v_{name}_{t}", t, sources, want)


# --- accumulating and literal forms -------------------------------------------------------------------------------
@pytest.mark.parametrize("t", ["f32", "f64"])
def test_fmac(t):
    f = F[t]
    a, b, c = (lane_values(t, 80 + k) for k in range(3))
    v: dict[int, np.ndarray] = {}
    put(v, 2, a), put(v, 4, b), put(v, 6, c)
    out = run_asm(f"v_fmac_{t} {register(t, 6)}, {register(t, 2)}, {register(t, 4)}", v=v, exec_mask=PARTIAL)
    got = out.v64(6) if t == "f64" else out.v[6]
    for lane in range(64):
        want = expected(f, ARITHMETIC["v_fma_{}"][1], NEAREST, [int(s[lane]) for s in (a, b, c)])
        assert same(f, int(got[lane]), want if PARTIAL >> lane & 1 else int(c[lane]))


def test_fmamk_and_fmaak():
    f, (a, b) = F["f32"], (lane_values("f32", 90), lane_values("f32", 91))
    literal = f.encode(Fraction(123456789, 1000))
    out = run_asm(f"v_fmamk_f32 v0, v1, {literal:#x}, v2\nv_fmaak_f32 v3, v1, v2, {literal:#x}", v={1: a, 2: b})
    for lane in range(64):
        x, y = int(a[lane]), int(b[lane])
        fma = ARITHMETIC["v_fma_{}"][1]
        assert same(f, int(out.v[0][lane]), expected(f, fma, NEAREST, [x, literal, y]))
        assert same(f, int(out.v[3][lane]), expected(f, fma, NEAREST, [x, y, literal]))


# --- exponents ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("t", F)
def test_ldexp(t):
    f = F[t]
    for seed in range(4):
        a, n = lane_values(t, seed), lane_values("u32", seed)
        n = np.where(np.arange(64) % 2 == 0, (n % 400) - np.uint32(200), n).astype(np.uint32)
        want = []
        for x, k in zip(a, n):
            k = int(np.uint32(k))
            k = (k & 0xFFFF ^ 0x8000) - 0x8000 if t == "f16" else (k ^ 0x80000000) - 0x80000000
            value = f.value(int(x))
            special = isinstance(value, float)
            want.append(f.encode(value if special else value * Fraction(2) ** max(-5000, min(5000, k))))
        v: dict[int, np.ndarray] = {1: n}
        put(v, 2, a)
        out = run_asm(f"v_ldexp_{t} {register(t, 4)}, {register(t, 2)}, v1", v=v)
        got = out.v64(4) if t == "f64" else out.v[4]
        assert all(same(f, int(g), w) for g, w in zip(got, want))


@pytest.mark.parametrize("t", F)
def test_frexp_and_fract(t):
    f = F[t]
    exponent = {"f16": "v_frexp_exp_i16_f16", "f32": "v_frexp_exp_i32_f32", "f64": "v_frexp_exp_i32_f64"}[t]
    for seed in range(4):
        a = lane_values(t, seed)
        v: dict[int, np.ndarray] = {}
        put(v, 2, a)
        out = run_asm(
            f"{exponent} v0, {register(t, 2)}\nv_frexp_mant_{t} {register(t, 4)}, {register(t, 2)}\n"
            f"v_fract_{t} {register(t, 6)}, {register(t, 2)}",
            v=v,
        )
        mantissas, fracts = (out.v64(r) if t == "f64" else out.v[r] for r in (4, 6))
        for lane in range(64):
            x = f.value(int(a[lane]))
            if isinstance(x, float) and not math.isfinite(x):
                assert out.v[0][lane] == 0 and same(f, int(mantissas[lane]), int(a[lane]))
                assert f.is_nan(int(fracts[lane]))
                continue
            e = 0
            if x:
                e = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
                e = e if Fraction(2) ** e > abs(x) else e + 1
            assert int(out.v[0][lane]) == e & (0xFFFF if t == "f16" else 0xFFFFFFFF)
            assert int(mantissas[lane]) == f.encode(x / Fraction(2) ** e if x else x)
            part = Fraction(x) - math.floor(Fraction(x))
            below_one = f.encode(Fraction(1)) - 1
            want = min(f.encode(part), below_one) if part else 0
            assert int(fracts[lane]) == want
