# SPDX-License-Identifier: MIT
"""Triton kernels without matrix units, compiled for both architectures and run on the simulator, against torch."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8])
@pytest.mark.parametrize("n", [1, 63, 1000, 4096])
def test_add(simulator, dtype, n):
    x, y = (torch.randn(n) * 20 for _ in range(2))
    x, y = x.to(dtype), y.to(dtype)
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=512)
    assert torch.equal(out, x + y)


@triton.jit
def softmax_kernel(x, out, cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + i, e / tl.sum(e, axis=0), mask=i < cols)


@pytest.mark.parametrize("cols", [1, 7, 64, 123, 1000])
def test_softmax(simulator, cols):
    x = torch.randn(5, cols) * 4
    out = torch.empty_like(x)
    softmax_kernel[(5,)](x, out, cols, x.stride(0), BLOCK=triton.next_power_of_2(cols))
    torch.testing.assert_close(out, torch.softmax(x.double(), 1).float(), rtol=1e-5, atol=1e-6)


@triton.jit
def rmsnorm_kernel(x, w, out, rstd_out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(v * v, axis=0) / cols + eps)
    tl.store(rstd_out + row, rstd)
    g = tl.load(w + i, mask=i < cols, other=0.0).to(tl.float32)
    tl.store(out + row * cols + i, (v * rstd * g).to(out.dtype.element_ty), mask=i < cols)


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, rstd_in, dx, dw, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < cols
    g = tl.load(dy + row * cols + i, mask=m, other=0.0).to(tl.float32)
    v = tl.load(x + row * cols + i, mask=m, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_in + row)
    h = v * rstd
    wg = g * tl.load(w + i, mask=m, other=0.0).to(tl.float32)
    c = tl.sum(wg * h, axis=0) / cols
    tl.store(dx + row * cols + i, ((wg - h * c) * rstd).to(dx.dtype.element_ty), mask=m)
    tl.atomic_add(dw + i, g * h, mask=m)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cols", [96, 257])
def test_rmsnorm(simulator, dtype, cols):
    x, w, dy = torch.randn(7, cols).to(dtype), torch.randn(cols).to(dtype), torch.randn(7, cols).to(dtype)
    out, rstd = torch.empty_like(x), torch.empty(7)
    block = triton.next_power_of_2(cols)
    rmsnorm_kernel[(7,)](x, w, out, rstd, cols, 1e-5, BLOCK=block)
    dx, dw = torch.empty_like(x), torch.zeros(cols)
    rmsnorm_backward_kernel[(7,)](dy, x, w, rstd, dx, dw, cols, BLOCK=block)

    xr, wr = x.double().requires_grad_(), w.double().requires_grad_()
    reference = torch.nn.functional.rms_norm(xr, (cols,), wr, 1e-5)
    reference.backward(dy.double())
    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else dict(rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(out.double(), reference.detach(), **tolerance)
    torch.testing.assert_close(dx.double(), xr.grad, **tolerance)
    torch.testing.assert_close(dw.double(), wr.grad, **tolerance)


@triton.jit
def sort_kernel(x, out, N: tl.constexpr, DESCENDING: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.sort(tl.load(x + i), descending=DESCENDING))


@pytest.mark.covering(each="simulator", strength=1)
@pytest.mark.parametrize("n", [16, 64, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float16])
def test_sort(simulator, n, dtype):
    x = (torch.randn(3, n) * 50).to(dtype)
    out = torch.empty_like(x)
    sort_kernel[(3,)](x, out, N=n, DESCENDING=n == 64)
    assert torch.equal(out, torch.sort(x, dim=1, descending=n == 64).values)


@triton.jit
def scan_kernel(x, sums, maxima, N: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(sums + i, tl.cumsum(v, axis=0, reverse=REVERSE))
    tl.store(maxima + i, tl.associative_scan(v, 0, _max, reverse=REVERSE))


@triton.jit
def _max(a, b):
    return tl.maximum(a, b)


@pytest.mark.parametrize("n", [32, 256, 2048])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(simulator, n, reverse):
    x = torch.randint(-100, 100, (2, n), dtype=torch.int32)
    sums, maxima = torch.empty_like(x), torch.empty_like(x)
    scan_kernel[(2,)](x, sums, maxima, N=n, REVERSE=reverse)
    flip = (lambda t: t.flip(1)) if reverse else (lambda t: t)
    assert torch.equal(sums, flip(torch.cumsum(flip(x), 1)).int())
    assert torch.equal(maxima, flip(torch.cummax(flip(x), 1).values))


@triton.jit
def reduce_kernel(x, out, where, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + m[:, None] * N + n[None, :])
    o = tl.arange(0, N if AXIS == 0 else M)
    tl.store(out + o, tl.sum(v, axis=AXIS))
    tl.store(where + o, tl.argmax(v, axis=AXIS))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(16, 64), (128, 32)])
def test_reduce(simulator, axis, shape):
    x = torch.randperm(shape[0] * shape[1]).float().reshape(shape) / 64
    size = shape[1 - axis]
    out, where = torch.empty(size), torch.empty(size, dtype=torch.int32)
    reduce_kernel[(1,)](x, out, where, M=shape[0], N=shape[1], AXIS=axis)
    torch.testing.assert_close(out, x.sum(axis))
    assert torch.equal(where.long(), x.argmax(axis))


@triton.jit
def atomics_kernel(x, add, high, low, either, swapped, bins, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m, other=0)
    tl.atomic_add(add + i % 7, v, mask=m)
    tl.atomic_max(high + i % 5, v, mask=m)
    tl.atomic_min(low + i % 5, v, mask=m)
    tl.atomic_or(either + i % 3, v, mask=m)
    tl.atomic_add(bins + (v & 15), 1, mask=m)
    tl.atomic_cas(swapped, 0, tl.program_id(0) + 1)


def test_atomics(simulator):
    n = 1000
    x = torch.randint(0, 1000, (n,), dtype=torch.int32)
    add, high = torch.zeros(7, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    low, either = torch.full((5,), 10**6, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    swapped, bins = torch.zeros(1, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    atomics_kernel[(4,)](x, add, high, low, either, swapped, bins, n, BLOCK=256)
    i = torch.arange(n)
    assert torch.equal(add, torch.zeros(7, dtype=torch.int32).index_add_(0, i % 7, x))
    for k in range(5):
        assert high[k] == x[i % 5 == k].max() and low[k] == x[i % 5 == k].min()
    for k in range(3):
        assert int(either[k]) == _or(x[i % 3 == k])
    assert 1 <= int(swapped) <= 4
    assert torch.equal(bins, torch.bincount(x & 15, minlength=16).int())


def _or(x: torch.Tensor) -> int:
    out = 0
    for v in x.tolist():
        out |= v
    return out


@triton.jit
def atomic_float_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i % 32, tl.load(x + i))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_atomic_float(simulator, dtype):
    x = torch.randint(-3, 4, (1024,)).to(dtype)  # sums are exact
    out = torch.zeros(32, dtype=dtype)
    atomic_float_kernel[(4,)](x, out, BLOCK=256)
    assert torch.equal(out.float(), x.float().reshape(-1, 32).sum(0))


@triton.jit
def gather_kernel(x, index, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.gather(tl.load(x + i), tl.load(index + i), axis=0))


@pytest.mark.parametrize("n", [64, 1024])
def test_gather(simulator, n):
    x, index = torch.randn(n), torch.randint(0, n, (n,), dtype=torch.int32)
    out = torch.empty_like(x)
    gather_kernel[(1,)](x, index, out, N=n)
    assert torch.equal(out, x[index.long()])


@triton.jit
def cast_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)


NARROW = {
    "gfx942": [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bfloat16, torch.float16],
    "gfx950": [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16],
}


@pytest.mark.parametrize("which", range(4))
def test_cast_to_narrow(simulator, which):
    dtype = NARROW[simulator.arch][which]
    limit = torch.finfo(dtype).max
    x = torch.cat([torch.randn(1000) * s for s in (1e-3, 1.0, 30.0)] + [torch.tensor([0.0, -0.0])])
    x = x.clamp(-limit, limit)  # beyond it torch and the hardware may differ
    out = torch.empty(x.shape, dtype=dtype)
    cast_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    assert torch.equal(out.float(), x.to(dtype).float())


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16])
def test_cast_from_narrow(simulator, which, target):
    dtype = NARROW[simulator.arch][which]
    if dtype == target:
        pytest.skip("not a cast")
    codes = (
        torch.arange(256, dtype=torch.uint8)
        if dtype.itemsize == 1
        else torch.arange(-(2**15), 2**15, 7).to(torch.int16)
    )
    x = codes.view(dtype)
    x = x[x.float().isfinite()]
    out = torch.empty(x.shape, dtype=target)
    cast_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    assert torch.equal(out.float(), x.to(target).float())


@triton.jit
def math_kernel(x, out, n, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1.0)
    if WHAT == "exp":
        r = tl.exp(v)
    elif WHAT == "log":
        r = tl.log(tl.abs(v))
    elif WHAT == "sin":
        r = tl.sin(v)
    elif WHAT == "rsqrt":
        r = tl.rsqrt(tl.abs(v))
    elif WHAT == "erf":
        r = tl.erf(v)
    elif WHAT == "sigmoid":
        r = tl.sigmoid(v)
    elif WHAT == "divide":
        r = 1.0 / v
    else:
        r = tl.floor(v) + tl.ceil(v)
    tl.store(out + i, r, mask=i < n)


@pytest.mark.parametrize("what", ["exp", "log", "sin", "rsqrt", "erf", "sigmoid", "divide", "floor"])
def test_math(simulator, what):
    x = torch.randn(777) * 5 + 0.01
    out = torch.empty_like(x)
    math_kernel[(4,)](x, out, 777, WHAT=what, BLOCK=256)
    d = x.double()
    expected = {
        "exp": d.exp(), "log": d.abs().log(), "sin": d.sin(), "rsqrt": d.abs().rsqrt(), "erf": d.erf(),
        "sigmoid": d.sigmoid(),
        "divide": 1 / d, "floor": d.floor() + d.ceil(),
    }[what]  # fmt: skip
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)


@triton.jit
def transpose_kernel(x, out, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    tl.store(out + n[:, None] * M + m[None, :], tl.trans(tl.load(x + m[:, None] * N + n[None, :])))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.float64])
def test_transpose(simulator, dtype):
    x = torch.randint(-100, 100, (64, 32)).to(dtype)
    out = torch.empty(32, 64, dtype=dtype)
    transpose_kernel[(1,)](x, out, M=64, N=32)
    assert torch.equal(out, x.T)


@triton.jit
def integer_kernel(a, b, quotient, remainder, high, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    x, y = tl.load(a + i, mask=m, other=0), tl.load(b + i, mask=m, other=1)
    tl.store(quotient + i, x // y, mask=m)
    tl.store(remainder + i, x % y, mask=m)
    tl.store(high + i, tl.umulhi(x.to(tl.uint32), y.to(tl.uint32)).to(tl.int32), mask=m)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_division(simulator, dtype):
    a = torch.randint(-(2**31), 2**31 - 1, (500,)).to(dtype)
    b = torch.randint(1, 2**20, (500,)).to(dtype)
    q, r, h = torch.empty_like(a), torch.empty_like(a), torch.empty(500, dtype=torch.int32)
    integer_kernel[(2,)](a, b, q, r, h, 500, BLOCK=256)
    assert torch.equal(q, torch.div(a, b, rounding_mode="trunc"))
    assert torch.equal(r, torch.fmod(a, b))
    mask = (1 << 32) - 1
    expected = [((int(x) & mask) * (int(y) & mask)) >> 32 for x, y in zip(a, b)]
    assert [int(v) & mask for v in h] == expected


@triton.jit
def random_kernel(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.rand(seed, i))


def test_random_is_the_same_on_both():
    import turbo_sim

    results = []
    for arch in ("gfx942", "gfx950"):
        with turbo_sim.use(arch):
            out = torch.empty(512)
            random_kernel[(1,)](out, 1234, N=512)
            results.append(out)
    assert torch.equal(*results)
    assert float(results[0].min()) >= 0 and float(results[0].max()) < 1 and 0.4 < float(results[0].mean()) < 0.6


@triton.jit
def histogram_kernel(x, out, N: tl.constexpr, BINS: tl.constexpr):
    h = tl.histogram(tl.load(x + tl.arange(0, N)), BINS)
    tl.store(out + tl.arange(0, BINS), h)


def test_histogram(simulator):
    x = torch.randint(0, 32, (1024,), dtype=torch.int32)
    out = torch.empty(32, dtype=torch.int32)
    histogram_kernel[(1,)](x, out, N=1024, BINS=32)
    assert torch.equal(out, torch.bincount(x, minlength=32).int())
