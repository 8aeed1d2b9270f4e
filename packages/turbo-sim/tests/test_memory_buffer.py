# SPDX-License-Identifier: MIT
"""MUBUF instructions: addressing, range checks, every width, LDS destination, atomics."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

from atomic_models import apply, operands  # noqa: E402
from memory_case import ALL, PARTIAL, active, random_bytes, random_rows, run  # noqa: E402

SIZE = 4096
WORD3 = 0x27000


def descriptor(records: int, stride: int = 0, word3: int = WORD3, extra: int = 0) -> str:
    """Code that makes s[4:7] a descriptor of the memory block (its address is in s[12:13])."""
    return (
        f"s_mov_b32 s4, s12\ns_and_b32 s5, s13, 0xffff\ns_or_b32 s5, s5, {stride << 16 | extra:#x}\n"
        f"s_mov_b32 s6, {records:#x}\ns_mov_b32 s7, {word3:#x}\n"
    )


def take(memory: np.ndarray, start: int, size: int) -> int:
    return int.from_bytes(memory[start : start + size].tobytes(), "little")


def dwords(memory: np.ndarray, starts, count: int, limit: int | None = None) -> np.ndarray:
    """[count, 64]; dwords at or beyond `limit` read 0."""
    limit = memory.size if limit is None else limit
    return np.array(
        [[take(memory, a + 4 * k, 4) if a + 4 * k < limit else 0 for a in starts] for k in range(count)], np.uint32
    )


def rows_of(first: int, count: int) -> str:
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


OFFSETS = np.random.default_rng(3).permutation(64).astype(np.uint32) * 16


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("mask", [ALL, PARTIAL])
@pytest.mark.parametrize("count,name", [(1, "dword"), (2, "dwordx2"), (3, "dwordx3"), (4, "dwordx4")])
def test_load(arch, mask, count, name):
    memory, old = random_bytes(SIZE), random_rows(4)
    text = (
        descriptor(SIZE)
        + f"s_movk_i32 s20, 0x40\nbuffer_load_{name} {rows_of(4, count)}, v1, s[4:7], s20 offen offset:20"
    )
    after = run(
        text,
        arch=arch,
        v={1: OFFSETS, **{4 + k: old[k] for k in range(4)}},
        memory=memory,
        out=(4, 5, 6, 7),
        exec_mask=mask,
    )
    loaded = dwords(memory, OFFSETS.astype(int) + 84, count)
    for k in range(4):
        expected = np.where(active(mask), loaded[k], old[k]) if k < count else old[k]
        assert np.array_equal(after.v[4 + k], expected)
    assert not after.findings


@pytest.mark.parametrize(
    "name,dtype", [("ubyte", np.uint8), ("sbyte", np.int8), ("ushort", np.uint16), ("sshort", np.int16)]
)
def test_load_small(name, dtype):
    memory, size = random_bytes(SIZE), np.dtype(dtype).itemsize
    after = run(
        descriptor(SIZE) + f"buffer_load_{name} v4, v1, s[4:7], 0 offen offset:3",
        v={1: OFFSETS},
        memory=memory,
        out=(4,),
    )
    expected = [
        int(np.frombuffer(memory[a + 3 : a + 3 + size].tobytes(), dtype)[0]) & 0xFFFFFFFF for a in OFFSETS.astype(int)
    ]
    assert after.v[4].tolist() == expected and not after.findings


@pytest.mark.parametrize("mask", [ALL, PARTIAL])
@pytest.mark.parametrize(
    "name,shift,size",
    [("byte", 0, 1), ("byte_d16_hi", 16, 1), ("short", 0, 2), ("short_d16_hi", 16, 2), ("dword", 0, 4), ("dwordx2",
    0, 8), ("dwordx3", 0, 12),
     ("dwordx4", 0, 16)],
)  # fmt: skip
def test_store(name, shift, size, mask):
    memory, data = random_bytes(SIZE), random_rows(4)
    count = max(1, size // 4)
    text = descriptor(SIZE) + f"buffer_store_{name} {rows_of(4, count)}, v1, s[4:7], 0 offen offset:16"
    after = run(text, v={1: OFFSETS, **{4 + k: data[k] for k in range(4)}}, memory=memory, exec_mask=mask)
    for lane in np.flatnonzero(active(mask)):
        value = sum(int(data[k][lane]) << 32 * k for k in range(count)) >> shift
        start = int(OFFSETS[lane]) + 16
        memory[start : start + size] = np.frombuffer((value & ((1 << 8 * size) - 1)).to_bytes(size, "little"), np.uint8)
    assert np.array_equal(after.memory, memory) and not after.findings


def test_addressing_forms():
    """None, index, offset, both; index counts strides; AGPR data."""
    memory, index = random_bytes(SIZE), np.arange(64, dtype=np.uint32)[::-1].copy()
    small = (np.arange(64, dtype=np.uint32) * 4) % 32
    cases = [
        ("off", "off", np.zeros(64, int) + 12),
        ("idxen", "v2", index.astype(int) * 48 + 12),
        ("offen", "v3", small.astype(int) + 12),
        ("idxen offen", "v[2:3]", index.astype(int) * 48 + small + 12),
    ]
    for flags, address, starts in cases:
        text = descriptor(64, stride=48) if "idxen" in flags else descriptor(SIZE)
        text += f"buffer_load_dword v4, {address}, s[4:7], 0 {flags if flags != 'off' else ''} offset:12"
        after = run(text, v={2: index, 3: small}, memory=memory, out=(4,))
        assert np.array_equal(after.v[4], dwords(memory, starts, 1)[0]), flags
        assert not after.findings
    text = descriptor(SIZE) + "buffer_load_dword a5, v2, s[4:7], 0 offen\ns_waitcnt vmcnt(0)\nv_accvgpr_read_b32 v4, a5"
    assert np.array_equal(
        run(text, v={2: small}, memory=memory, out=(4,)).v[4], dwords(memory, small.astype(int), 1)[0]
    )


def test_range_per_dword():
    """num_records cuts wide loads and stores dword by dword; what is outside is 0 or not written, and is no finding."""
    memory, records = random_bytes(1024), 600
    at = np.arange(64, dtype=np.uint32) * 16  # lanes 37.. straddle or lie outside
    after = run(
        descriptor(records) + "buffer_load_dwordx4 v[4:7], v1, s[4:7], 0 offen",
        v={1: at},
        memory=memory,
        out=(4, 5, 6, 7),
    )
    assert np.array_equal(np.array([after.v[4 + k] for k in range(4)]), dwords(memory, at.astype(int), 4, records))
    data = random_rows(4)
    stored = run(
        descriptor(records) + "buffer_store_dwordx4 v[4:7], v1, s[4:7], 0 offen",
        v={1: at, **{4 + k: data[k] for k in range(4)}},
        memory=memory,
    )
    expected = memory.copy()
    expected.view(np.uint32)[: records // 4] = np.stack(data, 1).reshape(-1)[: records // 4]
    assert np.array_equal(stored.memory, expected)
    assert not after.findings and not stored.findings


def test_offset_beyond_31_bits_is_out_of_range():
    """Triton's way to mask a lane."""
    at = np.where(np.arange(64) % 2, 0x80000000, np.arange(64) * 4).astype(np.uint32)
    memory = random_bytes(SIZE)
    after = run(
        descriptor(0x7FFFFFFE) + "buffer_load_dword v4, v1, s[4:7], 0 offen offset:8",
        v={1: at},
        memory=memory,
        out=(4,),
    )
    expected = [0 if k % 2 else take(memory, 4 * k + 8, 4) for k in range(64)]
    assert after.v[4].tolist() == expected and not after.findings


