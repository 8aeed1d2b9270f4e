# SPDX-License-Identifier: MIT
"""The Triton launchers with small tiles, so that every loop of the kernels goes round several times at small sizes."""

import math
from dataclasses import replace

import pytest
import torch

from turbo_core import arch_facts, why_no_triton
from turbo_norm_act.values import Formula, Wanted
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")
pytest.importorskip("triton", reason="triton is not installed")

from turbo_norm_act.triton import activation, norm  # noqa: E402
from turbo_norm_act.triton.tiles import ACTIVATION_TILES, ANY, NORM_TILES, Tile, choose_tile  # noqa: E402

ROWS, D = 50, 72  # D / 16 leaves a rest, ROWS / 3 and ROWS / 2 too

TILES = {
    "a row a tile, many partial sums": Tile(ANY, 128, 1, "test", per_unit=20),
    "several rows": Tile(ANY, 512, 1, "test", per_unit=3),
    "blocks of a row": Tile(ANY, 16, 1, "test", whole=False, per_unit=40),
    "a row in several tiles": Tile(ANY, 16, 1, "test", stream=True),
    "weights early": Tile(ANY, 256, 1, "test", early=True, stream=True),
    "one block, as if wide": Tile(ANY, 256, 1, "test", whole=False, per_unit=2),
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
    y, s, mean, rstd = norm.norm_forward(x, residual, gamma, beta, 1e-5, center=center, zero_centered=True, tile=tile)
    if residual is not None:
        assert_close(s, x + residual, what="s")
    s = x if s is None else s
    x64, gamma64, beta64 = cases.float64(s, gamma, beta)
    y64 = cases.norm(x64, gamma64, beta64, 1e-5, zero_centered=True, center=center)
    assert_close(y, y64, dtype=torch.float32, what="y")
    wanted = Wanted(True, torch.float32, torch.float32 if center else None)
    found = norm.norm_backward(dy, ds, s, gamma, mean, rstd, zero_centered=True, wanted=wanted, tile=tile)
    leaves = [t for t in (x64, gamma64, beta64) if t is not None]
    outputs, grads = ([y64], [dy.double()]) if ds is None else ([y64, x64], [dy.double(), ds.double()])
    expected = torch.autograd.grad(outputs, leaves, grads)
    for name, one, other in zip(("dx", "dgamma", "dbeta"), found, expected):
        assert_close(one, other, dtype=torch.float32, what=name)
    assert len(leaves) == sum(gradient is not None for gradient in found)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "clamped", "silu limited", "gelu limited"])
@pytest.mark.parametrize("elements", [16, 128, 512])
def test_activation(device, poisoned_allocations, name, elements):
    tile = Tile(ANY, elements, 1, "test", whole=False)
    gate, up, dout, dgate, dup = torch.randn(5, ROWS, D, device=device)
    probs, dprobs = torch.rand(2, ROWS, device=device)
    row_mask = torch.arange(ROWS, device=device) % 7
    formula = Formula(name.split()[0], 1.5 if name.endswith("ed") else math.inf, 1.702)
    gate64, up64, probs64 = cases.float64(gate, up, probs)
    out64 = cases.glu(gate64, up64, name, probs64, row_mask, limit=1.5)
    out = activation.glu_forward(gate, up, probs, row_mask, formula, tile=tile)
    assert_close(out, out64, dtype=torch.float32)
    activation.glu_backward(dout, gate, up, probs, row_mask, formula, dgate, dup, dprobs, tile=tile)
    expected = torch.autograd.grad(out64, [gate64, up64, probs64], dout.double())
    for what, one, other in zip(("dgate", "dup", "dprobs"), (dgate, dup, dprobs), expected):
        assert_close(one, other, dtype=torch.float32, what=what)


@pytest.mark.parametrize("table", [NORM_TILES, ACTIVATION_TILES], ids=["norm", "activation"])
def test_every_width_has_a_tile(table):
    for which, target in table:
        rows = table[which, target]
        last = rows[-1]
        assert last.up_to == ANY and last.multiple_of == 1 and last.itemsize >= 4, "the last row takes what is left"
        assert all(row.why and row.elements & (row.elements - 1) == 0 for row in rows)
        tiles = 4 if which.startswith("forward") else 1
        assert all(not row.whole or tiles * row.elements >= row.up_to for row in rows), "tiles that hold the widest row"
    odd = choose_tile(NORM_TILES, "backward", 16384, (16385,), arch_facts("gfx942"))
    assert not odd.whole, "rows that do not begin on 16 bytes take another tile"


def test_tiles_of_an_op():
    facts = replace(arch_facts("gfx942"), arch="sm_90", vendor="nvidia")
    assert choose_tile(NORM_TILES, "forward rmsnorm", 65536, (), facts, 2).whole
    assert not choose_tile(NORM_TILES, "forward rmsnorm", 65536, (), facts, 4).whole, "float32 does not fit registers"
    assert choose_tile(NORM_TILES, "forward rmsnorm", 8192, (), facts, 2) is not choose_tile(
        NORM_TILES, "forward layernorm", 8192, (), facts, 2
    )
    amd = arch_facts("gfx950")
    assert choose_tile(NORM_TILES, "forward rmsnorm", 4096, (), amd, 2) is choose_tile(
        NORM_TILES, "forward", 4096, (), amd, 2
    )
