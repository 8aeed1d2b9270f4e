# SPDX-License-Identifier: MIT
"""Scalar memory: loads of every width, buffer bounds, stores, atomics, and the wait that each needs."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

from memory_case import run  # noqa: E402

M32 = (1 << 32) - 1
WAIT = "s_waitcnt lgkmcnt(0)\n"


def block(*values: int) -> np.ndarray:
    return np.array([v & M32 for v in values], np.uint32)


def words(after) -> list[int]:
    return after.memory.view(np.uint32).tolist()


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["global", "buffer"])
def test_load(arch: str, count: int, kind: str) -> None:
    """From s[12:13] + SGPR offset + immediate; results go out through a vector register."""
    memory = np.random.default_rng(count).integers(0, 2**32, 64, dtype=np.uint32)
    width = "" if count == 1 else f"x{count}"
    target = "s40" if count == 1 else f"s[40:{39 + count}]"
    descriptor = "s_mov_b32 s28, s12\ns_mov_b32 s29, s13\ns_mov_b32 s30, 256\ns_mov_b32 s31, 0x20000\n"
    load = (
        f"s_load_dword{width} {target}, s[12:13]"
        if kind == "global"
        else f"s_buffer_load_dword{width} {target}, s[28:31]"
    )
    moves = "".join(f"v_mov_b32 v{4 + k}, s{40 + k}\n" for k in range(count))
    after = run(
        f"{descriptor}s_movk_i32 s27, 0x10\n{load}, s27\n{WAIT}{moves}",
        arch=arch,
        memory=memory,
        out=tuple(range(4, 4 + count)),
    )
    assert [int(after.v[4 + k][0]) for k in range(count)] == memory[4 : 4 + count].tolist() and not after.findings
    after = run(f"{descriptor}{load}, 0x20\n{WAIT}{moves}", arch=arch, memory=memory, out=tuple(range(4, 4 + count)))
    assert [int(after.v[4 + k][0]) for k in range(count)] == memory[8 : 8 + count].tolist() and not after.findings


def test_buffer_load_beyond_the_end_gives_zero() -> None:
    descriptor = "s_mov_b32 s28, s12\ns_mov_b32 s29, s13\ns_mov_b32 s30, 8\ns_mov_b32 s31, 0x20000\n"
    text = f"{descriptor}s_buffer_load_dwordx4 s[40:43], s[28:31], 0x0\n{WAIT}"
    text += "".join(f"v_mov_b32 v{4 + k}, s{40 + k}\n" for k in range(4))
    after = run(text, memory=block(1, 2, 3, 4), out=(4, 5, 6, 7))
    assert [int(after.v[4 + k][0]) for k in range(4)] == [1, 2, 0, 0]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_store(count: int) -> None:
    data, width = f"s[40:{39 + count}]" if count > 1 else "s40", "" if count == 1 else f"x{count}"
    values = {40 + k: 0x1000 + k for k in range(count)}
    text = f"s_store_dword{width} {data}, s[12:13], 0x8\ns_dcache_wb\n{WAIT}"
    after = run(text, arch="gfx942", s=values, memory=block(*range(8)))
    want = list(range(8))
    want[2 : 2 + count] = values.values()
    assert words(after) == want and not after.findings


ATOMICS = {
    "swap": lambda a, b: b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "umin": min,
    "umax": max,
    "smin": lambda a, b: min(a, b, key=lambda v: v - (v >> 31 << 32)),
    "smax": lambda a, b: max(a, b, key=lambda v: v - (v >> 31 << 32)),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("returns", [False, True])
def test_atomic(name: str, returns: bool) -> None:
    for a, b in ((0, 0), (0, 5), (5, 5), (6, 5), (0x80000000, 7), (M32, 1), (1, M32)):
        text = f"s_atomic_{name} s40, s[12:13], 0x4{' glc' if returns else ''}\n{WAIT}v_mov_b32 v4, s40"
        after = run(text, arch="gfx942", s={40: b}, memory=block(9, a, 9), out=(4,))
        assert words(after) == [9, ATOMICS[name](a, b) & M32, 9] and not after.findings
        assert int(after.v[4][0]) == (a if returns else b)


def test_a_load_needs_its_wait() -> None:
    after = run("s_load_dword s40, s[12:13], 0x0\ns_mov_b32 s41, s40", memory=block(7))
    assert [f.check for f in after.findings] == ["wait"]
