# SPDX-License-Identifier: MIT
"""swiglu, geglu and their forms with probs against float64, forward and every gradient, on every backend."""

import pytest
import torch

from turbo_core import GlobalBackendManager
from turbo_norm_act import geglu, geglu_with_probs, swiglu, swiglu_with_probs
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")
GPU = torch.cuda.is_available()
SHAPES = cases.ACTIVATIONS_GPU if GPU else cases.ACTIVATIONS_CPU
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "clamped")
PLAIN = {
    "silu": swiglu,
    "gelu": geglu,
    "gelu_tanh": lambda *a, **k: geglu(*a, approximate="tanh", **k),
    "clamped": lambda *a, **k: swiglu(*a, limit=1.5, **k),
}
WITH_PROBS = {
    "silu": swiglu_with_probs,
    "gelu": geglu_with_probs,
    "gelu_tanh": lambda *a, **k: geglu_with_probs(*a, approximate="tanh", **k),
    "clamped": lambda *a, **k: swiglu_with_probs(*a, limit=1.5, **k),
}


@pytest.fixture(params=["TORCH", "TRITON"])
def backend(request):
    GlobalBackendManager.set_norm_act_backend(request.param)
    return request.param


def draw(*shape, dtype, device):
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


def compare(outputs, inputs, outputs64, inputs64, grad, names):
    assert_close(outputs, outputs64, dtype=outputs.dtype)
    found = torch.autograd.grad(outputs, inputs, grad)
    expected = torch.autograd.grad(outputs64, inputs64, grad.double())
    for name, tensor, one, other in zip(names, inputs, found, expected):
        assert one.dtype == tensor.dtype and one.shape == tensor.shape
        if name == "dprobs":  # a sum over H
            scale = max(1.0, grad.shape[-1]) ** 0.5
            one, other = one / scale, other / scale
        assert_close(one, other, dtype=outputs.dtype, what=name)
    return found


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("T, H", SHAPES)
def test_packed_with_probs_and_mask(backend, device, poisoned_allocations, activation, T, H):
    dtype = cases.DTYPES[(T + H) % 3]
    x = draw(T, 2 * H, dtype=dtype, device=device)
    probs = torch.rand(T, device=device).requires_grad_()
    row_mask = (torch.arange(T, device=device) % 3 != 1).long()
    out = WITH_PROBS[activation](x, probs, row_mask)
    assert out.shape == (T, H) and out.dtype == dtype and out.is_contiguous()
    x64, probs64 = cases.float64(x, probs)
    out64 = cases.glu(x64[:, :H], x64[:, H:], activation, probs64, row_mask, limit=1.5)
    grad = torch.randn(T, H, device=device).to(dtype)
    compare(out, [x, probs], out64, [x64, probs64], grad, ["dx", "dprobs"])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("form", ["packed", "two tensors", "interleaved"])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_forms(backend, device, activation, form, dtype):
    H = 72
    if form == "two tensors":
        inputs = [draw(3, 5, H, dtype=dtype, device=device), draw(3, 5, H, dtype=dtype, device=device)]
        out, wide = PLAIN[activation](*inputs), cases.float64(*inputs)
        gate, up = wide
    else:
        inputs = [draw(3, 5, 2 * H, dtype=dtype, device=device)]
        out, wide = PLAIN[activation](*inputs, interleaved=form == "interleaved"), cases.float64(*inputs)
        (x,) = wide
        gate, up = (x[..., 0::2], x[..., 1::2]) if form == "interleaved" else (x[..., :H], x[..., H:])
    assert out.shape == (3, 5, H) and out.is_contiguous()
    grad = torch.randn(3, 5, H, device=device).to(dtype)
    out64 = cases.glu(gate, up, activation, limit=1.5)
    compare(out, inputs, out64, wide, grad, ["dgate" if len(inputs) == 2 else "dx", "dup"])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_masked_goes_nowhere(backend, device, poisoned_allocations, activation):
    """NaN in x, probs and dout behind the mask: zeros in the output and in all gradients."""
    T, H = 9, 40
    x = draw(T, 2 * H, dtype=torch.bfloat16, device=device)
    probs = torch.rand(T, device=device).requires_grad_()
    grad = torch.randn(T, H, device=device).bfloat16()
    masked = [0, 4, 8]
    with torch.no_grad():
        x[masked], probs[masked], grad[masked] = torch.nan, torch.nan, torch.nan
    row_mask = torch.full((T,), 3, device=device)
    row_mask[masked] = 0
    out = WITH_PROBS[activation](x, probs, row_mask)
    dx, dprobs = torch.autograd.grad(out, [x, probs], grad)
    for name, tensor in (("out", out), ("dx", dx), ("dprobs", dprobs)):
        assert not tensor[masked].any(), f"{name} is not zero in the masked rows"
        assert torch.isfinite(tensor).all(), name
        assert tensor[1].any(), f"{name} is zero in an active row"
    same = WITH_PROBS[activation](x, probs, row_mask.bool())
    assert torch.equal(same, out), "a bool mask says the same"


