# SPDX-License-Identifier: MIT
"""Stochastic rounding, the Hadamard rotation, and the preshuffled orders."""

import numpy as np
import pytest
import torch

import turbo_quant as tq
from turbo_quant.formats import fp4_dtype, mx_format_of
from turbo_testing import quant_oracle as oracle
from turbo_testing.cases import load
from turbo_testing.metrics import compute_snr

cases = load("turbo-quant")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TENSORWISE, ROWWISE, BLOCKWISE, MX = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE, cases.MX_BLOCKWISE
RECIPES = cases.RECIPES


@pytest.mark.parametrize("dtype", [E4M3, E5M2, fp4_dtype()], ids=str)
def test_stochastic_rounding_is_unbiased(backend, device, dtype):
    """The mean over many draws is the value, within 5 standard errors; to nearest it is not."""
    quantise, dequantise = cases.functions(dtype)
    draws = 4096 if backend == "TORCH" or device.type == "cuda" else 256
    values = torch.tensor([0.3, -0.7, 1.1, 2.3, -3.1, 4.9, 0.01, -0.06, 5.99] + [0.0] * 22 + [6.0], device=device)
    x = values.expand(draws, 32)
    q, scale = cases.run(quantise, x, dtype, MX, axis=-1, scaling_recipe=RECIPES["stochastic"])
    y = cases.run(dequantise, q, torch.float32, MX, axis=-1, scale_inv=scale, size=32).double()
    unit = oracle.decode_e8m0(cases.as_bytes(scale)[0, 0, 0].item())
    exact = values.double().cpu().numpy() / unit
    format = mx_format_of(dtype)
    below, above = (unit * oracle.stochastic(exact, np.full(32, u), format) for u in (1.0, 0.0))
    spread = torch.from_numpy(np.abs((unit * exact - below) * (above - unit * exact))).sqrt()  # of one draw
    error = (y.mean(0) - values.double()).abs().cpu()
    assert (error <= 5 * spread / draws**0.5 + 1e-7).all()
    assert (spread[:9] > 0).sum() >= 8 and not y[:, 9:31].any()
    levels = y[:, 0].unique()
    assert len(levels) == 2 and levels[0] < 0.3 < levels[1]


def test_stochastic_rounding_follows_the_seed(backend, device):
    x = torch.randn(64, 128, device=device)
    options = {"axis": -1, "scaling_recipe": RECIPES["stochastic"]}
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results += [cases.run(tq.quantize_fp4, x, fp4_dtype(), MX, **options)[0].view(torch.uint8) for _ in range(2)]
    a, b, again_a, again_b, other, _ = results
    assert torch.equal(a, again_a) and torch.equal(b, again_b)
    assert not torch.equal(a, b) and not torch.equal(a, other)
    rng = torch.tensor([3, 4], device=device)
    one, two = (
        cases.run(tq.quantize_fp4, x, fp4_dtype(), MX, rng=rng, **options)[0].view(torch.uint8) for _ in range(2)
    )
    assert torch.equal(one, two)


def test_row_and_column_draw_differently(device):
    """A square of equal values: were the random numbers shared, the two copies would be one."""
    x = torch.full((128, 128), 1.1, device=device)
    recipe = RECIPES["stochastic"]
    q, _, q_t, _ = tq.quantize_fp4_with_trans(
        x, fp4_dtype(), MX, scaling_recipe=recipe, scaling_recipe_for_trans=recipe
    )
    assert (q.view(torch.uint8) != q_t.view(torch.uint8)).float().mean() > 0.1


@pytest.mark.parametrize("stochastic", ["row", "column", "both", "neither"])
@pytest.mark.parametrize("dtype", [E4M3, fp4_dtype()], ids=str)
def test_only_the_copy_that_asks_is_rounded_stochastically(backend, device, dtype, stochastic):
    """Whatever the other does: a copy to nearest keeps its bits, a stochastic one draws what it draws alone."""
    x = torch.randn(96, 128, device=device)
    rng = torch.tensor([5, 6], device=device)
    both = tq.quantize_fp4_with_trans if dtype is fp4_dtype() else tq.quantize_fp8_with_trans
    one, _ = cases.functions(dtype)
    sr = {name: RECIPES["stochastic" if stochastic in (name, "both") else "plain"] for name in ("row", "column")}
    found = cases.run(both, x, dtype, MX, scaling_recipe=sr["row"], scaling_recipe_for_trans=sr["column"], rng=rng)
    for axis, name, copied in ((1, "row", found[:2]), (0, "column", found[2:])):
        cases.assert_same_bits(copied, cases.run(one, x, dtype, MX, axis=axis, scaling_recipe=sr[name], rng=rng))
        nearest, scale = cases.run(one, x, dtype, MX, axis=axis)
        cases.assert_same_bits(copied[1], scale)
        differ = (copied[0].view(torch.uint8) != nearest.view(torch.uint8)).float().mean()
        assert differ == 0 if sr[name] is RECIPES["plain"] else differ > 0.1, name


