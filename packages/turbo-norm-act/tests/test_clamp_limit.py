# SPDX-License-Identifier: MIT
"""clamp_limit, and probs in the shapes that models have them in, against float64 on every backend."""

import pytest
import torch
from torch.nn import functional as F

from turbo_core import GlobalBackendManager, explain
from turbo_norm_act import geglu, geglu_with_probs, swiglu, swiglu_with_probs
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")

PLAIN = {
    "silu": swiglu,
    "gelu": geglu,
    "gelu_tanh": lambda *a, **k: geglu(*a, approximate="tanh", **k),
}
WITH_PROBS = {
    "silu": swiglu_with_probs,
    "gelu": geglu_with_probs,
    "gelu_tanh": lambda *a, **k: geglu_with_probs(*a, approximate="tanh", **k),
}
T, H = 6, 40


@pytest.fixture(params=["TORCH", "TRITON"])
def backend(request):
    GlobalBackendManager.set_norm_act_backend(request.param)
    return request.param


def compare(out, inputs, out64, inputs64, names):
    grad = torch.randn_like(out)
    assert_close(out, out64, dtype=out.dtype)
    found = torch.autograd.grad(out, inputs, grad)
    for name, one, other in zip(names, found, torch.autograd.grad(out64, inputs64, grad.double())):
        assert_close(one, other, dtype=out.dtype, what=name)


@pytest.mark.parametrize("limit", [0.0, 1.5, 7.0, float("inf")])
@pytest.mark.parametrize("activation", PLAIN)
def test_at_its_edges(backend, device, activation, limit):
    """On an edge the gradient passes, beyond it it stops; gate has no lower edge."""
    edge = min(limit, 3.0)
    values = torch.tensor([edge, -edge, 1.01 * edge, -1.01 * edge, 0.99 * edge, -0.99 * edge, 0.0, 50.0, -50.0])
    gate, up = torch.meshgrid(values.to(device), values.to(device), indexing="ij")
    gate, up = gate.clone().requires_grad_(), up.clone().requires_grad_()
    wide = cases.float64(gate, up)
    out = PLAIN[activation](gate, up, clamp_limit=limit)
    compare(out, [gate, up], cases.glu(*wide, f"{activation} limited", limit=limit), wide, ["dgate", "dup"])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("activation", WITH_PROBS)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_with_probs_and_a_mask(backend, device, activation, dtype, interleaved):
    x = (2 * torch.randn(T, 2 * H, device=device)).to(dtype).requires_grad_()
    probs = torch.rand(T, device=device).requires_grad_()
    mask = torch.arange(T, device=device) % 3
    out = WITH_PROBS[activation](x, probs, mask, 1.25, interleaved=interleaved)
    x64, probs64 = cases.float64(x, probs)
    gate, up = (x64[:, 0::2], x64[:, 1::2]) if interleaved else (x64[:, :H], x64[:, H:])
    out64 = cases.glu(gate, up, f"{activation} limited", probs64, mask, limit=1.25)
    compare(out, [x, probs], out64, [x64, probs64], ["dx", "dprobs"])


def test_written_out_as_models_do(device):
    """No limit is the same as inf, bit for bit; and the positional form is the one with a keyword."""
    x = 3 * torch.randn(T, 2 * H, device=device)
    gate, up = x.chunk(2, -1)
    expected = F.silu(gate.clamp(max=2.0)) * up.clamp(-2.0, 2.0)
    assert_close(swiglu_with_probs(x, None, None, 2.0), expected)
    assert torch.equal(swiglu_with_probs(x, clamp_limit=2.0), swiglu_with_probs(x, None, None, 2.0))
    assert torch.equal(swiglu(x, clamp_limit=float("inf")), swiglu(x))
    assert not torch.equal(swiglu(x, clamp_limit=2.0), swiglu(x))


SHAPES = {
    "rows": (6,),
    "leading": (2, 3),
    "rows and one": (6, 1),
    "leading and one": (2, 3, 1),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("function, activation", [(swiglu_with_probs, "silu"), (geglu_with_probs, "gelu")])
def test_probs_and_mask_of_any_leading_shape(backend, device, function, activation, shape):
    x = torch.randn(2, 3, 2 * H, device=device, requires_grad=True)
    probs = torch.rand(shape, device=device, requires_grad=True)
    mask = (torch.arange(6, device=device) % 4).reshape(shape)
    out = function(x, probs, mask)
    assert out.shape == (6, H)
    x64, probs64 = cases.float64(x, probs)
    flat = x64.reshape(6, 2 * H)
    out64 = cases.glu(flat[:, :H], flat[:, H:], activation, probs64.reshape(6), mask.reshape(6))
    compare(out, [x, probs], out64, [x64, probs64], ["dx", "dprobs"])
    text = str(explain(function.__name__, x, probs, mask))
    assert f"forward: {backend}" in text and "T=6 H=40" in text


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device, dynamic):
    def step(x, probs, limit):
        return swiglu_with_probs(x, probs, None, limit) + geglu(x, clamp_limit=limit).reshape(-1, H)

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for s, limit in ((3, 1.5), (5, 0.5)):
        x = torch.randn(2, s, 2 * H, device=device, requires_grad=True)
        probs = torch.rand(2, s, device=device, requires_grad=True)
        out, same = compiled(x, probs, limit), step(x, probs, limit)
        assert torch.equal(out, same)
        found, expected = (torch.autograd.grad(o.square().sum(), [x, probs]) for o in (out, same))
        assert all(torch.equal(a, b) for a, b in zip(found, expected))
