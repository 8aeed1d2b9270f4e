# SPDX-License-Identifier: MIT
"""QuantizedTensor and QuantizedTensorPair as operands of grouped_gemm_fp8 and grouped_gemm_fp4."""

from pathlib import Path

import pytest
import torch

from turbo_core import UnsupportedError, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig, ScalingGranularity, ScalingRecipe, fp8_dtype
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import SIGN_MASK
from turbo_quant import QuantizedTensor, QuantizedTensorPair, create_quantized_weight
from turbo_quant.formats import fp4_dtype
from turbo_testing.cases import load_file
from turbo_testing.metrics import assert_snr
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, gate

PROBLEMS = load_file(Path(__file__).with_name("quantised_problem.py"), "quantised_problem")
Problem, multiply = PROBLEMS.Problem, PROBLEMS.multiply
NAMES = ["tensorwise-e4m3", "tensorwise-hybrid", "rowwise-e4m3", "blockwise-hybrid", "mx-e4m3", "mx-hybrid", "mxfp4"]
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
MX = ScalingGranularity.MX_BLOCKWISE


def payload_dtype(config, device):
    if isinstance(config, Float4QuantConfig):
        return fp4_dtype()
    if config.granularity is MX:
        return torch.float8_e4m3fn
    return fp8_dtype(config.format, device)


def rows_quantised(x, lens, config, axis):
    """x as grouped ops quantise their first operand along ``axis``."""
    fp4 = isinstance(config, Float4QuantConfig)
    recipe = ScalingRecipe(use_rht=axis == -2) if fp4 else None
    return QuantizedTensor.quantize(
        x,
        payload_dtype(config, x.device),
        config.granularity,
        axis=axis,
        group_lens=lens,
        block_size=config.block_size if config.granularity is ScalingGranularity.BLOCKWISE else None,
        scaling_recipe=recipe,
        sign_mask=SIGN_MASK if fp4 and axis == -2 else 0,
    )


def problem_of(device, trans_b=True):
    return Problem((40, 0, 33), 0, 80, 96, torch.bfloat16, device, trans_b)


def step(a, b, problem, config, leaves, **options):
    out = multiply(a, b, problem.lens, config, trans_b=problem.options["trans_b"], **options)
    return out, *torch.autograd.grad(out, leaves, problem.grad_out)


@pytest.mark.parametrize("config", NAMES)
def test_a_weight_quantised_once_gives_the_same_bits(device, config):
    config, problem = CONFIGS[config], problem_of(device)
    expected = step(problem.a, problem.b, problem, config, (problem.a, problem.b))
    qt, qt_t = create_quantized_weight(problem.b.detach(), payload_dtype(config, device), config, True)
    qt.requires_grad_()
    with trace_dispatch() as trace:
        got = step(problem.a, QuantizedTensorPair(qt, qt_t), problem, config, (problem.a, qt))
    for what, one, other in zip(("out", "dA", "dB"), got, expected):
        assert torch.equal(one, other), what
    assert got[2].dtype is torch.bfloat16
    assert sum(record.op == "quantize" for record in trace.records) == 2, "a and the gradient, not the weight"


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-hybrid", "mx-e4m3"])
def test_a_weight_stored_the_other_way(device, config):
    """[G,K,N]: quantised along K, which is not its last dimension."""
    config, problem = CONFIGS[config], problem_of(device, trans_b=False)
    expected = step(problem.a, problem.b, problem, config, (problem.a, problem.b))
    qt, qt_t = create_quantized_weight(problem.b.detach(), payload_dtype(config, device), config, True)
    if config.granularity is not ScalingGranularity.TENSORWISE:
        qt, qt_t = qt_t, qt.detach()
    qt.requires_grad_()
    got = step(problem.a, QuantizedTensorPair(qt, qt_t), problem, config, (problem.a, qt))
    for what, one, other in zip(("out", "dA", "dB"), got, expected):
        assert torch.equal(one, other), what


