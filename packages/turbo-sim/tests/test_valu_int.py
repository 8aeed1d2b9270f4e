# SPDX-License-Identifier: MIT
"""Integer VALU instructions against Python integers: edge values, partial EXEC, in-place and scalar operands."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import ALL, VCC, lane_values, put, run_asm, why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

M32, M64 = 0xFFFFFFFF, (1 << 64) - 1
PARTIAL = 0x8000_0F0F_5A5A_0001


def s(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def clamp(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


def bytes_of(x: int, n: int = 4) -> list[int]:
    return [x >> (8 * k) & 255 for k in range(n)]


def perm(a: int, b: int, c: int) -> int:
    table = bytes_of(b) + bytes_of(a)
    out = 0
    for k, sel in enumerate(bytes_of(c)):
        if sel < 8:
            byte = table[sel]
        elif sel < 12:
            byte = 255 if table[2 * (sel - 8) + 1] & 0x80 else 0
        else:
            byte = 0 if sel == 12 else 255
        out |= byte << (8 * k)
    return out


def bfe_i32(a: int, b: int, c: int) -> int:
    width = c & 31
    return s(s(a) >> (b & 31), width) if width else 0


def med(*x: int) -> int:
    return sorted(x)[1]


def ff(text: str) -> int:
    return text.index("1") if "1" in text else -1


def ffbh_i32(a: int) -> int:
    text = f"{a:032b}"
    other = "0" if text[0] == "1" else "1"
    return text.index(other) if other in text else -1


UNARY = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32": lambda a: ff(f"{a:032b}"),
    "v_ffbl_b32": lambda a: ff(f"{a:032b}"[::-1]),
    "v_ffbh_i32": ffbh_i32,
    "v_sat_pk_u8_i16": lambda a: clamp(s(a, 16), 0, 255) | clamp(s(a >> 16, 16), 0, 255) << 8,
}
BINARY = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_add_i32": lambda a, b: a + b,
    "v_sub_i32": lambda a, b: a - b,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: s(b) >> (a & 31),
    "v_min_i32": lambda a, b: min(s(a), s(b)),
    "v_max_i32": lambda a, b: max(s(a), s(b)),
    "v_min_u32": min,
    "v_max_u32": max,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: s(a) * s(b) >> 32,
    "v_mul_i32_i24": lambda a, b: s(a, 24) * s(b, 24),
    "v_mul_hi_i32_i24": lambda a, b: s(a, 24) * s(b, 24) >> 32,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bcnt_u32_b32": lambda a, b: bin(a).count("1") + b,
    "v_cvt_pk_u16_u32": lambda a, b: min(a, 0xFFFF) | min(b, 0xFFFF) << 16,
    "v_cvt_pk_i16_i32": lambda a, b: (
        (clamp(s(a), -32768, 32767) & 0xFFFF) | (clamp(s(b), -32768, 32767) & 0xFFFF) << 16
    ),
}
TERNARY = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & M32) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: (a << (b & 31)) | c,
    "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfe_i32": bfe_i32,
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> (8 * (c & 3)),
    "v_perm_b32": perm,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: s(a, 24) * s(b, 24) + c,
    "v_mad_u32_u16": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_mad_i32_i16": lambda a, b, c: s(a, 16) * s(b, 16) + c,
    "v_min3_i32": lambda a, b, c: min(s(a), s(b), s(c)),
    "v_min3_u32": min,
    "v_max3_i32": lambda a, b, c: max(s(a), s(b), s(c)),
    "v_max3_u32": max,
    "v_med3_i32": lambda a, b, c: med(s(a), s(b), s(c)),
    "v_med3_u32": med,
    "v_sad_u8": lambda a, b, c: sum(abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b))) + c,
    "v_sad_hi_u8": lambda a, b, c: (sum(abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b))) << 16) + c,
    "v_sad_u16": lambda a, b, c: abs((a & 0xFFFF) - (b & 0xFFFF)) + abs((a >> 16) - (b >> 16)) + c,
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_msad_u8": lambda a, b, c: sum(abs(x - y) if y else 0 for x, y in zip(bytes_of(a), bytes_of(b))) + c,
    "v_lerp_u8": lambda a, b, c: sum(
        ((x + y + (z & 1)) >> 1) << (8 * k) for k, (x, y, z) in enumerate(zip(bytes_of(a), bytes_of(b), bytes_of(c)))
    ),
}
# 16-bit: operands are low halves. True: the upper half of the destination is kept.
BINARY16 = {
    "v_add_u16": (lambda a, b: a + b, False),
    "v_sub_u16": (lambda a, b: a - b, False),
    "v_subrev_u16": (lambda a, b: b - a, False),
    "v_mul_lo_u16": (lambda a, b: a * b, False),
    "v_lshlrev_b16": (lambda a, b: b << (a & 15), False),
    "v_lshrrev_b16": (lambda a, b: b >> (a & 15), False),
    "v_ashrrev_i16": (lambda a, b: s(b, 16) >> (a & 15), False),
    "v_max_u16": (max, False),
    "v_min_u16": (min, False),
    "v_max_i16": (lambda a, b: max(s(a, 16), s(b, 16)), False),
    "v_min_i16": (lambda a, b: min(s(a, 16), s(b, 16)), False),
    "v_add_i16": (lambda a, b: a + b, True),
    "v_sub_i16": (lambda a, b: a - b, True),
}
TERNARY16 = {
    "v_mad_u16": lambda a, b, c: a * b + c,
    "v_mad_i16": lambda a, b, c: a * b + c,
    "v_min3_i16": lambda a, b, c: min(s(a, 16), s(b, 16), s(c, 16)),
    "v_min3_u16": min,
    "v_max3_i16": lambda a, b, c: max(s(a, 16), s(b, 16), s(c, 16)),
    "v_max3_u16": max,
    "v_med3_i16": lambda a, b, c: med(s(a, 16), s(b, 16), s(c, 16)),
    "v_med3_u16": med,
}


def check(name: str, f, n: int, arch: str = "gfx942", suffix: str = "", kept=lambda new, old: new & M32) -> None:
    """Destination apart, on each source, under partial EXEC; src0 also as SGPR and as inline constant."""
    for seed in range(5):
        sources = [lane_values("u32", 10 * seed + k) for k in range(n)]
        old = lane_values("u32", 99 + seed)
        for dst in range(n + 1):
            for mask in (ALL, PARTIAL):
                v = {k + 1: x for k, x in enumerate(sources)}
                if dst == 0:
                    v[0] = old
                text = f"{name} v{dst}, " + ", ".join(f"v{k + 1}" for k in range(n)) + suffix
                got = run_asm(text, arch=arch, v=v, exec_mask=mask).v[dst]
                for lane in range(64):
                    before = int(v[dst][lane])
                    want = kept(f(*(int(x[lane]) for x in sources)), before) if mask >> lane & 1 else before
                    assert int(got[lane]) == want, (
                        text,
                        lane,
                        [hex(int(x[lane])) for x in sources],
                        hex(int(got[lane])),
                        hex(want),
                    )
        scalar = int(sources[0][seed])
        for operand, value in (("s7", scalar), ("-3", -3 & M32), ("17", 17)):
            text = f"{name} v0, {operand}" + "".join(f", v{k + 1}" for k in range(1, n)) + suffix
            got = run_asm(text, arch=arch, v={0: old} | {k + 1: x for k, x in enumerate(sources)}, s={7: scalar}).v[0]
            want = [kept(f(value, *(int(x[lane]) for x in sources[1:])), int(old[lane])) for lane in range(64)]
            assert got.tolist() == want, text


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(name, UNARY[name], 1)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    check(name, BINARY[name], 2)


@pytest.mark.parametrize("name", TERNARY)
def test_ternary(name):
    check(name, TERNARY[name], 3)


def halves(f, kept):
    """Wraps a 16-bit function: low halves in, merge with the old register out."""
    return (lambda *x: f(*(v & 0xFFFF for v in x))), (
        lambda new, old: (new & 0xFFFF) | (old & 0xFFFF0000 if kept else 0)
    )


@pytest.mark.parametrize("name", BINARY16)
def test_binary16(name):
    f, kept = BINARY16[name]
    g, merge = halves(f, kept)
    check(name, g, 2, kept=merge)


@pytest.mark.parametrize("name", TERNARY16)
def test_ternary16(name):
    g, merge = halves(TERNARY16[name], True)
    check(name, g, 3, kept=merge)


@pytest.mark.parametrize(
    "name,f",
    [
        ("v_add_u32", lambda a, b: min(a + b, M32)),
        ("v_sub_u32", lambda a, b: max(a - b, 0)),
        ("v_subrev_u32", lambda a, b: max(b - a, 0)),
        ("v_add_i32", lambda a, b: clamp(s(a) + s(b), -(2**31), 2**31 - 1)),
        ("v_sub_i32", lambda a, b: clamp(s(a) - s(b), -(2**31), 2**31 - 1)),
    ],
)
def test_clamp_saturates(name, f):
    text = name if name.endswith("i32") else f"{name}_e64"
    check(text, f, 2, suffix=" clamp")


@pytest.mark.parametrize(
    "name,f",
    [
        ("v_add_u16_e64", lambda a, b: min(a + b, 0xFFFF)),
        ("v_sub_u16_e64", lambda a, b: max(a - b, 0)),
        ("v_add_i16", lambda a, b: clamp(s(a, 16) + s(b, 16), -32768, 32767)),
        ("v_sub_i16", lambda a, b: clamp(s(a, 16) - s(b, 16), -32768, 32767)),
    ],
)
def test_clamp_saturates_16(name, f):
    g, merge = halves(f, name in ("v_add_i16", "v_sub_i16"))
    check(name, g, 2, suffix=" clamp", kept=merge)


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0x96, 0xE8, 0xCA, 0x1D, 0x37])
@pytest.mark.parametrize("bits", [32, 16])
def test_bitop3(bits, table):
    def f(a, b, c):
        return sum((table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(bits))

    g, merge = (f, lambda new, old: new & M32) if bits == 32 else halves(f, True)
    check(f"v_bitop3_b{bits}", g, 3, arch="gfx950", suffix=f" bitop3:{table:#x}", kept=merge)


def test_op_sel_of_16_bit_operands():
    a, b, c, old = (lane_values("u32", k) for k in range(4))
    for sel in range(16):
        text = "v_mad_u16 v0, v1, v2, v3 op_sel:[{},{},{},{}]".format(*(sel >> k & 1 for k in range(4)))
        got = run_asm(text, v={0: old, 1: a, 2: b, 3: c}).v[0]
        for lane in range(64):
            x, y, z = (int(r[lane]) >> (16 if sel >> k & 1 else 0) & 0xFFFF for k, r in enumerate((a, b, c)))
            r, o = (x * y + z) & 0xFFFF, int(old[lane])
            assert int(got[lane]) == (r << 16 | o & 0xFFFF if sel >> 3 else o & 0xFFFF0000 | r), text


# --- 64 bits and carries ------------------------------------------------------------------------------------------
SHIFTS = {
    "v_lshlrev_b64": lambda n, x: x << (n & 63),
    "v_lshrrev_b64": lambda n, x: x >> (n & 63),
    "v_ashrrev_i64": lambda n, x: s(x, 64) >> (n & 63),
}


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("dst", [8, 2, 4])  # apart, on the value, on its second register
def test_shifts_64(name, dst):
    for seed in range(5):
        count, x = lane_values("u32", seed), lane_values("u64", seed)
        v = {1: count}
        put(v, 2 if dst != 4 else 4, x)
        source = "v[4:5]" if dst == 4 else "v[2:3]"
        got = run_asm(f"{name} v[{dst}:{dst + 1}], v1, {source}", v=v).v64(dst)
        assert [int(g) for g in got] == [SHIFTS[name](int(n), int(y)) & M64 for n, y in zip(count, x)]


def test_overlapping_pair():
    """The destination is the pair one register further: all of the source is read first."""
    x, count = lane_values("u64", 3), lane_values("u32", 4)
    v = {5: count}
    put(v, 2, x)
    got = run_asm("v_lshlrev_b64 v[4:5], v5, v[2:3]", v=v).v64(4)
    assert [int(g) for g in got] == [int(y) << (int(n) & 63) & M64 for n, y in zip(count, x)]


def test_mov_and_lshl_add_u64():
    x, y, n = lane_values("u64", 1), lane_values("u64", 2), lane_values("u32", 3)
    v = {6: n}
    put(v, 2, x), put(v, 4, y)
    out = run_asm("v_mov_b64 v[8:9], v[2:3]\nv_lshl_add_u64 v[10:11], v[2:3], v6, v[4:5]", v=v)
    assert out.v64(8).tolist() == x.tolist()
    assert out.v64(10).tolist() == [((int(a) << (int(k) & 7)) + int(b)) & M64 for a, b, k in zip(x, y, n)]
    out = run_asm("v_mov_b64 v[8:9], -5\nv_mov_b64 v[10:11], s[4:5]", v=v, s={4: 0x11111111, 5: 0x22222222})
    assert set(out.v64(8).tolist()) == {M64 - 4} and set(out.v64(10).tolist()) == {0x2222222211111111}


@pytest.mark.parametrize("signed", [False, True])
def test_mad_64(signed):
    name = "v_mad_i64_i32" if signed else "v_mad_u64_u32"
    for seed in range(6):
        a, b, c = lane_values("u32", seed), lane_values("u32", seed + 50), lane_values("u64", seed)
        v = {1: a, 2: b}
        put(v, 4, c)
        out = run_asm(f"{name} v[4:5], s[10:11], v1, v2, v[4:5]", v=v, exec_mask=PARTIAL)
        carry = 0
        for lane in range(64):
            if not PARTIAL >> lane & 1:
                assert int(out.v64(4)[lane]) == int(c[lane])
                continue
            x, y, z = int(a[lane]), int(b[lane]), int(c[lane])
            total = s(x) * s(y) + s(z, 64) if signed else x * y + z
            assert int(out.v64(4)[lane]) == total & M64
            over = not -(2**63) <= total < 2**63 if signed else total >> 64
            carry |= (1 << lane) if over else 0
        assert out.s64(10) == carry


CARRY = {
    "v_add_co_u32": lambda a, b, c: a + b,
    "v_sub_co_u32": lambda a, b, c: a - b,
    "v_subrev_co_u32": lambda a, b, c: b - a,
    "v_addc_co_u32": lambda a, b, c: a + b + c,
    "v_subb_co_u32": lambda a, b, c: a - b - c,
    "v_subbrev_co_u32": lambda a, b, c: b - a - c,
}


@pytest.mark.parametrize("name", CARRY)
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("mask", [ALL, PARTIAL])
def test_carry(name, long, mask):
    has_in = name in ("v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32")
    carry_in = 0x123456789ABCDEF0
    for seed in range(5):
        a, b = lane_values("u32", seed), lane_values("u32", seed + 9)
        if long:
            text = f"{name}_e64 v2, s[20:21], v1, v2" + (", s[22:23]" if has_in else "")
        else:
            text = f"{name}_e32 v2, vcc, v1, v2" + (", vcc" if has_in else "")
        s_in = {22: carry_in & M32, 23: carry_in >> 32}
        out = run_asm(text, v={1: a, 2: b}, s=s_in, vcc=carry_in, exec_mask=mask)
        carry = 0
        for lane in range(64):
            if not mask >> lane & 1:
                assert out.v[2][lane] == b[lane]
                continue
            r = CARRY[name](int(a[lane]), int(b[lane]), carry_in >> lane & 1)
            assert int(out.v[2][lane]) == r & M32
            carry |= (0 if 0 <= r <= M32 else 1) << lane
        assert out.s64(20 if long else VCC) == carry


def test_exec_zero_writes_nothing():
    old = lane_values("u32", 1)
    out = run_asm("v_mov_b32 v0, 7\nv_add_co_u32 v0, vcc, v1, v0", v={0: old}, exec_mask=0, vcc=ALL)
    np.testing.assert_array_equal(out.v[0], old)
    assert out.s64(VCC) == 0
