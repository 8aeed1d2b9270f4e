# SPDX-License-Identifier: MIT
"""The Triton GEMM kernel by itself: on the GPU when there is one, else in Triton's interpreter."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from turbo_core import UnsupportedError, arch_facts, simulated_arch  # noqa: E402
from turbo_core.device import DeviceFacts  # noqa: E402
from turbo_gemm.triton import gemm, gemm_tiles  # noqa: E402
from turbo_gemm.triton.gemm_kernel import tile_position  # noqa: E402
from turbo_gemm.triton.gemm_tiles import TABLE, Tile, choose_tile, explain_tile, lds_bytes, rows_for  # noqa: E402
from turbo_testing import cases, references  # noqa: E402
from turbo_testing.gemm_calls import gemm_call, launch  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402
from turbo_testing.support_table import PLACES  # noqa: E402

CASES = cases.load("turbo-gemm")
GPU = torch.cuda.is_available()
DTYPES = [getattr(torch, name) for name in CASES.DTYPES]
H200 = PLACES["NVIDIA"]
FACTS = [arch_facts("gfx942"), arch_facts("gfx950"), H200]

layouts = pytest.mark.parametrize("trans_a, trans_b", CASES.LAYOUTS, ids=["NN", "NT", "TN", "TT"])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=CASES.DTYPES)


def operands(M, N, K, dtype, device, trans_a=False, trans_b=False, dtype_b=None):
    """Random A and B as stored, scaled so that C is of order one."""
    a = torch.randn((K, M) if trans_a else (M, K), device=device) / math.sqrt(max(K, 1))
    b = torch.randn((N, K) if trans_b else (K, N), device=device)
    return a.to(dtype), b.to(dtype_b or dtype)


def matmul(a, b, out=None, accumulate=False, tile=None, **options):
    """C by the launcher, written into ``out`` or added to it."""
    if out is not None:
        options.setdefault("out_dtype", out.dtype)
    return launch(gemm, gemm_call(a, b, out=out if accumulate else None, **options), tile, out)


def reference(a, b, trans_a=False, trans_b=False, bias=None, old=None):
    """float64 on the CPU."""
    bias = None if bias is None else bias.cpu()
    c = references.gemm(a.cpu(), b.cpu(), trans_a, trans_b, bias)
    return c if old is None else c + old.cpu().double()


def check(actual, expected, dtype=None):
    assert_close(actual.cpu(), expected, dtype=dtype or actual.dtype)


def poisoned(*shape, dtype, device):
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@pytest.mark.covering
@dtypes
@layouts
@pytest.mark.parametrize("M, N, K", CASES.CPU)
def test_product(M, N, K, trans_a, trans_b, dtype, device):
    a, b = operands(M, N, K, dtype, device, trans_a, trans_b)
    out = poisoned(M, N, dtype=dtype, device=device)
    assert matmul(a, b, trans_a=trans_a, trans_b=trans_b, out=out) is out
    check(out, reference(a, b, trans_a, trans_b))


@pytest.mark.gpu
@dtypes
@layouts
def test_full_matrix(trans_a, trans_b, dtype, device):
    for M, N, K in CASES.FULL:
        a, b = operands(M, N, K, dtype, device, trans_a, trans_b)
        out = poisoned(M, N, dtype=dtype, device=device)
        matmul(a, b, trans_a=trans_a, trans_b=trans_b, out=out)
        expected = references.gemm(a, b, trans_a, trans_b)  # float64 on the GPU: 441 shapes
        assert_close(out, expected, dtype=dtype, what=f"{M}x{N}x{K}")


@dtypes
@pytest.mark.parametrize("M, N, K", CASES.EMPTY)
def test_empty(M, N, K, dtype, device):
    a, b = operands(M, N, K, dtype, device)
    bias = torch.randn(N, device=device).to(dtype)
    assert torch.equal(matmul(a, b, out=poisoned(M, N, dtype=dtype, device=device)), a.new_zeros((M, N)))
    assert torch.equal(matmul(a, b, bias=bias), bias.expand(M, N))
    old = torch.randn(M, N, device=device).to(dtype)
    assert torch.equal(matmul(a, b, out=old.clone(), accumulate=True), old)


@pytest.mark.covering
@pytest.mark.simulated
@dtypes
@pytest.mark.parametrize("bias_dtype", DTYPES, ids=CASES.DTYPES)
def test_bias(dtype, bias_dtype, device):
    a, b = operands(129, 127, 64, dtype, device)
    bias = torch.randn(127 * 3, device=device).to(bias_dtype)[::3]
    check(matmul(a, b, bias=bias), reference(a, b, bias=bias))


@pytest.mark.covering
@pytest.mark.simulated
@dtypes
@pytest.mark.parametrize(
    "M, N, K, trans_a, trans_b", [(129, 127, 255, False, True), (128, 256, 128, True, False)], ids=["NT", "TN"]
)
@pytest.mark.parametrize("out_dtype", DTYPES, ids=CASES.DTYPES)
def test_accumulate(M, N, K, dtype, trans_a, trans_b, out_dtype, device):
    a, b = operands(M, N, K, dtype, device, trans_a, trans_b)
    old = torch.randn(M, N, device=device).to(out_dtype)
    bias = torch.randn(N, device=device)
    out = old.clone()
    matmul(a, b, trans_a=trans_a, trans_b=trans_b, bias=bias, out=out, accumulate=True)
    check(out, reference(a, b, trans_a, trans_b, bias, old), out_dtype if out_dtype != torch.float32 else dtype)


def test_accumulate_rounds_once(device):
    """256 + (1 + 2**-8): bf16 has 256 and 258, so 258; a product rounded to bf16 first is 1, and 257 ties to 256."""
    old = torch.full((16, 16), 256.0, dtype=torch.bfloat16, device=device)
    a = torch.zeros(16, 16, dtype=torch.bfloat16, device=device)
    a[:, 0], a[:, 1] = 1.0, 2.0**-8
    b = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    out = matmul(a, b, out=old, accumulate=True)
    assert torch.equal(out, torch.full_like(out, 258.0))


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2, 0)], ids=["fp32xfp16", "fp16xbf16", "bf16xfp32"])
def test_mixed_dtypes(pair, device):
    a, b = operands(129, 100, 127, DTYPES[pair[0]], device, dtype_b=DTYPES[pair[1]])
    out = matmul(a, b, out_dtype=torch.float32)
    check(out, reference(a, b))  # float32 tolerance: nothing was rounded to 16 bits
    assert matmul(a, b).dtype == torch.promote_types(a.dtype, b.dtype)


@pytest.mark.simulated
def test_float32_is_not_tf32(device):
    a, b = operands(128, 128, 1024, torch.float32, device)
    error = (matmul(a, b).cpu().double() - reference(a, b)).norm() / reference(a, b).norm()
    assert error < 1e-6  # tf32 gives 3e-4


@pytest.mark.simulated
@dtypes
@layouts
def test_strides(trans_a, trans_b, dtype, device):
    """Both dimensions with a stride, for both operands and the output; the gaps of out stay as they were."""
    M, N, K = 65, 70, 33
    a, b = operands(M, N, K, dtype, device, trans_a, trans_b)
    spread_a = poisoned(a.shape[0] * 2, a.shape[1] * 3, dtype=dtype, device=device)[::2, ::3].copy_(a)
    spread_b = poisoned(b.shape[0] * 3, b.shape[1] * 2, dtype=dtype, device=device)[::3, ::2].copy_(b)
    whole = poisoned(M * 2, N * 2, dtype=dtype, device=device)
    out = whole[::2, 1::2]
    matmul(spread_a, spread_b, trans_a=trans_a, trans_b=trans_b, out=out)
    check(out, reference(a, b, trans_a, trans_b))
    assert whole[1::2].isnan().all() and whole[:, ::2].isnan().all()


@dtypes
def test_transposed_out(dtype, device):
    a, b = operands(128, 256, 64, dtype, device)
    out = poisoned(256, 128, dtype=dtype, device=device).t()
    check(matmul(a, b, out=out), reference(a, b))


@dtypes
@pytest.mark.parametrize("M, N, K", [(128, 128, 128), (33, 65, 31)])
def test_expanded(M, N, K, dtype, device):
    """Stride 0 in either dimension, as gradients of sum() arrive."""
    a, b = operands(M, N, K, dtype, device)
    for x in (a[:1].expand(M, K), a[:, :1].expand(M, K), a[:1, :1].expand(M, K)):
        check(matmul(x, b), reference(x, b))
    for y in (b[:1].expand(K, N), b[:, :1].expand(K, N), b[:1, :1].expand(K, N)):
        check(matmul(a, y), reference(a, y))


@pytest.mark.simulated
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=CASES.DTYPES[1:])
@pytest.mark.parametrize("M, N, K, trans_a, trans_b", CASES.MISALIGNED)
def test_misaligned_view(M, N, K, trans_a, trans_b, dtype, device):
    """Offset 3, row stride a multiple of 16: equals the clone, and is the same in 5 runs."""

    def view(rows, cols):
        flat = torch.randn(3 + rows * (cols + 16), device=device).to(dtype)
        return torch.as_strided(flat, (rows, cols), (cols + 16, 1), 3)

    a = view(*((K, M) if trans_a else (M, K)))
    b = view(*((N, K) if trans_b else (K, N)))
    first = matmul(a, b, trans_a=trans_a, trans_b=trans_b)
    scale = math.sqrt(K)
    check(first / scale, reference(a, b, trans_a, trans_b) / scale, dtype)
    clone = matmul(a.clone(), b.clone(), trans_a=trans_a, trans_b=trans_b)
    check(first / scale, (clone / scale).cpu().double(), dtype)
    for _ in range(4):
        assert torch.equal(first, matmul(a, b, trans_a=trans_a, trans_b=trans_b))
    out = view(M, N)
    assert torch.equal(matmul(a, b, trans_a=trans_a, trans_b=trans_b, out=out), first)


@pytest.mark.simulated
@dtypes
def test_nan_and_infinity_stay_in_their_row_and_column(dtype, device):
    a, b = operands(70, 65, 33, dtype, device)
    a[3, 32] = float("nan")
    b[0, 64] = float("inf")
    a[:, 0] = a[:, 0].abs() + 1  # no 0 * inf
    c = matmul(a, b).cpu()
    assert c[3].isnan().all()
    assert c[:3, 64].isposinf().all()
    rest = torch.ones(70, 65, dtype=torch.bool)
    rest[3] = rest[:, 64] = False
    assert c[rest].isfinite().all()
    check(c[4:, :64], reference(a, b)[4:, :64], dtype)


def test_nan_beside_the_operands_is_not_read_into_c(device):
    """Memory past K, M and N is NaN."""
    a = poisoned(40, 50, dtype=torch.float32, device=device)
    b = poisoned(50, 40, dtype=torch.float32, device=device)
    a[:33, :35], b[:35, :33] = operands(33, 33, 35, torch.float32, device)
    check(matmul(a[:33, :35], b[:35, :33]), reference(a[:33, :35], b[:35, :33]))


@pytest.mark.deterministic
@dtypes
@layouts
def test_deterministic(trans_a, trans_b, dtype, device):
    a, b = operands(255, 129, 512, dtype, device, trans_a, trans_b)
    first = matmul(a, b, trans_a=trans_a, trans_b=trans_b)
    for _ in range(10 if GPU else 2):
        assert torch.equal(first, matmul(a, b, trans_a=trans_a, trans_b=trans_b))


@pytest.mark.skipif(GPU, reason="descriptors in the interpreter; on a GPU every aligned case takes them where they pay")
@layouts
@pytest.mark.parametrize("subtile, flatten", [(1, False), (2, True)])
def test_descriptors(subtile, flatten, trans_a, trans_b, device):
    tile = Tile(32, 64, 32, num_warps=4, num_stages=1, why="test", loads="descriptor", subtile=subtile, flatten=flatten)
    for M, N, K in ((64, 128, 64), (40, 72, 56), (1, 8, 64), (8, 72, 8)):
        a, b = operands(M, N, K, torch.float16, device, trans_a, trans_b)
        if min(a.stride(0), b.stride(0)) % 8:
            continue  # no descriptor takes such a row stride
        bias = torch.randn(N, device=device)
        check(
            matmul(a, b, trans_a=trans_a, trans_b=trans_b, bias=bias, tile=tile),
            reference(a, b, trans_a, trans_b, bias),
        )
        old = torch.randn(M, N, device=device)
        out = matmul(a, b, trans_a=trans_a, trans_b=trans_b, out=old.clone(), accumulate=True, tile=tile)
        check(out, reference(a, b, trans_a, trans_b, old=old), torch.float16)


def test_descriptor_tile_refuses_what_no_descriptor_takes(device):
    tile = Tile(64, 64, 64, num_warps=4, num_stages=2, why="test", loads="descriptor")
    a, b = operands(64, 64, 64, torch.float16, device)
    with pytest.raises(UnsupportedError, match="descriptors"):
        matmul(a[:, 1:], b[1:], tile=tile)


@pytest.mark.skipif(GPU, reason="the interpreter stands in for an architecture; a GPU is its own")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("M, N, K", [(512, 512, 64), (300, 264, 72), (17, 129, 40)])
def test_rows_of_an_architecture(arch, M, N, K, device):
    """The rows and the XCD order of both architectures, interpreted."""
    a, b = operands(M, N, K, torch.float16, device)
    with simulated_arch(arch):
        check(matmul(a, b, out=poisoned(M, N, dtype=torch.float16, device=device)), reference(a, b))


def test_wide_blocks(device):
    """Row strides so long that one block spans more than the narrow offsets' 1 GiB."""
    stride = 2**22 if GPU else 2**20 + 16
    rows, K = (300, 40) if GPU else (264, 16)
    if not GPU:  # the same path, forced: 264 rows of 2**20 floats would be a gigabyte
        stride = 4096
    flat = torch.zeros(rows * stride, dtype=torch.float16, device=device)
    a = torch.as_strided(flat, (rows, K), (stride, 1)).normal_()
    b = torch.randn(K, 48, device=device).half()
    check(matmul(a, b) / 8, reference(a, b) / 8)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 3], ids=["aligned", "odd"])
