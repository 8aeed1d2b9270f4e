# SPDX-License-Identifier: MIT
"""multiply_payloads: operands quantised beforehand, in every granularity and layout, against float64."""

import pytest
import torch

from turbo_core import GlobalBackendManager, UnsupportedError
from turbo_core.low_precision import ScalingGranularity, ScalingRecipe
from turbo_gemm.developer import multiply_payloads
from turbo_quant import dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8
from turbo_testing.metrics import assert_close

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
M, N, K, BLOCK = 40, 48, 96, 32
TILES = ScalingRecipe(use_2d_block=True)


@pytest.fixture(params=["TORCH", "TRITON"])
def backend(request):
    GlobalBackendManager.set_gemm_backend(request.param)
    return request.param


def quantised(x, granularity, along, tiles=False, dtype=E4M3):
    """Payload, scales and the values in float64."""
    options = {"axis": None if granularity is TENSORWISE or tiles else along}
    if granularity is BLOCKWISE:
        options |= {"block_size": BLOCK, "scaling_recipe": TILES if tiles else None}
    q, scale = quantize_fp8(x, dtype, granularity, **options)
    return q, scale, dequantize_fp8(q, torch.float32, granularity, scale_inv=scale, **options).double()


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("kind", ["tensorwise", "rowwise", "blocks", "tiles of b", "tiles of both"])
def test_layouts(backend, device, kind, trans_a, trans_b):
    a = torch.randn((K, M) if trans_a else (M, K), device=device)
    b = torch.randn((N, K) if trans_b else (K, N), device=device)
    granularity = {"tensorwise": TENSORWISE, "rowwise": ROWWISE}.get(kind, BLOCKWISE)
    a8, a_scale, a64 = quantised(a, granularity, 0 if trans_a else 1, kind == "tiles of both")
    b8, b_scale, b64 = quantised(b, granularity, 1 if trans_b else 0, kind.startswith("tiles"), E5M2)
    c = multiply_payloads(a8, a_scale, b8, b_scale, trans_a, trans_b, torch.float32, granularity, block_size=BLOCK)
    expected = (a64.t() if trans_a else a64) @ (b64.t() if trans_b else b64)
    assert_close(c, expected, dtype=torch.float32)
    assert c.is_contiguous() and not c.requires_grad


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e2m1", "e2m1 as bytes", "preshuffled"])
def test_mx(device, kind):
    a, b = torch.randn(M + 8, K, device=device), torch.randn(N, K, device=device)
    options = {"axis": 1}
    shuffled = kind == "preshuffled"
    if kind in ("e4m3", "e5m2"):
        dtype, quantise, back = E4M3 if kind == "e4m3" else E5M2, quantize_fp8, dequantize_fp8
    else:
        dtype, quantise, back = torch.uint8, quantize_fp4, dequantize_fp4
        if kind != "e2m1 as bytes":
            dtype = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
    recipes = (ScalingRecipe(shuffle_scale=shuffled), ScalingRecipe(shuffle_scale=shuffled, shuffle_out=shuffled))
    operands, wide = [], []
    for x, recipe in zip((a, b), recipes):
        q, scale = quantise(x, dtype, MX, scaling_recipe=recipe, **options)
        wide.append(back(q, torch.float32, MX, scale_inv=scale, scaling_recipe=recipe, **options).double())
        operands += [q, scale.view(torch.uint8) if kind == "e2m1 as bytes" else scale]
    c = multiply_payloads(*operands, False, True, torch.float32, MX, preshuffled=shuffled)
    assert_close(c, wide[0] @ wide[1].t(), dtype=torch.float32)


def test_a_single_row_and_no_rows(device):
    b8, b_scale, b64 = quantised(torch.randn(N, K, device=device), BLOCKWISE, 1, True)
    for rows in (0, 1):
        a8, a_scale, a64 = quantised(torch.randn(rows, K, device=device), BLOCKWISE, 1)
        c = multiply_payloads(a8, a_scale, b8, b_scale, False, True, torch.bfloat16, BLOCKWISE, block_size=BLOCK)
        assert_close(c, a64 @ b64.t(), dtype=torch.bfloat16)


