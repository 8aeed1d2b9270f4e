# SPDX-License-Identifier: MIT
"""The Triton FP8 GEMM by itself: on the GPU when there is one, in the simulator when it is on, else interpreted."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from turbo_core import arch_facts, device_facts, simulated_arch  # noqa: E402
from turbo_core.low_precision import ScalingGranularity  # noqa: E402
from turbo_gemm.triton import gemm_fp8  # noqa: E402
from turbo_gemm.triton.gemm_fp8_tiles import choose_fp8_tile  # noqa: E402
from turbo_gemm.triton.gemm_launch import pack_rows  # noqa: E402
from turbo_gemm.triton.gemm_tiles import Tile  # noqa: E402
from turbo_testing import cases  # noqa: E402
from turbo_testing.gemm_calls import fp8_call, launch  # noqa: E402
from turbo_testing.metrics import assert_close, assert_snr  # noqa: E402
from turbo_testing.support_table import PLACES  # noqa: E402

CASES = cases.load("turbo-gemm")
GPU = torch.cuda.is_available()
TENSORWISE, ROWWISE, BLOCKWISE = (
    ScalingGranularity.TENSORWISE,
    ScalingGranularity.ROWWISE,
    ScalingGranularity.BLOCKWISE,
)
# name -> (granularity, block_size, a_tiles, b_tiles)
SCALINGS = {
    "tensorwise": (TENSORWISE, 0, False, False),
    "rowwise": (ROWWISE, 0, False, False),
    "block128-1d2d": (BLOCKWISE, 128, False, True),
    "block128-1d1d": (BLOCKWISE, 128, False, False),
}
MORE_BLOCKS = {
    "block128-2d1d": (BLOCKWISE, 128, True, False),
    "block64-1d2d": (BLOCKWISE, 64, False, True),
    "block32-1d1d": (BLOCKWISE, 32, False, False),
    "block256-2d2d": (BLOCKWISE, 256, True, True),
    "block100-1d2d": (BLOCKWISE, 100, False, True),
    "block7-1d1d": (BLOCKWISE, 7, False, False),
}

scalings = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
layouts = pytest.mark.parametrize("trans_a, trans_b", CASES.LAYOUTS, ids=["NN", "NT", "TN", "TT"])


def fp8_types(device):
    """(e4m3, e5m2) of the device."""
    if device_facts(device).fp8_fnuz:
        return torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
    return torch.float8_e4m3fn, torch.float8_e5m2


class Problem:
    """Random operands and scales as stored, and what they stand for in float64."""

    def __init__(self, M, N, K, scaling, device, trans_a=False, trans_b=True, types=None):
        self.granularity, self.block, self.a_tiles, self.b_tiles = scaling
        self.trans_a, self.trans_b = trans_a, trans_b
        types = types or (fp8_types(device)[0],) * 2
        self.a, self.a_scale, wide_a = self._operand(M, K, self.a_tiles, trans_a, types[0], device)
        self.b, self.b_scale, wide_b = self._operand(N, K, self.b_tiles, not trans_b, types[1], device)
        self.product = wide_a @ wide_b.t()
        self.unit = math.sqrt(max(K, 1))  # what an element of the product is of the order of

    def _operand(self, rows, K, tiles, transposed, dtype, device):
        x = torch.randn(rows, K, device=device).to(dtype)
        blocks = -(-K // self.block) if self.block else 1
        scaled_rows = -(-rows // self.block) if tiles else rows
        scale = torch.rand(scaled_rows, blocks, device=device) + 0.25
        if self.granularity is TENSORWISE:
            scale = scale[:1, :1].clone() if rows else torch.ones(1, 1, device=device)
        spread = scale.double().cpu()
        if self.block:
            spread = spread.repeat_interleave(self.block, 1)[:, :K]
            if tiles:
                spread = spread.repeat_interleave(self.block, 0)[:rows]
        wide = x.cpu().double() * spread
        if transposed:
            x, scale = x.t().contiguous(), scale.t().contiguous()
        return x, scale.reshape(()) if self.granularity is TENSORWISE else scale, wide

    def run(self, out_dtype=torch.float32, **options):
        return matmul(
            options.pop("a", self.a), options.pop("a_scale", self.a_scale), options.pop("b", self.b),
            options.pop("b_scale", self.b_scale), self.granularity, trans_a=self.trans_a, trans_b=self.trans_b,
            block_size=self.block, out_dtype=out_dtype, a_tiles=self.a_tiles, b_tiles=self.b_tiles, **options,
        )  # fmt: skip


def matmul(*operands, out=None, accumulate=False, tile=None, **options):
    """C by the launcher, written into ``out`` or added to it."""
    return launch(gemm_fp8, fp8_call(*operands, out=out if accumulate else None, **options), tile, out)


def check(actual, expected, unit, dtype=None):
    """Against float64, in units of the product's own size. Sums in 14 bits (sm_90) lose what 16-bit results do."""
    dtype = dtype or (torch.bfloat16 if GPU else actual.dtype)
    assert_close(actual.cpu().double() / unit, expected / unit, dtype=dtype)


