# SPDX-License-Identifier: MIT
"""Numbers of flash_attn_func against float64, forward and every gradient."""

import pytest
import torch

from turbo_attention import flash_attn_func
from turbo_core import BackendUnavailableError, GlobalBackendManager, device_facts, why_no_triton
from turbo_testing.attention_references import attention, keep_of
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close, assert_snr

cases = load("turbo-attention")
LARGER = [pytest.param(shape, marks=pytest.mark.gpu) for shape in cases.SHAPES[1:]]  # minutes in the interpreter
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}  # gradients are sums of rounded products


def tensor(shape, dtype, device, layout="bshd"):
    """[B,S,H,D] that lies in memory as ``layout`` says."""
    B, S, H, D = shape
    if layout == "sbhd":
        return torch.randn(S, B, H, D, device=device).to(dtype).transpose(0, 1).requires_grad_()
    if layout == "bhsd":
        return torch.randn(B, H, S, D, device=device).to(dtype).transpose(1, 2).requires_grad_()
    return torch.randn(B, S, H, D, device=device).to(dtype).requires_grad_()


def inputs(shape, dtype, device, options, layout="bshd"):
    """q, k, v, and the options with their tensors."""
    q = tensor((shape.B, shape.Sq, shape.Hq, shape.D), dtype, device, layout)
    k = tensor((shape.B, shape.Sk, shape.Hkv, shape.D), dtype, device, layout)
    v = tensor((shape.B, shape.Sk, shape.Hkv, shape.Dv), dtype, device, layout)
    options = dict(options)
    if options.pop("bias", False):
        options["bias"] = torch.randn(shape.Hq, shape.Sq, shape.Sk, device=device).to(dtype).requires_grad_()
    if options.pop("alibi", False):
        options["alibi_slopes"] = torch.rand(shape.B, shape.Hq, device=device)
    if options.pop("sink", False):
        options["sink"] = torch.randn(shape.Hq, device=device, requires_grad=True)
    return q, k, v, options


def expected(q, k, v, options, keep=None):
    left, right = options.get("window_size", (-1, -1))
    if options.get("causal"):
        right = 0 if right < 0 else min(right, 0)
    scale = options.get("softmax_scale", q.shape[-1] ** -0.5)
    return attention(
        q, k, v, scale, left, right, options.get("softcap", 0.0), options.get("bias"), options.get("alibi_slopes"),
        options.get("sink"), keep
    )  # fmt: skip


def check(shape, dtype, device, options, layout="bshd"):
    q, k, v, options = inputs(shape, dtype, device, options, layout)
    results = flash_attn_func(q, k, v, **options, return_lse=True, return_attn_probs="dropout_p" in options)
    out, lse = results[:2]
    keep = keep_of(results[2], options["dropout_p"]) if "dropout_p" in options else None
    wanted, wanted_lse = expected(q, k, v, options, keep)
    leaves = [q, k, v, *(options[name] for name in ("bias", "sink") if name in options)]
    names = ["dq", "dk", "dv", *(f"d{name}" for name in ("bias", "sink") if name in options)]
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    seen = wanted_lse != -torch.inf
    got = torch.autograd.grad([out, lse], leaves, [dout, dlse])
    finite = torch.where(seen, wanted_lse, 0.0)
    grads = torch.autograd.grad([wanted, finite], leaves, [dout.double(), torch.where(seen, dlse, 0.0).double()])
    bound = TOLERANCE[dtype]
    assert_close(out, wanted.detach(), rtol=bound, atol=bound, what="out")
    assert_close(lse, wanted_lse.detach(), rtol=bound, atol=bound, what="lse")
    for name, actual, exact in zip(names, got, grads, strict=True):
        scale = max(1.0, float(exact.abs().max())) if name in ("dbias", "dsink") or dtype != torch.float32 else 1.0
        assert_close(actual, exact, rtol=bound, atol=bound * scale, what=name)
    assert out.dtype == dtype and lse.dtype == torch.float32


