# SPDX-License-Identifier: MIT
"""Scalar instructions against Python integers, at edge values, with SCC in and out."""

from __future__ import annotations

import itertools

import pytest

from turbo_sim.testing import run_asm, why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
EDGES32 = [0, 1, 2, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF0, 0x12345678, 0x00100004]
EDGES64 = [0, 1, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 63) - 1, M64, 0x0123456789ABCDEF]


def s32(v: int) -> int:
    return v - (1 << 32) if v >> 31 & 1 else v


def s64(v: int) -> int:
    return v - (1 << 64) if v >> 63 & 1 else v


def overflows(v: int) -> int:
    return int(not -(1 << 31) <= v < 1 << 31)


def field(value: int, control: int, size: int, signed: bool) -> int:
    offset, width = control & (size - 1), control >> 16 & 0x7F
    if not width:
        return 0
    width = min(width, size - offset)
    v = value >> offset & ((1 << width) - 1)
    if signed and v >> (width - 1) & 1:
        v -= 1 << width
    return v


NZ = object()  # SCC = result is not zero
KEEP = object()  # SCC unchanged

# name: (result of a, b and SCC, SCC after)
BINARY32 = {
    "s_add_u32": (lambda a, b, c: a + b, lambda a, b, c: a + b >> 32),
    "s_sub_u32": (lambda a, b, c: a - b, lambda a, b, c: int(b > a)),
    "s_add_i32": (lambda a, b, c: a + b, lambda a, b, c: overflows(s32(a) + s32(b))),
    "s_sub_i32": (lambda a, b, c: a - b, lambda a, b, c: overflows(s32(a) - s32(b))),
    "s_addc_u32": (lambda a, b, c: a + b + c, lambda a, b, c: a + b + c >> 32),
    "s_subb_u32": (lambda a, b, c: a - b - c, lambda a, b, c: int(b + c > a)),
    "s_min_i32": (lambda a, b, c: min(s32(a), s32(b)), lambda a, b, c: int(s32(a) < s32(b))),
    "s_max_i32": (lambda a, b, c: max(s32(a), s32(b)), lambda a, b, c: int(s32(a) > s32(b))),
    "s_min_u32": (lambda a, b, c: min(a, b), lambda a, b, c: int(a < b)),
    "s_max_u32": (lambda a, b, c: max(a, b), lambda a, b, c: int(a > b)),
    "s_cselect_b32": (lambda a, b, c: a if c else b, KEEP),
    "s_and_b32": (lambda a, b, c: a & b, NZ),
    "s_or_b32": (lambda a, b, c: a | b, NZ),
    "s_xor_b32": (lambda a, b, c: a ^ b, NZ),
    "s_andn2_b32": (lambda a, b, c: a & ~b, NZ),
    "s_orn2_b32": (lambda a, b, c: a | ~b, NZ),
    "s_nand_b32": (lambda a, b, c: ~(a & b), NZ),
    "s_nor_b32": (lambda a, b, c: ~(a | b), NZ),
    "s_xnor_b32": (lambda a, b, c: ~(a ^ b), NZ),
    "s_lshl_b32": (lambda a, b, c: a << (b & 31), NZ),
    "s_lshr_b32": (lambda a, b, c: a >> (b & 31), NZ),
    "s_ashr_i32": (lambda a, b, c: s32(a) >> (b & 31), NZ),
    "s_bfm_b32": (lambda a, b, c: ((1 << (a & 31)) - 1) << (b & 31), KEEP),
    "s_mul_i32": (lambda a, b, c: a * b, KEEP),
    "s_mul_hi_u32": (lambda a, b, c: a * b >> 32, KEEP),
    "s_mul_hi_i32": (lambda a, b, c: s32(a) * s32(b) >> 32, KEEP),
    "s_bfe_u32": (lambda a, b, c: field(a, b, 32, False), NZ),
    "s_bfe_i32": (lambda a, b, c: field(a, b, 32, True), NZ),
    "s_absdiff_i32": (lambda a, b, c: abs(s32(a - b & M32)), NZ),
    "s_pack_ll_b32_b16": (lambda a, b, c: a & 0xFFFF | b << 16, KEEP),
    "s_pack_lh_b32_b16": (lambda a, b, c: a & 0xFFFF | b & 0xFFFF0000, KEEP),
    "s_pack_hh_b32_b16": (lambda a, b, c: a >> 16 | b & 0xFFFF0000, KEEP),
} | {
    f"s_lshl{n}_add_u32": (lambda a, b, c, n=n: (a << n) + b, lambda a, b, c, n=n: int((a << n) + b > M32))
    for n in (1, 2, 3, 4)
}