def poisoned(*shape, dtype, device):
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@pytest.mark.covering
@scalings
@layouts
@pytest.mark.parametrize("M, N, K", CASES.FP8_CPU)
def test_product(M, N, K, trans_a, trans_b, scaling, device):
    p = Problem(M, N, K, scaling, device, trans_a, trans_b)
    out = poisoned(M, N, dtype=torch.float32, device=device)
    assert p.run(out=out) is out
    check(out, p.product, p.unit)


@pytest.mark.covering
@pytest.mark.parametrize("scaling", MORE_BLOCKS.values(), ids=MORE_BLOCKS)
@pytest.mark.parametrize("trans_a, trans_b", [(False, True), (True, False)], ids=["NT", "TN"])
def test_block_sizes_and_tiles(scaling, trans_a, trans_b, device):
    for M, N, K in ((70, 130, 300), (33, 17, 97)):
        p = Problem(M, N, K, scaling, device, trans_a, trans_b)
        check(p.run(), p.product, p.unit)


@pytest.mark.gpu
@layouts
@pytest.mark.parametrize("scaling", {**SCALINGS, **MORE_BLOCKS}.values(), ids={**SCALINGS, **MORE_BLOCKS})
def test_full_matrix(trans_a, trans_b, scaling, device):
    """SNR against float64 of what the payloads stand for: the error of the product alone."""
    for M, N, K in CASES.FP8_FULL:
        p = Problem(M, N, K, scaling, device, trans_a, trans_b)
        out = poisoned(M, N, dtype=torch.float32, device=device)
        p.run(out=out)
        assert_snr(out.cpu(), p.product, 45, f"{M}x{N}x{K}")


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (1, 1)], ids=["e4m3xe5m2", "e5m2xe4m3", "e5m2xe5m2"])
@pytest.mark.parametrize("scaling", [SCALINGS["rowwise"], SCALINGS["block128-1d2d"]], ids=["rowwise", "block128"])
def test_mixed_types(pair, scaling, device):
    types = fp8_types(device)
    p = Problem(65, 40, 144, scaling, device, types=(types[pair[0]], types[pair[1]]))
    check(p.run(), p.product, p.unit)


@scalings
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_bias_and_accumulate(scaling, out_dtype, device):
    """Bias with a stride; the product added to out; the gaps of a strided out stay as they were."""
    M, N, K = 65, 70, 160
    p = Problem(M, N, K, scaling, device)
    bias = torch.randn(N * 3, device=device)[::3]
    whole = poisoned(M * 2, N * 2, dtype=out_dtype, device=device)
    out = whole[::2, 1::2]
    old = torch.randn(M, N, device=device).to(out_dtype)
    out.copy_(old)
    p.run(out_dtype, bias=bias, out=out, accumulate=True)
    check(out, p.product + bias.cpu().double() + old.cpu().double(), p.unit, torch.bfloat16)
    assert whole[1::2].isnan().all() and whole[:, ::2].isnan().all()
    half = p.run(out_dtype, bias=bias.half())
    check(half, p.product + bias.half().cpu().double(), p.unit, torch.bfloat16)


@scalings
def test_accumulate_rounds_once(scaling, device):
    """256 + (1 + 2**-6 * 2**-2): bf16 has 256 and 258, so 258; a product rounded first is 1, and 257 ties to 256."""
    p = Problem(16, 16, 16, scaling, device)
    p.a.zero_()
    p.a[:, 0], p.a[:, 1] = 1.0, 2.0**-6
    p.b.fill_(1.0)
    p.b[:, 1] = 2.0**-2
    p.a_scale.fill_(1.0)
    p.b_scale.fill_(1.0)
    old = torch.full((16, 16), 256.0, dtype=torch.bfloat16, device=device)
    out = p.run(torch.bfloat16, out=old, accumulate=True)
    assert torch.equal(out, torch.full_like(out, 258.0))


