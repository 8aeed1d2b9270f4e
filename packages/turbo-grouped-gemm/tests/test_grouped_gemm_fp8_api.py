# SPDX-License-Identifier: MIT
"""What surrounds the numbers of grouped_gemm_fp8 and grouped_gemm_fp4: refusals, registration, main_grad, payloads."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import turbo_grouped_gemm as tgg
from turbo_core import (
    BackendType,
    BackendUnavailableError,
    GlobalBackendManager,
    UnsupportedError,
    simulated_arch,
    trace_dispatch,
)
from turbo_core.explain import explain_calls
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, ScalingGranularity
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_fp8_reference
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp4 import GROUPED_GEMM_FP4
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8 import GROUPED_GEMM_FP8
from turbo_testing.cases import load_file
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS
from turbo_testing.support_table import PLACES, standing_on

PROBLEMS = load_file(Path(__file__).with_name("quantised_problem.py"), "quantised_problem")
Problem, multiply = PROBLEMS.Problem, PROBLEMS.multiply
CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
NAMES = ["tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4-sr"]
A, B, LENS = torch.ones(16, 32), torch.ones(3, 48, 32), torch.tensor([5, 0, 9])


def info_of(config):
    return GROUPED_GEMM_FP4 if isinstance(config, Float4QuantConfig) else GROUPED_GEMM_FP8


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["grouped_gemm_fp8", "grouped_gemm_fp4"])
@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ((A[0], B, LENS), {}, r"a has shape \[32\]; 2 or 3 dimensions are accepted"),
        ((A, B[0], LENS), {}, r"b has shape \[48, 32\]; 3 dimensions are accepted"),
        ((A, B, LENS), {"trans_b": False}, r"K is 32 by a \(shape \[16, 32\]\) and 48 by b"),
        ((A.double(), B, LENS), {}, "a.dtype=torch.float64; accepted are torch.bfloat16"),
        ((A, B, LENS[:2]), {}, r"group_lens is a tensor of shape \[2\].*shape \[3\], int64 or int32, on cpu"),
        ((A, B, LENS.float()), {}, "group_lens is a tensor .*torch.float32.*int64 or int32"),
        ((A, B, LENS), {"group_offs": LENS}, r"group_offs is a tensor .* of shape \[4\]"),
        ((A, B, LENS), {"bias": torch.ones(48)}, r"bias is a tensor of shape \[48\].*shape \[3, 48\]"),
        ((A, B, LENS), {"out_dtype": torch.float8_e4m3fn}, "out_dtype=torch.float8_e4m3fn; accepted"),
        ((A, B, LENS), {"schedule": "dynamic"}, "schedule='dynamic'; accepted are 'static' and 'work_steal'"),
        ((A, B, LENS), {"num_cu": 4, "schedule": "work_steal"}, "num_cu=4 with schedule='work_steal'"),
        ((A, B, LENS), {"out_rows": 4}, "out_rows=4; without out_idx None and 16"),
        ((A, B, LENS), {"config": "fp8"}, "config is a str; a Float.QuantConfig or None is accepted"),
        ((A, B, LENS), {"fuse_bgrad_accum_pattern": "other"}, "fuse_bgrad_accum_pattern='other'; accepted are None"),
        ((A, B, LENS), {"fuse_bgrad_accum_pattern": "megatron"}, "fuse_bgrad_accum_pattern='megatron' needs b.main"),
    ],
)
def test_refusals_name_argument_value_and_what_is_accepted(op, arguments, options, complaint):
    with trace_dispatch() as trace, pytest.raises(UnsupportedError, match=f"{op}: {complaint}"):
        getattr(tgg, op)(*arguments, **options)
    assert not trace.records


@pytest.mark.parametrize(
    ("op", "config", "complaint"),
    [
        ("grouped_gemm_fp8", Float4QuantConfig(), "config is a Float4QuantConfig; a Float8QuantConfig or None"),
        ("grouped_gemm_fp4", Float8QuantConfig(), "config is a Float8QuantConfig; a Float4QuantConfig or None"),
        ("grouped_gemm_fp4", Float4QuantConfig(use_preshuffle=True), "config.use_preshuffle=True; False is accepted"),
        (
            "grouped_gemm_fp8",
            Float8QuantConfig(granularity=ScalingGranularity.BLOCKWISE, block_size=64),
            "config.block_size=64; 128 is accepted",
        ),
    ],
)
def test_configs_without_a_product_are_refused_at_the_call(op, config, complaint):
    """Field case: a recipe that was accepted above and refused below, in the backward of a layer."""
    for function in (getattr(tgg, op), {"grouped_gemm_fp4": GROUPED_GEMM_FP4}.get(op, GROUPED_GEMM_FP8).calls):
        with pytest.raises(UnsupportedError, match=f"{op}: {complaint}"):
            function(A, B, LENS, config=config)


def test_values_of_groups_are_checked_on_request(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_CHECK_INDICES", "1")
    with pytest.raises(UnsupportedError, match="grouped_gemm_fp8: group 2 ends with row 19; at most 16"):
        tgg.grouped_gemm_fp8(A, B, torch.tensor([5, 5, 9]))


@pytest.mark.parametrize(
    ("op", "backend", "reason"),
    [
        ("grouped_gemm_fp8", "hipblaslt", "operands are on cpu; torch's scaled grouped product needs a GPU"),
        ("grouped_gemm_fp4", "hipblaslt", "does not exist for this op"),
    ],
)
def test_named_backend_that_cannot_take_the_call(monkeypatch, op, backend, reason):
    monkeypatch.setenv("PRIMUS_TURBO_GROUPED_GEMM_BACKEND", f"fp8:{backend},fp4:{backend}")
    with pytest.raises(BackendUnavailableError, match=f"{op}: .*PRIMUS_TURBO_GROUPED_GEMM_BACKEND.*{reason}"):
        getattr(tgg, op)(A, B, LENS)
    tgg.grouped_gemm(A, B, LENS, trans_b=True)  # its precision has no setting


def test_second_derivatives_are_refused(device):
    problem = Problem((5, 3), 0, 16, 16, torch.float32, device)
    problem.a.data.nan_to_num_()
    out = problem.run(CONFIGS["tensorwise-e4m3"])
    (gradient,) = torch.autograd.grad(out.square().sum(), problem.a, create_graph=True)
    with pytest.raises(UnsupportedError, match="grouped_gemm_fp8: second derivatives are not supported"):
        gradient.sum().backward()


# --- registration with torch ----------------------------------------------------------------------------------------

# torch's schema test clones and compares its inputs, which torch cannot do for FP8 and FP4 types on a CPU
OPCHECKS = [
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
]


@pytest.fixture
def executed(monkeypatch):
    """The calls that TORCH computes, for their real payloads."""
    seen, run = [], grouped_gemm_fp8_reference.run

    def spy(call):
        seen.append(call)
        return run(call)

    GlobalBackendManager.set_grouped_gemm_backend("torch")
    monkeypatch.setattr(grouped_gemm_fp8_reference, "run", spy)
    return seen


def flat(call):
    """The arguments of the registered op."""
    values = []
    for value in call:
        values.extend(value if isinstance(value, tuple) else [value])
    return [value.value if isinstance(value, ScalingGranularity) else value for value in values]


@pytest.mark.parametrize("config", NAMES)
def test_opcheck(device, executed, config):
    config = CONFIGS[config]
    problem = Problem((9, 0, 4), 2, 48, 32, torch.float32, device, gather=True)
    problem.step(config)
    forward, dgrad, wgrad = executed
    assert [forward.role, dgrad.role] == ["forward", "dgrad"]
    kind = "fp4" if isinstance(config, Float4QuantConfig) else "fp8"
    ops = torch.ops.turbo_grouped_gemm
    for call in (forward, dgrad):
        torch.library.opcheck(getattr(ops, f"grouped_gemm_{kind}").default, flat(call), test_utils=OPCHECKS)
    plain = flat(wgrad)
    plain.pop(wgrad._fields.index("out") + 2)  # x and y are two arguments each
    torch.library.opcheck(getattr(ops, f"grouped_wgrad_{kind}").default, plain, test_utils=OPCHECKS)
    into = flat(wgrad._replace(out=torch.zeros(3, 48, 32, device=device), out_dtype=torch.float32))
    torch.library.opcheck(getattr(ops, f"grouped_wgrad_{kind}_accumulate").default, into, test_utils=OPCHECKS)


@pytest.mark.parametrize("config", NAMES)
def test_compiled_whole_and_once_for_all_rows(device, config):
    """Field case: a compilation for each total of rows. Strides of gradients are those of eager mode."""
    config = CONFIGS[config]

    def step(a, b, lens, bias):
        return multiply(a, b, lens, config, bias=bias)

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=True)
    for rows in (40, 70, 300):
        a, b, bias = (torch.randn(s, device=device, requires_grad=True) for s in ((rows, 24), (3, 8, 24), (3, 8)))
        lens = torch.tensor([7, 0, rows - 11], device=device)
        results = []
        for function in (step, compiled):
            torch.manual_seed(0)
            out = function(a, b, lens, bias)
            results.append((out, *torch.autograd.grad(out.square().sum(), (a, b, bias))))
        for eager, graph in zip(*results):
            assert eager.stride() == graph.stride()
            assert torch.equal(graph, eager)
    assert counter.frame_count == 1


def test_compiled_once_for_all_rows_taken_by_indices(device):
    """Of rows that are gathered and scattered, no size of the forward is one of the backward."""

    def step(a, b, lens, a_idx, out_idx, out_rows):
        return tgg.grouped_gemm_fp8(a, b, lens, a_idx=a_idx, out_idx=out_idx, out_rows=out_rows)

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=True)
    for rows in (20, 35):
        a, b = torch.randn(rows, 24, device=device), torch.randn(3, 8, 24, device=device)
        slots = 2 * rows
        arguments = (
            torch.tensor([7, 0, slots - 11], device=device), torch.arange(slots, device=device) // 2,
            torch.arange(slots, device=device).flip(0), slots + 3,
        )  # fmt: skip
        results = []
        for function in (step, compiled):
            leaves = [t.clone().requires_grad_() for t in (a, b)]
            out = function(*leaves, *arguments)
            results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
        for eager, graph in zip(*results, strict=True):
            assert torch.equal(graph, eager)
    assert counter.frame_count == 1


def test_what_is_saved_is_quantised(device):
    problem = Problem((40, 24), 0, 48, 64, torch.bfloat16, device)
    wide = []
    for config in NAMES:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: wide.append((t.dtype, t.numel())) or t, lambda t: t):
            problem.run(CONFIGS[config])
    floats = [count for dtype, count in wide if dtype in (torch.bfloat16, torch.float32)]
    assert max(floats, default=0) <= 2 * 64 * 2, "scales alone have more than a byte an element"


@pytest.mark.parametrize("config", NAMES)
def test_autocast(device, config):
    problem = Problem((9, 0, 4), 2, 48, 32, torch.float32, device)
    for option, want in ((None, torch.bfloat16), (torch.float32, torch.float32)):
        with torch.autocast(device.type, torch.bfloat16):
            out = problem.run(CONFIGS[config], out_dtype=option)
        assert out.dtype is want
        gradients = torch.autograd.grad(out, problem.leaves(), problem.grad_out.to(want))
        assert {gradient.dtype for gradient in gradients} == {torch.float32}


# --- the choice of backend ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_cpu")
@pytest.mark.parametrize("config", NAMES)
def test_default_on_a_cpu_is_torch_without_a_word(config, capfd):
    with trace_dispatch() as trace:
        multiply(A, B, LENS, CONFIGS[config])
    products = [r for r in trace.records if r.op.startswith("grouped")]
    assert [(r.backend, r.reason) for r in products] == [(BackendType.TORCH, "default")]
    assert capfd.readouterr().err == ""


HIP_DEFAULTS = {
    "blockwise-e4m3": ("forward", "dgrad"),
    "mx-hybrid": ("forward", "dgrad", "wgrad"),
    "mxfp4-sr": ("forward", "dgrad", "wgrad"),
}
"""On gfx950; everywhere else on a GPU it is TRITON."""


@pytest.mark.parametrize("place", ["gfx942", "gfx950", "NVIDIA"])
@pytest.mark.parametrize("config", NAMES)
def test_defaults(config, place):
    hip = HIP_DEFAULTS.get(config, ()) if place == "gfx950" else ()
    config = CONFIGS[config]
    with standing_on(PLACES[place]) as where:
        a, b = (torch.empty(s, dtype=torch.bfloat16, device=where) for s in ((256, 512), (3, 128, 512)))
        lens = torch.zeros(3, dtype=torch.int64, device=where)
        info = info_of(config)
        for role, call in info.calls(a, b, lens, config=config).items():
            wanted = BackendType.TURBO if role in hip else BackendType.TRITON
            assert info.dispatcher.default_backend(call) is wanted, role


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_payloads_are_of_the_device(arch):
    with simulated_arch(arch):
        calls = GROUPED_GEMM_FP8.calls(A, B, LENS)
        mx = GROUPED_GEMM_FP8.calls(A, B, LENS, config=CONFIGS["mx-e4m3"])["forward"]
    wanted = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
    assert {calls["forward"].a.data.dtype, calls["wgrad"].x.data.dtype} == {wanted}
    assert mx.a.data.dtype is torch.float8_e4m3fn, "MX is a storage format, the same everywhere"


def test_explain_tells_the_three_products():
    told = explain_calls(GROUPED_GEMM_FP8, GROUPED_GEMM_FP8.calls(A, B, LENS, config=CONFIGS["blockwise-hybrid"]))
    assert [entry.role for entry in told.entries] == ["forward", "dgrad", "wgrad"]
    assert [entry.call.split(", float8")[0] for entry in told.entries] == [
        "G=3 rows=16 N=48 K=32, BLOCKWISE 128",
        "G=3 rows=16 N=32 K=48, BLOCKWISE 128",
        "G=3 padded rows=512 X=48 Y=32, BLOCKWISE 128",
    ]
    assert "float8_e5m2 x float8_e4m3fn -> float32" in told.entries[2].call
    told = str(explain_calls(GROUPED_GEMM_FP4, GROUPED_GEMM_FP4.calls(A, B, LENS, bias=torch.ones(3, 48))))
    assert "G=3 rows=16 N=48 K=128, MX_BLOCKWISE, e2m1 x e2m1 -> float32, bias" in told


@pytest.mark.parametrize("config", [*NAMES, "mxfp4"])
def test_explain_tells_of_the_calls_that_run(executed, config):
    """The fakes behind `explain` and the real calls have the same keys."""
    config = CONFIGS[config]
    for options in ({}, {"room": 2, "trans_b": False}, {"gather": True, "scatter": True}):
        executed.clear()
        problem = Problem((9, 0, 4), 2, 48, 32, torch.float32, "cpu", **options)
        problem.step(config)
        dispatcher = info_of(config).dispatcher
        told = info_of(config).calls(
            problem.a, problem.b, problem.lens, config=config, bias=problem.bias, **problem.options
        )
        assert [dispatcher.make_key(call) for call in executed] == [dispatcher.make_key(c) for c in told.values()]


# --- main_grad --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", NAMES[:4] + ["mxfp4"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_the_gradient_goes_into_main_grad(device, config, trans_b):
    """Field cases: every granularity; float32 sums of 16-bit weights; only where the weight takes part."""
    config = CONFIGS[config]
    problem = Problem((9, 0, 4), 2, 48, 32, torch.bfloat16, device, trans_b)
    _, grad_a, grad_b, _ = problem.step(config, out_dtype=torch.float32)
    weight = problem.b
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(weight.shape, device=device), False
    out = problem.run(config, fuse_bgrad_accum_pattern="megatron", out_dtype=torch.float32)
    assert weight.grad_added_to_main_grad
    (alone,) = torch.autograd.grad(out, problem.a, problem.grad_out.float(), retain_graph=True)
    assert torch.equal(alone, grad_a)
    assert torch.equal(weight.main_grad, torch.ones_like(weight.main_grad)), "the weight took no part"
    for times in (1, 2):
        (zeros,) = torch.autograd.grad(out, weight, problem.grad_out.float(), retain_graph=True)
        assert zeros.dtype is torch.bfloat16
        assert not zeros.count_nonzero()
        assert_close(weight.main_grad, 1 + times * grad_b.double(), dtype=torch.bfloat16)
        assert torch.equal(weight.main_grad[1], torch.ones_like(weight.main_grad[1])), "of the empty group unchanged"


def test_main_grad_without_rows(device):
    problem = Problem((0, 0), 0, 8, 8, torch.float32, device)
    problem.b.main_grad, problem.b.grad_added_to_main_grad = torch.ones(2, 8, 8, device=device), False
    problem.run(CONFIGS["tensorwise-e4m3"], fuse_bgrad_accum_pattern="megatron").sum().backward()
    assert problem.b.grad_added_to_main_grad
    assert torch.equal(problem.b.main_grad, torch.ones(2, 8, 8, device=device))
    assert not problem.b.grad.count_nonzero()
