# SPDX-License-Identifier: MIT
"""What surrounds the numbers of gemm: refusals, registration with torch, the choice of backend, its cost."""

import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import turbo_gemm
from turbo_core import (
    BackendType,
    BackendUnavailableError,
    GlobalBackendManager,
    UnsupportedError,
    explain,
    simulated_arch,
    trace_dispatch,
    why_no_triton,
)
from turbo_core.tune_cache import TuneEntry
from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.kernels import gemm_reference
from turbo_gemm.pytorch.kernels.blas_settings import promised_blas
from turbo_gemm.pytorch.kernels.gemm_impl import GemmDispatcher
from turbo_testing.metrics import assert_close

X, W = torch.ones(4, 6), torch.ones(8, 6)

# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ((torch.ones(2, 3, 4), W), {}, r"gemm: a has shape \[2, 3, 4\]; 2 dimensions are accepted"),
        ((X, torch.ones(3)), {}, r"gemm: b has shape \[3\]; 2 dimensions are accepted"),
        (
            (X, W),
            {},
            r"gemm: K is 6 by a \(shape \[4, 6\], trans_a=False\) and 8 by b \(shape \[8, 6\]",
        ),
        (
            (X.double(), W.double()),
            {"trans_b": True},
            "gemm: a.dtype=torch.float64; accepted are torch.bfloat16",
        ),
        ((X, W.int()), {"trans_b": True}, "gemm: b.dtype=torch.int32"),
        ((X, W), {"trans_b": True, "out_dtype": torch.int8}, "gemm: out_dtype=torch.int8; accepted are"),
        ((X, W.to("meta")), {"trans_b": True}, "gemm: a is on cpu and b is on meta"),
        ((X, None), {}, "gemm: b is a NoneType; a 2-D tensor is accepted"),
        ((X, W), {"trans_b": True, "bias": torch.ones(6)}, r"gemm: bias is shape \[6\], .*a tensor of shape \[8\]"),
        ((X, W), {"trans_b": True, "bias": 1.0}, "gemm: bias is 1.0"),
        ((X, W), {"trans_b": True, "bias": torch.ones(8, device="meta")}, "gemm: bias is on meta and a is on cpu"),
    ],
)
def test_refusals_name_argument_value_and_what_is_accepted(arguments, options, complaint):
    with trace_dispatch() as trace, pytest.raises(UnsupportedError, match=complaint):
        turbo_gemm.gemm(*arguments, **options)
    assert not trace.records


def test_named_backend_that_cannot_take_the_call(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "hipblaslt")
    with pytest.raises(BackendUnavailableError, match=r"HIPBLASLT \(named by PRIMUS_TURBO_GEMM_BACKEND\).*a is on cpu"):
        turbo_gemm.gemm(X, W, trans_b=True)
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "ck")
    with pytest.raises(BackendUnavailableError, match="CK .* does not exist for this op; it has HIPBLASLT, TRITON"):
        turbo_gemm.gemm(X, W, trans_b=True)


# --- registration with torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_opcheck(device, trans_a, trans_b, bias):
    assert turbo_gemm.gemm, "imported, and with it registered"
    a = torch.randn((6, 4) if trans_a else (4, 6), device=device, requires_grad=True)
    b = torch.randn((8, 6) if trans_b else (6, 8), device=device, requires_grad=True)
    c = torch.randn(8, device=device, requires_grad=True) if bias else None
    torch.library.opcheck(torch.ops.turbo_gemm.gemm.default, (a, b, c, trans_a, trans_b, torch.float32, "forward"))
    out = torch.zeros(4, 8, device=device)
    accumulate = torch.ops.turbo_gemm.gemm_accumulate.default
    arguments = (a.detach(), b.detach(), None, trans_a, trans_b, torch.float32, out, "wgrad")
    torch.library.opcheck(accumulate, arguments)


def step(x, w, bias):
    return turbo_gemm.gemm(x, w, trans_b=True, bias=bias)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole_and_with_the_strides_of_eager(device, dynamic):
    """Field case: a fake kernel whose strides differ from the real ones breaks what comes after it."""
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 7):
        x = torch.randn(6, rows, device=device).t().requires_grad_()
        w, bias = (
            torch.randn(8, 6, device=device, requires_grad=True),
            torch.randn(8, device=device, requires_grad=True),
        )
        results = []
        for function in (step, compiled):
            out = function(x, w, bias)
            results.append((out, *torch.autograd.grad(out.square().sum(), (x, w, bias))))
        for eager, graph in zip(*results):
            assert eager.stride() == graph.stride()
            assert_close(graph, eager)


