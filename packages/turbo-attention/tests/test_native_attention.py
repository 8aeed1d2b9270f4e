# SPDX-License-Identifier: MIT
"""Numbers of the HIP attention forward on gfx942 and gfx950, against float64.

Tiles are 256 queries and 64 keys; a wave has 32 queries.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_attention.pytorch._C", reason="turbo-attention is not built (pip install -e)")

from turbo_attention import flash_attn_func  # noqa: E402
from turbo_attention.calls import ForwardCall  # noqa: E402
from turbo_attention.layout import empty_like_rows  # noqa: E402
from turbo_attention.pytorch.kernels import native  # noqa: E402
from turbo_core import GlobalBackendManager, UnsupportedError  # noqa: E402
from turbo_testing.attention_references import attention  # noqa: E402
from turbo_testing.native_device import native_device  # noqa: E402

pytestmark = pytest.mark.simulated

LENGTHS = (1, 63, 65, 130, 200)
LAYOUTS = {"bshd": (0, 1, 2), "sbhd": (1, 0, 2), "bhsd": (0, 2, 1)}
# Of the largest |out|, and absolute of lse: P and out are rounded to the dtype, scores are sums in float32.
BOUND = {torch.bfloat16: 2**-7, torch.float16: 2**-10}
each_dim = pytest.mark.parametrize("D", native.HEAD_DIMS)
each_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
each_dtype = pytest.mark.parametrize("dtype", BOUND, ids=str)


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def device(request):
    with native_device(request.param) as found:
        yield found


def tensor(device, dtype, B, S, H, D, layout="bshd"):
    """[B,S,H,D] that lies in memory as ``layout`` says."""
    order = LAYOUTS[layout]
    x = torch.randn([(B, S, H)[axis] for axis in order] + [D], device=device).to(dtype)
    return x.permute(*(order.index(axis) for axis in range(3)), 3)


def make_call(q, k, v, causal=False, scale=None):
    scale = q.shape[3] ** -0.5 if scale is None else scale
    right = 0 if causal else -1
    lengths = q.shape[1], k.shape[1]
    return ForwardCall(q, k, v, scale, -1, right, 0.0, 0.0, None, None, None, None, None, None, *lengths)


def check(q, k, v, causal=False, scale=None):
    call = make_call(q, k, v, causal, scale)
    assert native.why_not(call) is None
    out, lse, lse_low = native.run(call)
    wanted, wanted_lse = attention(q, k, v, call.softmax_scale, right=call.right)
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    error = (out.double() - wanted).abs().max()
    assert error <= BOUND[q.dtype] * wanted.abs().max(), f"{error} of {wanted.abs().max()}"
    seen = wanted_lse != -torch.inf
    assert torch.equal(lse != -torch.inf, seen)
    torch.testing.assert_close(lse[seen].double(), wanted_lse[seen], rtol=1e-6, atol=1e-5)
    assert (out.transpose(1, 2)[~seen] == 0).all() and (lse_low[~seen] == 0).all()
    assert (lse_low[seen].abs() <= lse[seen].abs() * 2**-24 + 1e-30).all()
    return out, lse


@pytest.mark.covering
@each_mask
@each_dim
@pytest.mark.parametrize("sk", LENGTHS)
@pytest.mark.parametrize("sq", LENGTHS)
def test_lengths(device, sq, sk, D, causal, poisoned_allocations):
    q, k, v = (tensor(device, torch.bfloat16, 1, s, 1, D) for s in (sq, sk, sk))
    check(q, k, v, causal)


@pytest.mark.covering
@each_dtype
@each_mask
@each_dim
@pytest.mark.parametrize("sq, sk", [(513, 256), (256, 449), (300, 600)])
def test_several_tiles(device, sq, sk, D, causal, dtype, poisoned_allocations):
    """Work-groups of the same head, tiles in even and odd number, a last one that is whole and one that is not."""
    q, k, v = (tensor(device, dtype, 1, s, 1, D) for s in (sq, sk, sk))
    check(q, k, v, causal)


@each_mask
@each_dim
@pytest.mark.parametrize("heads, key_heads", [(1, 1), (3, 1), (8, 4), (28, 4)])
def test_heads(device, heads, key_heads, D, causal):
    """Batches and heads, in a number of work-groups that the XCDs share evenly or not."""
    q = tensor(device, torch.bfloat16, 2, 70, heads, D)
    k, v = (tensor(device, torch.bfloat16, 2, 90, key_heads, D) for _ in range(2))
    check(q, k, v, causal)


@each_dtype
@each_dim
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device, layout, D, dtype, poisoned_allocations):
    q = tensor(device, dtype, 2, 66, 4, D, layout)
    k, v = (tensor(device, dtype, 2, 70, 2, D, layout) for _ in range(2))
    out, _ = check(q, k, v, causal=True)
    assert out.stride() == empty_like_rows(q, D).stride()


@each_dim
def test_strides(device, D):
    """Slices of wider rows, a packed qkv, an expanded key, and what begins on no 16 bytes and is copied."""
    packed = torch.randn(2, 70, 3, 2, D + 8, device=device).bfloat16()[..., :D]
    check(*packed.unbind(2), causal=True)
    q, k, v = (tensor(device, torch.bfloat16, 2, 70, 2, D) for _ in range(3))
    check(q, k[:, :1].expand(2, 70, 2, D), v[:1].expand(2, 70, 2, D))
    flat = torch.randn(3 + 70 * 2 * (D + 1), device=device).bfloat16()
    odd = flat[3:].view(1, 70, 2, D + 1)[..., :D]
    check(odd, odd, odd)


@each_dim
@pytest.mark.parametrize("scale", [1.0, -0.5, 0.0, 1e-30])
def test_scales(device, scale, D):
    q, k, v = (tensor(device, torch.bfloat16, 1, 130, 1, D) for _ in range(3))
    check(q, k, v, True, scale)


@each_mask
@each_dim
def test_growing_scores(device, D, causal):
    """The row maximum grows with every tile, by more and by less than what makes it count."""
    q, k, v = (tensor(device, torch.bfloat16, 1, s, 1, D) for s in (130, 400, 400))
    k = (k + q[:, :1] * torch.linspace(-4, 4, 400, device=device)[:, None, None] ** 3).bfloat16()
    check(q, k, v, causal)


@each_dim
def test_far_negative_scores(device, D):
    """Padded keys have logit 0, far above those that exist: they would take all of the weight."""
    q = torch.full((1, 77, 1, D), 4.0, device=device, dtype=torch.bfloat16)
    v = tensor(device, torch.bfloat16, 1, 77, 1, D)
    out, _ = check(q, -q, v)
    torch.testing.assert_close(out, v.float().mean(1, keepdim=True).bfloat16().expand_as(out), rtol=0.02, atol=0.005)


@each_dtype
@each_dim
@pytest.mark.parametrize("side", [64.0, 1024.0])
def test_equal_keys_of_large_logits(device, side, D, dtype):
    """Every key has the same weight, and lse + lse_low the logarithm of their number, which lse has no room for."""
    q, k = (torch.full((1, s, 1, D), side, device=device, dtype=dtype) for s in (3, 77))
    v = tensor(device, dtype, 1, 77, 1, D)
    out, lse, lse_low = native.run(make_call(q, k, v))
    torch.testing.assert_close(out.double(), v.double().mean(1, keepdim=True).expand_as(out), rtol=0.02, atol=0.005)
    scale = float(torch.tensor(D**-0.5, dtype=torch.float32) * torch.tensor(math.log2(math.e), dtype=torch.float32))
    score = float(torch.tensor(side * side * D * scale, dtype=torch.float32)) * math.log(2)  # of base 2, as subtracted
    torch.testing.assert_close(
        lse.double() + lse_low.double(), torch.full_like(lse, 1.0).double() * (score + math.log(77)), rtol=0, atol=1e-5
    )


@each_dim
def test_nan_and_infinity_stay_where_they_belong(device, D):
    q = tensor(device, torch.bfloat16, 1, 70, 2, D)
    k, v = (tensor(device, torch.bfloat16, 1, 70, 2, D) for _ in range(2))
    v[0, 5, 1, 3] = math.nan
    q[0, 9, 1, 0] = math.inf
    out, lse, _ = native.run(make_call(q, k, v))
    assert out[0, :, 0].isfinite().all() and lse[0, 0].isfinite().all()
    assert out[0, :, 1, 3].isnan().all() and out[0, 9, 1].isnan().all()
    assert out[0, :9, 1, :3].isfinite().all()


def test_what_lies_around_is_neither_read_nor_written(device):
    """NaN beyond the last key of every tensor: rows behind a head's end are rows of the next in memory."""
    B, sq, sk, H, D = 1, 70, 65, 2, 64
    wide = [torch.full((B, H, 300, D), math.nan, device=device, dtype=torch.bfloat16) for _ in range(3)]
    q, k, v = (
        w[:, :, 100 : 100 + s].copy_(torch.randn(B, H, s, D, device=device)).transpose(1, 2)
        for w, s in zip(wide, (sq, sk, sk), strict=True)
    )
    check(q, k, v, causal=True)