@pytest.mark.parametrize("value", [0, 1])
def test_masks_of_one_kind(backend, device, value):
    x = draw(6, 32, dtype=torch.float32, device=device)
    out = swiglu_with_probs(x, None, torch.full((6,), value, device=device))
    assert torch.equal(out, swiglu(x) if value else torch.zeros_like(out))


@pytest.mark.parametrize("probs_dtype", cases.DTYPES, ids=str)
def test_probs_alone(backend, device, probs_dtype):
    T, H = 6, 3000 if backend == "TORCH" else 70
    x = torch.randn(T, 2 * H, device=device).bfloat16()
    probs = torch.rand(T, device=device).to(probs_dtype).requires_grad_()
    grad = torch.randn(T, H, device=device).bfloat16()
    (found,) = torch.autograd.grad(swiglu_with_probs(x, probs), [probs], grad)
    (probs64,) = cases.float64(probs)
    out64 = cases.glu(x[:, :H].double(), x[:, H:].double(), "silu", probs64)
    (expected,) = torch.autograd.grad(out64, [probs64], grad.double())
    assert found.dtype == probs_dtype
    tolerance = 1e-5 if probs_dtype == torch.float32 else 1e-2  # bf16 data, float32 sum
    assert_close(found, expected, rtol=tolerance, atol=tolerance * H**0.5)


@pytest.mark.parametrize("limit", [0.0, 1.5, 7.0, float("inf")])
@pytest.mark.parametrize("alpha", [None, 1.0, 0.0])
def test_clamps_at_their_edges(backend, device, limit, alpha):
    """On an edge the gradient passes, beyond it it stops; gate has no lower edge."""
    edges = [limit, -limit] if limit < float("inf") else [3.0, -3.0]
    values = torch.tensor([*edges, *(1.01 * e for e in edges), *(0.99 * e for e in edges), 0.0, 100.0, -100.0])
    gate, up = torch.meshgrid(values.to(device), values.to(device), indexing="ij")
    gate, up = gate.clone().requires_grad_(), up.clone().requires_grad_()
    wide = cases.float64(gate, up)
    # the edge as float32 holds it
    out64 = cases.glu(*wide, "clamped", limit=limit, alpha=1.702 if alpha is None else alpha)
    out = swiglu(gate, up, limit=limit, alpha=alpha)
    compare(out, [gate, up], out64, wide, torch.randn_like(gate), ["dgate", "dup"])


def test_the_gate_of_gpt_oss(backend, device):
    """Written out as that model's code does it, on its interleaved projection."""
    x = (3 * torch.randn(4, 2 * 96, device=device)).requires_grad_()
    gate, up = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(min=-7.0, max=7.0)
    expected = (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    grad = torch.randn_like(expected)
    (dx,) = torch.autograd.grad(expected, [x], grad)
    out = swiglu(x, limit=7.0, alpha=1.702, interleaved=True)
    assert_close(out, expected)
    assert_close(torch.autograd.grad(out, [x], grad)[0], dx, what="dx")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("where", ["gate", "up"])
def test_nan_and_inf_propagate(backend, device, activation, value, where):
    gate, up = torch.randn(2, 3, 40, device=device)
    (gate if where == "gate" else up)[1, 7] = value
    out = PLAIN[activation](gate, up)
    expected = cases.glu(gate.double(), up.double(), activation, limit=1.5)
    if activation == "gelu_tanh" and value == float("-inf") and where == "gate":
        expected[1, 7] = out[1, 7]  # -inf times 0: torch's own answer depends on the device
        assert not out[1, 7] > 0
    assert_close(out, expected, dtype=torch.float32)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0), (2, 0, 8), (64,), (2, 3, 1, 40)])