@pytest.mark.parametrize("options", cases.OPTIONS.values(), ids=cases.OPTIONS)
@pytest.mark.parametrize("shape", cases.SHAPES, ids=str)
def test_reference_against_float64(device, shape, options):
    GlobalBackendManager.set_attn_backend("TORCH")
    check(shape, torch.float32, device, options)


@pytest.mark.covering
@pytest.mark.parametrize("options", cases.OPTIONS.values(), ids=cases.OPTIONS)
@pytest.mark.parametrize("shape", [*cases.SMALL, *LARGER], ids=str)
def test_triton_against_float64(device, shape, options, poisoned_allocations):
    if reason := why_no_triton(device):
        pytest.skip(reason)
    GlobalBackendManager.set_attn_backend("TRITON")
    more_than_bias = "bias" in options and options.keys() & {"alibi", "softcap", "dropout_p"}
    if device_facts(device).vendor == "amd" and more_than_bias and not {shape.D, shape.Dv} <= {16, 32, 64, 128}:
        with pytest.raises(BackendUnavailableError, match="head dims 16, 32, 64 and 128 are accepted"):
            check(shape, torch.float32, device, options)
        return
    check(shape, torch.float32, device, options)


@pytest.mark.simulated
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_16_bits_and_layouts(backend, device, dtype, layout):
    check(cases.Shape(2, 66, 70, 4, 2, 32, 32), dtype, device, {"causal": True, "sink": True}, layout)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_out_keeps_the_layout(backend, device, layout):
    q, k, v, _ = inputs(cases.Shape(2, 5, 6, 4, 2, 16, 16), torch.float32, device, {}, layout)
    out = flash_attn_func(q, k, v)
    assert out.stride() == q.stride()
    for tensor_, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert gradient.stride() == tensor_.stride()


@pytest.mark.covering(each="backend")
@pytest.mark.simulated
@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (9, 3), "sink": True, "softcap": 2.0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", [(288, 272), (40, 24)], ids=str)
def test_widths_between_powers_of_two(backend, device, widths, dtype, options):
    """Wide rows in float32 are read in pieces on AMD; rows that end within 32 bytes keep the vectors they allow."""
    check(cases.Shape(1, 20, 35, 2, 1, *widths), dtype, device, options)


# --- field cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(5, 2), (64, 128), (2, 1), (1, 2), (70, 33)], ids=str)
def test_causal_is_aligned_to_the_end(backend, device, lengths):
    """Queries before the first key that causality lets them see are blind: out 0, lse -inf, gradients 0."""
    sq, sk = lengths
    q, k, v, _ = inputs(cases.Shape(1, sq, sk, 1, 1, 16, 16), torch.float32, device, {})
    out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    blind = max(0, sq - sk)
    assert (out[:, :blind] == 0).all() and (lse[:, :, :blind] == -torch.inf).all()
    assert lse[:, :, blind:].isfinite().all()
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
    assert (dq[:, :blind] == 0).all()
    assert all(gradient.isfinite().all() for gradient in (dq, dk, dv))
    check(cases.Shape(1, sq, sk, 1, 1, 16, 16), torch.float32, device, {"causal": True})


def test_padded_keys_have_no_part(backend, device):
    """All logits are far below zero: a padded key, whose logit is 0, would overflow."""
    q = torch.full((1, 77, 2, 64), 4.0, device=device, requires_grad=True)
    k = torch.full((1, 77, 2, 64), -4.0, device=device, requires_grad=True)
    v = torch.randn(1, 77, 2, 64, device=device, requires_grad=True)
    out = flash_attn_func(q, k, v)
    assert_close(out, v.mean(1, keepdim=True).expand_as(out).detach(), dtype=torch.float32)
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_a_window_wider_than_the_keys_is_full_attention(backend, device):
    q, k, v, _ = inputs(cases.Shape(1, 8, 4, 1, 1, 16, 16), torch.float32, device, {})
    assert_close(flash_attn_func(q, k, v, window_size=(-1, 7)), flash_attn_func(q, k, v).detach(), dtype=torch.float32)