def test_compiled(device):
    a8, a_scale, _ = quantised(torch.randn(M, K, device=device), ROWWISE, 1)
    b8, b_scale, _ = quantised(torch.randn(N, K, device=device), ROWWISE, 1)

    def run(a8, b8):
        return multiply_payloads(a8, a_scale, b8, b_scale, False, True, torch.bfloat16, ROWWISE)

    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(a8, b8), run(a8, b8))


A8, SCALE = torch.zeros(4, 32).to(E4M3), torch.ones(())
MX8, MX_SCALE = torch.zeros(4, 128).to(E4M3), torch.full((4, 4), 127, dtype=torch.uint8)
BYTES = torch.zeros(4, 64, dtype=torch.uint8)


@pytest.mark.parametrize(
    "arguments, options, complaint",
    [
        ((A8, SCALE, A8, SCALE, False, True, torch.bfloat16, "rowwise"), {}, "granularity='rowwise'"),
        ((A8, SCALE, A8, SCALE, False, True, torch.float64, TENSORWISE), {}, "out_dtype=torch.float64"),
        ((A8.float(), SCALE, A8, SCALE, False, True, torch.bfloat16, TENSORWISE), {}, "a is .*float32.*an FP8 type"),
        ((A8, SCALE, A8[0], SCALE, False, True, torch.bfloat16, TENSORWISE), {}, r"b is a tensor of shape \[32\]"),
        ((A8, SCALE, A8, SCALE, False, False, torch.bfloat16, TENSORWISE), {}, "K is 32 by a .* and 4 by b"),
        ((A8, SCALE, A8, SCALE, False, True, torch.bfloat16, ROWWISE), {}, r"a_scale_inv is .*\[4, 1\]"),
        (
            (A8, torch.ones(4, 1), A8, torch.ones(1, 32), False, True, torch.bfloat16, ROWWISE),
            {},
            r"b_scale_inv is .*\[4, 1\]",
        ),
        (
            (A8, torch.ones(4, 2), A8, SCALE, False, True, torch.bfloat16, BLOCKWISE),
            {"block_size": 32},
            r"a_scale_inv is .*\[4, 1\] or \[1, 1\]",
        ),
        ((A8, SCALE, A8, SCALE, False, True, torch.bfloat16, BLOCKWISE), {"block_size": 0}, "block_size=0"),
        ((MX8, MX_SCALE, MX8, MX_SCALE, False, False, torch.bfloat16, MX), {}, "trans_b=False with MX_BLOCKWISE"),
        ((A8, MX_SCALE, A8, MX_SCALE, False, True, torch.bfloat16, MX), {}, "a has 32 values a row"),
        ((MX8, SCALE, MX8, MX_SCALE, False, True, torch.bfloat16, MX), {}, r"a_scale_inv is .*\[4, 4\]"),
        ((MX8, MX_SCALE, BYTES, MX_SCALE, False, True, torch.bfloat16, MX), {}, "both or none in e2m1"),
        (
            (MX8, MX_SCALE, MX8, MX_SCALE, False, True, torch.bfloat16, MX),
            {"preshuffled": True},
            "preshuffled=True with a in torch.float8_e4m3fn",
        ),
        (
            (BYTES, MX_SCALE, BYTES, MX_SCALE, False, True, torch.bfloat16, MX),
            {"preshuffled": True},
            r"a_scale_inv is .*\[256, 8\]",
        ),
    ],
)
def test_refusals(arguments, options, complaint):
    with pytest.raises(UnsupportedError, match=f"multiply_payloads: .*{complaint}"):
        multiply_payloads(*arguments, **options)
