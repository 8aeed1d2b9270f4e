# SPDX-License-Identifier: MIT
"""rmsnorm, rmsnorm_residual and layernorm against float64, forward and every gradient, on every backend."""

import pytest
import torch

from turbo_core import GlobalBackendManager, trace_dispatch
from turbo_norm_act import layernorm, rmsnorm, rmsnorm_residual
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")
GPU = torch.cuda.is_available()
NORMS = cases.NORMS_GPU if GPU else cases.NORMS_CPU
KINDS = ("rmsnorm", "zero_centered", "residual", "layernorm")


@pytest.fixture(params=["TORCH", "TRITON", "TURBO"])
def backend(request, device):
    """The test runs on this backend alone, or is skipped with the backend's reason."""
    if request.param == "TURBO":
        native = pytest.importorskip("turbo_norm_act.pytorch.kernels.native", reason="no native library in this tree")
        if (reason := native.library.why_not(device)) is not None:
            pytest.skip(f"TURBO: {reason}")
    GlobalBackendManager.set_norm_act_backend(request.param)
    return request.param


def apply(kind, x, residual, gamma, beta, eps=1e-5):
    """(y, s or None) of the public function."""
    if kind == "residual":
        return rmsnorm_residual(x, residual, gamma, eps)
    if kind == "layernorm":
        return layernorm(x, gamma, beta, eps), None
    return rmsnorm(x, gamma, eps, zero_centered=kind == "zero_centered"), None


def reference(kind, x, residual, gamma, beta, eps=1e-5, dtype=None):
    """Likewise in float64; s is rounded as the op stores it."""
    s = x
    if kind == "residual":
        s = x + residual
        s = s + (s.detach().to(dtype).double() - s.detach())
    y = cases.norm(s, gamma, beta, eps, kind == "zero_centered", kind == "layernorm")
    return y, s if kind == "residual" else None


def draw(kind, rows, D, dtype, device, param_dtype=None):
    """x, residual, gamma, beta; the mean of x is not 0 and differs along the row, so that a wrong mean shows."""

    def random(*sizes, to=dtype):
        return torch.randn(sizes, device=device).to(to)

    param_dtype = param_dtype or dtype
    ramp = torch.linspace(-1, 2, D, device=device)  # off centre, and more so to one end
    x = (random(rows, D).float() * 2 + ramp).to(dtype).requires_grad_()
    residual = random(rows, D).requires_grad_() if kind == "residual" else None
    gamma = (torch.rand(D, device=device) + (-0.5 if kind == "zero_centered" else 0.5)).to(param_dtype).requires_grad_()
    beta = random(D, to=param_dtype).requires_grad_() if kind == "layernorm" else None
    return x, residual, gamma, beta


def check(kind, x, residual, gamma, beta, eps=1e-5, grad=None, grad_s=None):
    """The op and all its gradients are right; returns them."""
    inputs = [x, residual, gamma, beta]
    wide = cases.float64(*inputs)
    y, s = apply(kind, *inputs, eps)
    y64, s64 = reference(kind, *wide, eps, x.dtype)
    grad = torch.randn(y.shape, device=y.device).to(y.dtype) if grad is None else grad
    outputs, grads = [y], [grad]
    if kind == "residual":
        grad_s = torch.randn(y.shape, device=y.device).to(y.dtype) if grad_s is None else grad_s
        outputs, grads = [y, s], [grad, grad_s]
        assert_close(s, s64, dtype=x.dtype, what="s")
    assert y.dtype == x.dtype and y.shape == x.shape and y.is_contiguous()
    assert_close(y, y64, dtype=x.dtype, what="y")
    wanted = [t for t in inputs if t is not None]
    found = torch.autograd.grad(outputs, wanted, grads)
    expected = torch.autograd.grad([y64] if s is None else [y64, s64], [t for t in wide if t is not None],
                                   [g.double() for g in grads])  # fmt: skip
    for tensor, one, other in zip(wanted, found, expected):
        name = next(n for n, t in zip(("dx", "dresidual", "dgamma", "dbeta"), inputs) if t is tensor)
        assert one.dtype == tensor.dtype and one.shape == tensor.shape
        if name in ("dgamma", "dbeta"):  # a sum over rows: its error grows with their number's root
            scale = max(1.0, x.numel() / max(1, x.shape[-1])) ** 0.5
            assert_close(one / scale, other / scale, dtype=tensor.dtype, what=name)
        else:
            assert_close(one, other, dtype=tensor.dtype, what=name)
    return y, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, D", NORMS)