def test_a_window_of_the_key_itself_gives_its_value(backend, device):
    q, k, v, _ = inputs(cases.Shape(1, 40, 40, 2, 2, 16, 16), torch.float32, device, {})
    assert_close(flash_attn_func(q, k, v, window_size=(0, 0)), v.detach(), dtype=torch.float32)


def test_queries_before_the_window_are_blind(backend, device):
    q, k, v, _ = inputs(cases.Shape(1, 129, 33, 1, 1, 16, 16), torch.float32, device, {})
    out = flash_attn_func(q, k, v, window_size=(32, 64))
    assert (out[:, :32] == 0).all() and (out[:, 32:] != 0).any(3).all()
    check(cases.Shape(1, 129, 33, 1, 1, 16, 16), torch.float32, device, {"window_size": (32, 64)})


@pytest.mark.parametrize("kind", ["expanded", "transposed", "sliced"])
def test_any_strides_of_dout(backend, device, kind):
    q, k, v, _ = inputs(cases.Shape(2, 40, 50, 4, 2, 16, 16), torch.float32, device, {})
    out = flash_attn_func(q, k, v, causal=True)
    if kind == "expanded":
        dout = torch.randn((), device=device).expand(out.shape)
    elif kind == "transposed":
        dout = torch.randn(out.shape[1], out.shape[0], *out.shape[2:], device=device).transpose(0, 1)
    else:
        dout = torch.randn(*out.shape[:3], 2 * out.shape[3], device=device)[..., ::2]
    got = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    wanted = torch.autograd.grad(out, (q, k, v), dout.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_misaligned_views(backend, device):
    """A storage offset of 3 elements, and rows whose stride no vector load divides."""
    flat = torch.randn(3 + 2 * 33 * 2 * 17, device=device).bfloat16()
    q = flat[3:].view(2, 33, 2, 17)[..., :16].detach().requires_grad_()
    clone = q.detach().clone().requires_grad_()
    out, wanted = flash_attn_func(q, q, q), flash_attn_func(clone, clone, clone)
    assert_close(out, wanted.detach().double(), dtype=torch.bfloat16)


@pytest.mark.parametrize("zero", ["batch", "queries", "keys", "heads"])
@pytest.mark.parametrize("sink", [False, True])
def test_zero_sizes(backend, device, zero, sink):
    B, sq, sk, heads = (0 if zero == name else 3 for name in ("batch", "queries", "keys", "heads"))
    q = torch.randn(B, sq, heads, 16, device=device, requires_grad=True)
    k = torch.randn(B, sk, heads, 16, device=device, requires_grad=True)
    extra = torch.randn(heads, device=device, requires_grad=True) if sink else None
    out, lse = flash_attn_func(q, k, k, sink=extra, return_lse=True)
    assert out.shape == q.shape and (out == 0).all()
    wanted = extra[None, :, None].expand(lse.shape) if sink else torch.full_like(lse, -torch.inf)
    assert torch.equal(lse, wanted)
    out.sum().backward()
    assert (q.grad == 0).all() and (k.grad == 0).all()


def test_nan_stays_in_its_head(backend, device):
    q, k, v, _ = inputs(cases.Shape(1, 70, 70, 2, 2, 16, 16), torch.float32, device, {})
    with torch.no_grad():
        v[0, 5, 1, 3] = torch.nan
        q[0, 9, 1, 0] = torch.inf
    out = flash_attn_func(q, k, v)
    assert out[0, :, 0].isfinite().all()
    assert out[0, :, 1, 3].isnan().all() and out[0, 9, 1].isnan().all()
    assert out[0, :9, 1, :3].isfinite().all()


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_dropout_follows_the_seed_and_keeps_the_mean(backend, device):
    q, k, v, _ = inputs(cases.Shape(2, 70, 90, 4, 2, 16, 16), torch.float32, device, {})

    def run(seed):
        torch.manual_seed(seed)
        return flash_attn_func(q, k, v, dropout_p=0.25, return_attn_probs=True)

    (first, probabilities), (again, _), (other, _) = run(1), run(1), run(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    dropped = torch.signbit(probabilities).double().mean()
    count = probabilities.numel()
    assert abs(dropped - 0.25) < 4 * (0.25 * 0.75 / count) ** 0.5  # four standard deviations


def test_dropout_mask_is_the_same_in_both_backends(device):
    if reason := why_no_triton(device):
        pytest.skip(reason)
    q, k, v, _ = inputs(cases.Shape(2, 33, 70, 2, 1, 16, 16), torch.float32, device, {})
    results = []
    for name in ("TORCH", "TRITON"):
        GlobalBackendManager.set_attn_backend(name)
        torch.manual_seed(3)
        out = flash_attn_func(q, k, v, dropout_p=0.4)
        results.append((out, *torch.autograd.grad(out.sum(), (q, k, v))))
    for reference, triton in zip(*results, strict=True):
        assert_close(triton, reference.detach().double(), dtype=torch.float32)


# --- determinism ------------------------------------------------------------------------------------------------------


@pytest.mark.deterministic
def test_bit_equal_from_run_to_run(backend, device):
    q, k, v, options = inputs(cases.Shape(2, 100, 90, 4, 2, 32, 32), torch.bfloat16, device, {"sink": True})
    runs = []
    for _ in range(3):
        out = flash_attn_func(q, k, v, causal=True, deterministic=True, **options)
        runs.append((out, *torch.autograd.grad(out.float().sum(), (q, k, v, options["sink"]))))
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.usefixtures("returns_memory")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (128, 0), "sink": True}], ids=str)
@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("shape", cases.GPU_SHAPES, ids=str)
def test_model_shapes(device, shape, layout, options, dtype):
    q, k, v, options = inputs(shape, dtype, device, options, layout)
    out = flash_attn_func(q, k, v, **options)
    wanted, _ = expected(q, k, v, options)
    dout = torch.randn_like(out)
    leaves = [q, k, v, *([options["sink"]] if "sink" in options else [])]
    got = torch.autograd.grad(out, leaves, dout)
    exact = torch.autograd.grad(wanted, leaves, dout.double())
    assert_snr(out, wanted.detach(), 40, what="out")
    for name, actual, gradient in zip(("dq", "dk", "dv", "dsink"), got, exact, strict=False):
        assert_snr(actual, gradient, 40 if name != "dsink" else 30, what=name)