def test_soffset_counts_towards_the_range():
    memory = random_bytes(SIZE)
    text = descriptor(128) + "s_movk_i32 s20, 0x40\nbuffer_load_dword v4, v1, s[4:7], s20 offen"
    at = np.arange(64, dtype=np.uint32) * 4
    after = run(text, v={1: at}, memory=memory, out=(4,))
    assert after.v[4].tolist() == [take(memory, 64 + 4 * k, 4) if k < 16 else 0 for k in range(64)]


def test_structured_range_is_by_index():
    memory = random_bytes(SIZE)
    after = run(
        descriptor(10, stride=32) + "buffer_load_dwordx2 v[4:5], v1, s[4:7], 0 idxen offset:28",
        v={1: np.arange(64)},
        memory=memory,
        out=(4, 5),
    )
    assert after.v[4].tolist() == [take(memory, 32 * k + 28, 4) if k < 10 else 0 for k in range(64)]
    assert after.v[5].tolist() == [take(memory, 32 * k + 32, 4) if k < 10 else 0 for k in range(64)]


def test_beyond_the_allocation_is_a_finding():
    after = run(
        descriptor(0x7FFFFFFE) + "buffer_store_dword v4, v1, s[4:7], 0 offen",
        v={1: np.arange(64) * 4, 4: np.arange(64)},
        memory=random_bytes(128),
    )
    assert [f.check for f in after.findings] == ["bounds"]