@pytest.mark.gpu
def test_compiled_by_inductor(device):
    x, w = (torch.randn(64, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    out = torch.compile(lambda x, w: step(torch.relu(x), w, None) * 2, fullgraph=True)(x, w)
    assert_close(out, step(torch.relu(x), w, None) * 2)
    out.sum().backward()


def test_fused_accumulation_compiles_whole(device):
    w = torch.nn.Parameter(torch.randn(8, 6, device=device))
    w.main_grad, w.grad_added_to_main_grad = torch.zeros(8, 6, device=device), False
    x = torch.randn(4, 6, device=device)

    def loss(x):
        return turbo_gemm.gemm(x, w, trans_b=True, fuse_bgrad_accum_pattern="megatron").sum()

    torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
    assert_close(w.main_grad, x.double().sum(0).expand(8, 6))
    assert w.grad_added_to_main_grad


def test_make_fx_and_fake_tensors(device):
    x, w, bias = torch.randn(4, 6, device=device), torch.randn(8, 6, device=device), torch.randn(8, device=device)
    graph = make_fx(step, tracing_mode="fake")(x, w, bias)
    assert torch.ops.turbo_gemm.gemm.default in [node.target for node in graph.graph.nodes]
    assert_close(graph(x, w, bias), step(x, w, bias))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["HIPBLASLT", "TRITON"])
def test_captured_in_a_graph(device, backend):
    GlobalBackendManager.set_gemm_backend(backend)
    GlobalBackendManager.set_auto_tune(True)
    x, w = (torch.randn(256, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    step(x, w, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(x, w, None)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert_close(out, x.double() @ w.double().t(), dtype=torch.bfloat16, rtol=2e-2, atol=0.3)


# --- the choice of backend ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_cpu")
def test_default_on_a_cpu_is_torch_without_a_word(capfd):
    with trace_dispatch() as trace:
        turbo_gemm.gemm(X, W, trans_b=True)
    assert [(r.backend, r.reason) for r in trace.records] == [(BackendType.TORCH, "default")]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_on_a_simulated_gpu_the_default_is_the_vendors_library_then_triton(arch):
    if reason := why_no_triton(torch.device("cpu")):
        pytest.skip(reason)
    with simulated_arch(arch):
        decision = GemmDispatcher.resolve(GemmCall(X, W, None, False, True, torch.float32))
    assert decision.backend is BackendType.TRITON
    assert "default HIPBLASLT cannot take the call: a is on cpu" in decision.reason


@pytest.mark.usefixtures("plain_cpu")
def test_explain_tells_the_three_gemms(capsys):
    entries = explain("gemm", X, W, trans_b=True).entries
    assert [entry.role for entry in entries] == ["forward", "dgrad", "wgrad"]
    assert [entry.call.split(",")[0] for entry in entries] == ["M=4 N=8 K=6 NT", "M=4 N=6 K=8 NN", "M=8 N=6 K=4 TN"]
    assert {entry.backend for entry in entries} == {BackendType.TORCH}
    assert "a is on cpu; torch's GPU BLAS needs tensors on a GPU" in capsys.readouterr().out


def base_call():
    return GemmCall(X, W, None, False, True, torch.float32)


@pytest.mark.parametrize(
    "other",
    [
        lambda c: c._replace(a=torch.ones(5, 6)),
        lambda c: c._replace(a=torch.ones(4, 12)[:, ::2]),
        lambda c: c._replace(a=X.bfloat16()),
        lambda c: c._replace(b=torch.ones(9, 6)),
        lambda c: c._replace(b=W.half()),
        lambda c: c._replace(b=torch.ones(6, 8).t()),
        lambda c: c._replace(b=torch.ones(6, 8), trans_b=False),
        lambda c: c._replace(a=torch.ones(6, 4), trans_a=True),
        lambda c: c._replace(out_dtype=torch.bfloat16),
        lambda c: c._replace(bias=torch.ones(8)),
        lambda c: c._replace(out=torch.ones(4, 8)),
        lambda c: c._replace(out=torch.ones(8, 4).t()),
    ],
)
def test_tuning_key_holds_all_that_changes_the_answer(other):
    assert GemmDispatcher.make_key(base_call()) == GemmDispatcher.make_key(base_call())
    assert GemmDispatcher.make_key(other(base_call())) != GemmDispatcher.make_key(base_call())


DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("field", GemmCall._fields)
def test_every_field_is_in_the_key(field):
    """Each dtype of each tensor, too."""
    full = base_call()._replace(bias=torch.ones(8), out=torch.ones(4, 8))
    others = {
        "trans_a": [full._replace(trans_a=True)],
        "trans_b": [full._replace(trans_b=False)],
        "out_dtype": [full._replace(out_dtype=dtype) for dtype in DTYPES],
        "role": [full._replace(role=role) for role in ("forward", "dgrad")],
    }
    for name in ("a", "b"):
        others[name] = [full._replace(**{name: getattr(full, name).to(dtype)}) for dtype in DTYPES]
    others["bias"] = [full._replace(bias=full.bias.to(dtype)) for dtype in DTYPES] + [full._replace(bias=None)]
    # the dtype of out is out_dtype
    others["out"] = [full, full._replace(out=None), full._replace(out=torch.ones(8, 4).t())]
    calls = [full, *others[field]] if field in ("trans_a", "trans_b") else others[field]
    keys = {GemmDispatcher.make_key(call) for call in calls}
    assert len(keys) == len(calls)


@pytest.mark.usefixtures("plain_cpu")
def test_tuning_key_holds_the_architecture():
    keys = [GemmDispatcher.make_key(base_call())]
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch):
            keys.append(GemmDispatcher.make_key(base_call()))
    assert len(set(keys)) == 3


# --- torch's BLAS ---------------------------------------------------------------------------------------------------


@pytest.fixture
def blas_library(monkeypatch):
    """torch's preferred BLAS library, settable without a GPU."""
    state = ["cublas"]

    def preferred(name=None):
        if name is not None:
            state[0] = name
        return state[0]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    return preferred


@pytest.mark.parametrize("hip", [None, "7.0"])
@pytest.mark.parametrize(
    ("dtype", "switch"),
    [
        (torch.bfloat16, "allow_bf16_reduced_precision_reduction"),
        (torch.float16, "allow_fp16_reduced_precision_reduction"),
    ],
)
def test_blas_sums_in_float32_and_the_users_settings_come_back(monkeypatch, blas_library, hip, dtype, switch):
    """What the HIPBLASLT backend sets around its calls, also when the call fails."""
    matmul = torch.backends.cuda.matmul
    monkeypatch.setattr(torch.version, "hip", hip)
    before = getattr(matmul, switch)
    try:
        for value in (True, False):
            setattr(matmul, switch, value)
            with pytest.raises(RuntimeError, match="inside"), promised_blas(dtype):
                assert getattr(matmul, switch) is False
                assert blas_library() == ("cublas" if hip is None else "hipblaslt")
                raise RuntimeError("inside")
            assert getattr(matmul, switch) is value
            assert blas_library() == "cublas"
    finally:
        setattr(matmul, switch, before)


# --- what the choice costs ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_cpu")
@pytest.mark.parametrize(("setting", "limit"), [("default", 23), ("named", 16), ("auto-tuned", 27)])
def test_a_warm_choice_takes_few_calls(monkeypatch, setting, limit):
    """Python functions of ours that run between the call and its backend; what they cost, benchmark/core prints."""
    monkeypatch.setattr(gemm_reference, "run", lambda call: seen.append("the backend"))
    call, seen = base_call(), []
    if setting == "named":
        GlobalBackendManager.set_gemm_backend("torch")
    elif setting == "auto-tuned":
        GlobalBackendManager.set_gemm_backend(auto_tune=True)
        GemmDispatcher.cache.put(GemmDispatcher.make_key(call), TuneEntry(BackendType.TORCH, 1.0))

    def note(frame, event, argument):
        if event == "call" and "/turbo_" in frame.f_code.co_filename:
            seen.append(frame.f_code.co_name)

    for _ in range(2):
        seen.clear()
        sys.setprofile(note)
        try:
            GemmDispatcher.dispatch(call)
        finally:
            sys.setprofile(None)
    assert seen[-1] == "the backend"
    assert len(seen) - 1 <= limit, seen
