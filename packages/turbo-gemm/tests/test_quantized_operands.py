# SPDX-License-Identifier: MIT
"""QuantizedTensor and QuantizedTensorPair as operands of gemm_fp8 and gemm_fp4."""

import pytest
import torch

import turbo_gemm
from turbo_core import UnsupportedError, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig, ScalingGranularity, ScalingRecipe, fp8_dtype
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import SIGN_MASK
from turbo_quant import QuantizedTensor, QuantizedTensorPair, create_quantized_weight
from turbo_quant.formats import fp4_dtype
from turbo_testing.metrics import assert_snr
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, gate

NAMES = ["tensorwise-e4m3", "tensorwise-hybrid", "rowwise-e4m3", "blockwise-hybrid", "mx-e4m3", "mx-hybrid"]
NAMES += ["mxfp4", "mxfp4-preshuffled"]
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
M, N, K = 48, 80, 96


def multiply(a, b, config, **options):
    function = turbo_gemm.gemm_fp4 if isinstance(config, Float4QuantConfig) else turbo_gemm.gemm_fp8
    return function(a, b, trans_b=True, config=config, **options)


def payload_dtype(config, device):
    if isinstance(config, Float4QuantConfig):
        return fp4_dtype()
    if config.granularity is ScalingGranularity.MX_BLOCKWISE:
        return {"E5M2": torch.float8_e5m2}.get(config.format.name, torch.float8_e4m3fn)
    return fp8_dtype(config.format, device)


def activation(x, config, axis):
    """``x`` as gemm_fp8 and gemm_fp4 quantise their first operand along ``axis``."""
    recipe = None
    if isinstance(config, Float4QuantConfig):
        shuffle = config.use_preshuffle
        recipe = ScalingRecipe(use_rht=axis == -2, shuffle_scale=shuffle, shuffle_out=shuffle and axis == -2)
    blocks = config.block_size if config.granularity is ScalingGranularity.BLOCKWISE else None
    mask = SIGN_MASK if recipe is not None and recipe.use_rht else 0
    return QuantizedTensor.quantize(
        x,
        payload_dtype(config, x.device),
        config.granularity,
        axis=axis,
        block_size=blocks,
        scaling_recipe=recipe,
        sign_mask=mask,
    )


def step(a, b, config, leaves, grad_out):
    out = multiply(a, b, config)
    return out, *torch.autograd.grad(out, leaves, grad_out)


@pytest.fixture
def matrices(device):
    x, w = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    return x, w, (torch.randn(M, N, device=device) / 8).bfloat16()


@pytest.mark.usefixtures("quant_backend")
def test_the_scale_of_a_tensor_may_have_a_dimension(matrices, device):
    """As other libraries keep it; a kernel that takes it for a scale of rows reads past it."""
    config = CONFIGS["tensorwise-e4m3"]
    x, w, _ = matrices
    qt, _ = create_quantized_weight(w, payload_dtype(config, device), config, False)
    expected = multiply(x, qt, config)
    qt.scale_inv = qt.scale_inv.reshape(1)
    assert torch.equal(multiply(x, qt, config), expected)


@pytest.mark.parametrize("config", NAMES)
def test_a_weight_quantised_once_gives_the_same_bits(matrices, device, config):
    config = CONFIGS[config]
    x, w, grad_out = matrices
    x, plain = x.requires_grad_(), w.clone().requires_grad_()
    expected = step(x, plain, config, (x, plain), grad_out)
    qt, qt_t = create_quantized_weight(w, payload_dtype(config, device), config, True)
    qt.requires_grad_()
    with trace_dispatch() as trace:
        got = step(x, QuantizedTensorPair(qt, qt_t), config, (x, qt), grad_out)
    for what, one, other in zip(("out", "dA", "dB"), got, expected):
        assert torch.equal(one, other), what
    assert got[2].dtype is torch.bfloat16
    assert sum(record.op == "quantize" for record in trace.records) == 2, "x and the gradient, not the weight"


@pytest.mark.parametrize("config", NAMES)
def test_both_operands_with_both_copies_give_the_same_bits(matrices, device, config):
    config = CONFIGS[config]
    x, w, grad_out = matrices
    plain_x, plain_w = x.clone().requires_grad_(), w.clone().requires_grad_()
    expected = step(plain_x, plain_w, config, (plain_x, plain_w), grad_out)
    qx = activation(x, config, -1).requires_grad_()
    qx_t = activation(x, config, -2)
    if config.granularity is ScalingGranularity.TENSORWISE:
        qx_t = qx.detach().t()
    qw, qw_t = create_quantized_weight(w, payload_dtype(config, device), config, True)
    pairs = QuantizedTensorPair(qx, qx_t), QuantizedTensorPair(qw.requires_grad_(), qw_t)
    for what, one, other in zip(("out", "dA", "dB"), step(*pairs, config, (qx, qw), grad_out), expected):
        assert torch.equal(one, other), what