@pytest.mark.gpu
def test_a_captured_graph_draws_anew(device):
    x = torch.randn(64, 128, device=device)
    options = {"axis": -1, "scaling_recipe": RECIPES["stochastic"]}
    tq.quantize_fp4(x, fp4_dtype(), MX, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, _ = tq.quantize_fp4(x, fp4_dtype(), MX, **options)
    draws = []
    for _ in range(2):
        graph.replay()
        draws.append(q.view(torch.uint8).clone())
    assert not torch.equal(*draws)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("mask", [0, 0xBEEF])
def test_hadamard_transform(device, dtype, mask):
    x = torch.randn(5, 48, device=device).to(dtype)
    matrix = torch.from_numpy(oracle.hadamard_matrix()) / 4
    signs = torch.tensor([-1.0 if mask >> i & 1 else 1.0 for i in range(16)], dtype=torch.float64)
    expected = ((x.double().cpu().view(5, 3, 16) * signs) @ matrix).view(5, 48)
    y = tq.hadamard_transform(x, mask)
    tolerance = 1e-6 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(y.double().cpu(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(tq.hadamard_transform(y, mask, inverse=True), x, rtol=2 * tolerance, atol=2 * tolerance)


def test_a_pair_of_rotations_cancels(backend, device):
    """Both operands rotated along the shared dimension: their product is that of the originals."""
    a, b = torch.randn(64, 256, device=device), torch.randn(48, 256, device=device)
    mask = tq.random_sign_mask()
    product = tq.hadamard_transform(a, mask) @ tq.hadamard_transform(b, mask).T
    torch.testing.assert_close(product, a @ b.T, rtol=1e-5, atol=1e-4)
    a[:, 5] *= 30  # an outlier in each row: the rotation spreads it over 16, which the coarse format likes
    rotated, plain = [], []
    for x in (a, b):
        for recipe, results in ((RECIPES["rotated"], rotated), (RECIPES["plain"], plain)):
            q, scale = cases.run(tq.quantize_fp4, x, fp4_dtype(), MX, axis=-1, scaling_recipe=recipe, sign_mask=mask)
            # read as if no rotation had been: what a GEMM sees
            results.append(cases.run(tq.dequantize_fp4, q, torch.float32, MX, axis=-1, scale_inv=scale))
    exact = a.double() @ b.double().T
    assert compute_snr(exact, rotated[0].double() @ rotated[1].double().T) > 10


def test_random_sign_masks_follow_the_seed():
    torch.manual_seed(5)
    masks = [tq.random_sign_mask() for _ in range(20)]
    torch.manual_seed(5)
    assert masks == [tq.random_sign_mask() for _ in range(20)]
    assert len(set(masks)) > 15 and all(0 <= mask < 65536 for mask in masks)


@pytest.mark.parametrize("shape", [(1, 1), (33, 4), (256, 8), (300, 12), (2, 70, 20)], ids=str)
def test_shuffle_scale_and_back(device, shape):
    scale = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    for one in (scale, scale.view(torch.float8_e8m0fnu)):
        shuffled = tq.shuffle_scale(one)
        assert shuffled.shape[-2] % 256 == 0 and shuffled.shape[-1] % 8 == 0
        cases.assert_same_bits(tq.unshuffle_scale(shuffled, *shape[-2:]), one)
    assert int(tq.shuffle_scale(scale).int().sum()) == int(scale.int().sum())


@pytest.mark.parametrize("shape", [(16, 32), (48, 96), (2, 32, 64)], ids=str)
def test_shuffle_weight_and_back(device, shape):
    payload = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    for one in (payload, payload.view(fp4_dtype()), payload.mT.contiguous().mT):
        cases.assert_same_bits(tq.unshuffle_weight(tq.shuffle_weight(one)), one)
    shuffled = tq.shuffle_weight(payload).view(-1)
    assert torch.equal(shuffled[:16], payload.view(-1, shape[-1])[0, :16])
    assert torch.equal(shuffled[16:32], payload.view(-1, shape[-1])[1, :16])