def test_shapes(backend, device, poisoned_allocations, kind, rows, D):
    dtype = cases.DTYPES[(rows + D) % 3]
    # one element is its own mean: rstd is eps^-1/2, and it magnifies the rounding of a difference that is exactly 0
    eps = 1e-2 if kind == "layernorm" and D == 1 else 1e-5
    check(kind, *draw(kind, rows, D, dtype, device), eps=eps)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("param_dtype", cases.DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["residual", "layernorm"])
def test_dtypes(backend, device, kind, dtype, param_dtype):
    check(kind, *draw(kind, 6, 136, dtype, device, param_dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights(backend, device, kind):
    x, residual, _, _ = draw(kind, 5, 96, torch.float32, device)
    check(kind, x, residual, None, None)


@pytest.mark.parametrize("which", ["gamma", "beta"])
def test_layernorm_with_one_of_the_two(device, which):
    GlobalBackendManager.set_norm_act_backend("TRITON")
    x, _, gamma, beta = draw("layernorm", 5, 96, torch.float32, device)
    check("layernorm", x, None, gamma if which == "gamma" else None, beta if which == "beta" else None)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.5, 1])
@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_eps(backend, device, kind, eps):
    x, _, gamma, beta = draw(kind, 4, 40, torch.float32, device)
    small = (x.detach() * 1e-3).requires_grad_()
    check(kind, x, None, gamma, beta, eps=eps)
    y, _ = apply(kind, small, None, gamma, beta, eps)
    assert_close(y, reference(kind, *cases.float64(small, None, gamma, beta), eps)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0), (2, 0, 5), (64,), (2, 3, 1, 40)])
@pytest.mark.parametrize("kind", KINDS)
def test_leading_dimensions_and_zero_sizes(backend, device, kind, shape):
    x, residual, gamma, beta = draw(kind, 1, shape[-1], torch.float32, device)
    x = torch.randn(shape, device=device, requires_grad=True)
    residual = torch.randn(shape, device=device, requires_grad=True) if kind == "residual" else None
    _, grads = check(kind, x, residual, gamma, beta)
    if x.numel() == 0 and shape[-1]:
        assert not grads[-1].any(), "no rows: the weights' gradients are zeros"


@pytest.mark.parametrize("kind", ["residual", "layernorm"])
@pytest.mark.parametrize("view", ["rows", "columns", "transposed", "offset", "expanded"])
def test_strided_inputs(backend, device, kind, view):

    def strided(rows, D):
        base = torch.randn(2 * max(rows, D) + 8, 2 * max(rows, D) + 8, device=device).bfloat16()
        return {
            "rows": base[: 2 * rows : 2, :D],
            "columns": base[:rows, : 2 * D : 2],
            "transposed": base.t()[:rows, :D],
            "offset": base.flatten()[3:].as_strided((rows, D), (2 * D, 1)),
            "expanded": base[:1, :D].expand(rows, D),
        }[view]

    x, residual, gamma, beta = draw(kind, 9, 80, torch.bfloat16, device)
    x = strided(9, 80).requires_grad_()
    if residual is not None:
        residual = strided(9, 80).detach().requires_grad_()
    dy = strided(9, 80).detach()
    _, found = check(kind, x, residual, gamma, beta, grad=dy, grad_s=dy.flip(0))
    dense = [None if t is None else t.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
             for t in (x, residual, gamma, beta)]  # fmt: skip
    _, same = check(kind, *dense, grad=dy.contiguous(), grad_s=dy.flip(0).contiguous())
    for one, other in zip(found, same):
        assert torch.equal(one, other), "a layout changes nothing"


def test_expanded_gradient_of_sum(backend, device):
    x, _, gamma, _ = draw("rmsnorm", 6, 48, torch.float32, device)
    (x64, gamma64) = cases.float64(x, gamma)
    rmsnorm(x, gamma).sum().backward()
    cases.norm(x64, gamma64).sum().backward()
    assert_close(x.grad, x64.grad, dtype=torch.float32, what="dx")
    assert_close(gamma.grad, gamma64.grad, dtype=torch.float32, what="dgamma")