def test_leading_dimensions_and_zero_sizes(backend, device, shape):
    H = shape[-1] // 2
    x = torch.randn(shape, device=device, requires_grad=True)
    tokens = x.shape[:-1].numel()
    probs = torch.rand(tokens, device=device, requires_grad=True)
    x64, probs64 = cases.float64(x, probs)
    out, out64 = swiglu(x), cases.glu(x64[..., :H], x64[..., H:], "silu")
    assert out.shape == (*shape[:-1], H)
    compare(out, [x], out64, [x64], torch.randn_like(out), ["dx"])
    flat, rows = geglu_with_probs(x, probs), x64.reshape(tokens, 2 * H)
    assert flat.shape == (tokens, H)
    flat64 = cases.glu(rows[:, :H], rows[:, H:], "gelu", probs64)
    compare(flat, [x, probs], flat64, [x64, probs64], torch.randn_like(flat), ["dx", "dprobs"])


@pytest.mark.parametrize("view", ["rows", "columns", "transposed", "offset", "expanded"])
@pytest.mark.parametrize("form", ["packed", "two tensors"])
def test_strided_inputs_and_gradients(backend, device, view, form):
    def strided(rows, width):
        base = torch.randn(2 * width + 8, 2 * width + 8, device=device).bfloat16()
        return {
            "rows": base[: 2 * rows : 2, :width],
            "columns": base[:rows, : 2 * width : 2],
            "transposed": base.t()[:rows, :width],
            "offset": base.flatten()[3:].as_strided((rows, width), (2 * width, 1)),
            "expanded": base[:1, :1].expand(rows, width),
        }[view]

    T, H = 7, 48
    inputs = [strided(T, 2 * H)] if form == "packed" else [strided(T, H), torch.randn(T, H, device=device).bfloat16()]
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    grad = strided(T, H)
    dense = [tensor.detach().contiguous().clone().requires_grad_() for tensor in inputs]
    out, same = swiglu(*inputs), swiglu(*dense)
    assert torch.equal(out, same)
    found = torch.autograd.grad(out, inputs, grad)
    expected = torch.autograd.grad(same, dense, grad.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    wide = cases.float64(*dense)
    gate, up = wide if form == "two tensors" else (wide[0][:, :H], wide[0][:, H:])
    compare(swiglu(*inputs), inputs, cases.glu(gate, up, "silu"), wide, grad, ["dgate", "dup"])


@pytest.mark.parametrize("wanted", ["gate", "up"])
def test_only_what_is_wanted(backend, device, wanted):
    gate, up = (torch.randn(5, 64, device=device, requires_grad=True) for _ in range(2))
    inputs, grad = {"gate": gate, "up": up}, torch.randn(5, 64, device=device)
    (expected,) = torch.autograd.grad(geglu(gate, up), [inputs[wanted]], grad)
    for name, tensor in inputs.items():
        tensor.requires_grad_(name == wanted)
    geglu(gate, up).backward(grad)
    assert torch.equal(inputs.pop(wanted).grad, expected)
    assert all(tensor.grad is None for tensor in inputs.values())


@pytest.mark.deterministic
def test_bit_equal_repeats(backend, device):
    T, H = (4096, 4096) if GPU else (9, 600)
    x = draw(T, 2 * H, dtype=torch.bfloat16, device=device)
    probs = torch.rand(T, device=device).requires_grad_()
    grad = torch.randn(T, H, device=device).bfloat16()
    results = []
    for _ in range(3):
        out = geglu_with_probs(x, probs)
        results.append([out, *torch.autograd.grad(out, [x, probs], grad)])
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again))
