# SPDX-License-Identifier: MIT
"""grouped_mlp_fp8 and grouped_mlp_fp4: to the bit the composition of the quantised products and the gate."""

import pytest
import torch

import turbo_grouped_gemm as tgg
from turbo_core import GlobalBackendManager, UnsupportedError, explain, trace_dispatch
from turbo_core.low_precision import Float4QuantConfig, fp8_dtype
from turbo_grouped_gemm.calls import Groups
from turbo_grouped_gemm.calls_mlp import DgateCall, Gate, GateCall
from turbo_grouped_gemm.pytorch.kernels.grouped_mlp_impl import GateDispatcher
from turbo_quant import QuantizedTensorPair, create_quantized_weight
from turbo_testing.cases import load
from turbo_testing.metrics import assert_snr
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS

CASES = load("turbo-grouped-gemm")
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
NAMES = ["tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4"]
LENS, ROWS, K, F, N = [30, 0, 41], 75, 72, 96, 40
GATE, FORMULA = Gate("clamped", 7.0, 1.702), {"limit": 7.0}


def ops(config):
    """The MLP and the product of a config."""
    fp4 = isinstance(config, Float4QuantConfig)
    return (tgg.grouped_mlp_fp4, tgg.grouped_gemm_fp4) if fp4 else (tgg.grouped_mlp_fp8, tgg.grouped_gemm_fp8)


class Problem:
    def __init__(self, device, trans=(True, True), indices=False):
        torch.manual_seed(3)
        self.lens, self.trans = torch.tensor(LENS, device=device), trans
        shapes = ((3, 2 * F, K) if trans[0] else (3, K, 2 * F)), ((3, N, F) if trans[1] else (3, F, N))
        self.x = torch.randn(ROWS, K, device=device).bfloat16()
        self.w1, self.w2 = ((torch.randn(shape, device=device) * 0.2).bfloat16() for shape in shapes)
        self.probs = torch.rand(ROWS, device=device)
        self.dy = torch.randn(ROWS, N, device=device).bfloat16()
        self.a_idx = self.out_idx = None
        if indices:
            self.a_idx, self.out_idx = torch.arange(ROWS, device=device) // 2, torch.arange(ROWS, device=device).flip(0)
        else:
            self.x[sum(LENS) :] = self.dy[sum(LENS) :] = torch.nan
        self.probs[sum(LENS) :] = torch.nan
        self.leaves = [t.requires_grad_() for t in (self.x, self.w1, self.w2, self.probs)]

    def run(self, config, **options):
        given = {"probs": self.probs, "trans_w1": self.trans[0], "trans_w2": self.trans[1], **FORMULA}
        given |= {"a_idx": self.a_idx, "out_idx": self.out_idx, **options}
        return ops(config)[0](self.x, self.w1, self.w2, self.lens, config=config, **given)

    def results(self, config, **options):
        y = self.run(config, **options)
        return [y.detach(), *torch.autograd.grad(y, self.leaves, self.dy)]

    def composed(self, config):
        """y and all gradients by the quantised products and the gate, one after the other."""
        product = ops(config)[1]
        pre = product(self.x, self.w1, self.lens, trans_b=self.trans[0], config=config, a_idx=self.a_idx)
        groups, probs = Groups(self.lens, None), self.probs.detach()
        out = GateDispatcher.run(GateCall(pre.detach(), probs, groups, GATE)).requires_grad_()
        y = product(out, self.w2, self.lens, trans_b=self.trans[1], config=config, out_idx=self.out_idx)
        dout, dw2 = torch.autograd.grad(y, (out, self.w2), self.dy)
        found = GateDispatcher.run(DgateCall(dout, pre.detach(), probs, groups, GATE, False, True))
        dx, dw1 = torch.autograd.grad(pre, (self.x, self.w1), found.pre)
        return [y.detach(), dx, dw1, dw2, found.probs]

    def expected(self):
        wide = [leaf.detach().double().nan_to_num(0.0).requires_grad_() for leaf in self.leaves]
        y = CASES.grouped_mlp(
            *wide[:3], LENS, None, wide[3], *self.trans, a_idx=self.a_idx, out_idx=self.out_idx, **FORMULA
        )
        return [y.detach(), *torch.autograd.grad(y, wide, self.dy.double().nan_to_num(0.0))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("trans", "indices"), [((True, True), False), ((False, True), True)])
def test_the_composition_to_the_bit(device, name, trans, indices):
    problem, config = Problem(device, trans, indices), CONFIGS[name]
    found, composed = problem.results(config), problem.composed(config)
    for what, one, other in zip(("y", "dx", "dw1", "dw2", "dprobs"), found, composed, strict=True):
        assert torch.equal(one, other), what
    if not indices:
        assert not found[0][sum(LENS) :].any() and not found[1][sum(LENS) :].any()
    assert not found[2][1].any() and not found[3][1].any()
    for what, one, other in zip(("y", "dx", "dw1", "dw2", "dprobs"), found, problem.expected(), strict=True):
        assert_snr(one, other, 8.0 if name == "mxfp4" else 18.0, what)


@pytest.mark.parametrize("name", ["rowwise-hybrid", "mxfp4"])
def test_kernels_of_both_backends(device, name):
    """TRITON's gate between TRITON's products; TORCH tells what is right."""
    problem, config = Problem(device), CONFIGS[name]
    GlobalBackendManager.set_grouped_gemm_backend("TORCH")
    expected = problem.results(config)
    GlobalBackendManager.set_grouped_gemm_backend("TRITON")
    with trace_dispatch() as trace:
        found = problem.results(config)
    assert {record.backend.name for record in trace.records if record.op.startswith("grouped")} == {"TRITON"}
    for one, other in zip(found, expected, strict=True):
        assert_snr(one, other, 15.0 if name == "mxfp4" else 25.0)