def test_more_than_2_31_elements(offset, device):
    """A, then C, of more than 2**31 elements; values past the wrap are compared."""
    rows, K, N = 2**20 + 4096 + 77, 2048 + 16, 16
    a = torch.empty(rows * K + offset, dtype=torch.bfloat16, device=device).normal_()[offset:].view(rows, K)
    assert a.numel() > 2**31
    b = torch.randn(K, N, device=device).to(torch.bfloat16) / math.sqrt(K)
    c = matmul(a, b)
    for part in (slice(0, 64), slice(2**31 // K - 8, 2**31 // K + 64), slice(rows - 200, rows)):
        check(c[part], reference(a[part], b))
    # C[rows, K] = a small product, transposed operands
    x = torch.randn(16, rows, device=device).to(torch.bfloat16) / 4
    y = torch.randn(16, K, device=device).to(torch.bfloat16)
    a.fill_(float("nan"))
    matmul(x, y, trans_a=True, out=a)
    for part in (slice(0, 64), slice(2**31 // K - 8, 2**31 // K + 64), slice(rows - 200, rows)):
        check(a[part], reference(x[:, part], y, trans_a=True))
    assert not a.isnan().any()


@triton.jit
def positions_kernel(out, num_tiles, tiles_m, tiles_n, GROUP_M: tl.constexpr, XCDS: tl.constexpr):
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        m, n = tile_position(tile, num_tiles, tiles_m, tiles_n, GROUP_M, XCDS)
        tl.store(out + tile, m * tiles_n + n)


@pytest.mark.parametrize("xcds", [1, 4, 8])
@pytest.mark.parametrize("tiles_m, tiles_n", [(1, 1), (3, 5), (7, 4), (13, 9), (1, 20)])
def test_each_tile_is_computed_once(tiles_m, tiles_n, xcds, device):
    """The order of tiles is a bijection, for every number of programs, divisible by the XCDs or not."""
    count = tiles_m * tiles_n
    for programs in sorted({1, 7, 8, 12, 19, count}):
        out = torch.full((count,), -1, dtype=torch.int32, device=device)
        positions_kernel[(programs,)](out, count, tiles_m, tiles_n, 4, xcds)
        assert sorted(out.tolist()) == list(range(count)), f"{programs} programs"


def test_neighbours_share_an_xcd(device):
    """Programs p, p + 8, p + 16 ... run on one XCD and get neighbouring tiles."""
    out = torch.full((256,), -1, dtype=torch.int32, device=device)
    positions_kernel[(256,)](out, 256, 256, 1, 1, 8)
    assert out[0::8].tolist() == list(range(32))
    assert out[7::8].tolist() == list(range(224, 256))


@pytest.mark.parametrize("facts", FACTS, ids=lambda f: f.arch)
@pytest.mark.parametrize("operand_bytes", [2, 4])
@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize("out_bytes", [2, 4])
@pytest.mark.parametrize("loads", ["descriptor", "pointer"])
def test_every_shape_has_a_row_that_fits(facts, operand_bytes, regular, out_bytes, loads):
    sizes = (1, 16, 129, 4096, 128256)
    for M in sizes:
        for N in sizes:
            for K in (1, 255, 8192):
                tile = choose_tile(M, N, K, facts, operand_bytes, loads=loads, out_bytes=out_bytes, regular=regular)
                assert lds_bytes(tile, facts.arch, operand_bytes, out_bytes) <= facts.lds_bytes
                whole = M % tile.block_m == N % tile.block_n == K % tile.block_k == 0
                assert tile.needs == "any" or (regular and (tile.needs == "regular" or whole))


def test_unknown_devices_have_rows():
    for facts in (
        DeviceFacts("sm_80", "nvidia", "x", 108, 1, 32, 166912, False),
        DeviceFacts("sm_75", "nvidia", "x", 40, 1, 32, 65536, False),
        DeviceFacts("gfx90a", "amd", "x", 104, 1, 64, 65536, False),
        DeviceFacts("cpu", "cpu", "x", 1, 1, 1, 0, False),
    ):
        for operand_bytes in (2, 4):
            assert rows_for(facts, operand_bytes, loads="descriptor")


@pytest.mark.parametrize("facts", FACTS, ids=lambda f: f.arch)
def test_the_model_prefers_large_tiles_for_large_shapes_and_small_for_small(facts):
    large = choose_tile(32768, 32768, 8192, facts)
    small = choose_tile(256, 256, 4096, facts)
    assert large.block_m * large.block_n == max(t.block_m * t.block_n for t in rows_for(facts, 2, loads="pointer"))
    assert small.block_m * small.block_n < large.block_m * large.block_n


def test_wave_quantisation_in_the_model():
    """257 tiles on 256 units cost two rounds."""
    facts, tile = arch_facts("gfx950"), TABLE["gfx950", 2][0]
    cost = gemm_tiles.tile_cost
    assert cost(tile, 256 * 256, 256, 512, facts, 2) == cost(tile, 256, 256, 512, facts, 2)
    assert cost(tile, 257 * 256, 256, 512, facts, 2) == 2 * cost(tile, 256, 256, 512, facts, 2)


def test_explain_tile():
    text = explain_tile(8192, 28672, 4096, arch_facts("gfx950"))
    chosen = choose_tile(8192, 28672, 4096, arch_facts("gfx950"))
    assert f"-> {chosen.name}" in text and "tiles = 14 round(s)" in text
    assert explain_tile(8191, 100, 64, arch_facts("gfx950")).count("not for this call") == 2