@pytest.mark.gpu
@pytest.mark.usefixtures("returns_memory")
def test_long_sequence(device):
    """131072 tokens of one head: the last rows against float64."""
    S = 131072
    q, k, v = (torch.randn(1, S, 1, 64, device=device).bfloat16().requires_grad_() for _ in range(3))
    out = flash_attn_func(q, k, v, causal=True)
    last = torch.randint(S - 500, S, (8,), device=device)
    s = q[0, last, 0].double() @ k[0, :, 0].double().T * 64**-0.5
    s = s.masked_fill(torch.arange(S, device=device)[None] > last[:, None], -torch.inf)
    assert_snr(out[0, last, 0], s.softmax(1) @ v[0, :, 0].double(), 40, what="out")
    dout = torch.zeros_like(out)
    dout[0, last] = torch.randn(8, 1, 64, device=device).bfloat16()
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    assert_snr(dv[0, :, 0], s.softmax(1).T @ dout[0, last, 0].double(), 40, what="dv")
    assert dq.isfinite().all() and dk.isfinite().all()


@pytest.mark.gpu
@pytest.mark.usefixtures("returns_memory")
def test_more_than_2_31_elements(device):
    """The values behind the wrap of a 32-bit offset are right."""
    B, S, H, D = 2, 8200, 1024, 128  # 2.15e9 elements each
    q = torch.randn(B, S, H, D, device=device, dtype=torch.bfloat16)
    k = torch.randn(B, S, H // 8, D, device=device, dtype=torch.bfloat16)
    out = flash_attn_func(q, k, k, window_size=(64, 0))
    rows = slice(S - 100, S)
    wanted, _ = attention(q[1:, rows, -8:], k[1:, S - 164 :, -1:], k[1:, S - 164 :, -1:], D**-0.5, 64, 0)
    assert_snr(out[1:, rows, -8:], wanted, 40, what="out")
