# SPDX-License-Identifier: MIT
"""Matrix units through Triton: gemm in every operand type, scaled dot with random block scales, against float64."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def gemm_kernel(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for start in range(0, K, BK):
        kk = start + k
        x = tl.load(a + m[:, None] * sam + kk[None, :] * sak, mask=(m[:, None] < M) & (kk[None, :] < K), other=0.0)
        y = tl.load(b + kk[:, None] * sbk + n[None, :] * sbn, mask=(kk[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc, out_dtype=ACC, input_precision=PRECISION)
    out = c + m[:, None] * scm + n[None, :] * scn
    tl.store(out, acc.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def operand(shape, dtype, transposed):
    """Random values that the type holds exactly."""
    shape = shape[::-1] if transposed else shape
    if dtype == torch.int8:
        x = torch.randint(-128, 128, shape).to(dtype)
    else:
        x = torch.randn(shape).to(dtype)
    return x.T if transposed else x


def run_gemm(a, b, out_dtype, tile=(64, 64, 32), *, warps=4, stages=2, instruction=0, precision="ieee"):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty(M, N, dtype=out_dtype)
    grid = (triton.cdiv(M, tile[0]), triton.cdiv(N, tile[1]))
    gemm_kernel[grid](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=tile[0], BN=tile[1], BK=tile[2],
        ACC=tl.int32 if a.dtype == torch.int8 else tl.float64 if a.dtype == torch.float64 else tl.float32,
        PRECISION=precision, num_warps=warps, num_stages=stages, matrix_instr_nonkdim=instruction,
    )  # fmt: skip
    return c


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half(simulator, dtype, layout):
    a, b = operand((100, 130), dtype, layout[0] == "t"), operand((130, 77), dtype, layout[1] == "t")
    c = run_gemm(a, b, torch.float32)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("instruction", [16, 32])
@pytest.mark.parametrize("tile", [(128, 128, 64), (32, 64, 128)])
def test_tiles(simulator, instruction, tile):
    a, b = operand((128, 192), torch.bfloat16, False), operand((192, 128), torch.bfloat16, False)
    c = run_gemm(a, b, torch.float32, tile, instruction=instruction)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("warps", [1, 8])
def test_pipelines(simulator, stages, warps):
    a, b = operand((64, 256), torch.float16, False), operand((256, 64), torch.float16, True)
    c = run_gemm(a, b, torch.float16, warps=warps, stages=stages)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-2)


FP8 = {
    "gfx942": (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    "gfx950": (torch.float8_e4m3fn, torch.float8_e5m2),
}


@pytest.mark.parametrize("instruction", [16, 32])
@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_fp8(simulator, pair, instruction):
    types = FP8[simulator.arch]
    a, b = operand((70, 200), types[pair[0]], False), operand((200, 50), types[pair[1]], True)
    c = run_gemm(a, b, torch.float32, (64, 64, 128), instruction=instruction)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("instruction", [16, 32])
def test_int8(simulator, instruction):
    a, b = operand((70, 200), torch.int8, False), operand((200, 50), torch.int8, True)
    c = run_gemm(a, b, torch.int32, (64, 64, 64), instruction=instruction)
    assert torch.equal(c.long(), a.long() @ b.long())


@pytest.mark.parametrize("instruction", [16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision(simulator, dtype, instruction):
    a, b = operand((70, 40), dtype, False), operand((40, 50), dtype, False)
    c = run_gemm(a, b, dtype, (64, 64, 16), instruction=instruction if dtype == torch.float32 else 0)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


def test_xf32(gfx942):
    a, b = operand((64, 64), torch.float32, False), operand((64, 64), torch.float32, False)
    c = run_gemm(a, b, torch.float32, (64, 64, 32), precision="tf32")
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-1)


# --- scaled dot ------------------------------------------------------------------------------------------------------


@triton.jit
def scaled_kernel(
    a, sa, b, sb, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    PA: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    m, n = tl.arange(0, M), tl.arange(0, N)
    ka, kb, ks = tl.arange(0, K // PA), tl.arange(0, K // PB), tl.arange(0, K // 32)
    x = tl.load(a + m[:, None] * (K // PA) + ka[None, :])
    y = tl.load(b + n[None, :] * (K // PB) + kb[:, None])
    scale_x = tl.load(sa + m[:, None] * (K // 32) + ks[None, :])
    scale_y = tl.load(sb + n[:, None] * (K // 32) + ks[None, :])
    acc = tl.dot_scaled(x, scale_x, A, y, scale_y, B)
    tl.store(c + m[:, None] * N + n[None, :], acc)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def narrow_operand(rows, K, kind):
    """Stored bytes and float64 values of a [rows, K] operand."""
    if kind == "e2m1":
        codes = torch.randint(0, 16, (rows, K))
        return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]
    dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
    x = torch.randn(rows, K).to(dtype)
    return x.view(torch.uint8), x.double()


@pytest.mark.parametrize("instruction", [16, 32])
@pytest.mark.parametrize(
    "kinds",
    [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e2m1", "e2m1"), ("e4m3", "e5m2"), ("e2m1", "e4m3"), ("e5m2", "e2m1")],
)
def test_scaled_dot(simulator, kinds, instruction):
    if simulator.arch == "gfx942" and "e2m1" in kinds:
        pytest.skip("Triton has no e2m1 dot for gfx942")
    M, N, K = 64, 64, 256
    (a, av), (b, bv) = narrow_operand(M, K, kinds[0]), narrow_operand(N, K, kinds[1])
    sa, sb = (torch.randint(120, 134, (rows, K // 32), dtype=torch.uint8) for rows in (M, N))
    c = torch.empty(M, N)
    pack = [2 if k == "e2m1" else 1 for k in kinds]
    scaled_kernel[(1,)](
        a, sa, b, sb, c, M=M, N=N, K=K, A=kinds[0], B=kinds[1], PA=pack[0], PB=pack[1], matrix_instr_nonkdim=instruction
    )
    spread = [torch.exp2(s.double() - 127).repeat_interleave(32, 1) for s in (sa, sb)]
    expected = (av * spread[0]) @ (bv * spread[1]).T
    # bf16 products on gfx942, which has no scaled matrix instruction
    tolerance = 2e-2 if simulator.arch == "gfx942" else 1e-5
    scale = (av * spread[0]).abs() @ (bv * spread[1]).abs().T
    assert float(((c.double() - expected).abs() / scale.clamp(min=1)).max()) < tolerance
