# SPDX-License-Identifier: MIT
"""The Triton plans with small tiles, so that every loop of the kernels has several iterations at small sizes."""

import math
from dataclasses import replace

import pytest
import torch

from turbo_core import arch_facts, device_facts, why_no_triton
from turbo_core.launch import start
from turbo_norm_act.calls import GluBackward, GluForward, NormBackward, NormForward, halves
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")
pytest.importorskip("triton", reason="triton is not installed")

from turbo_norm_act.triton import activation, norm  # noqa: E402
from turbo_norm_act.triton.tiles import ACTIVATION_TILES, ANY, NORM_TILES, Tile, choose_tile  # noqa: E402

ROWS, D = 50, 72  # neither D / 16 nor ROWS / 3 is whole

TILES = {
    "a row a tile, many partial sums": Tile(ANY, 128, num_warps=1, why="test", per_unit=20),
    "several rows": Tile(ANY, 512, num_warps=1, why="test", per_unit=3),
    "blocks of a row": Tile(ANY, 16, num_warps=1, why="test", whole=False, per_unit=40),
    "a row in several tiles": Tile(ANY, 16, num_warps=1, why="test", stream=True),
    "weights early": Tile(ANY, 256, num_warps=1, why="test", early=True, stream=True),
    "one block, as if wide": Tile(ANY, 256, num_warps=1, why="test", whole=False, per_unit=2),
}


@pytest.fixture(autouse=True)
def kernels_can_run(device):
    if (reason := why_no_triton(device)) is not None:
        pytest.skip(reason)


@pytest.mark.covering
@pytest.mark.parametrize("with_residual", [True, False], ids=["residual", "x"])
@pytest.mark.parametrize("center", [False, True], ids=["rmsnorm", "layernorm"])
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_norm(device, poisoned_allocations, tile, center, with_residual):
    x = torch.randn(ROWS, D, device=device) + torch.linspace(-4, 4, D, device=device)  # blocks differ in their mean
    residual, dy, ds = torch.randn(3, ROWS, D, device=device)
    gamma, beta = torch.randn(2, D, device=device)
    beta = beta if center else None
    residual, ds = (residual, ds) if with_residual else (None, None)
    facts = device_facts(x.device)
    call = NormForward(x, residual, gamma, beta, 1e-5, True, center)
    y, s, mean, rstd = start(*norm.plan(call, facts, tile))
    if residual is not None:
        assert_close(s, x + residual, what="s")
    s = x if s is None else s
    x64, gamma64, beta64 = cases.float64(s, gamma, beta)
    y64 = cases.norm(x64, gamma64, beta64, 1e-5, zero_centered=True, center=center)
    assert_close(y, y64, dtype=torch.float32, what="y")
    call = NormBackward(s, dy, ds, gamma, mean, rstd, 1e-5, True, True, True, torch.float32 if center else None)
    found = start(*norm.plan(call, facts, tile))
    leaves = [t for t in (x64, gamma64, beta64) if t is not None]
    outputs, grads = ([y64], [dy.double()]) if ds is None else ([y64, x64], [dy.double(), ds.double()])
    expected = torch.autograd.grad(outputs, leaves, grads)
    for name, one, other in zip(("dx", "dgamma", "dbeta"), found, expected):
        assert_close(one, other, dtype=torch.float32, what=name)
    assert len(leaves) == sum(gradient is not None for gradient in found)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "clamped", "silu limited", "gelu limited"])
@pytest.mark.parametrize("form, elements", [("separate", 16), ("packed", 128), ("interleaved", 512), ("packed", 16)])
def test_activation(device, poisoned_allocations, name, form, elements):
    tile = Tile(ANY, elements, num_warps=1, why="test")
    gate, up, dout = torch.randn(3, ROWS, D, device=device)
    probs = torch.rand(ROWS, device=device)
    row_mask = torch.arange(ROWS, device=device) % 7
    gate64, up64, probs64 = cases.float64(gate, up, probs)
    out64 = cases.glu(gate64, up64, name, probs64, row_mask, limit=1.5)
    expected = torch.autograd.grad(out64, [gate64, up64, probs64], dout.double())
    x = torch.stack((gate, up), -1).flatten(-2) if form == "interleaved" else torch.cat((gate, up), -1)
    x, second = (gate, up) if form == "separate" else (x, None)
    formula = name.split()[0], 1.5 if name.endswith("ed") else math.inf, 1.702
    forward = GluForward(x, second, probs, row_mask, *formula, form == "interleaved")
    facts = device_facts(x.device)
    assert_close(start(*activation.plan(forward, facts, tile)), out64, dtype=torch.float32)
    backward = GluBackward(*forward, dout, True, second is not None, True)
    dgate, dup, dprobs = start(*activation.plan(backward, facts, tile))
    if second is None:
        dgate, dup = halves(dgate, forward.interleaved)
    for what, one, other in zip(("dgate", "dup", "dprobs"), (dgate, dup, dprobs), expected):
        assert_close(one, other, dtype=torch.float32, what=what)


def test_every_width_has_a_tile():
    for targets in [*NORM_TILES.values(), *ACTIVATION_TILES.values()]:
        for rows in targets.values():
            last = rows[-1]
            assert last.up_to == ANY and last.multiple_of == 1 and last.itemsize >= 4, "the last row takes what is left"
            assert all(row.elements & (row.elements - 1) == 0 for row in rows)
    for which, targets in NORM_TILES.items():
        tiles = 4 if which.startswith("forward") else 1
        for rows in targets.values():
            assert all(not row.whole or tiles * row.elements >= row.up_to for row in rows), "they hold the widest row"


def test_rows_that_do_not_begin_on_16_bytes_take_another_tile():
    rows, facts = NORM_TILES["backward"], arch_facts("gfx942")
    assert choose_tile(rows, 16384, (16384,), facts).whole
    assert not choose_tile(rows, 16384, (16385,), facts).whole


def test_tiles_of_an_op():
    facts = replace(arch_facts("gfx942"), arch="sm_90", vendor="nvidia")
    rms, layer = NORM_TILES["forward rmsnorm"], NORM_TILES["forward layernorm"]
    assert choose_tile(rms, 65536, (), facts, 2).whole
    assert not choose_tile(rms, 65536, (), facts, 4).whole, "float32 does not fit registers"
    assert choose_tile(rms, 8192, (), facts, 2) is not choose_tile(layer, 8192, (), facts, 2)
    other = Tile(ANY, 16, num_warps=1, why="test")
    assert choose_tile({**rms, "sm_90": (other,)}, 4096, (), facts, 2) is other, "an architecture's rows come first"
