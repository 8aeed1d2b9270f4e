# SPDX-License-Identifier: MIT
"""At sizes that are multiples of 16 no product of a step copies an operand: each is quantised as it is read."""

import pytest
import torch

import turbo_gemm
from turbo_core import BackendType, GlobalBackendManager, arch_facts
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.pytorch.kernels import native_operands, scaled_mm
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp8Dispatcher
from turbo_testing.cases import load
from turbo_testing.quantised import FP8_CONFIGS
from turbo_testing.support_table import PLACES

CASES = load("turbo-gemm")
M, N, K = 48, 160, 256


@pytest.fixture
def products(monkeypatch):
    """The calls of all products, as the dispatcher gets them."""
    seen = []
    dispatch = GemmFp8Dispatcher.dispatch
    monkeypatch.setattr(GemmFp8Dispatcher, "dispatch", lambda call: seen.append(call) or dispatch(call))
    GlobalBackendManager.set_gemm_backend(BackendType.TORCH)
    GlobalBackendManager.set_quant_backend(BackendType.TORCH)
    return seen


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-hybrid"])
@pytest.mark.parametrize("trans_a, trans_b", CASES.LAYOUTS)
def test_no_operand_is_copied(device, products, config, trans_a, trans_b):
    a = torch.randn((K, M) if trans_a else (M, K), device=device, requires_grad=True)
    b = torch.randn((N, K) if trans_b else (K, N), device=device, requires_grad=True)
    turbo_gemm.gemm_fp8(a, b, trans_a, trans_b, None, FP8_CONFIGS[config]).sum().backward()
    assert [call.role for call in products] == ["forward", "dgrad", "wgrad"]
    for call in products:
        for operand in call.rows():
            address = operand.data.data_ptr()
            assert scaled_mm._row_major(operand.data).data_ptr() == address, call.role
            assert native_operands.payload_of(operand.data).data_ptr() == address, call.role
            if call.granularity is not ScalingGranularity.BLOCKWISE:  # which the BLAS does not take
                assert scaled_mm._scale(call, operand).data_ptr() == operand.scale_inv.data_ptr(), call.role


@pytest.mark.parametrize("place", ["NVIDIA", "gfx942", "gfx950"])
@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-hybrid"])
@pytest.mark.parametrize("trans_a, trans_b", CASES.LAYOUTS)
def test_each_product_is_one_launch(device, products, place, config, trans_a, trans_b):
    pytest.importorskip("triton", reason="triton is not installed")
    from turbo_gemm.triton import gemm_fp8

    a = torch.randn((K, M) if trans_a else (M, K), device=device, requires_grad=True)
    b = torch.randn((N, K) if trans_b else (K, N), device=device, requires_grad=True)
    turbo_gemm.gemm_fp8(a, b, trans_a, trans_b, None, FP8_CONFIGS[config]).sum().backward()
    facts = PLACES[place] if place in PLACES else arch_facts(place)
    for call in products:
        _, launches = gemm_fp8.plan(call, facts)
        assert len(launches) == 1, [launch.kernel.__name__ for launch in launches]


@pytest.mark.parametrize("config", ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-hybrid"])
def test_the_forward_alone_quantises_one_way(device, products, config):
    """A payload for a gradient that nobody wants is not written, and what is saved has one byte an element."""
    from turbo_quant.pytorch.kernels.quantize_impl import QuantizeDispatcher

    asked, saved = [], []
    dispatch = QuantizeDispatcher.dispatch
    a, b = torch.randn(M, K, device=device), torch.randn(N, K, device=device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuantizeDispatcher, "dispatch", lambda call: asked.append(call) or dispatch(call))
        turbo_gemm.gemm_fp8(a, b, False, True, None, FP8_CONFIGS[config])
        assert [(call.row, call.column) for call in asked] == [(True, False), (True, False)]
        asked.clear()
        b.requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            turbo_gemm.gemm_fp8(a, b, False, True, None, FP8_CONFIGS[config])
        assert [(call.row, call.column) for call in asked] == [(True, True), (True, False)]
    assert [t.numel() for t in saved if t.element_size() == 1] == [a.numel()]