@pytest.mark.parametrize("config", NAMES)
def test_a_missing_copy_is_made_from_what_is_there(matrices, device, config):
    """Exact where one copy serves both, or where tiles round nothing the second time."""
    name, config = config, CONFIGS[config]
    x, w, grad_out = matrices
    x, plain = x.requires_grad_(), w.clone().requires_grad_()
    expected = step(x, plain, config, (x, plain), grad_out)
    qw, _ = create_quantized_weight(w, payload_dtype(config, device), config)
    out, grad_x = step(x, qw, config, (x,), grad_out)
    assert torch.equal(out, expected[0])
    assert torch.equal(grad_x, expected[1]) is not name.startswith("rowwise")
    qx = activation(x.detach(), config, -1).requires_grad_()
    out, grad_x, grad_w = step(qx, plain, config, (qx, plain), grad_out)
    assert torch.equal(out, expected[0])
    assert torch.equal(grad_x, expected[1])
    assert torch.equal(grad_w, expected[2]) or not name.startswith("tensorwise")
    ideal = grad_out.double().t() @ x.detach().double()
    assert_snr(grad_w.double(), ideal, gate(config) - 2.5, what="dB with a second rounding")


def test_a_pair_of_a_plain_matrix_and_its_quantised_copy(matrices, device):
    config = CONFIGS["rowwise-e4m3"]
    x, w, grad_out = matrices
    x, w = x.requires_grad_(), w.requires_grad_()
    expected = step(x, w, config, (x, w), grad_out)
    pair = QuantizedTensorPair(x, activation(x.detach(), config, -2))
    for one, other in zip(step(pair, w, config, (x, w), grad_out), expected):
        assert torch.equal(one, other)


def test_the_signs_of_a_users_rotation_are_used_on_both_sides(matrices, device):
    config = CONFIGS["mxfp4"]
    x, w, grad_out = matrices
    w = w.requires_grad_()
    qx = activation(x, config, -1)
    turned = QuantizedTensor.quantize(
        x,
        fp4_dtype(),
        config.granularity,
        axis=-2,
        scaling_recipe=ScalingRecipe(use_rht=True),
        sign_mask=0x1234,
    )
    (_, grad_w) = step(QuantizedTensorPair(qx, turned), w, config, (w,), grad_out)
    assert_snr(grad_w.double(), grad_out.double().t() @ x.double(), 10)


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "mx-e4m3", "mxfp4"])
def test_compiles_whole(matrices, device, config):
    config = CONFIGS[config]
    x, w, _ = matrices
    qt, qt_t = create_quantized_weight(w, payload_dtype(config, device), config, True)

    def forward(x, qt, qt_t):
        return multiply(x, QuantizedTensorPair(qt, qt_t), config)

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = compiled(one, qt, qt_t)
    assert torch.equal(out, forward(other, qt, qt_t))
    out.sum().backward()
    forward(other, qt, qt_t).sum().backward()
    assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("which", ["a", "b"])
def test_refusals(matrices, device, which):
    x, w, _ = matrices
    rowwise, tensorwise = CONFIGS["rowwise-e4m3"], CONFIGS["tensorwise-e4m3"]

    def refused(bad, config, complaint):
        with trace_dispatch() as trace, pytest.raises(UnsupportedError, match=complaint):
            multiply(*((bad, w) if which == "a" else (x, bad)), config)
        assert not [record for record in trace.records if record.op == "gemm_fp8"]

    matrix = x if which == "a" else w
    across = activation(matrix, rowwise, -2)
    refused(across, rowwise, f"gemm_fp8: {which} is not as config asks: .*quantized_axis is -2; .* -1")
    refused(activation(matrix, tensorwise, -1), rowwise, f"gemm_fp8: {which} is not as config asks: .*granularity")
    wrong = QuantizedTensor.quantize(matrix, torch.float8_e5m2, ScalingGranularity.ROWWISE, axis=-1)
    refused(wrong, rowwise, f"gemm_fp8: {which} is not as config asks: .*E5M2.*E4M3")
    pair = QuantizedTensorPair(matrix.clone().requires_grad_(), "copy")
    refused(pair, rowwise, rf"gemm_fp8: {which}.data_t is a str; a QuantizedTensor or None")


@pytest.mark.parametrize("config", NAMES)
def test_operands_quantised_from_what_requires_grad_get_gradients(matrices, device, config):
    """They are the leaves, of the original dtype; a second product adds to them."""
    config = CONFIGS[config]
    x, w, grad_out = matrices
    plain = x.clone().requires_grad_(), w.clone().requires_grad_()
    expected = step(*plain, config, plain, grad_out)
    a = activation(x.requires_grad_(), config, -1)
    b, _ = create_quantized_weight(w.requires_grad_(), payload_dtype(config, device), config)
    assert a.requires_grad and b.requires_grad
    for times in (1, 2):
        out = multiply(a, b, config)
        out.backward(grad_out)
        assert torch.equal(out, expected[0])
        for what, one, other in (("dA", a.grad, expected[1]), ("dB", b.grad, expected[2])):
            assert type(one) is torch.Tensor and one.dtype is torch.bfloat16
            assert_snr(one, times * other, gate(config) - 3, what)  # the backward's copies are rounded twice
    assert x.grad is None and w.grad is None