@pytest.mark.parametrize(
    "extra,word3,what",
    [(0x80000000, WORD3, "swizzle"), (0, WORD3 | 1 << 23, "add_tid"), (0, WORD3 | 1 << 30, "descriptor")],
)
def test_descriptors_that_are_not_implemented(extra, word3, what):
    with pytest.raises(RuntimeError, match=what):
        run(
            descriptor(64, 16, word3, extra) + "buffer_load_dword v4, v1, s[4:7], 0 offen",
            v={1: np.zeros(64)},
            memory=random_bytes(64),
            out=(4,),
        )


def test_format_loads_are_refused():
    with pytest.raises(RuntimeError, match="buffer_load_format_x"):
        run(
            descriptor(64) + "buffer_load_format_x v4, v1, s[4:7], 0 offen",
            v={1: np.zeros(64)},
            memory=random_bytes(64),
            out=(4,),
        )


# --- LDS destination -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [ALL, PARTIAL])
@pytest.mark.parametrize(
    "arch,name,count",
    [("gfx942", "dword", 1), ("gfx950", "dword", 1), ("gfx950", "dwordx3", 3), ("gfx950", "dwordx4", 4)],
)
def test_lds_destination(arch, name, count, mask):
    """LDS address: M0 + offset + lane * size; lanes outside the buffer write 0; the offset moves both addresses."""
    memory, lds, records = random_bytes(SIZE), random_bytes(2048), 512
    at = np.random.default_rng(6).permutation(64).astype(np.uint32) * 16
    text = descriptor(records) + f"s_movk_i32 m0, 0x100\ns_nop 0\nbuffer_load_{name} v1, s[4:7], 0 offen offset:32 lds"
    after = run(text, arch=arch, v={1: at}, memory=memory, lds=lds, exec_mask=mask)
    loaded = dwords(memory, at.astype(int) + 32, count, records)
    for lane in np.flatnonzero(active(mask)):
        start = 0x100 + 32 + lane * 4 * count
        lds[start : start + 4 * count] = loaded[:, lane].copy().view(np.uint8)
    assert np.array_equal(after.lds, lds) and not after.findings


# --- atomics ---------------------------------------------------------------------------------------------------------

ATOMICS = [
    *((f"{name}{'_x2' if bits == 64 else ''}", model, bits) for bits in (32, 64) for name, model in (
        ("swap", "swap"), ("cmpswap", "cmpswap"), ("add", "add"), ("sub", "sub"), ("smin", "smin"), ("umin",
        "umin"), ("smax", "smax"),
        ("umax", "umax"), ("and", "and"), ("or", "or"), ("xor", "xor"), ("inc", "inc"), ("dec", "dec"))),
    ("add_f32", "fadd", 32), ("pk_add_f16", "pk_f16", 32), ("pk_add_bf16", "pk_bf16", 32), ("add_f64", "fadd", 64),
    ("min_f64", "fmin", 64),
    ("max_f64", "fmax", 64),
]  # fmt: skip


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name,model,bits", ATOMICS)
def test_atomic(name, model, bits, returns):
    size, n = bits // 8, bits // 32
    cells, _ = operands(model, bits, 16, seed=11)
    a, b = operands(model, bits, 64)
    memory = np.frombuffer(b"".join(c.to_bytes(size, "little") for c in cells), np.uint8)
    records = 12 * size  # cells 12 to 15 are out of range
    cell = np.random.default_rng(9).integers(0, 16, 64)
    values = [x | y << bits for x, y in zip(a, b)] if model == "cmpswap" else a
    count = n * (2 if model == "cmpswap" else 1)
    v = {
        1: (cell * size).astype(np.uint32),
        **{4 + k: np.array([x >> 32 * k & 0xFFFFFFFF for x in values], np.uint32) for k in range(count)},
    }
    text = (
        descriptor(records)
        + f"buffer_atomic_{name} {rows_of(4, count)}, v1, s[4:7], 0 offen"
        + (" sc0" if returns else "")
    )
    after = run(text, v=v, memory=memory, out=(4, 5)[:n], exec_mask=PARTIAL)
    on = active(PARTIAL)
    old = apply(model, bits, cells, [int(c) if on[k] and c < 12 else None for k, c in enumerate(cell)], a, b)
    got = [take(after.memory, k * size, size) for k in range(16)]
    assert got == cells and not after.findings
    for k in range(n):
        expected = (
            np.where(on, np.array([x >> 32 * k & 0xFFFFFFFF for x in old], np.uint32), v[4 + k])
            if returns
            else v[4 + k]
        )
        assert np.array_equal(after.v[4 + k], expected)
