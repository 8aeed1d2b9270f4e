# SPDX-License-Identifier: MIT
"""FLAT, GLOBAL and SCRATCH instructions: addressing, every width, apertures, atomics, LDS-DMA."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

from atomic_models import apply, operands  # noqa: E402
from memory_case import ALL, PARTIAL, active, random_bytes, random_rows, run  # noqa: E402
from test_memory_buffer import ATOMICS, dwords, rows_of, take  # noqa: E402

SIZE = 4096
OFFSETS = np.random.default_rng(3).permutation(64).astype(np.uint32) * 16
# v[2:3] = 64-bit address of the block plus v1
WIDE = "v_mov_b32 v3, s13\nv_add_co_u32 v2, vcc, s12, v1\ns_nop 1\nv_addc_co_u32 v3, vcc, 0, v3, vcc\n"
FORMS = {
    "saddr": ("", "global", "v1", "s[12:13]", 64),
    "vaddr": (WIDE, "global", "v[2:3]", "off", 64),
    "flat": (WIDE, "flat", "v[2:3]", None, 64),
}


def access(form: str, name: str, data: str, *, load: bool) -> str:
    prologue, family, address, base, offset = FORMS[form]
    operands_ = [data, address] if load else [address, data]
    operands_ += [base] if base else []
    return f"{prologue}{family}_{name} {', '.join(operands_)} offset:{offset}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", [ALL, PARTIAL])
@pytest.mark.parametrize("count,name", [(1, "dword"), (2, "dwordx2"), (3, "dwordx3"), (4, "dwordx4")])
def test_load_and_store(form, mask, count, name):
    memory, old = random_bytes(SIZE), random_rows(4)
    v = {1: OFFSETS, **{4 + k: old[k] for k in range(4)}}
    after = run(
        access(form, f"load_{name}", rows_of(4, count), load=True), v=v, memory=memory, out=(4, 5, 6, 7), exec_mask=mask
    )
    loaded = dwords(memory, OFFSETS.astype(int) + 64, count)
    for k in range(4):
        assert np.array_equal(after.v[4 + k], np.where(active(mask), loaded[k], old[k]) if k < count else old[k])
    stored = run(access(form, f"store_{name}", rows_of(4, count), load=False), v=v, memory=memory, exec_mask=mask)
    for lane in np.flatnonzero(active(mask)):
        start = int(OFFSETS[lane]) + 64
        memory[start : start + 4 * count] = np.array([old[k][lane] for k in range(count)], np.uint32).view(np.uint8)
    assert np.array_equal(stored.memory, memory) and not after.findings and not stored.findings


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name,dtype", [("ubyte", np.uint8), ("sbyte", np.int8), ("ushort", np.uint16), ("sshort", np.int16)]
)
def test_load_small(form, name, dtype):
    memory, size = random_bytes(SIZE), np.dtype(dtype).itemsize
    after = run(access(form, f"load_{name}", "v4", load=True), v={1: OFFSETS}, memory=memory, out=(4,))
    expected = [
        int(np.frombuffer(memory[a + 64 : a + 64 + size].tobytes(), dtype)[0]) & 0xFFFFFFFF for a in OFFSETS.astype(int)
    ]
    assert after.v[4].tolist() == expected and not after.findings


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name,shift,size", [("byte", 0, 1), ("byte_d16_hi", 16, 1), ("short", 0, 2), ("short_d16_hi", 16, 2)]
)
def test_store_small(form, name, shift, size):
    memory, data = random_bytes(SIZE), random_rows(1)[0]
    after = run(access(form, f"store_{name}", "v4", load=False), v={1: OFFSETS, 4: data}, memory=memory)
    for lane in range(64):
        start = int(OFFSETS[lane]) + 64
        memory[start : start + size] = np.frombuffer(int(data[lane] >> shift).to_bytes(4, "little")[:size], np.uint8)
    assert np.array_equal(after.memory, memory) and not after.findings


def test_negative_offset():
    memory = random_bytes(SIZE)
    after = run("global_load_dword v4, v1, s[12:13] offset:-16", v={1: OFFSETS + 16}, memory=memory, out=(4,))
    assert np.array_equal(after.v[4], dwords(memory, OFFSETS.astype(int), 1)[0])


@pytest.mark.parametrize("address,offset,finding", [(4096, 0, True), (0, -4, True), (4092, 0, False)])
def test_bounds(address, offset, finding):
    after = run(
        f"global_store_dword v1, v4, s[12:13] offset:{offset}",
        v={1: np.full(64, address), 4: np.zeros(64)},
        memory=random_bytes(4096),
    )
    assert [f.check for f in after.findings] == (["bounds"] if finding else [])


def test_flat_reaches_lds_and_scratch():
    """The high half of the address names the aperture."""
    lds, at, data = random_bytes(512), np.arange(64, dtype=np.uint32) * 4, random_rows(2)
    text = """
      s_mov_b64 s[20:21], src_shared_base
      s_mov_b64 s[22:23], src_private_base
      v_mov_b32 v2, v1
      v_mov_b32 v3, s21
      flat_load_dword v4, v[2:3] offset:4
      flat_store_dword v[2:3], v8 offset:256
      s_waitcnt vmcnt(0) lgkmcnt(0)
      v_mov_b32 v2, 8
      v_mov_b32 v3, s23
      flat_store_dword v[2:3], v9
      s_waitcnt vmcnt(0) lgkmcnt(0)
      scratch_load_dword v5, off, off offset:8
    """
    after = run(text, v={1: at, 8: data[0], 9: data[1]}, lds=lds, out=(4, 5), scratch=64)
    assert np.array_equal(after.v[4], lds.view(np.uint32)[1:65]) and np.array_equal(after.v[5], data[1])
    assert np.array_equal(after.lds.view(np.uint32)[64:], data[0]) and not after.findings


@pytest.mark.parametrize("address,base", [("off", "off"), ("v1", "off"), ("off", "s20"), ("v1", "s20")])
def test_scratch(address, base):
    """Each lane has its own bytes; VGPR, SGPR and offset add up."""
    data = random_rows(4)
    at = np.arange(64, dtype=np.uint32) % 4 * 16
    text = f"""
      s_movk_i32 s20, 0x20
      scratch_store_dwordx4 {address}, v[4:7], {base} offset:16
      s_waitcnt vmcnt(0)
      scratch_load_dwordx2 v[8:9], {address}, {base} offset:24
      scratch_load_ushort v10, {address}, {base} offset:18
    """
    after = run(text, v={1: at, **{4 + k: data[k] for k in range(4)}}, out=(8, 9, 10), scratch=160)
    assert (
        np.array_equal(after.v[8], data[2])
        and np.array_equal(after.v[9], data[3])
        and np.array_equal(after.v[10], data[0] >> 16)
    )
    assert not after.findings


@pytest.mark.parametrize("mask", [ALL, PARTIAL])
@pytest.mark.parametrize("stored, loaded", [(2, 4), (4, 4), (3, 2), (1, 3), (4, 1)])
def test_scratch_widths(stored, loaded, mask):
    """Scratch holds what other instructions stored; lanes that are off keep their registers."""
    first, data, old = random_rows(4, seed=4), random_rows(4, seed=5), random_rows(4, seed=6)
    name = {1: "dword", 2: "dwordx2", 3: "dwordx3", 4: "dwordx4"}
    text = f"""
      scratch_store_dwordx4 off, v[4:7], off offset:32
      scratch_store_{name[stored]} off, {rows_of(8, stored)}, off offset:32
      s_waitcnt vmcnt(0)
      scratch_load_{name[loaded]} {rows_of(12, loaded)}, off, off offset:32
    """
    v = {base + k: rows[k] for base, rows in ((4, first), (8, data), (12, old)) for k in range(4)}
    after = run(text, v=v, out=(12, 13, 14, 15), exec_mask=mask, scratch=64)
    for k in range(4):
        memory = data[k] if k < stored else first[k]
        assert np.array_equal(after.v[12 + k], np.where(active(mask), memory, old[k]) if k < loaded else old[k])
    assert not after.findings


def test_scratch_beyond_the_kernels_own():
    after = run("scratch_store_dword off, v4, off offset:64", v={4: np.zeros(64)}, scratch=64)
    assert [f.check for f in after.findings] == ["bounds"]


@pytest.mark.parametrize("mask", [ALL, PARTIAL])
@pytest.mark.parametrize(
    "arch,name,count,form",
    [("gfx942", "dword", 1, "saddr"), ("gfx950", "dword", 1, "vaddr"), ("gfx950", "dwordx3", 3, "saddr"),
    ("gfx950", "dwordx4", 4, "vaddr")],
)  # fmt: skip
def test_lds_destination(arch, name, count, form, mask):
    memory, lds = random_bytes(SIZE), random_bytes(2048)
    prologue, _, address, base, _ = FORMS[form]
    text = f"{prologue}s_movk_i32 m0, 0x80\ns_nop 0\nglobal_load_lds_{name} {address}, {base} offset:16"
    after = run(text, arch=arch, v={1: OFFSETS}, memory=memory, lds=lds, exec_mask=mask)
    loaded = dwords(memory, OFFSETS.astype(int) + 16, count)
    for lane in np.flatnonzero(active(mask)):
        start = 0x80 + 16 + lane * 4 * count
        lds[start : start + 4 * count] = loaded[:, lane].copy().view(np.uint8)
    assert np.array_equal(after.lds, lds) and not after.findings


@pytest.mark.parametrize("form", ["saddr", "flat"])
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name,model,bits", ATOMICS)
def test_atomic(name, model, bits, returns, form):
    size, n = bits // 8, bits // 32
    cells, _ = operands(model, bits, 16, seed=11)
    a, b = operands(model, bits, 64)
    memory = np.zeros(64 + 16 * size, np.uint8)
    memory[64:] = np.frombuffer(b"".join(c.to_bytes(size, "little") for c in cells), np.uint8)
    cell = np.random.default_rng(9).integers(0, 16, 64)
    values = [x | y << bits for x, y in zip(a, b)] if model == "cmpswap" else a
    count = n * (2 if model == "cmpswap" else 1)
    v = {
        1: (cell * size).astype(np.uint32),
        **{4 + k: np.array([x >> 32 * k & 0xFFFFFFFF for x in values], np.uint32) for k in range(count)},
    }
    prologue, family, address, base, offset = FORMS[form]
    registers = ([rows_of(8, n)] if returns else []) + [address, rows_of(4, count)] + ([base] if base else [])
    text = f"{prologue}{family}_atomic_{name} {', '.join(registers)} offset:{offset}" + (" sc0" if returns else "")
    after = run(text, v=v, memory=memory, out=(8, 9)[:n] if returns else (), exec_mask=ALL)
    old = apply(model, bits, cells, [int(c) for c in cell], a, b)
    assert [take(after.memory, 64 + k * size, size) for k in range(16)] == cells and not after.findings
    if returns:
        for k in range(n):
            assert after.v[8 + k].tolist() == [x >> 32 * k & 0xFFFFFFFF for x in old]


def test_misaligned_atomic_is_refused():
    with pytest.raises(RuntimeError, match="misaligned"):
        run("global_atomic_add v1, v4, s[12:13]", v={1: np.full(64, 2), 4: np.zeros(64)}, memory=random_bytes(64))


def test_d16_loads_are_refused():
    with pytest.raises(RuntimeError, match="global_load_short_d16_hi.*SRAM ECC"):
        run("global_load_short_d16_hi v4, v1, s[12:13]", v={1: np.zeros(64), 4: np.zeros(64)}, memory=random_bytes(64))
