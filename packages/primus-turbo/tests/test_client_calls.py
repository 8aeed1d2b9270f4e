# SPDX-License-Identifier: MIT
"""The call forms of training frameworks, against float64."""

import importlib

import pytest
import torch

import primus_turbo.pytorch as turbo
from primus_turbo.flydsl.attention.sparse_mla_bwd import sparse_mla_bwd_flydsl
from primus_turbo.flydsl.attention.sparse_mla_fwd import sparse_mla_fwd_flydsl
from primus_turbo.pytorch.core import QuantizedTensor
from primus_turbo.pytorch.core.backend import BackendType, GlobalBackendManager, PrecisionType
from primus_turbo.pytorch.core.low_precision import ScalingGranularity, ScalingRecipe, check_fp8_support
from primus_turbo.pytorch.kernels.gemm.gemm_fp4_impl import gemm_fp4_impl
from primus_turbo.pytorch.kernels.gemm.gemm_fp8_impl import gemm_fp8_impl
from primus_turbo.pytorch.kernels.gemm.gemm_impl import gemm_impl
from primus_turbo.pytorch.kernels.grouped_gemm.grouped_gemm_impl import (
    grouped_gemm_impl,
    grouped_gemm_variable_k_impl,
)
from primus_turbo.pytorch.kernels.grouped_gemm.grouped_gemm_utils import group_offs_from_lens
from primus_turbo.pytorch.kernels.quantization import quantization_impl as quantisation
from primus_turbo.pytorch.ops.attention.flash_attn_interface import FlashAttnFunc
from turbo_core import UnsupportedError
from turbo_testing.attention_references import attention, sparse_mla
from turbo_testing.metrics import assert_close, assert_snr, compute_snr

E4M3 = torch.float8_e4m3fn
BLOCKWISE, MX = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE
RAW = torch.ops.primus_turbo_cpp_extension


