# SPDX-License-Identifier: MIT
"""What every op promises beside its numbers: errors, compilation, registration, choice of backend, modules, size."""

import math

import pytest
import torch
import torch.nn.functional as F

import turbo_norm_act as ops
from turbo_core import (
    BackendUnavailableError,
    GlobalBackendManager,
    UnsupportedError,
    simulated_arch,
    trace_dispatch,
)
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")

# --- errors ---------------------------------------------------------------------------------------------------------

X = torch.randn(4, 8)
G = torch.ones(8)
WRONG = [
    (lambda: ops.rmsnorm(3, G), "rmsnorm: x is 3"),
    (lambda: ops.rmsnorm(torch.tensor(1.0), G), "at least 1 dimension"),
    (lambda: ops.rmsnorm(X.double(), G), "x.dtype=torch.float64"),
    (lambda: ops.rmsnorm(X, torch.ones(7)), r"gamma is a tensor of shape \[7\]"),
    (lambda: ops.rmsnorm(X, torch.ones(1, 8)), r"shape \[8\] on cpu"),
    (lambda: ops.rmsnorm(X, G.double()), "gamma is .*float64"),
    (lambda: ops.rmsnorm(X, torch.ones(8, device="meta")), "gamma is .*on meta"),
    (lambda: ops.rmsnorm(X, G, eps=-1.0), "eps=-1.0"),
    (lambda: ops.rmsnorm(X, G, eps=float("nan")), "eps=nan"),
    (lambda: ops.rmsnorm(X, G, eps=None), "eps=None"),
    (lambda: ops.rmsnorm_residual(X, X[:3], G), "residual is .*must be of one shape"),
    (lambda: ops.rmsnorm_residual(X, X.double(), G), "residual.dtype=torch.float64"),
    (lambda: ops.rmsnorm_residual(X, X.to("meta"), G), "residual is .*on meta; .*on one device"),
    (lambda: ops.rmsnorm_residual(X, None, G), "residual is None"),
    (lambda: ops.layernorm(X, G, torch.ones(9)), "layernorm: beta is"),
    (lambda: ops.swiglu(torch.randn(4, 7)), "x.shape.-1.=7"),
    (lambda: ops.swiglu(X, X[:, :4]), "up is .*must be of one shape"),
    (lambda: ops.swiglu(X, X, interleaved=True), "interleaved=True with up"),
    (lambda: ops.swiglu(X, limit=-1.0), "limit=-1.0"),
    (lambda: ops.swiglu(X, limit=float("nan")), "limit=nan"),
    (lambda: ops.swiglu(X, alpha=1.0), "alpha=1.0 without limit"),
    (lambda: ops.swiglu(X, limit=1.0, alpha="x"), "alpha='x'"),
    (lambda: ops.geglu(X, approximate="erf"), "approximate='erf'"),
    (lambda: ops.swiglu_with_probs(X, torch.ones(3)), r"probs is .*shape \[4\]"),
    (lambda: ops.swiglu_with_probs(X.view(2, 2, -1), torch.ones(2, 1, 2)), r"probs is .*shape \[4\] or \[2, 2\]"),
    (lambda: ops.swiglu_with_probs(X.view(1, 4, -1), torch.ones(4, 2)), r"probs is .*shape \[4\] or \[1, 4\]"),
    (lambda: ops.swiglu_with_probs(X, None, None, -1.0), r"clamp_limit=-1.0; None or a number that is not negative"),
    (lambda: ops.geglu(X, clamp_limit=True), r"geglu: clamp_limit=True"),
    (lambda: ops.swiglu(X, limit=7.0, clamp_limit=7.0), r"clamp_limit=7.0 with limit=7.0; one of the two"),
    (lambda: ops.swiglu_with_probs(X, torch.ones(4, dtype=torch.int64)), "probs is .*int64"),
    (lambda: ops.geglu_with_probs(X, None, torch.ones(4)), "row_mask is .*float32"),
    (lambda: ops.geglu_with_probs(X, None, torch.ones(5, dtype=torch.int64)), r"row_mask is .*shape \[5\]"),
    (lambda: ops.RMSNorm((2, 3)), r"normalized_shape=\(2, 3\)"),
    (lambda: ops.RMSNorm(8)(torch.randn(2, 9)), r"x has shape \[2, 9\]"),
    (lambda: ops.LayerNorm([2, 3]), r"normalized_shape=\[2, 3\]"),
    (lambda: ops.SwiGLU(alpha=2.0), "alpha=2.0 without limit"),
]