@pytest.mark.parametrize("config", NAMES)
def test_the_gradient_of_a_quantised_weight_goes_into_main_grad(device, config):
    config, problem = CONFIGS[config], problem_of(device)
    _, grad_b = step(problem.a, problem.b, problem, config, (problem.b,))
    qt, qt_t = create_quantized_weight(problem.b.detach(), payload_dtype(config, device), config, True)
    qt.requires_grad_()
    qt.main_grad, qt.grad_added_to_main_grad = torch.zeros(problem.b.shape, device=device), False
    pair = QuantizedTensorPair(qt, qt_t)
    step(problem.a, pair, problem, config, (problem.a, qt), fuse_bgrad_accum_pattern="megatron")
    assert qt.grad_added_to_main_grad
    torch.testing.assert_close(qt.main_grad.bfloat16(), grad_b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("config", NAMES)
def test_rows_quantised_before(device, config):
    """C is the same; a copy along the rows that is missing is exact where it is the same codes, else rounded twice."""
    name, config, problem = config, CONFIGS[config], problem_of(device)
    expected = step(problem.a, problem.b, problem, config, (problem.a, problem.b))
    rows = rows_quantised(problem.a.detach(), problem.lens, config, -1).requires_grad_()
    got = step(rows, problem.b, problem, config, (rows, problem.b))
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    assert got[1].dtype is torch.bfloat16
    if name.startswith("tensorwise"):
        assert torch.equal(got[2], expected[2])
    else:
        assert_snr(got[2].double(), problem.expected(None).b, gate(config) - 3, what="dB")
    if config.granularity is MX:
        columns = rows_quantised(problem.a.detach(), problem.lens, config, -2)
        pair = QuantizedTensorPair(rows, columns)
        for what, one, other in zip(
            ("out", "dA", "dB"), step(pair, problem.b, problem, config, (rows, problem.b)), expected
        ):
            assert torch.equal(one, other), what


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "mx-e4m3"])
def test_rows_quantised_before_are_gathered(device, config):
    config = CONFIGS[config]
    problem = Problem((10, 0, 3), 1, 48, 64, torch.bfloat16, device, gather=True)
    with torch.no_grad():
        problem.a.nan_to_num_()
    rows = rows_quantised(problem.a.detach(), torch.tensor([14], device=device), config, -1).requires_grad_()
    out = multiply(rows, problem.b, problem.lens, config, **problem.options)
    gradients = torch.autograd.grad(out, (rows, problem.b), problem.grad_out)
    ideal = problem.expected(None)
    assert_snr(out.double(), ideal.out - problem.bias_of_rows(), gate(config), what="out")
    for what, got, want in zip(("dA", "dB"), gradients, (ideal.a, ideal.b)):
        assert_snr(got.double(), want, gate(config) - 3, what=what)


def test_compiled(device):
    config, problem = CONFIGS["mx-e4m3"], problem_of(device)
    qt, qt_t = create_quantized_weight(problem.b.detach(), torch.float8_e4m3fn, config, True)
    qt.requires_grad_()

    def forward(a):
        return multiply(a, QuantizedTensorPair(qt, qt_t), problem.lens, config)

    torch.compiler.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(problem.a), forward(problem.a))


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("rowwise-e4m3", {"axis": -2}, "a is not as config asks: .*quantized_axis is -2"),
        ("blockwise-e4m3", {"config": "rowwise-e4m3"}, "a is not as config asks: .*granularity is"),
    ],
)
def test_refusals(device, name, change, complaint):
    problem = problem_of(device)
    rows = rows_quantised(problem.a.detach(), problem.lens, CONFIGS[change.get("config", name)], change.get("axis", -1))
    with pytest.raises(UnsupportedError, match=f"grouped_gemm_fp8: {complaint}"):
        multiply(rows, problem.b, problem.lens, CONFIGS[name])


def test_copies_along_the_rows_that_no_product_reads(device):
    problem = problem_of(device)
    config = CONFIGS["rowwise-e4m3"]
    rows, columns = (rows_quantised(problem.a.detach(), problem.lens, config, axis) for axis in (-1, -2))
    with pytest.raises(UnsupportedError, match="a.data_t is given with ROWWISE; None is accepted"):
        multiply(QuantizedTensorPair(rows, columns), problem.b, problem.lens, config)
    config = CONFIGS["mx-e4m3"]
    rows, columns = (rows_quantised(problem.a.detach(), problem.lens, config, axis) for axis in (-1, -2))
    offs = torch.tensor([0, 40, 40, 73], device=device)
    with pytest.raises(UnsupportedError, match="a.data_t is given with a_idx or group_offs"):
        multiply(QuantizedTensorPair(rows, columns), problem.b, problem.lens, config, group_offs=offs)
    tight = rows_quantised(problem.a.detach(), None, config, -2)
    with pytest.raises(UnsupportedError, match="a.data_t has no groups; a grouped tensor is accepted"):
        multiply(QuantizedTensorPair(rows, tight), problem.b, problem.lens, config)
    with pytest.raises(UnsupportedError, match=r"b has shape \[73, 96\]; 3 dimensions are accepted"):
        multiply(problem.a, QuantizedTensorPair(rows), problem.lens, config)
