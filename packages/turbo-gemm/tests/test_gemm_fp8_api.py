# SPDX-License-Identifier: MIT
"""What surrounds the numbers of gemm_fp8 and gemm_fp4: refusals, registration with torch, the choice of backend."""

import importlib.util

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import turbo_gemm
from turbo_core import (
    BackendType,
    BackendUnavailableError,
    GlobalBackendManager,
    UnsupportedError,
    simulated_arch,
    trace_dispatch,
)
from turbo_core.explain import explain_calls
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, Format, ScalingGranularity
from turbo_gemm.calls import GemmFp8Call, Operand
from turbo_gemm.pytorch.kernels import gemm_fp8_reference
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp4Dispatcher, GemmFp8Dispatcher
from turbo_gemm.pytorch.ops.gemm_fp4 import GEMM_FP4
from turbo_gemm.pytorch.ops.gemm_fp8 import GEMM_FP8
from turbo_testing.metrics import assert_close
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS
from turbo_testing.support_table import PLACES, standing_on

CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
NAMES = ["tensorwise-e4m3", "rowwise-hybrid", "blockwise-e4m3", "mx-hybrid", "mxfp4-sr"]
X, W = torch.ones(16, 32), torch.ones(48, 32)


def multiply(a, b, config, trans_a=False, trans_b=True, **options):
    function = turbo_gemm.gemm_fp4 if isinstance(config, Float4QuantConfig) else turbo_gemm.gemm_fp8
    return function(a, b, trans_a, trans_b, config=config, **options)


def calls_of(config, *arguments, **options):
    info = GEMM_FP4 if isinstance(config, Float4QuantConfig) else GEMM_FP8
    return info.calls(*arguments, config=config, **options)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["gemm_fp8", "gemm_fp4"])
@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ((torch.ones(2, 3, 4), W), {}, r"a has shape \[2, 3, 4\]; 2 dimensions are accepted"),
        ((X, W), {}, r"K is 32 by a \(shape \[16, 32\], trans_a=False\) and 48 by b"),
        ((X.double(), W), {"trans_b": True}, "a.dtype=torch.float64; accepted are torch.bfloat16"),
        ((X, W.to(torch.float8_e4m3fn)), {"trans_b": True}, "b.dtype=torch.float8_e4m3fn; accepted are"),
        ((X, W), {"trans_b": True, "out_dtype": torch.float8_e4m3fn}, "out_dtype=torch.float8_e4m3fn; accepted"),
        ((X, W.to("meta")), {"trans_b": True}, "a is on cpu and b is on meta"),
        ((X, None), {}, "b is a NoneType; a 2-D tensor is accepted"),
        ((X, W), {"trans_b": True, "bias": torch.ones(6)}, r"bias is shape \[6\], .*a tensor of shape \[48\]"),
        ((X, W), {"trans_b": True, "config": "fp8"}, "config is a str; a Float.QuantConfig or None is accepted"),
    ],
)
def test_refusals_name_argument_value_and_what_is_accepted(op, arguments, options, complaint):
    with trace_dispatch() as trace, pytest.raises(UnsupportedError, match=f"{op}: {complaint}"):
        getattr(turbo_gemm, op)(*arguments, **options)
    assert not trace.records


def test_configs_are_not_exchanged():
    with pytest.raises(UnsupportedError, match="gemm_fp8: config is a Float4QuantConfig; a Float8QuantConfig"):
        turbo_gemm.gemm_fp8(X, W, trans_b=True, config=Float4QuantConfig())
    with pytest.raises(UnsupportedError, match="gemm_fp4: config is a Float8QuantConfig; a Float4QuantConfig"):
        turbo_gemm.gemm_fp4(X, W, trans_b=True, config=Float8QuantConfig())


def test_preshuffled_sizes():
    with pytest.raises(UnsupportedError, match=r"use_preshuffle with a of shape \[17, 32\] .* multiples of 16"):
        turbo_gemm.gemm_fp4(torch.ones(17, 32), W, trans_b=True, config=Float4QuantConfig(use_preshuffle=True))