def expected(rule, result: int, a: int, b: int, c: int) -> int:
    return c if rule is KEEP else int(result != 0) if rule is NZ else rule(a, b, c)


@pytest.mark.parametrize("name", BINARY32)
def test_binary32(name: str) -> None:
    value, rule = BINARY32[name]
    # Many cases in one run: each stores its result and SCC in its own registers.
    cases = list(itertools.product(EDGES32, EDGES32, (0, 1)))
    for first in range(0, len(cases), 20):
        pairs = cases[first : first + 20]
        text = ""
        for k, (a, b, c) in enumerate(pairs):
            text += f"s_mov_b32 s0, {a:#x}\ns_mov_b32 s1, {b:#x}\ns_cmp_eq_u32 {c}, 1\n"
            text += f"{name} s{10 + 2 * k}, s0, s1\ns_mov_b32 s{11 + 2 * k}, src_scc\n"
        out = run_asm(text)
        for k, (a, b, c) in enumerate(pairs):
            want = value(a, b, c) & M32
            assert int(out.s[10 + 2 * k]) == want, f"{name} {a:#x}, {b:#x}, SCC {c}"
            assert int(out.s[11 + 2 * k]) == expected(rule, want, a, b, c), f"SCC of {name} {a:#x}, {b:#x}, SCC {c}"


BINARY64 = {
    "s_and_b64": lambda a, b: a & b,
    "s_or_b64": lambda a, b: a | b,
    "s_xor_b64": lambda a, b: a ^ b,
    "s_andn2_b64": lambda a, b: a & ~b,
    "s_orn2_b64": lambda a, b: a | ~b,
    "s_nand_b64": lambda a, b: ~(a & b),
    "s_nor_b64": lambda a, b: ~(a | b),
    "s_xnor_b64": lambda a, b: ~(a ^ b),
}


@pytest.mark.parametrize("name", BINARY64)
def test_binary64(name: str) -> None:
    for a, b in itertools.product(EDGES64, EDGES64):
        out = run_asm(f"{name} s[4:5], s[0:1], s[2:3]", s={0: a & M32, 1: a >> 32, 2: b & M32, 3: b >> 32})
        want = BINARY64[name](a, b) & M64
        assert (out.s64(4), out.scc) == (want, int(want != 0))


SHIFT64 = {
    "s_lshl_b64": lambda a, b: a << (b & 63),
    "s_lshr_b64": lambda a, b: a >> (b & 63),
    "s_ashr_i64": lambda a, b: s64(a) >> (b & 63),
    "s_bfe_u64": lambda a, b: field(a, b, 64, False),
    "s_bfe_i64": lambda a, b: field(a, b, 64, True),
}


@pytest.mark.parametrize("name", SHIFT64)
def test_shift64(name: str) -> None:
    for a, b in itertools.product(EDGES64, (0, 1, 31, 32, 63, 64, 0x00080004, 0x00400000, 0x00200030)):
        out = run_asm(f"{name} s[4:5], s[0:1], s2", s={0: a & M32, 1: a >> 32, 2: b})
        want = SHIFT64[name](a, b) & M64
        assert (out.s64(4), out.scc) == (want, int(want != 0)), f"{a:#x}, {b:#x}"


def ff(v: int, bit: int, size: int) -> int:
    return next((k for k in range(size) if v >> k & 1 == bit), -1)