# --- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trans_c", [False, True])
@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (False, True), (True, False), (True, True)])
def test_gemm_impl(device, trans_a, trans_b, trans_c):
    a = torch.randn((24, 8) if trans_a else (8, 24), device=device, requires_grad=True)
    b = torch.randn((16, 24) if trans_b else (24, 16), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        c = gemm_impl(a, trans_a, b, trans_b, torch.float32, trans_c, BackendType.HIPBLASLT.value)
    expected = (a.t() if trans_a else a).double() @ (b.t() if trans_b else b).double()
    assert_close(c, expected.t() if trans_c else expected, dtype=torch.float32)
    assert c.is_contiguous() and not c.requires_grad


def test_a_blockwise_step_of_kernels(device):
    """Forward and both gradients as a framework's own autograd function puts them together."""
    M, N, K, block = 48, 80, 96, 32
    x, w = torch.randn(M, K, device=device), torch.randn(N, K, device=device)
    grad = torch.randn(M, N, device=device)
    options = {"granularity": BLOCKWISE.value, "default_backend": BackendType.CK.value, "block_size": block}
    row, row_scale, column, column_scale = quantisation.quant_fp8_blockwise_dual_impl(x, E4M3, block)
    w8, w_scale = quantisation.quant_fp8_blockwise_for_weight_impl(w, E4M3, block_size=block)
    g_row, g_scale = quantisation.quant_fp8_blockwise_impl(grad, E4M3, axis=1, block_size=block)
    g_column, g_column_scale = quantisation.quant_fp8_blockwise_impl(grad, E4M3, axis=0, block_size=block)
    one, scale = quantisation.quant_fp8_blockwise_impl(x, E4M3, axis=1, block_size=block)
    assert torch.equal(one.view(torch.uint8), row.view(torch.uint8)) and torch.equal(scale, row_scale)
    out = gemm_fp8_impl(row, row_scale, False, w8, w_scale, True, torch.float32, False, **options)
    dx = gemm_fp8_impl(g_row, g_scale, False, w8, w_scale, False, torch.float32, False, **options)
    dw = gemm_fp8_impl(column, column_scale, True, g_column, g_column_scale, False, torch.float32, True, **options)
    back = quantisation.dequant_fp8_blockwise_impl
    x64 = back(row, row_scale, torch.float32, 1, block).double()
    w64 = quantisation.dequant_fp8_blockwise_for_weight_impl(w8, w_scale, torch.float32, block).double()
    assert_close(out, x64 @ w64.t(), dtype=torch.float32)
    assert_close(dx, back(g_row, g_scale, torch.float32, 1, block).double() @ w64, dtype=torch.float32)
    columns = (
        back(t, s, torch.float32, 0, block).double() for t, s in ((g_column, g_column_scale), (column, column_scale))
    )
    assert_close(dw, next(columns).t() @ next(columns), dtype=torch.float32)
    assert_snr(dw, grad.double().t() @ x.double(), 25)


@pytest.mark.parametrize("granularity", [ScalingGranularity.TENSORWISE, "tensorwise", 1])
def test_granularities_by_member_value_and_number(device, granularity):
    a, b = torch.randn(8, 32, device=device), torch.randn(16, 32, device=device)
    operands = [t for x in (a, b) for t in turbo.ops.quantize_fp8(x, E4M3, ScalingGranularity.TENSORWISE)]
    c = gemm_fp8_impl(operands[0], operands[1], False, *operands[2:], True, torch.float32, False, granularity, 2)
    assert_snr(c, a.double() @ b.double().t(), 25)


@pytest.mark.parametrize("trans_c", [False, True])
def test_gemm_fp4_impl(device, trans_c):
    a, b = torch.randn(32, 96, device=device), torch.randn(48, 96, device=device)
    a4, b4 = (
        QuantizedTensor.quantize(x, torch.uint8, MX, axis=1, block_size=32, scaling_recipe=recipe)
        for x, recipe in ((a, ScalingRecipe()), (b, ScalingRecipe(use_2d_block=True)))
    )
    c = gemm_fp4_impl(
        a4.qdata, a4.scale_inv, False, b4.qdata, b4.scale_inv, True, torch.bfloat16, trans_c,
        granularity=MX.value, default_backend=BackendType.AITER.value, preshuffled=False,
    )  # fmt: skip
    expected = a4.dequantize().double() @ b4.dequantize().double().t()
    assert_close(c, expected.t() if trans_c else expected, dtype=torch.bfloat16)


@pytest.mark.parametrize("trans_b", [False, True])
def test_a_grouped_step_of_kernels(device, trans_b):
    """Forward and both gradients as a framework's own autograd function puts them together."""
    lens = torch.tensor([5, 0, 9], device=device)
    offs = group_offs_from_lens(lens)
    x, w = torch.randn(16, 12, device=device, requires_grad=True), torch.randn(3, 12, 10, device=device)
    w, grad = w.mT.contiguous() if trans_b else w, torch.randn(16, 10, device=device)
    backend = BackendType.TRITON.value
    with torch.autocast(device.type, torch.bfloat16):
        y = grouped_gemm_impl(x, w, lens, offs, False, trans_b, None, backend)
        dx = grouped_gemm_impl(grad, w, lens, offs, False, not trans_b, 4, backend, maybe_pre_sync=True)
        dw = grouped_gemm_variable_k_impl(x, grad, lens, offs, True, False, trans_b, None, backend)
    w64 = (w.mT if trans_b else w).double()
    for g, (first, last) in enumerate(((0, 5), (5, 5), (5, 14))):
        rows = slice(first, last)
        assert_close(y[rows], x[rows].double() @ w64[g], dtype=torch.float32)
        assert_close(dx[rows], grad[rows].double() @ w64[g].t(), dtype=torch.float32)
        expected = x[rows].double().t() @ grad[rows].double()
        assert_close(dw[g], expected.t() if trans_b else expected, dtype=torch.float32)
    assert not y[14:].any() and not dx[14:].any() and not dw[1].any()
    assert dw.is_contiguous() and not y.requires_grad and not dw.requires_grad


@pytest.mark.parametrize(
    "call, complaint",
    [
        (
            lambda a: grouped_gemm_impl(a, a[None], torch.tensor([4]), None, True, False),
            "grouped_gemm_impl: trans_a=True; False is accepted",
        ),
        (
            lambda a: grouped_gemm_variable_k_impl(a, a, torch.tensor([4]), None, True, True),
            "trans_a=True, trans_b=True; True and False are accepted",
        ),
        (lambda a: gemm_impl(a, False, a, True, a.dtype, False, 77), "gemm_impl: default_backend=77"),
        (lambda a: gemm_fp8_impl(a, a, False, a, a, True, a.dtype, False, 5, None), "gemm_fp8_impl: granularity=5"),
        (lambda a: gemm_fp4_impl(a, a, False, a, a, True, a.dtype, False, 1), "MX_BLOCKWISE is accepted"),
        (
            lambda a: gemm_fp4_impl(a, a, False, a, a, True, a.dtype, True, 4, preshuffled=True),
            "trans_c=True with preshuffled=True",
        ),
        (lambda a: group_offs_from_lens(a), r"group_offs_from_lens: group_lens is a Tensor; an int64 or int32 vector"),
        (lambda a: RAW.quantize_fp8_tensorwise(a, E4M3, None, 128), "padded to 128 and 1; 1 and 1 are accepted"),
        (lambda a: RAW.quantize_fp8_tensorwise(a, E4M3, torch.ones(2)), r"scale_opt is of shape \[2\]"),
        (lambda a: RAW.quantize_fp8_tensorwise(a, torch.int8, torch.ones(())), "dest_dtype=torch.int8"),
        (lambda a: RAW.quantize_mxfp4_dual(a, torch.uint8, 64, *[False] * 6), "padding_align_size=64; 128"),
    ],
)
def test_refusals(call, complaint):
    with pytest.raises(UnsupportedError, match=complaint):
        call(torch.randn(4, 8))


# --- quantisation -----------------------------------------------------------------------------------------------------


def test_both_copies_of_groups(device):
    lens = torch.tensor([20, 0, 33], device=device)
    offs = group_offs_from_lens(lens)
    assert offs.tolist() == [0, 20, 20, 53] and offs.dtype == torch.int64
    x, block = torch.randn(53, 70, device=device), 32
    q_row, q_column, row, column, padded_lens, padded_offs = quantisation.quant_fp8_blockwise_segment_m_row_col_impl(
        x, E4M3, block, lens, offs, gemm_other_dim=4096
    )
    assert row.shape == (3, 53) and row.is_contiguous() and q_row.shape == x.shape
    back = quantisation.dequant_fp8_blockwise_impl
    assert_snr(back(q_row, row.t(), torch.float32, 1, block), x.double(), 25)
    assert padded_lens.tolist() == [32, 0, 64] and padded_offs.tolist() == [0, 32, 32, 96]
    assert q_column.shape == (53 + 3 * block, 70) and column.shape == (-(-(53 + 3 * block) // block), 70)
    wide = back(q_column, column, torch.float32, 0, block)
    for start, first, rows in ((0, 0, 20), (32, 20, 33)):
        assert_snr(wide[start : start + rows], x[first : first + rows].double(), 25)
    assert not wide[20:32].any() and not wide[65:].any()


@pytest.mark.parametrize("scale", [None, 100.0])
def test_raw_tensorwise(device, scale):
    x = torch.randn(5, 33, device=device).bfloat16().requires_grad_()
    given = None if scale is None else torch.tensor([scale], device=device)
    q, scale_inv = RAW.quantize_fp8_tensorwise(x, E4M3, given)
    assert q.shape == x.shape and q.dtype == E4M3 and scale_inv.shape == () and not q.requires_grad
    if scale is None:
        expected = turbo.ops.quantize_fp8(x, E4M3, ScalingGranularity.TENSORWISE)
    else:
        expected = (x.float() * scale).clamp(-448, 448).to(E4M3), torch.tensor(1 / scale, device=device)
    assert torch.equal(q.view(torch.uint8), expected[0].view(torch.uint8)) and torch.equal(scale_inv, expected[1])
    compiled = torch.compile(RAW.quantize_fp8_tensorwise, fullgraph=True, backend="aot_eager")(x, E4M3, given)
    assert torch.equal(compiled[0].view(torch.uint8), q.view(torch.uint8))


@pytest.mark.parametrize("shuffles", [(), (True, False, True, True)])
def test_raw_mxfp4_dual(device, shuffles):
    x = torch.randn(64, 96, device=device).bfloat16()
    found = RAW.quantize_mxfp4_dual(x, torch.uint8, 128, True, False, False, False, False, True, *shuffles)
    one, two, three, four = shuffles or (False,) * 4
    expected = turbo.ops.quantize_fp4_with_trans(
        x,
        torch.uint8,
        MX,
        scaling_recipe=ScalingRecipe(True, False, False, one, two),
        scaling_recipe_for_trans=ScalingRecipe(False, False, True, three, four),
    )
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(found, expected))
    recipe = ScalingRecipe(use_rht=True, shuffle_scale=three, shuffle_out=four)
    back = turbo.ops.dequantize_fp4(
        found[2], torch.float32, MX, axis=0, scale_inv=found[3], scaling_recipe=recipe, size=64
    )
    assert compute_snr(x, back) > 10


def test_dual_copies_of_a_batch_come_back_as_they_are_stored(device):
    x = torch.randn(3, 40, 64, device=device)
    _, _, q, scale = turbo.ops.quantize_fp8_with_trans(x, E4M3, MX, block_size=32)
    back = turbo.ops.dequantize_fp8(q, torch.float32, MX, block_size=32, axis=1, scale_inv=scale)
    assert back.shape == (3, 64, 128)
    assert_snr(back[..., :40], x.transpose(1, 2).double(), 25)
    assert not back[..., 40:].any()


# --- attention --------------------------------------------------------------------------------------------------------


def test_flash_attn_func_as_a_class(device):
    assert isinstance(FlashAttnFunc, type)
    torch._dynamo.allow_in_graph(FlashAttnFunc)
    q, k, v = (torch.randn(2, 6, heads, 16, device=device, requires_grad=True) for heads in (4, 2, 2))
    out = FlashAttnFunc.apply(q, k, v, 0.0, 0.3, True)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    out64, _ = attention(*wide, 0.3, -1, 0, 0.0)
    grad = torch.randn_like(out)
    assert_close(out, out64, dtype=torch.float32)
    for one, other in zip(torch.autograd.grad(out, [q, k, v], grad), torch.autograd.grad(out64, wide, grad.double())):
        assert_close(one, other, dtype=torch.float32)


@pytest.mark.parametrize("with_sink", [False, True])
def test_sparse_mla_forward_and_backward_apart(device, with_sink):
    q, kv = torch.randn(9, 4, 24, device=device), torch.randn(7, 1, 24, device=device)
    indices = torch.randint(-1, 7, (9, 5), device=device, dtype=torch.int32)
    sink = torch.randn(4, device=device) if with_sink else None
    options = {"attn_sink": sink, "kv_lora_rank": 16, "scale": 0.3}
    out, lse = sparse_mla_fwd_flydsl(q, kv, indices, **options)
    grad = torch.randn_like(out)
    dq, dkv, dsink = sparse_mla_bwd_flydsl(q, kv, out, grad, indices, lse, **options)
    leaves = [t.double().requires_grad_() for t in ((q, kv.squeeze(1), sink) if with_sink else (q, kv.squeeze(1)))]
    out64, lse64 = sparse_mla(leaves[0], leaves[1], indices, leaves[2] if with_sink else None, 16, 0.3)
    assert_close(out, out64, dtype=torch.float32)
    assert_close(lse[lse64.isfinite()], lse64[lse64.isfinite()], dtype=torch.float32)
    expected = torch.autograd.grad(out64, leaves, grad.double())
    for one, other in zip((dq, dkv.squeeze(1), dsink), expected):
        assert_close(one, other, dtype=torch.float32)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_setting_compares_with_a_backend(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "fp4:AITER,other:TRITON")
    assert GlobalBackendManager.get_gemm_backend(PrecisionType.FP4) == BackendType.AITER
    assert GlobalBackendManager.get_gemm_backend(PrecisionType.FP8) != BackendType.AITER
    GlobalBackendManager.set_attn_backend(BackendType.FLYDSL)
    assert GlobalBackendManager.get_attn_backend(PrecisionType.BF16_FP16_FP32) == BackendType.FLYDSL
    assert {BackendType.HIPKITTENS.value, BackendType.MORI.value} == {8, 10}
    supported, reason = check_fp8_support()
    assert isinstance(supported, bool) and isinstance(reason, str)


def test_dist_and_legacy_homes():
    assert turbo.dist.FP8AllToAll is turbo.ops.FP8AllToAll
    for module, name in (("linear_fp8", "Float8Linear"), ("linear", "Linear"), ("linear_fp4", "Float4Linear")):
        home = importlib.import_module(f"primus_turbo.pytorch.modules.{module}")
        assert getattr(home, name) is getattr(turbo.modules, name)
