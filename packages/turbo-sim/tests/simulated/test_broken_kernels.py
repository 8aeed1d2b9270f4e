# SPDX-License-Identifier: MIT
"""Triton's own code, broken on purpose: each wait and barrier removed in turn, launches that leave their
buffers,
code of the
other architecture."""

from __future__ import annotations

import struct

import pytest
import torch
import triton
import triton.language as tl

import turbo_sim
from turbo_sim._native import module as native

WAITCNT, BARRIER, NOP = 0xBF8C, 0xBF8A0000, 0xBF800000


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, STEP)
    acc = tl.zeros((N, N), tl.float32)
    for start in range(0, K, STEP):
        x = tl.load(a + n[:, None] * K + start + k[None, :])
        y = tl.load(b + (start + k)[:, None] * N + n[None, :])
        acc += tl.dot(x, y)
    tl.store(c + n[:, None] * N + n[None, :], acc)


N, K = 64, 128


def operands():
    return torch.randn(N, K).half(), torch.randn(K, N).half(), torch.zeros(N, N)


def compiled():
    return dot_kernel[(1,)](*operands(), N=N, K=K, STEP=32, num_warps=4)


def run(hsaco: bytes, arch: str, shared: int, seed: int = 0):
    """(report, relative error) of the kernel in a code object, all checks on."""
    a, b, c = operands()
    code = native.CodeObject.load(hsaco, arch)
    (kernel,) = code.kernels
    kernarg = struct.pack("<QQQ", a.data_ptr(), b.data_ptr(), c.data_ptr()).ljust(kernel.kernarg_bytes, b"\0")
    memory = [(t.data_ptr(), t.numel() * t.element_size(), name) for t, name in ((a, "a"), (b, "b"), (c, "c"))]
    report = native.launch(
        code, kernel.name, (1, 1, 1), (256, 1, 1), kernarg, shared=shared, memory=memory, threads=1, seed=seed
    )
    expected = a.double() @ b.double()
    return report, float((c.double() - expected).norm() / expected.norm())


def sites(hsaco: bytes, arch: str, wanted) -> list[int]:
    """File offsets of the words of executed instructions that `wanted` accepts."""
    texts = native.CodeObject.load(hsaco, arch).instruction_texts()
    sections, count = struct.unpack_from("<Q", hsaco, 40)[0], struct.unpack_from("<H", hsaco, 60)[0]
    for k in range(count):
        flags, _, offset, size = struct.unpack_from("<QQQQ", hsaco, sections + 64 * k + 8)
        if flags & 4:  # executable
            places = [offset + at for at, _ in texts if at + 4 <= size]
            return [at for at in places if wanted(struct.unpack_from("<I", hsaco, at)[0])]
    raise ValueError("no executable section")


def without(hsaco: bytes, at: int) -> bytes:
    return hsaco[:at] + struct.pack("<I", NOP) + hsaco[at + 4 :]


def test_the_kernel_itself_is_clean(simulator):
    k = compiled()
    for seed in (0, 1):
        report, error = run(k.asm["hsaco"], simulator.arch, k.metadata.shared, seed)
        assert not list(report.findings) and error < 1e-5


def test_every_wait_matters_and_its_removal_is_found(simulator):
    k = compiled()
    hsaco = k.asm["hsaco"]
    found = 0
    places = sites(hsaco, simulator.arch, lambda word: word >> 16 == WAITCNT)
    assert len(places) >= 5
    silent = []
    for at in places:
        report, error = run(without(hsaco, at), simulator.arch, k.metadata.shared)
        checks = {f.check for f in report.findings}
        if "wait" in checks:
            found += 1
        else:
            silent.append(at)
            assert error < 1e-5, "a wrong result without a finding"
    # Some waits cover what a later wait covers too, or stores before the end of the program.
    assert found >= len(places) // 2, (found, silent)


def test_every_barrier_matters_and_its_removal_is_found(simulator):
    k = compiled()
    hsaco = k.asm["hsaco"]
    places = sites(hsaco, simulator.arch, lambda word: word == BARRIER)
    assert places
    for at in places:
        checks = {
            f.check
            for seed in (0, 1, 2)
            for f in run(without(hsaco, at), simulator.arch, k.metadata.shared, seed)[0].findings
        }
        assert checks & {"race", "wait", "uninit"}, f"barrier at {at:#x}"


@triton.jit
def fill_kernel(out, BLOCK: tl.constexpr):
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1.0)


def test_a_store_past_the_end_names_the_line(simulator):
    out = torch.zeros(1000)
    with pytest.raises(
        turbo_sim.SimulationError, match=r"bounds: fill_kernel.*test_broken_kernels\.py:\d+.*argument 0: \(1000,\)"
    ):
        fill_kernel[(4,)](out, BLOCK=256)
    assert bool((out == 1).all()), "what is inside is written"


def test_pointers_in_memory_need_an_announcement(simulator):
    x, out = torch.arange(256, dtype=torch.int64), torch.zeros(256, dtype=torch.int64)
    table = torch.tensor([x.data_ptr()], dtype=torch.int64)
    with pytest.raises(turbo_sim.SimulationError, match="bounds"):
        follow_kernel[(1,)](table, out, BLOCK=256)
    with simulator.memory(x):
        follow_kernel[(1,)](table, out, BLOCK=256)
    assert torch.equal(out, x)
    out.zero_()
    with turbo_sim.use(simulator.arch, bounds="process"):
        follow_kernel[(1,)](table, out, BLOCK=256)
    assert torch.equal(out, x)


@triton.jit
def follow_kernel(table, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(table).to(tl.pointer_type(tl.int64))
    tl.store(out + i, tl.load(x + i))


def test_checks_can_be_off(simulator):
    out = torch.zeros(1024)
    with turbo_sim.use(simulator.arch, findings="keep") as session:
        fill_kernel[(4,)](out[:1000], BLOCK=256)  # the storage is larger than the view: nothing to find
        assert session.findings == 0
        table = torch.tensor([out.data_ptr()], dtype=torch.int64)
        follow_kernel[(1,)](table, torch.zeros(256, dtype=torch.int64), BLOCK=256)
        assert session.findings > 0


def test_code_of_the_other_architecture(simulator):
    hsaco = compiled().asm["hsaco"]
    other = {"gfx942": "gfx950", "gfx950": "gfx942"}[simulator.arch]
    with pytest.raises(ValueError, match=simulator.arch):
        native.CodeObject.load(hsaco, other)


def test_autotune_is_deterministic(simulator):
    """Candidates are ranked by wave-instructions; two runs choose alike."""

    @triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 1024})], key=["n"])
    @triton.jit
    def tuned(out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, i, mask=i < n)

    chosen = []
    for _ in range(2):
        tuned.cache.clear()
        out = torch.zeros(4096, dtype=torch.int32)
        tuned[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](out, 4096)
        assert torch.equal(out, torch.arange(4096, dtype=torch.int32))
        chosen.append(tuned.best_config.kwargs)
    assert chosen[0] == chosen[1]


def test_do_bench_counts(simulator):
    out = torch.zeros(1024)
    times = {
        triton.runtime.driver.active.get_benchmarker()(lambda: fill_kernel[(4,)](out, BLOCK=256)) for _ in range(3)
    }
    assert len(times) == 1 and times.pop() > 0