def flbit(v: int, size: int) -> int:
    return next((k for k in range(size) if v >> (size - 1 - k) & 1), -1)


def flbit_signed(v: int, size: int) -> int:
    top = v >> (size - 1) & 1
    return next((k for k in range(size) if v >> (size - 1 - k) & 1 != top), -1)


UNARY32 = {
    "s_not_b32": (lambda a: ~a, NZ),
    "s_brev_b32": (lambda a: int(f"{a:032b}"[::-1], 2), KEEP),
    "s_abs_i32": (lambda a: abs(s32(a)), NZ),
    "s_bcnt0_i32_b32": (lambda a: 32 - a.bit_count(), NZ),
    "s_bcnt1_i32_b32": (lambda a: a.bit_count(), NZ),
    "s_ff0_i32_b32": (lambda a: ff(a, 0, 32), KEEP),
    "s_ff1_i32_b32": (lambda a: ff(a, 1, 32), KEEP),
    "s_flbit_i32_b32": (lambda a: flbit(a, 32), KEEP),
    "s_flbit_i32": (lambda a: flbit_signed(a, 32), KEEP),
    "s_sext_i32_i8": (lambda a: (a & 0xFF) - (256 if a & 0x80 else 0), KEEP),
    "s_sext_i32_i16": (lambda a: (a & 0xFFFF) - (65536 if a & 0x8000 else 0), KEEP),
    "s_wqm_b32": (lambda a: sum(15 << k for k in range(0, 32, 4) if a >> k & 15), NZ),
    "s_quadmask_b32": (lambda a: sum(1 << k // 4 for k in range(0, 32, 4) if a >> k & 15), NZ),
}


@pytest.mark.parametrize("name", UNARY32)
def test_unary32(name: str) -> None:
    value, rule = UNARY32[name]
    for a in EDGES32:
        for c in (0, 1):
            out = run_asm(f"s_cmp_eq_u32 {c}, 1\n{name} s4, s0", s={0: a})
            want = value(a) & M32
            assert (int(out.s[4]), out.scc) == (want, expected(rule, want, a, 0, c)), f"{a:#x}"


@pytest.mark.parametrize("name", ["s_not_b64", "s_wqm_b64"])
def test_unary64(name: str) -> None:
    quads = lambda a: sum(15 << k for k in range(0, 64, 4) if a >> k & 15)  # noqa: E731
    for a in EDGES64:
        out = run_asm(f"{name} s[4:5], s[0:1]", s={0: a & M32, 1: a >> 32})
        want = (~a if name == "s_not_b64" else quads(a)) & M64
        assert (out.s64(4), out.scc) == (want, int(want != 0)), f"{a:#x}"


@pytest.mark.parametrize("bit", [0, 1])
@pytest.mark.parametrize("size, edges", [(32, EDGES32), (64, EDGES64)])
def test_bit_compare(bit: int, size: int, edges: list[int]) -> None:
    for a, position in itertools.product(edges, (0, 1, 7, 31, 32, 63, 64, 0xFFFFFFFF)):
        out = run_asm(
            f"s_bitcmp{bit}_b{size} {'s0' if size == 32 else 's[0:1]'}, s2", s={0: a & M32, 1: a >> 32, 2: position}
        )
        assert out.scc == int((a >> (position & (size - 1)) & 1) == bit), f"{a:#x}, bit {position}"


def test_select64() -> None:
    for a, b, c in itertools.product(EDGES64, EDGES64, (0, 1)):
        s = {0: a & M32, 1: a >> 32, 2: b & M32, 3: b >> 32}
        out = run_asm(f"s_cmp_eq_u32 {c}, 1\ns_cselect_b64 s[4:5], s[0:1], s[2:3]", s=s)
        assert (out.s64(4), out.scc) == (a if c else b, c)


COUNT64 = {
    "s_bcnt1_i32_b64": lambda a: a.bit_count(),
    "s_ff1_i32_b64": lambda a: ff(a, 1, 64),
    "s_ff0_i32_b64": lambda a: ff(a, 0, 64),
    "s_flbit_i32_b64": lambda a: flbit(a, 64),
    "s_flbit_i32_i64": lambda a: flbit_signed(a, 64),
}


@pytest.mark.parametrize("name", COUNT64)
def test_count64(name: str) -> None:
    for a in EDGES64:
        out = run_asm(f"{name} s4, s[0:1]", s={0: a & M32, 1: a >> 32})
        assert int(out.s[4]) == COUNT64[name](a) & M32, f"{a:#x}"


COMPARE = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


@pytest.mark.parametrize("name", COMPARE)
@pytest.mark.parametrize("kind", ["i32", "u32"])
def test_compare(name: str, kind: str) -> None:
    view = s32 if kind == "i32" else lambda v: v
    for a, b in itertools.product(EDGES32, EDGES32):
        assert run_asm(f"s_cmp_{name}_{kind} s0, s1", s={0: a, 1: b}).scc == int(COMPARE[name](view(a), view(b)))
    for a, k in itertools.product(EDGES32, (0, 1, 0x7FFF, 0x8000, 0xFFFF)):  # sign- or zero-extended by the type
        b = k - 0x10000 if kind == "i32" and k & 0x8000 else k
        assert run_asm(f"s_cmpk_{name}_{kind} s0, {k:#x}", s={0: a}).scc == int(COMPARE[name](view(a), b))


SAVEEXEC = {
    "s_and_saveexec_b64": lambda a, e: a & e,
    "s_or_saveexec_b64": lambda a, e: a | e,
    "s_xor_saveexec_b64": lambda a, e: a ^ e,
    "s_andn2_saveexec_b64": lambda a, e: a & ~e,
    "s_orn2_saveexec_b64": lambda a, e: a | ~e,
    "s_nand_saveexec_b64": lambda a, e: ~(a & e),
    "s_andn1_saveexec_b64": lambda a, e: ~a & e,
    "s_orn1_saveexec_b64": lambda a, e: ~a | e,
}


@pytest.mark.parametrize("name", SAVEEXEC)
def test_saveexec(name: str) -> None:
    for a, e in itertools.product(EDGES64, EDGES64):
        out = run_asm(f"{name} s[4:5], s[0:1]", s={0: a & M32, 1: a >> 32}, exec_mask=e)
        want = SAVEEXEC[name](a, e) & M64
        assert (out.s64(4), out.s64(126), out.scc) == (e, want, int(want != 0))


def test_moves_and_constants() -> None:
    out = run_asm("""
        s_movk_i32 s0, 0x8000
        s_mov_b32 s1, 1.0
        s_mov_b64 s[2:3], -4
        s_mov_b64 s[4:5], 1.0
        s_mov_b64 s[6:7], 0xffffffff
        s_brev_b64 s[8:9], 5
        s_bitset1_b32 s10, 31
        s_bitset0_b64 s[2:3], 63
        s_addk_i32 s0, 0x7fff
        s_mulk_i32 s10, 0x3
        s_bfm_b64 s[12:13], 40, 8
        s_bitreplicate_b64_b32 s[14:15], s1
    """)
    assert int(out.s[0]) == 0xFFFFFFFF and int(out.s[1]) == 0x3F800000
    assert out.s64(2) == (1 << 63) - 4 and out.s64(4) == 0x3FF0000000000000
    assert out.s64(6) == 0xFFFFFFFF and out.s64(8) == 5 << 61 and int(out.s[10]) == 0x80000000
    assert out.s64(12) == ((1 << 40) - 1) << 8 and out.s64(14) == 0x0FFFC00000000000


def test_mode_register() -> None:
    out = run_asm(
        """
        s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
        s_getreg_b32 s0, hwreg(HW_REG_MODE)
        s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s1
        s_getreg_b32 s2, hwreg(HW_REG_MODE, 0, 8)
    """,
        s={1: 0xF5},
    )
    assert int(out.s[0]) == 0x3F0 | 1 << 23 and int(out.s[2]) == 0xF5
