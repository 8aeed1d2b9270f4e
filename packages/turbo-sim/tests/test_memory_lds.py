# SPDX-License-Identifier: MIT
"""DS instructions: every width, two addresses, sub-dword, atomics, exchange between lanes, transposed reads."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

from atomic_models import apply, operands  # noqa: E402
from memory_case import ALL, PARTIAL, active, random_bytes, random_rows, run  # noqa: E402

MASKS = [ALL, PARTIAL]
SIZE = 4096


def shuffled(step: int, seed: int = 5) -> np.ndarray:
    """64 different addresses `step` bytes apart."""
    return (np.random.default_rng(seed).permutation(64) * step).astype(np.uint32)


def words(lds: np.ndarray, addresses: np.ndarray, count: int) -> np.ndarray:
    """[count, 64]: dwords that lanes find at their byte addresses."""
    return np.array(
        [[int.from_bytes(lds[a + 4 * k : a + 4 * k + 4].tobytes(), "little") for a in addresses] for k in range(count)],
        np.uint32,
    )


def expect(after: np.ndarray, before: np.ndarray, loaded: np.ndarray, mask: int) -> None:
    assert np.array_equal(after, np.where(active(mask), loaded, before))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dwords,name", [(1, "b32"), (2, "b64"), (3, "b96"), (4, "b128")])
@pytest.mark.parametrize("file", ["v", "a"])
def test_read(dwords, name, mask, file):
    lds, at, old = random_bytes(SIZE), shuffled(16), random_rows(4)
    regs = f"{file}[4:{3 + dwords}]" if dwords > 1 else f"{file}4"
    moves = (
        ""
        if file == "v"
        else "\n".join(f"v_accvgpr_write_b32 a{4 + k}, v{4 + k}" for k in range(dwords)) + "\ns_nop 4\n"
    )
    back = (
        ""
        if file == "v"
        else "\ns_waitcnt lgkmcnt(0)\n" + "\n".join(f"v_accvgpr_read_b32 v{4 + k}, a{4 + k}" for k in range(dwords))
    )
    after = run(
        f"{moves}ds_read_{name} {regs}, v1 offset:48{back}",
        v={1: at, **{4 + k: old[k] for k in range(dwords)}},
        lds=lds,
        out=tuple(4 + k for k in range(dwords)),
        exec_mask=mask,
    )
    loaded = words(lds, at + 48, dwords)
    for k in range(dwords):
        expect(after.v[4 + k], old[k], loaded[k], mask)
    assert not after.findings and np.array_equal(after.lds, lds)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dwords,name", [(1, "b32"), (2, "b64"), (3, "b96"), (4, "b128")])
def test_write(dwords, name, mask):
    lds, at, data = random_bytes(SIZE), shuffled(32), random_rows(4)
    regs = f"v[4:{3 + dwords}]" if dwords > 1 else "v4"
    after = run(
        f"ds_write_{name} v1, {regs} offset:16",
        v={1: at, **{4 + k: data[k] for k in range(dwords)}},
        lds=lds,
        exec_mask=mask,
    )
    for lane in np.flatnonzero(active(mask)):
        start = at[lane] + 16
        lds[start : start + 4 * dwords] = np.array([data[k][lane] for k in range(dwords)], np.uint32).view(np.uint8)
    assert np.array_equal(after.lds, lds) and not after.findings


@pytest.mark.parametrize("dwords,name", [(1, "b32"), (2, "b64")])
@pytest.mark.parametrize("stride", ["", "st64"])
def test_two_addresses(dwords, name, stride):
    scale = 4 * dwords * (64 if stride else 1)
    lds, at = random_bytes(16384), shuffled(8)
    offsets = (3, 10)
    read = run(
        f"ds_read2{stride}_{name} v[4:{3 + 2 * dwords}], v1 offset0:{offsets[0]} offset1:{offsets[1]}",
        v={1: at},
        lds=lds,
        out=tuple(range(4, 4 + 2 * dwords)),
    )
    for n, offset in enumerate(offsets):
        loaded = words(lds, at + offset * scale, dwords)
        for k in range(dwords):
            assert np.array_equal(read.v[4 + n * dwords + k], loaded[k])
    data, at = random_rows(4), np.arange(64, dtype=np.uint32) * 8
    offsets = (1, 100) if stride == "" else (1, 20)
    a, b = (f"v[{4 + n * 2}:{5 + n * 2}]" if dwords == 2 else f"v{4 + n * 2}" for n in range(2))
    after = run(
        f"ds_write2{stride}_{name} v1, {a}, {b} offset0:{offsets[0]} offset1:{offsets[1]}",
        v={1: at, **{4 + k: data[k] for k in range(4)}},
        lds=lds,
    )
    for n, offset in enumerate(offsets):
        for lane in range(64):
            start = at[lane] + offset * scale
            lds[start : start + 4 * dwords] = np.array([data[2 * n + k][lane] for k in range(dwords)], np.uint32).view(
                np.uint8
            )
    assert np.array_equal(after.lds, lds) and not read.findings and not after.findings


@pytest.mark.parametrize("name,dtype", [("u8", np.uint8), ("i8", np.int8), ("u16", np.uint16), ("i16", np.int16)])
def test_read_small(name, dtype):
    lds, at = random_bytes(SIZE), np.random.default_rng(3).integers(0, 500, 64).astype(np.uint32) * 2
    after = run(f"ds_read_{name} v4, v1 offset:2", v={1: at}, lds=lds, out=(4,))
    size = np.dtype(dtype).itemsize
    expected = [int(np.frombuffer(lds[a + 2 : a + 2 + size].tobytes(), dtype)[0]) & 0xFFFFFFFF for a in at]
    assert after.v[4].tolist() == expected and not after.findings


@pytest.mark.parametrize("name,shift,size", [("b8", 0, 1), ("b16", 0, 2), ("b8_d16_hi", 16, 1), ("b16_d16_hi", 16, 2)])
def test_write_small(name, shift, size):
    lds, at, data = random_bytes(SIZE), shuffled(2), random_rows(1)[0]
    after = run(f"ds_write_{name} v1, v4 offset:6", v={1: at, 4: data}, lds=lds, exec_mask=PARTIAL)
    for lane in np.flatnonzero(active(PARTIAL)):
        lds[at[lane] + 6 : at[lane] + 6 + size] = np.frombuffer(
            int(data[lane] >> shift).to_bytes(4, "little")[:size], np.uint8
        )
    assert np.array_equal(after.lds, lds) and not after.findings


def test_out_of_range_reads_zero_and_drops_writes():
    lds = random_bytes(256)
    after = run(
        "ds_read_b64 v[4:5], v1\nds_write_b32 v2, v3",
        v={1: np.full(64, 252), 2: np.full(64, 256), 3: np.full(64, 7)},
        lds=lds,
        out=(4, 5),
    )
    assert not after.v[4].any() and not after.v[5].any() and np.array_equal(after.lds, lds)
    assert {f.check for f in after.findings} == {"bounds"}


# --- atomics ---------------------------------------------------------------------------------------------------------

ATOMICS = [
    *((f"{name}_{kind}{bits}", model, bits) for bits in (32, 64) for name, kind, model in (
        ("add", "u", "add"), ("sub", "u", "sub"), ("rsub", "u", "rsub"), ("inc", "u", "inc"), ("dec", "u", "dec"),
        ("min", "i", "smin"),
        ("max", "i", "smax"), ("min", "u", "umin"), ("max", "u", "umax"), ("and", "b", "and"), ("or", "b", "or"),
        ("xor", "b", "xor"),
        ("mskor", "b", "mskor"), ("cmpst", "b", "cmpst"), ("add", "f", "fadd"), ("min", "f", "fmin"), ("max", "f",
        "fmax"))),
    ("pk_add_f16", "pk_f16", 32), ("pk_add_bf16", "pk_bf16", 32),
]  # fmt: skip


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name,model,bits", ATOMICS)
def test_atomic(name, model, bits, returns):
    size, n = bits // 8, bits // 32
    start, _ = operands(model, bits, 16, seed=11)
    a, b = operands(model, bits, 64)
    cells = list(start)
    lds = np.zeros(256, np.uint8)
    lds[: 16 * size] = np.frombuffer(b"".join(c.to_bytes(size, "little") for c in cells), np.uint8)
    cell = np.random.default_rng(9).integers(0, 16, 64)
    v = {1: (cell * size).astype(np.uint32)}
    for row, values in ((4, a), (6, b)):
        v[row] = np.array([x & 0xFFFFFFFF for x in values], np.uint32)
        v[row + 1] = np.array([x >> 32 for x in values], np.uint32)
    data = [f"v[{r}:{r + 1}]" if n == 2 else f"v{r}" for r in (4, 6)]
    two = model in ("mskor", "cmpst")
    op, _, kind = name.rpartition("_")
    mnemonic = f"ds_{op}_rtn_{kind}" if returns else f"ds_{name}"
    dst = ("v[8:9], " if n == 2 else "v8, ") if returns else ""
    text = f"{mnemonic} {dst}v1, {data[0]}" + (f", {data[1]}" if two else "")
    after = run(text, v=v, lds=lds, out=(8, 9)[:n] if returns else (), exec_mask=PARTIAL if not returns else ALL)
    on = active(PARTIAL if not returns else ALL)
    old = apply(model, bits, cells, [int(c) if on[lane] else None for lane, c in enumerate(cell)], a, b)
    got = [int.from_bytes(after.lds[k * size : (k + 1) * size].tobytes(), "little") for k in range(16)]
    assert got == cells and not after.findings
    if returns:
        assert after.v[8].tolist() == [x & 0xFFFFFFFF for x in old]
        if n == 2:
            assert after.v[9].tolist() == [x >> 32 for x in old]


def test_exchange():
    lds, at, data = random_bytes(1024), np.arange(64, dtype=np.uint32) * 4, random_rows(2)
    after = run(
        "ds_wrxchg2_rtn_b32 v[8:9], v1, v4, v5 offset0:0 offset1:64",
        v={1: at, 4: data[0], 5: data[1]},
        lds=lds,
        out=(8, 9),
    )
    before = lds.view(np.uint32).reshape(4, 64)
    assert np.array_equal(after.v[8], before[0]) and np.array_equal(after.v[9], before[1])
    assert np.array_equal(after.lds.view(np.uint32).reshape(4, 64)[:2], np.array(data))


# --- exchange between lanes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
def test_bpermute(mask):
    index, data = np.random.default_rng(4).integers(0, 80, 64).astype(np.uint32) * 4, random_rows(2)
    after = run("ds_bpermute_b32 v4, v1, v2 offset:4", v={1: index, 2: data[0], 4: data[1]}, out=(4,), exec_mask=mask)
    source = (index + 4) // 4 % 64
    expect(after.v[4], data[1], np.where(active(mask)[source], data[0][source], 0), mask)


@pytest.mark.parametrize("mask", MASKS)
def test_permute(mask):
    index, data = np.random.default_rng(4).integers(0, 64, 64).astype(np.uint32) * 4, random_rows(2)
    after = run("ds_permute_b32 v4, v1, v2", v={1: index, 2: data[0], 4: data[1]}, out=(4,), exec_mask=mask)
    pushed = np.zeros(64, np.uint32)
    for lane in np.flatnonzero(active(mask)):
        pushed[index[lane] // 4] = data[0][lane]
    expect(after.v[4], data[1], pushed, mask)


SWIZZLES = {
    "swizzle(QUAD_PERM, 3, 1, 0, 2)": lambda lane: (lane & ~3) | (3, 1, 0, 2)[lane & 3],
    "swizzle(SWAP, 4)": lambda lane: lane ^ 4,
    "swizzle(REVERSE, 32)": lambda lane: lane ^ 31,
    "swizzle(BROADCAST, 8, 5)": lambda lane: (lane & ~7) | 5,
    'swizzle(BITMASK_PERM, "01pi0")': lambda lane: (lane & 32) | ((lane & 6) | 8) ^ 2,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", SWIZZLES)
def test_swizzle(form, mask):
    data = random_rows(2)
    after = run(f"ds_swizzle_b32 v4, v2 offset:{form}", v={2: data[0], 4: data[1]}, out=(4,), exec_mask=mask)
    source = np.array([SWIZZLES[form](lane) for lane in range(64)])
    expect(after.v[4], data[1], np.where(active(mask)[source], data[0][source], 0), mask)


@pytest.mark.parametrize(
    "name,bits,dwords", [("b64_tr_b16", 16, 2), ("b64_tr_b8", 8, 2), ("b64_tr_b4", 4, 2), ("b96_tr_b6", 6, 3)]
)
def test_transposed_read(name, bits, dwords):
    lds, at = random_bytes(SIZE), shuffled(16)
    after = run(f"ds_read_{name} v[4:{3 + dwords}], v1 offset:32", v={1: at}, lds=lds, out=tuple(range(4, 4 + dwords)))
    own = [int.from_bytes(lds[a + 32 : a + 32 + 4 * dwords].tobytes(), "little") for a in at]
    count = 32 * dwords // bits
    for lane in range(64):
        base, i = lane & ~15, lane & 15
        expected = 0
        for j in range(count):
            expected |= (own[base + i // count + 16 // count * j] >> (bits * (i % count)) & ((1 << bits) - 1)) << (
                bits * j
            )
        got = sum(int(after.v[4 + k][lane]) << 32 * k for k in range(dwords))
        assert got == expected, (lane, hex(got), hex(expected))


def test_transposed_read_moves_a_tile():
    """16 x 16 halves in rows: lane i of the 16 gets column i, four rows of it per 16-lane block that a kernel
    addresses.
    """
    tile = np.arange(256, dtype=np.uint16).reshape(16, 16)
    lane = np.arange(64, dtype=np.uint32)
    at = (lane // 16 * 4 + lane % 16 // 4) * 32 + lane % 4 * 8  # each lane 4 halves of one row
    after = run("ds_read_b64_tr_b16 v[4:5], v1", v={1: at}, lds=tile.view(np.uint8).reshape(-1), out=(4, 5))
    for k in range(64):
        halves = [int(after.v[4 + j // 2][k]) >> 16 * (j % 2) & 0xFFFF for j in range(4)]
        assert halves == [int(tile[k // 16 * 4 + j, k % 16]) for j in range(4)]


@pytest.mark.parametrize(
    "text", ["ds_read_u8_d16 v4, v1", "ds_read_u16_d16_hi v4, v1", "ds_swizzle_b32 v4, v1 offset:0xc020"]
)
def test_refused_by_name(text):
    with pytest.raises(RuntimeError, match=text.split()[0]):
        run(text, v={1: np.zeros(64), 4: np.zeros(64)}, lds=random_bytes(256), out=(4,))