@pytest.mark.parametrize("used", ["y", "s"])
def test_residual_with_one_output_used(backend, device, used):
    x, residual, gamma, _ = draw("residual", 4, 24, torch.float32, device)
    wide = cases.float64(x, residual, gamma)
    y, s = rmsnorm_residual(x, residual, gamma)
    s64 = wide[0] + wide[1]
    y64 = cases.norm(s64, wide[2])
    grad = torch.randn_like(y)
    (y if used == "y" else s).backward(grad)
    (y64 if used == "y" else s64).backward(grad.double())
    assert_close(x.grad, wide[0].grad, dtype=torch.float32, what="dx")
    assert_close(residual.grad, wide[1].grad, dtype=torch.float32, what="dresidual")
    if used == "y":
        assert_close(gamma.grad, wide[2].grad, dtype=torch.float32, what="dgamma")
    else:
        assert gamma.grad is None or not gamma.grad.any()


@pytest.mark.parametrize("wanted", ["x", "gamma", "beta"])
def test_only_what_is_wanted(device, wanted):
    """A frozen input gets no gradient and costs no memory; the others are as always."""
    GlobalBackendManager.set_norm_act_backend("TRITON")
    x, _, gamma, beta = draw("layernorm", 5, 64, torch.float32, device)
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    grad = torch.randn(5, 64, device=device)
    (expected,) = torch.autograd.grad(layernorm(x, gamma, beta), [inputs[wanted]], grad, retain_graph=True)
    for name, tensor in inputs.items():
        tensor.requires_grad_(name == wanted)
    layernorm(x, gamma, beta).backward(grad)
    for name, tensor in inputs.items():
        if name == wanted:
            assert torch.equal(tensor.grad, expected)
        else:
            assert tensor.grad is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_nan_and_inf_stay_in_their_row(backend, device, kind, value):
    x, _, gamma, beta = draw(kind, 5, 70, torch.float32, device)
    bad = x.detach().clone()
    bad[2, 33] = value
    y, _ = apply(kind, bad, None, gamma, beta)
    expected, _ = reference(kind, *cases.float64(bad, None, gamma, beta))
    assert not torch.isfinite(y[2]).all()
    assert_close(y, expected, dtype=torch.float32, what="y")
    bad.requires_grad_()
    apply(kind, bad, None, gamma, beta)[0].sum().backward()
    assert not torch.isfinite(bad.grad[2]).any()
    assert torch.isfinite(bad.grad[[0, 1, 3, 4]]).all()


@pytest.mark.deterministic
@pytest.mark.parametrize("kind", ["residual", "layernorm"])
def test_bit_equal_repeats(backend, device, kind):
    rows, D = (4096, 4096) if GPU else (70, 600)
    inputs = draw(kind, rows, D, torch.bfloat16, device)
    grad, grad_s = torch.randn(2, rows, D, device=device).bfloat16()
    wanted = [t for t in inputs if t is not None]
    results = []
    for _ in range(3):
        outputs = [t for t in apply(kind, *inputs) if t is not None]
        results.append([*outputs, *torch.autograd.grad(outputs, wanted, [grad, grad_s][: len(outputs)])])
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again))


@pytest.mark.parametrize("rows, D", [(32768, 2048), (4096, 4096)] if GPU else [(2048, 64)])
def test_dgamma_precision(backend, device, rows, D):
    """Sums in 16 bits, or of rounded products, are several times worse than this (field case 17)."""
    torch.manual_seed(17)
    x = torch.randn(rows, D, device=device).bfloat16().requires_grad_()
    gamma = (1 + 0.01 * torch.randn(D, device=device)).requires_grad_()
    grad = torch.randn(rows, D, device=device).bfloat16()
    x64, gamma64 = cases.float64(x, gamma)
    (found,) = torch.autograd.grad(rmsnorm(x, gamma), [gamma], grad)
    (expected,) = torch.autograd.grad(cases.norm(x64, gamma64), [gamma64], grad.double())
    assert (found - expected).norm() / expected.norm() < 1e-5, "float32 weights: the sum is float32"
    gamma16 = gamma.detach().bfloat16().requires_grad_()
    (found,) = torch.autograd.grad(rmsnorm(x, gamma16), [gamma16], grad)
    assert (found - expected).norm() / expected.norm() < 3e-3


def test_the_fixture_chooses_the_backend(backend, device):
    with trace_dispatch() as trace:
        x = torch.ones(2, 8, device=device, requires_grad=True)
        rmsnorm(x, None).sum().backward()
    assert [(record.role, record.backend.name) for record in trace.records] == [
        ("forward", backend),
        ("backward", backend),
    ]
