# SPDX-License-Identifier: MIT
"""No product of a step copies an operand, each is one launch, and what nobody wants is not quantised."""

import pytest
import torch

import turbo_grouped_gemm as tgg
from turbo_core import BackendType, GlobalBackendManager, arch_facts
from turbo_grouped_gemm.calls import GroupedGemmFp8Call
from turbo_grouped_gemm.pytorch.kernels import grouped_triton
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import GroupedGemmFp8Dispatcher
from turbo_testing.quantised import FP8_CONFIGS
from turbo_testing.support_table import PLACES

GRANULARITIES = ["tensorwise-e4m3", "rowwise-e4m3", "blockwise-hybrid", "mx-hybrid"]
R, G, N, K = 272, 3, 160, 256


@pytest.fixture
def products(monkeypatch):
    """The calls of all products, as the dispatcher gets them."""
    seen = []
    dispatch = GroupedGemmFp8Dispatcher.dispatch.__func__
    monkeypatch.setattr(
        GroupedGemmFp8Dispatcher, "dispatch", classmethod(lambda cls, call: seen.append(call) or dispatch(cls, call))
    )
    GlobalBackendManager.set_grouped_gemm_backend(BackendType.TORCH)
    GlobalBackendManager.set_quant_backend(BackendType.TORCH)
    return seen


def step(device, config, trans_b):
    a = torch.randn(R, K, device=device, requires_grad=True)
    b = torch.randn((G, N, K) if trans_b else (G, K, N), device=device, requires_grad=True)
    lens = torch.tensor([140, 0, 131], device=device)
    tgg.grouped_gemm_fp8(a, b, lens, trans_b=trans_b, config=FP8_CONFIGS[config]).sum().backward()


@pytest.mark.parametrize("config", GRANULARITIES)
@pytest.mark.parametrize("trans_b", [True, False])
def test_every_payload_has_its_contraction_last_in_memory(device, products, config, trans_b):
    step(device, config, trans_b)
    assert len(products) == 3
    for call in products:
        operands = (call.a, call.b) if isinstance(call, GroupedGemmFp8Call) else (call.x, call.y)
        for operand in operands:
            assert operand.data.is_contiguous()


@pytest.mark.parametrize("place", ["NVIDIA", "gfx942", "gfx950"])
@pytest.mark.parametrize("config", GRANULARITIES)
def test_each_product_is_one_launch(device, products, place, config):
    pytest.importorskip("triton", reason="triton is not installed")
    step(device, config, True)
    facts = PLACES[place] if place in PLACES else arch_facts(place)
    for call in products:
        _, launches = grouped_triton.plan(call, facts)
        assert len(launches) == 1, [launch.kernel.__name__ for launch in launches]


@pytest.mark.parametrize("config", GRANULARITIES[:3])
def test_what_nobody_wants_is_not_quantised(device, products, config):
    """A payload for a gradient that is not wanted is not written, and what is saved has one byte an element."""
    from turbo_quant.pytorch.kernels.quantize_impl import QuantizeDispatcher

    asked, saved = [], []
    dispatch = QuantizeDispatcher.dispatch
    a, b = torch.randn(R, K, device=device), torch.randn(G, N, K, device=device)
    lens = torch.tensor([140, 0, 131], device=device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuantizeDispatcher, "dispatch", lambda call: asked.append(call) or dispatch(call))
        tgg.grouped_gemm_fp8(a, b, lens, config=FP8_CONFIGS[config])
        assert [(call.row, call.column) for call in asked] == [(True, False), (True, False)]
        asked.clear()
        b.requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            tgg.grouped_gemm_fp8(a, b, lens, config=FP8_CONFIGS[config])
        assert [(call.row, call.column) for call in asked] == [(True, True), (True, False)]
    padded = -(-(R + G * 127) // 128) * 128
    assert [t.numel() for t in saved if t.element_size() == 1] == [K * padded]