@pytest.mark.parametrize("call, message", WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()


# --- torch.library and torch.compile --------------------------------------------------------------------------------


def samples(device):
    def leaf(*shape):
        return torch.randn(shape, device=device, requires_grad=True)

    mask = torch.tensor([1, 0, 1, 1, 0], device=device)
    return {
        "rmsnorm": (torch.ops.turbo_norm_act.norm, (leaf(5, 16), None, leaf(16), None, 1e-6, True, False)),
        "residual": (torch.ops.turbo_norm_act.norm, (leaf(5, 16), leaf(5, 16), leaf(16), None, 1e-6, False, False)),
        "layernorm": (torch.ops.turbo_norm_act.norm, (leaf(5, 16), None, leaf(16), leaf(16), 1e-5, False, True)),
        "bare": (torch.ops.turbo_norm_act.norm, (leaf(5, 16), None, None, None, 1e-5, False, False)),
        "probs": (torch.ops.turbo_norm_act.glu, (leaf(5, 16), None, leaf(5), mask, "silu", math.inf, 0.0, False)),
        "two": (torch.ops.turbo_norm_act.glu, (leaf(5, 16), leaf(5, 16), None, None, "clamped", 1.0, 1.7, False)),
        "interleaved": (torch.ops.turbo_norm_act.glu, (leaf(5, 16), None, None, None, "gelu", 0.0, 0.0, True)),
    }


@pytest.mark.parametrize("name", ["rmsnorm", "residual", "layernorm", "bare", "probs", "two", "interleaved"])
def test_opcheck(device, name):
    op, arguments = samples(device)[name]
    torch.library.opcheck(op, arguments)


def everything(x, r, gamma, beta, gate, up, probs, mask):
    y, s = ops.rmsnorm_residual(x, r, gamma)
    z = ops.layernorm(ops.rmsnorm(s, gamma, zero_centered=True), gamma, beta)
    wide = torch.cat([gate, up], -1)
    a = ops.swiglu(gate, up) + ops.geglu(wide) + ops.swiglu(wide, limit=1.0, interleaved=True)
    b = ops.swiglu_with_probs(wide, probs, mask) + ops.geglu_with_probs(wide, probs, approximate="tanh")
    return y, s, z, a, b


@pytest.mark.parametrize("view", ["contiguous", "transposed"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_as_eager(device, view, dynamic):
    """Whole graph; values, strides and gradients as in eager mode (field case 11)."""
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(everything, fullgraph=True, dynamic=dynamic, backend=backend)

    def inputs():
        torch.manual_seed(3)
        shape = (4, 3, 16)
        x, r = (torch.randn(shape, device=device) for _ in range(2))
        if view == "transposed":
            x = torch.randn(3, 4, 16, device=device).transpose(0, 1)
        rest = torch.randn(2, 16, device=device).unbind(), torch.randn(2, *shape, device=device).unbind()
        tensors = [x, r, *rest[0], *rest[1], torch.rand(12, device=device)]
        mask = torch.arange(12, device=device) % 4
        return [t.detach().clone().requires_grad_() if t is not x else x.requires_grad_() for t in tensors], mask

    leaves, mask = inputs()
    expected = everything(*leaves, mask)
    torch.autograd.backward(expected, [torch.ones_like(t) for t in expected])
    again, mask = inputs()
    found = compiled(*again, mask)
    torch.autograd.backward(found, [torch.ones_like(t) for t in found])
    for a, b in zip(expected, found):
        assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
        assert_close(b, a)
    for a, b in zip(leaves, again):
        assert_close(b.grad, a.grad, what="gradient")


def test_autocast_and_no_grad(device):
    x = torch.randn(4, 32, device=device, dtype=torch.bfloat16)
    with torch.autocast(device.type, dtype=torch.bfloat16), torch.no_grad():
        y = ops.rmsnorm(x, torch.ones(32, device=device))
    assert y.dtype == torch.bfloat16 and not y.requires_grad
    assert_close(y, cases.norm(x.double(), None), dtype=torch.bfloat16)


@pytest.mark.gpu
def test_in_a_graph(device):
    x, r = torch.randn(2, 64, 512, device=device)
    g = torch.rand(512, device=device)
    ops.rmsnorm_residual(x, r, g)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, s = ops.rmsnorm_residual(x, r, g)
        a = ops.swiglu(s)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert_close(y, cases.norm((x + r).double(), g.double()), dtype=torch.float32)
    assert_close(a, ops.swiglu(x + r))


# --- the choice of backend ------------------------------------------------------------------------------------------


def test_default_backends():
    calls = {
        "rmsnorm": (X, G), "rmsnorm_residual": (X, X, G), "layernorm": (X, G, G), "swiglu": (X,), "geglu": (X, X),
        "swiglu_with_probs": (X, torch.ones(4)), "geglu_with_probs": (X,),
    }  # fmt: skip
    infos = ops_of_this_wheel()
    assert set(infos) == set(calls)
    for name, arguments in calls.items():
        on_cpu = infos[name].dispatcher.default_backend(infos[name].calls(*arguments)["forward"])
        with simulated_arch("gfx950"):
            on_gpu = infos[name].dispatcher.default_backend(infos[name].calls(*arguments)["forward"])
        assert on_cpu.name == "TORCH"
        assert on_gpu.name == ("TURBO" if "norm" in name else "TRITON"), name


def ops_of_this_wheel():
    from turbo_norm_act.pytorch.ops import activation, norm

    infos = [norm.RMSNORM, norm.RMSNORM_RESIDUAL, norm.LAYERNORM, activation.SWIGLU, activation.GEGLU]
    infos += [activation.SWIGLU_WITH_PROBS, activation.GEGLU_WITH_PROBS]
    return {info.name: info for info in infos}


@pytest.mark.parametrize("name", ops_of_this_wheel())
def test_explain_answers_for_an_example(name, device):
    info = ops_of_this_wheel()[name]
    for call in info.example(device).values():
        decision = info.dispatcher.resolve(call)
        assert decision.reason == "default", "an example is a call that the default backend takes"
        wanted = {"rows=", "D="} if "norm" in name else {"T=", "H="}
        assert all(
            part in info.dispatcher.describe(call) for part in (*wanted, info.dispatcher.role(call), str(device))
        )


def variants(value):
    """Values that differ from ``value`` in one respect each."""
    if isinstance(value, torch.Tensor):
        other = torch.bfloat16 if value.dtype != torch.bfloat16 else torch.float16
        shape = [*value.shape[:-1], value.shape[-1] + 1]
        strided = torch.empty_strided(value.shape, [2 * s for s in value.stride()], dtype=value.dtype)
        return [value.to(other), value.new_empty(shape), strided, None]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [type(value)(*value[:i], v, *value[i + 1 :]) for i in range(len(value)) for v in variants(value[i])]
    return {float: [2.5], str: ["other"], type(None): [torch.float16], torch.dtype: [torch.float64]}[type(value)]


@pytest.mark.parametrize("name", ops_of_this_wheel())
def test_calls_that_differ_have_different_tuning_keys(name):
    """In the shape, the strides or the dtype of any tensor, in any flag or number, or in what is there at all."""
    info = ops_of_this_wheel()[name]
    arguments = {"rmsnorm_residual": (X, X, G), "layernorm": (X, G, G), "rmsnorm": (X, G)}.get(name, (X,))
    if "probs" in name:
        arguments = (X, torch.ones(4), torch.ones(4, dtype=torch.int64))
    calls = info.calls(*arguments)
    keys = [info.dispatcher.make_key(call) for call in calls.values()]
    assert len(set(keys)) == len(calls)
    for call, key in zip(calls.values(), keys):
        primary = {"x", "s"}  # a call without them is none
        for field, value in zip(call._fields, call):
            for other in variants(value):
                if other is not None or field not in primary:
                    changed = info.dispatcher.make_key(call._replace(**{field: other}))
                    assert changed != key, f"{field}: {value!r} and {other!r}"


@pytest.mark.parametrize("name", ops_of_this_wheel())
def test_explain_describes_the_calls_that_run(name, monkeypatch):
    """The tuning keys of its calls are those of the real ones, or it would name another backend than the tuned one."""
    info, seen = ops_of_this_wheel()[name], set()
    dispatch = info.dispatcher.dispatch.__func__

    def record(cls, call):
        seen.add(cls.make_key(call))
        return dispatch(cls, call)

    monkeypatch.setattr(info.dispatcher, "dispatch", classmethod(record))
    leaves = [X.clone().requires_grad_(), G.clone().requires_grad_(), torch.rand(4, requires_grad=True)]
    x, g, p = leaves
    arguments = {"rmsnorm_residual": (x, x, g), "layernorm": (x, g, g), "rmsnorm": (x, g)}.get(name, (x,))
    arguments = (x, p) if "probs" in name else arguments
    out = getattr(ops, name)(*arguments)
    out = sum(out) if isinstance(out, tuple) else out
    out.backward(torch.ones_like(out))
    assert {info.dispatcher.make_key(call) for call in info.calls(*arguments).values()} == seen


def test_a_named_backend_that_cannot_is_an_error():
    GlobalBackendManager.set_norm_act_backend("TURBO")
    with pytest.raises(BackendUnavailableError, match="the HIP kernels are for gfx942 and gfx950; cpu is cpu"):
        ops.layernorm(X, G, G)
    with pytest.raises(BackendUnavailableError, match="TURBO .*does not exist for this op"):
        ops.swiglu(X)
    GlobalBackendManager.set_norm_act_backend("CK")
    with pytest.raises(BackendUnavailableError, match="CK .*does not exist"):
        ops.rmsnorm(X, G)


def test_nothing_to_do_asks_no_backend():
    GlobalBackendManager.set_norm_act_backend("CK")
    assert ops.rmsnorm(X[:0], G).shape == (0, 8)
    assert ops.swiglu(X[:0]).shape == (0, 4)


def test_trace_names_the_call(device):
    x = torch.randn(4, 8, device=device, requires_grad=True)
    with trace_dispatch() as trace:
        ops.layernorm(x, None, None).sum().backward()
        ops.geglu(x).sum().backward()
    texts = [f"{record.op} {record.call}" for record in trace.records]
    assert texts[0].startswith("norm layernorm forward, rows=4 D=8, float32")
    assert texts[3].startswith("glu gelu backward, T=4 H=4, float32")


# --- modules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("zero_centered", [True, False])
def test_rmsnorm_module(device, affine, zero_centered):
    layer = ops.RMSNorm(48, elementwise_affine=affine, zero_centered_gamma=zero_centered, device=device)
    theirs = torch.nn.RMSNorm(48, eps=1e-6, elementwise_affine=affine, device=device)
    assert layer.eps == 1e-6
    if affine:
        assert layer.weight.unique().tolist() == [0.0 if zero_centered else 1.0]
        with torch.no_grad():
            layer.weight.add_(torch.randn(48, device=device))
            theirs.weight.copy_(layer.weight + (1 if zero_centered else 0))
    else:
        assert layer.weight is None and not list(layer.parameters())
    assert set(layer.state_dict()) == set(theirs.state_dict())
    x = torch.randn(2, 5, 48, device=device)
    assert_close(layer(x), theirs(x))
    y, s = layer(x, x)
    assert_close(s, 2 * x)
    assert_close(y, theirs(2 * x))
    assert "48" in repr(layer)


@pytest.mark.parametrize("keywords", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}], ids=str)
def test_layernorm_module(device, keywords):
    layer, theirs = (cls(40, device=device, **keywords) for cls in (ops.LayerNorm, torch.nn.LayerNorm))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(3, 40, device=device)
    assert_close(layer(x), theirs(x))


def test_activation_modules(device):
    gate, up = torch.randn(2, 3, 24, device=device)
    packed = torch.cat([gate, up], -1)
    assert_close(ops.SwiGLU()(packed), F.silu(gate) * up)
    assert_close(ops.SwiGLU()(gate, up), F.silu(gate) * up)
    assert_close(ops.GeGLU("tanh")(packed), F.gelu(gate, approximate="tanh") * up)
    pairs = torch.stack([gate, up], -1).flatten(-2)
    expected = ops.swiglu(gate, up, limit=1.0)
    assert_close(ops.SwiGLU(limit=1.0, interleaved=True)(pairs), expected)


# --- size -----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_more_than_2_31_elements(device):
    """Values behind the 2**31st element, forward and backward: a 32-bit offset would read and write elsewhere."""
    if torch.cuda.get_device_properties(device).total_memory < 60e9:
        pytest.skip("needs 60 GB of device memory")
    D = 4096
    rows = 2**31 // D + 1000
    x = torch.empty(rows, D, device=device, dtype=torch.bfloat16).normal_().requires_grad_()
    gamma = torch.rand(D, device=device).requires_grad_()
    last = slice(rows - 500, rows)
    y = ops.rmsnorm(x, gamma)
    grad = torch.empty_like(y).normal_()
    (dx,) = torch.autograd.grad(y, [x], grad)
    x64, gamma64 = cases.float64(x[last], gamma)
    y64 = cases.norm(x64, gamma64)
    assert_close(y[last], y64, dtype=x.dtype, what="y")
    assert_close(dx[last], torch.autograd.grad(y64, [x64], grad[last].double())[0], dtype=x.dtype, what="dx")
    del y, dx
    out = ops.swiglu(x)
    grad = grad[:, : D // 2]
    (dx,) = torch.autograd.grad(out, [x], grad)
    (x64,) = cases.float64(x[last])
    out64 = cases.glu(x64[:, : D // 2], x64[:, D // 2 :], "silu")
    assert_close(out[last], out64, dtype=x.dtype, what="out")
    assert_close(dx[last], torch.autograd.grad(out64, [x64], grad[last].double())[0], dtype=x.dtype, what="dx")