@pytest.mark.parametrize(
    ("op", "backend", "reason"),
    [
        ("gemm_fp8", "hipblaslt", "a is on cpu; torch's scaled GPU product needs tensors on a GPU"),
        ("gemm_fp8", "ck", "no composable kernels .*TURBO_BUILD_CK=1"),
        ("gemm_fp8", "aiter", "does not exist for this op; it has HIPBLASLT, TURBO, TRITON, CK, TORCH"),
        ("gemm_fp4", "aiter", "amd-aiter is not installed"),
        ("gemm_fp4", "ck", "does not exist for this op; it has TURBO, AITER, HIPBLASLT, TRITON, TORCH"),
    ],
)
def test_named_backend_that_cannot_take_the_call(monkeypatch, op, backend, reason):
    if backend == "aiter" and importlib.util.find_spec("aiter"):
        pytest.skip("amd-aiter is installed")
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", f"fp8:{backend},fp4:{backend}")
    with pytest.raises(BackendUnavailableError, match=f"{op}: .*PRIMUS_TURBO_GEMM_BACKEND.*{reason}"):
        getattr(turbo_gemm, op)(X, W, trans_b=True)
    turbo_gemm.gemm(X, W, trans_b=True)  # its precision has no setting


# --- registration with torch ----------------------------------------------------------------------------------------


# torch's schema test clones and compares its inputs, which torch cannot do for FP8 and FP4 types on a CPU
OPCHECKS = [
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
]


def op_arguments(call, bias):
    """Those of the registered op: the fields of the call, but for ``out``."""
    kind = (call.granularity.value, call.block_size, torch.bfloat16)
    fp4 = call.a.data.dtype.itemsize == 1 and "float4" in str(call.a.data.dtype)
    return (*call.a, *call.b, bias, *kind, *((call.preshuffled,) if fp4 else ()), call.role)


def raw(tensor):
    return tensor.reshape(-1).view(torch.uint8)