def test_a_backend_of_products_leaves_the_gate_to_the_default(device):
    pre = torch.randn(6, 8, device=device)
    call = GateCall(pre, None, Groups(torch.tensor([4], device=device), None), GATE)
    expected = GateDispatcher.run(call)
    GlobalBackendManager.set_grouped_gemm_backend("HIPBLASLT")
    assert torch.equal(GateDispatcher.run(call), expected)


@pytest.mark.parametrize("name", ["tensorwise-e4m3", "mxfp4"])
def test_added_to_main_grad(device, name):
    problem, config = Problem(device), CONFIGS[name]
    plain = problem.results(config)
    for weight in (problem.w1, problem.w2):
        weight.main_grad = torch.full(weight.shape, 2.0, device=device)
        weight.grad_added_to_main_grad = False
    problem.run(config, fuse_wgrad_accum_pattern="megatron").backward(problem.dy)
    assert torch.equal(problem.x.grad, plain[1]) and torch.equal(problem.probs.grad, plain[4])
    for weight, gradient in ((problem.w1, plain[2]), (problem.w2, plain[3])):
        assert weight.grad_added_to_main_grad and not weight.grad.any()
        assert_snr(weight.main_grad - 2.0, gradient.double(), 40.0)


@pytest.mark.parametrize("name", ["tensorwise-e4m3", "rowwise-e4m3"])
def test_weights_that_are_quantised_already(device, name):
    problem, config = Problem(device), FP8_CONFIGS[name]
    expected = problem.results(config)
    pairs = []
    for weight in (problem.w1, problem.w2):
        made = create_quantized_weight(weight.detach(), fp8_dtype(config.format, device), config, True)
        made[0].requires_grad_()
        pairs.append(QuantizedTensorPair(*made))
    problem.w1, problem.w2 = pairs
    problem.leaves = [problem.x, pairs[0].data, pairs[1].data, problem.probs]
    with trace_dispatch() as trace:
        found = problem.results(config)
    for what, one, other in zip(("y", "dx", "dw1", "dw2", "dprobs"), found, expected, strict=True):
        assert torch.equal(one, other), what
    assert sum(record.op == "quantize" for record in trace.records) == 5, "x, out twice, dy and dpre"


def test_bytes_that_are_saved(device):
    """Quantised x and weights, and pre [S,2F]: neither x itself, nor the activation in any form."""
    problem, config = Problem(device), FP8_CONFIGS["rowwise-hybrid"]

    def saved(compute):
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = compute()
        return sum(storages.values()), result

    found, _ = saved(lambda: problem.run(config))
    pre = ROWS * 2 * F * 2
    payloads = K * (ROWS + 128 * len(LENS)) + 3 * 2 * F * K + 3 * F * N
    assert pre < found < pre + 1.3 * payloads


@pytest.mark.parametrize("sizes", [(0, K, F, N), (ROWS, K, 0, N)])
def test_zero_sizes(device, sizes):
    rows, k, f, n = sizes
    leaves = [torch.randn(s, device=device, requires_grad=True) for s in ((rows, k), (2, k, 2 * f), (2, f, n))]
    y = tgg.grouped_mlp_fp8(*leaves, torch.tensor([rows // 2, rows // 3], device=device))
    assert y.shape == (rows, n) and not y.any()
    for leaf, gradient in zip(leaves, torch.autograd.grad(y.sum(), leaves), strict=True):
        assert gradient.shape == leaf.shape and not gradient.any()


@pytest.mark.parametrize("op", [tgg.grouped_mlp_fp8, tgg.grouped_mlp_fp4])
def test_refusals(op):
    x, w1, w2, lens = torch.ones(6, 4), torch.ones(2, 4, 6), torch.ones(2, 3, 5), torch.tensor([2, 3])
    for changed, complaint in (
        ({"config": "fp8"}, "config is a str"),
        ({"w2": w2[:1]}, "w1 is .*and w2"),
        ({"activation": "relu"}, "activation='relu'"),
        ({"probs": torch.ones(5)}, "probs is"),
    ):
        with pytest.raises(UnsupportedError, match=f"^{op.__name__}: .*{complaint}"):
            op(**{"x": x, "w1": w1, "w2": w2, "group_lens": lens, **changed})


def test_second_derivatives_are_refused(device):
    problem = Problem(device)
    y = problem.run(FP8_CONFIGS["rowwise-hybrid"])
    (dx,) = torch.autograd.grad(y.sum(), problem.x, create_graph=True)
    with pytest.raises(UnsupportedError, match="grouped_mlp_fp8"):
        dx.float().sum().backward()


def test_compiled_whole(device):
    problem, config = Problem(device), FP8_CONFIGS["rowwise-hybrid"]
    expected = problem.results(config)
    y = torch.compile(lambda: problem.run(config), fullgraph=True, backend="aot_eager")()
    assert torch.equal(y, expected[0])
    for one, other in zip(torch.autograd.grad(y, problem.leaves, problem.dy), expected[1:], strict=True):
        assert torch.equal(one, other)


def test_explained(device):
    problem = Problem(device)
    told = str(
        explain("grouped_mlp_fp8", problem.x, problem.w1, problem.w2, problem.lens, trans_w1=True, trans_w2=True)
    )
    for name in ("first forward", "second wgrad"):
        assert name in told