def test_offsets_beyond_31_bits(device):
    """Rows 2**22 elements apart, batches 2**31. Memory that nothing touches costs nothing."""
    S, D, apart = 600, 64, 2**22
    try:
        far = torch.empty(S * apart, dtype=torch.bfloat16, device=device)
    except RuntimeError:
        pytest.skip("5 GB of addresses could not be reserved")
    q, k, v = (far.as_strided((1, S, 1, D), (0, apart, 0, 1), i * D) for i in range(3))
    dense = [torch.randn(1, S, 1, D, device=device).bfloat16() for _ in range(3)]
    for tensor_, values in zip((q, k, v), dense, strict=True):
        tensor_.copy_(values)
    out, lse, _ = native.run(make_call(q, k, v, True))
    wanted, wanted_lse, _ = native.run(make_call(*dense, True))
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
    far = torch.empty(2**31 + 2**20, dtype=torch.bfloat16, device=device)
    q, k, v = (far.as_strided((2, 70, 1, D), (2**31, D, 0, 1), i * 70 * D) for i in range(3))
    for tensor_ in (q, k, v):
        tensor_.copy_(torch.randn(2, 70, 1, D, device=device))
    check(q, k, v)


def test_equal_inputs_give_equal_bits(device):
    q, k, v = (tensor(device, torch.bfloat16, 1, 300, 2, 128) for _ in range(3))
    first, second = (native.run(make_call(q, k, v, True)) for _ in range(2))
    assert torch.equal(first.out, second.out) and torch.equal(first.lse, second.lse)


def test_through_the_op(device):
    GlobalBackendManager.set_attn_backend("TURBO")
    q, k, v = (tensor(device, torch.bfloat16, 2, 70, 2, 64) for _ in range(3))
    out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    wanted, wanted_lse = attention(q, k, v, 64**-0.5, right=0)
    torch.testing.assert_close(out.double(), wanted, rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-6, atol=1e-5)
    with pytest.raises(UnsupportedError, match="TURBO.*head dims are 32 and 32; 64 and 128 are accepted"):
        flash_attn_func(q[..., :32], k[..., :32], v[..., :32])