@pytest.fixture
def executed(monkeypatch):
    """The calls that TORCH computes, for their real payloads."""
    seen, run = [], gemm_fp8_reference.run

    def spy(call):
        seen.append(call)
        return run(call)

    monkeypatch.setattr(gemm_fp8_reference, "run", spy)
    return seen


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, True), (True, False)])
@pytest.mark.parametrize("config", [*NAMES, "mxfp4-preshuffled"])
def test_opcheck(device, executed, config, trans_a, trans_b):
    GlobalBackendManager.set_gemm_backend("torch")
    config = CONFIGS[config]
    a = torch.randn((32, 16) if trans_a else (16, 32), device=device, requires_grad=True)
    b = torch.randn((48, 32) if trans_b else (32, 48), device=device, requires_grad=True)
    multiply(a, b, config, trans_a, trans_b).sum().backward()
    calls = list(executed)
    assert [call.role for call in calls] == ["forward", "dgrad", "wgrad"]
    name = "gemm_fp4" if isinstance(config, Float4QuantConfig) else "gemm_fp8"
    for call in calls:
        bias = torch.randn(call.sizes()[1], device=device) if call.role == "forward" else None
        plain = getattr(torch.ops.turbo_gemm, name).default
        arguments = op_arguments(call, bias)
        torch.library.opcheck(plain, arguments, test_utils=OPCHECKS)
        given = [value for value in arguments if isinstance(value, torch.Tensor)]
        kept = [raw(tensor).clone() for tensor in given]
        out = plain(*arguments)
        for before, tensor in zip(kept, given, strict=True):
            assert torch.equal(before, raw(tensor)), "an input was written"
            assert tensor.untyped_storage().data_ptr() != out.untyped_storage().data_ptr()
        m, n, _ = call.sizes()
        accumulate = getattr(torch.ops.turbo_gemm, f"{name}_accumulate").default
        into = call._replace(out=torch.zeros(m, n, device=device), out_dtype=torch.float32, bias=None)
        granularity = into.granularity.value
        arguments = (*into.a, *into.b, None, granularity, *into[4:])
        torch.library.opcheck(accumulate, arguments, test_utils=OPCHECKS)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_only_the_gradient_is_rounded_at_random(executed, trans_a, trans_b):
    """Both payloads of a and b are the same for every seed; both of the gradient are not."""
    torch.manual_seed(0)
    a = torch.randn((32, 16) if trans_a else (16, 32), requires_grad=True)
    b = torch.randn((48, 32) if trans_b else (32, 48), requires_grad=True)
    grad_out = torch.randn(16, 48)
    runs = []
    for seed in (1, 2):
        executed.clear()
        torch.manual_seed(seed)
        multiply(a, b, CONFIGS["mxfp4-sr"], trans_a, trans_b).backward(grad_out)
        runs.append({call.role: call for call in executed})
    # in which operand the gradient is: dA, or its transpose, and likewise dB
    gradient = {"forward": (), "dgrad": ("b",) if trans_a else ("a",), "wgrad": ("a",) if trans_b else ("b",)}
    for role, random in gradient.items():
        for name in ("a", "b"):
            one, other = (raw(getattr(run[role], name).data) for run in runs)
            assert torch.equal(one, other) is (name not in random), f"{name} of {role}"


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("config", NAMES)
def test_compiled_whole_and_with_the_strides_of_eager(device, config, dynamic):
    """Field case: a fake kernel whose strides differ from the real ones breaks what comes after it."""
    config = CONFIGS[config]

    def step(x, w, bias):
        return multiply(x, w, config, bias=bias)

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (40, 70):
        x = torch.randn(6, rows, device=device).t().requires_grad_()
        w, bias = (torch.randn(size, device=device, requires_grad=True) for size in ((8, 6), (8,)))
        results = []
        for function in (step, compiled):
            torch.manual_seed(0)
            out = function(x, w, bias)
            results.append((out, *torch.autograd.grad(out.square().sum(), (x, w, bias))))
        for eager, graph in zip(*results):
            assert eager.stride() == graph.stride()
            assert torch.equal(graph, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("config", NAMES)
def test_compiled_by_inductor(device, config):
    config = CONFIGS[config]
    x, w = (torch.randn(128, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

    def step(x, w):
        return multiply(torch.relu(x), w, config) * 2

    out = torch.compile(step, fullgraph=True)(x, w)
    assert_close(out, step(x, w))
    out.sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("config", NAMES)
def test_captured_in_a_graph(device, config):
    config = CONFIGS[config]
    GlobalBackendManager.set_auto_tune(True)
    x, w = (torch.randn(256, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    multiply(x, w, config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply(x, w, config)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(out, multiply(x, w, config))


@pytest.mark.parametrize("config", NAMES)
def test_make_fx_and_fake_tensors(device, config):
    config = CONFIGS[config]
    x, w = torch.randn(16, 32, device=device), torch.randn(48, 32, device=device)
    graph = make_fx(lambda x, w: multiply(x, w, config), tracing_mode="fake")(x, w)
    targets = {str(node.target) for node in graph.graph.nodes}
    op = "gemm_fp4" if isinstance(config, Float4QuantConfig) else "gemm_fp8"
    assert f"turbo_gemm.{op}.default" in targets, "one op that a compiler does not look into"
    assert torch.equal(graph(x, w), multiply(x, w, config))


# --- the choice of backend ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", NAMES)
def test_default_on_a_cpu_is_torch_without_a_word(config, capfd):
    with trace_dispatch() as trace:
        multiply(X, W, CONFIGS[config])
    products = [r for r in trace.records if r.op.startswith("gemm")]
    assert [(r.backend, r.reason) for r in products] == [(BackendType.TORCH, "default")]
    assert capfd.readouterr().err == ""


DEFAULTS = {
    ("tensorwise-e4m3", "gfx942"): "HIPBLASLT",
    ("tensorwise-e4m3", "gfx950"): "HIPBLASLT",
    ("tensorwise-e4m3", "NVIDIA"): "HIPBLASLT",
    ("rowwise-e4m3", "gfx942"): "TRITON",
    ("blockwise-e4m3", "NVIDIA"): "TRITON",
    ("mx-e4m3", "gfx942"): "TRITON",
    ("mx-e4m3", "gfx950"): "TURBO",
    ("mxfp4", "gfx950"): "TURBO",
    ("mxfp4", "NVIDIA"): "TRITON",
    ("mxfp4-preshuffled", "gfx950"): "AITER",
}


@pytest.mark.parametrize(("config", "place"), DEFAULTS)
def test_defaults(config, place):
    dispatcher = GemmFp4Dispatcher if config.startswith("mxfp4") else GemmFp8Dispatcher
    with standing_on(PLACES[place]) as where:
        x = torch.empty(256, 512, dtype=torch.bfloat16, device=where)
        for call in calls_of(CONFIGS[config], x, x, trans_b=True).values():
            assert dispatcher.default_backend(call) is BackendType[DEFAULTS[config, place]]


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_payloads_are_of_the_device(arch):
    with simulated_arch(arch):
        call = GEMM_FP8.calls(X, W, trans_b=True)["forward"]
        mx = calls_of(CONFIGS["mx-e4m3"], X, W, trans_b=True)["forward"]
    assert call.a.data.dtype is (torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn)
    assert mx.a.data.dtype is torch.float8_e4m3fn, "MX is a storage format, the same everywhere"


def test_explain_tells_the_three_gemms():
    config = Float8QuantConfig(Format.HYBRID, ScalingGranularity.BLOCKWISE, block_size=128)
    entries = explain_calls(GEMM_FP8, GEMM_FP8.calls(X, W, trans_b=True, config=config)).entries
    assert [entry.role for entry in entries] == ["forward", "dgrad", "wgrad"]
    assert [entry.call.split(", float8")[0] for entry in entries] == [
        "M=16 N=48 K=32 NT, BLOCKWISE 128, row blocks x tiles",
        "M=16 N=32 K=48 NN, BLOCKWISE 128, row blocks x tiles",
        "M=48 N=32 K=16 TN, BLOCKWISE 128, row blocks x row blocks",
    ]
    assert "float8_e5m2 x float8_e4m3fn -> float32" in entries[2].call
    assert {entry.backend for entry in entries} == {BackendType.TORCH}
    told = str(explain_calls(GEMM_FP4, GEMM_FP4.calls(X, W, trans_b=True)))
    assert "M=16 N=48 K=128 NT, MX_BLOCKWISE, e2m1 x e2m1" in told


def test_explain_tells_of_the_calls_that_run(executed):
    """The fakes behind `explain` and the real calls have the same keys, but for what the device adds."""
    for name in (*NAMES, "mxfp4-preshuffled"):
        for trans_a, trans_b in ((False, True), (True, False)):
            executed.clear()
            a = torch.randn((32, 16) if trans_a else (16, 32), requires_grad=True)
            b = torch.randn((48, 32) if trans_b else (32, 48), requires_grad=True)
            multiply(a, b, CONFIGS[name], trans_a, trans_b).sum().backward()
            told = calls_of(CONFIGS[name], a, b, trans_a, trans_b)
            assert [key(call) for call in executed] == [key(call) for call in told.values()], name


# --- the tuning key -------------------------------------------------------------------------------------------------


def key(call):
    return GemmFp8Dispatcher.make_key(call)


def with_a(call, **changes):
    return call._replace(a=call.a._replace(**changes))


def with_b(call, **changes):
    return call._replace(b=call.b._replace(**changes))


def base():
    return calls_of(CONFIGS["blockwise-e4m3"], X, W, trans_b=True)["forward"]


@pytest.mark.parametrize(
    "other",
    [
        lambda c: with_a(c, data=torch.empty(17, 32, dtype=c.a.data.dtype)),
        lambda c: with_a(c, data=torch.empty(32, 16, dtype=c.a.data.dtype).t()),
        lambda c: with_a(c, data=c.a.data.view(torch.float8_e5m2)),
        lambda c: with_b(c, data=torch.empty(49, 32, dtype=c.b.data.dtype)),
        lambda c: with_b(c, data=c.b.data.view(torch.float8_e5m2)),
        lambda c: with_a(c, trans=True),
        lambda c: with_b(c, trans=False),
        lambda c: c._replace(granularity=ScalingGranularity.ROWWISE),
        lambda c: c._replace(block_size=64),
        lambda c: with_a(c, tiles=True),
        lambda c: with_b(c, tiles=False),
        lambda c: with_a(c, scale_inv=torch.ones(16, 2)[:, ::2]),
        lambda c: with_b(c, scale_inv=torch.ones(48, 1)),
        lambda c: c._replace(out_dtype=torch.bfloat16),
        lambda c: c._replace(bias=torch.ones(48)),
        lambda c: c._replace(out=torch.ones(16, 48)),
        lambda c: c._replace(preshuffled=True),
    ],
)
def test_tuning_key_holds_all_that_changes_the_answer(other):
    assert key(base()) == key(base())
    assert key(other(base())) != key(base())


FP8_TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
FLOATS = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("field", GemmFp8Call._fields)
def test_every_field_is_in_the_key(field):
    """Each dtype of each tensor, too."""
    full = base()._replace(bias=torch.ones(48), out=torch.ones(16, 48))
    value = getattr(full, field)
    if isinstance(value, Operand):
        others = [value._replace(data=value.data.view(dtype)) for dtype in FP8_TYPES]
        others += [value._replace(scale_inv=scale) for scale in (value.scale_inv.double(), torch.ones(3, 3))]
        others += [value._replace(trans=not value.trans), value._replace(tiles=not value.tiles)]
    elif field == "bias":
        others = [None, *(value.to(dtype) for dtype in FLOATS)]
    elif field == "out":  # its dtype is out_dtype
        others = [None, value, torch.ones(48, 16).t()]
    else:
        others = {
            "out_dtype": FLOATS,
            "granularity": list(ScalingGranularity)[:3],
            "block_size": [64, 128],
            "role": ["forward", "dgrad"],
        }.get(field, [True, False])
    keys = {key(full._replace(**{field: other})) for other in others}
    assert len(keys) == len(others)


def test_tuning_key_holds_the_architecture():
    keys = [key(base())]
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch):
            keys.append(key(base()))
    assert len(set(keys)) == 3