@scalings
@pytest.mark.parametrize("M, N, K", CASES.EMPTY)
def test_empty(M, N, K, scaling, device):
    p = Problem(M, N, K, scaling, device)
    bias = torch.randn(N, device=device)
    assert torch.equal(p.run(out=poisoned(M, N, dtype=torch.float32, device=device)), torch.zeros(M, N, device=device))
    assert torch.equal(p.run(bias=bias), bias.expand(M, N))
    old = torch.randn(M, N, device=device)
    assert torch.equal(p.run(out=old.clone(), accumulate=True), old)


@scalings
@layouts
def test_strides(trans_a, trans_b, scaling, device):
    """Operands and scales that are views with strides in both dimensions and odd offsets; memory between is NaN."""
    M, N, K = 33, 40, 144
    p = Problem(M, N, K, scaling, device, trans_a, trans_b)

    def spread(x):
        if x.dim() == 0:
            return x
        flat = torch.full((x.shape[0] * 2 * x.shape[1] * 3 + 3,), 0x7F, dtype=torch.uint8, device=device)
        if x.dtype == torch.float32:
            flat = torch.full(flat.shape, float("nan"), device=device)
        else:
            flat = flat.view(x.dtype)
        return flat[3:].view(x.shape[0] * 2, x.shape[1] * 3)[::2, ::3].copy_(x)

    options = {name: spread(getattr(p, name)) for name in ("a", "a_scale", "b", "b_scale")}
    check(p.run(**options), p.product, p.unit)


@scalings
def test_expanded(scaling, device):
    """Stride 0, as gradients of sum() arrive."""
    p = Problem(40, 33, 144, scaling, device)
    row = p.a[:1].clone()
    p.a.copy_(row.expand_as(p.a))
    assert torch.equal(p.run(a=row.expand_as(p.a)), p.run())
    if scaling[0] is ROWWISE:
        one = p.a_scale[:1].clone()
        p.a_scale.copy_(one.expand_as(p.a_scale))
        assert torch.equal(p.run(a_scale=one.expand_as(p.a_scale)), p.run())


@scalings
def test_nan_stays_in_its_row(scaling, device):
    """A NaN payload, or a NaN scale over a payload of zeros, is NaN in its rows and columns and nowhere else."""
    p = Problem(70, 65, 160, scaling, device)
    if scaling[0] is TENSORWISE:
        p.a.view(torch.uint8)[3, 7] = 0xFF if not device_facts(device).fp8_fnuz else 0x80
    else:
        p.a[3] = 0
        p.a_scale[3, 0] = float("nan")
    out = p.run().cpu()
    assert out[3].isnan().all()
    rest = torch.arange(70) != 3
    assert out[rest].isfinite().all()
    check(out[rest], p.product[rest], p.unit)


@pytest.mark.deterministic
@scalings
def test_deterministic(scaling, device):
    p = Problem(255, 129, 512, scaling, device)
    first = p.run()
    for _ in range(10 if GPU else 1):
        assert torch.equal(first, p.run())


def test_float32_sums(device):
    """Every product is 1, the sum of K = 40000 of them exact in float32; 14 bits could not count them."""
    K = 40000
    p = Problem(16, 16, K, SCALINGS["rowwise"], device)
    for x in (p.a, p.b, p.a_scale, p.b_scale):
        x.fill_(1.0)
    assert torch.equal(p.run(), torch.full((16, 16), float(K), device=device))


