# SPDX-License-Identifier: MIT
"""grouped_gemm_fp8 and grouped_gemm_fp4: forward and gradients of every backend, NaN in every row of no group.

Against float64, of the inputs and of what is left of them once quantised.
"""

from pathlib import Path

import pytest
import torch

from turbo_core import GlobalBackendManager, why_no_triton
from turbo_core.low_precision import ScalingGranularity
from turbo_testing.cases import load, load_file
from turbo_testing.metrics import assert_close
from turbo_testing.poison import poisoned_empty
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS

PROBLEMS = load_file(Path(__file__).with_name("quantised_problem.py"), "quantised_problem")
Problem = PROBLEMS.Problem
CASES = load("turbo-grouped-gemm")
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
GRANULARITIES = ["tensorwise", "rowwise", "blockwise", "mx"]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def cases_of(served, device):
    if served == "TRITON" and device.type == "cpu":
        return CASES.INTERPRETED[::2]
    return CASES.CPU[1:]


def allowance(lens, n, k):
    """Whether an SNR means anything: there is some averaging."""
    return min(sum(lens), n, k) > 7


@pytest.mark.covering(each="served")
@pytest.mark.parametrize("served", ["TRITON", "TORCH"])
@pytest.mark.parametrize("format", ["e4m3", "e5m2", "hybrid"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
@pytest.mark.parametrize("room", [0, 3])
@pytest.mark.parametrize("indices", ["none", "gather", "scatter", "both"])
def test_forward_and_gradients(served, device, granularity, format, trans_b, room, indices):
    """Of the backends that take every call; torch's own has tests in test_grouped_scaled_mm.py."""
    if served == "TRITON" and (reason := why_no_triton(device)):
        pytest.skip(f"backend TRITON: {reason}")
    GlobalBackendManager.set_grouped_gemm_backend(served)
    config = CONFIGS[f"{granularity}-{format}"]
    for lens, tail, n, k in cases_of(served, device):
        gather, scatter = indices in ("gather", "both"), indices in ("scatter", "both")
        problem = Problem(lens, tail, n, k, BF16, device, trans_b, room, gather, scatter)
        with poisoned_empty():
            problem.check(config, allowance(lens, n, k))


@pytest.mark.parametrize("config", ["mxfp4", "mxfp4-sr"])
@pytest.mark.parametrize("trans_b", CASES.LAYOUTS)
@pytest.mark.usefixtures("serving")
def test_fp4(device, config, trans_b):
    exact = config == "mxfp4"
    for lens, tail, n, k in (((40, 0, 33), 2, 48, 96), ((5, 0, 0, 7, 1), 3, 100, 33)):
        for how in ({}, {"room": 2, "gather": True}, {"scatter": True}):
            problem = Problem(lens, tail, n, k, BF16, device, trans_b, **how)
            with poisoned_empty():
                problem.check(CONFIGS[config], snr=min(n, k) > 33, exact=exact)


@pytest.mark.parametrize(("lens", "tail", "n", "k"), CASES.EMPTY)
@pytest.mark.parametrize("config", [*(f"{name}-e4m3" for name in GRANULARITIES), "mxfp4"])
def test_zero_sizes(device, lens, tail, n, k, config, poisoned_allocations):
    for trans_b in CASES.LAYOUTS:
        for scatter in (False, True):
            problem = Problem(lens, tail, n, k, BF16, device, trans_b, scatter=scatter)
            results = problem.step(CONFIGS[config])
            for got, want in zip(results, problem.expected(None)):
                assert_close(got, want)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_nothing_divides(device, granularity):
    """Field case: K = N = 2880, half a block of 128 more than 22; here one and a half."""
    Problem((70, 0, 3), 1, 192, 192, BF16, device).check(CONFIGS[f"{granularity}-e4m3"])


@pytest.mark.full
@pytest.mark.parametrize("config", [*(f"{name}-e4m3" for name in GRANULARITIES), "mxfp4"])
def test_2880(device, config):
    Problem((70, 0, 3), 1, 2880, 2880, BF16, device).check(CONFIGS[config])


@pytest.mark.parametrize("config", [*(f"{name}-hybrid" for name in GRANULARITIES), "mxfp4"])
def test_groups_with_padded_rows_of_their_own(device, config):
    """a [G,M,K] and the number of rows of each that count."""
    config = CONFIGS[config]
    counts, room, n, k = [5, 0, 12], 12, 48, 64
    problem = Problem(counts, 0, n, k, BF16, device)
    a = torch.full((3, room, k), torch.nan, device=device, dtype=BF16)
    grad_out = torch.full((3, room, n), torch.nan, device=device, dtype=BF16)
    valid = torch.arange(room, device=device) < problem.lens[:, None]
    a[valid], grad_out[valid] = problem.a.detach(), problem.grad_out
    a.requires_grad_()
    out = PROBLEMS.multiply(a, problem.b, problem.lens, config, bias=problem.bias)
    gradients = torch.autograd.grad(out, (a, problem.b, problem.bias), grad_out)
    expected = problem.step(config)
    assert out.shape == (3, room, n)
    for got, want in zip((out, gradients[0]), expected):
        assert torch.equal(got[valid], want)
        assert not got[~valid].count_nonzero()
    for got, want in zip(gradients[1:], expected[2:]):
        assert torch.equal(got, want)


@pytest.mark.parametrize("out_dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("config", ["tensorwise-hybrid", "rowwise-e4m3", "blockwise-e4m3", "mx-e4m3", "mxfp4"])
def test_dtypes(device, config, out_dtype):
    """Gradients have the dtypes of their inputs."""
    problem = Problem((20, 0, 9), 1, 48, 64, FP32, device)
    problem.b, problem.bias = (t.detach().to(FP16).requires_grad_() for t in (problem.b, problem.bias))
    problem.grad_out = problem.grad_out.to(out_dtype)
    out, *gradients = problem.step(CONFIGS[config], out_dtype=out_dtype)
    assert [out.dtype, *(g.dtype for g in gradients)] == [out_dtype, FP32, FP16, FP16]
    for got, want in zip((out, *gradients), problem.expected(CONFIGS[config])):
        assert_close(got, want, dtype=FP16)


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "mxfp4-sr"])
def test_repeats_are_equal(device, config):
    problem = Problem((33, 0, 14), 2, 100, 33, BF16, device, gather=True)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(problem.step(CONFIGS[config]))
    for one, other in zip(*runs):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_of_no_group_count_in_no_scale(device, granularity):
    """The same bits whatever lies behind the groups."""
    problem = Problem((6, 0, 9), 4, 40, 48, BF16, device)
    with_nan = problem.step(CONFIGS[f"{granularity}-e4m3"])
    with torch.no_grad():
        problem.a[problem.unused] = 1e4
    problem.grad_out[problem.unwritten] = 1e4
    for one, other in zip(with_nan, problem.step(CONFIGS[f"{granularity}-e4m3"])):
        assert torch.equal(one, other)


@pytest.mark.parametrize("config", [*(f"{name}-hybrid" for name in GRANULARITIES), "mxfp4"])
def test_what_is_not_wanted_changes_no_bit(device, config):
    """Without gradients, with that of a alone and with that of b alone: other payloads are made, the same results."""
    config, problem = CONFIGS[config], Problem((6, 0, 9), 4, 40, 48, BF16, device)
    out, grad_a, grad_b, _ = problem.step(config)
    with torch.no_grad():
        assert torch.equal(problem.run(config), out)
    for leaf, other, want in ((problem.a, problem.b, grad_a), (problem.b, problem.a, grad_b)):
        other.requires_grad_(False)
        (got,) = torch.autograd.grad(problem.run(config), leaf, problem.grad_out)
        other.requires_grad_()
        assert torch.equal(got, want)


@pytest.mark.parametrize("schedule", [{"num_cu": 3}, {"schedule": "work_steal"}])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_schedules_change_no_bit(device, granularity, schedule):
    problem = Problem((6, 0, 9), 1, 40, 48, BF16, device)
    config = CONFIGS[f"{granularity}-e4m3"]
    for one, other in zip(problem.step(config), problem.step(config, **schedule)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("what", ["transposed", "expanded", "odd offset"])
@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-e4m3", "mx-e4m3", "mxfp4"])
def test_awkward_memory(device, config, what):
    config, problem = CONFIGS[config], Problem((6, 0, 9), 0, 40, 48, BF16, device)
    problem.grad_out = problem.grad_out[:1].expand_as(problem.grad_out) if what == "expanded" else problem.grad_out
    expected = problem.step(config)

    def stored(t):
        if what == "transposed":
            return t.mT.contiguous().mT
        flat = torch.nn.functional.pad(t.reshape(-1), (3, 0))
        return flat[3:].view(t.shape)

    if what != "expanded":
        problem.grad_out = stored(problem.grad_out)
        problem.a, problem.b = (stored(t.detach()).requires_grad_() for t in (problem.a, problem.b))
    else:
        problem.grad_out = problem.grad_out.contiguous()
    for one, other in zip(problem.step(config), expected):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [*(f"{name}-e4m3" for name in GRANULARITIES), "mxfp4"])
def test_full_sizes(device, config):
    exact = CONFIGS[config].granularity is not ScalingGranularity.TENSORWISE
    for groups, rows, n, k in CASES.FULL[::5]:
        lens = [0 if g % 3 == 1 else rows * (g % 3 + 1) // 2 for g in range(groups)]
        Problem(lens, 5, n, k, BF16, device).check(CONFIGS[config], exact=exact)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [*(f"{name}-e4m3" for name in GRANULARITIES), "mxfp4"])
def test_replay_with_other_lens(device, config):
    config, problem = CONFIGS[config], Problem((100, 28, 0), 0, 256, 256, BF16, device)
    problem.step(config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = problem.step(config)
    problem.lens.copy_(torch.tensor([3, 0, 125], device=device))
    graph.replay()
    for one, other in zip(captured, problem.step(config)):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("config", [*(f"{name}-hybrid" for name in GRANULARITIES), "mxfp4"])
def test_nothing_waits_for_the_device(device, config):
    """Forward and every gradient, and another number of rows: torch reports a wait as an error."""
    config = CONFIGS[config]
    problems = [
        Problem(lens, tail, 64, 48, BF16, device, gather=True, scatter=True)
        for lens, tail in (((40, 0, 17), 7), ((3, 90, 1), 34))
    ]
    problems[0].step(config)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for problem in problems:
            problem.step(config)
    finally:
        torch.cuda.set_sync_debug_mode("default")