@pytest.mark.gpu
def test_more_than_2_31_elements(device):
    """A, then C, of more than 2**31 elements; values past the wrap are compared."""
    rows, K, N = 2**20 + 4096 + 77, 2048 + 16, 16
    e4m3 = fp8_types(device)[0]
    a = torch.empty(rows, K, dtype=e4m3, device=device)
    for part in a.split(2**17):
        part.copy_(torch.randn(part.shape, device=device))
    assert a.numel() > 2**31
    b = torch.randn(N, K, device=device).to(e4m3)
    a_scale, b_scale = torch.rand(rows, 1, device=device) + 0.5, torch.rand(1, N, device=device) + 0.5

    def run(a, a_scale, b, b_scale, **options):
        return matmul(a, a_scale, b, b_scale, ROWWISE, out_dtype=torch.bfloat16, **options)

    c = run(a, a_scale, b, b_scale.t(), trans_a=False, trans_b=True)
    for part in (slice(0, 64), slice(2**31 // K - 8, 2**31 // K + 64), slice(rows - 200, rows)):
        expected = (a[part].double() * a_scale[part]) @ (b.double() * b_scale.t()).t()
        check(c[part], expected.cpu(), math.sqrt(K), torch.bfloat16)
    # C[rows, K] of a small product
    x, y = torch.randn(rows, 16, device=device).to(e4m3), torch.randn(16, K, device=device).to(e4m3)
    y_scale = torch.rand(1, K, device=device)
    out = poisoned(rows, K, dtype=torch.bfloat16, device=device)
    run(x, a_scale, y, y_scale, trans_a=False, trans_b=False, out=out)
    for part in (slice(0, 64), slice(2**31 // K - 8, 2**31 // K + 64), slice(rows - 200, rows)):
        expected = (x[part].double() * a_scale[part]) @ (y.double() * y_scale)
        check(out[part], expected.cpu(), 4, torch.bfloat16)
    assert not out.isnan().any()


@pytest.mark.parametrize("rows, cols", [(1, 1), (5, 33), (130, 70), (64, 128)])
def test_packing(rows, cols, device):
    """Any layout into aligned rows, zeros behind them; what is packed already is left alone."""
    e4m3 = fp8_types(device)[0]
    for x in (
        torch.randn(rows, cols, device=device).to(e4m3),
        torch.randn(cols, rows, device=device).to(e4m3).t(),
        torch.randn(rows * 2, cols * 3, device=device).to(e4m3)[::2, ::3],
    ):
        packed, launches = pack_rows(x)
        if not launches:
            assert packed is x and x.stride(1) == 1 and cols % 16 == 0
            continue
        (copy,) = launches
        copy.run(device)
        packed = packed.view(torch.uint8)
        assert packed.shape == (rows, -(-cols // 16) * 16)
        assert torch.equal(packed[:, :cols], x.contiguous().view(torch.uint8))
        assert not packed[:, cols:].any()
    assert pack_rows(torch.empty(64, 128, dtype=e4m3, device=device))[1] == []


@pytest.mark.skipif(GPU, reason="descriptors in the interpreter; on a GPU every case takes them where they pay")
@scalings
@pytest.mark.parametrize("subtile, flatten, halves", [(1, False, 2), (2, True, 1)])
def test_descriptors(subtile, flatten, halves, scaling, device):
    tile = Tile(
        32,
        64,
        32,
        num_warps=4,
        num_stages=1,
        why="test",
        loads="descriptor",
        subtile=subtile,
        flatten=flatten,
        halves=halves,
        per_unit=0,
    )
    for M, N, K in ((64, 128, 128), (40, 72, 100)):
        p = Problem(M, N, K, scaling, device)
        bias = torch.randn(N, device=device)
        check(p.run(torch.bfloat16, tile=tile, bias=bias), p.product + bias.cpu().double(), p.unit)


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@scalings
def test_rows_of_an_architecture(arch, scaling, device):
    """The rows and the XCD order of both architectures, and the FP8 types of each, interpreted."""
    with simulated_arch(arch):
        for M, N, K in ((256, 256, 128), (17, 129, 40)):
            p = Problem(M, N, K, scaling, device)
            check(p.run(), p.product, p.unit)


def test_every_shape_has_a_row_that_fits():
    for arch in ("gfx942", "gfx950"):
        for kind in ("fp8", "fp8 1d2d", "fp8 1d1d", "mxfp8", "mxfp4"):
            for M, N, K in ((1, 1, 1), (129, 4096, 255), (8192, 128256, 4096)):
                for block in (128, 64, 32, 100, 7) if " " in kind else (0,):
                    tile = choose_fp8_tile(M, N, K, kind, block, arch_facts(arch))
                    assert tile.needs == "any" or M % tile.block_m == N % tile.block_n == K % tile.block_k == 0
                    assert block % tile.block_k == 0 or block not in (128, 64, 32)


def test_long_sums_are_promoted_on_hopper():
    h200 = PLACES["NVIDIA"]
    assert choose_fp8_tile(8192, 8192, 16384, "fp8", 0, h200).promote == 0
    assert choose_fp8_tile(8192, 8192, 16400, "fp8", 0, h200).promote == 128
    assert choose_fp8_tile(8192, 8192, 4096, "fp8 1d2d", 128, h200).halves == 2
