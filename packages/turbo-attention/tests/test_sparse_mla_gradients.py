# SPDX-License-Identifier: MIT
"""sparse_mla_gradients: from the results alone, equal to what autograd gives, and to float64."""

import pytest
import torch

from turbo_attention import sparse_mla_func
from turbo_attention.developer import sparse_mla_gradients
from turbo_core import GlobalBackendManager, UnsupportedError
from turbo_testing.attention_references import sparse_mla
from turbo_testing.metrics import assert_close

T, H, D, RANK, ROWS, TOPK = 9, 4, 24, 16, 7, 5


@pytest.fixture(params=["TORCH", "TRITON"])
def backend(request):
    GlobalBackendManager.set_sparse_attn_backend(request.param)
    return request.param


@pytest.fixture
def inputs(device):
    indices = torch.randint(-1, ROWS, (T, TOPK), device=device, dtype=torch.int32)
    return torch.randn(T, H, D, device=device), torch.randn(ROWS, 1, D, device=device), indices


@pytest.mark.parametrize("with_sink", [False, True])
def test_values(backend, device, inputs, with_sink):
    q, kv, indices = inputs
    sink = torch.randn(H, device=device) if with_sink else None
    out, lse = sparse_mla_func(q, kv, indices, sink, RANK, 0.3, return_lse=True)
    dout = torch.randn(T, RANK, H, device=device).transpose(1, 2)
    dq, dkv, dsink = sparse_mla_gradients(q, kv, out, dout, indices, lse, sink, RANK, 0.3)
    leaves = [t.double().requires_grad_() for t in ((q, kv.squeeze(1), sink) if with_sink else (q, kv.squeeze(1)))]
    out64, _ = sparse_mla(leaves[0], leaves[1], indices, leaves[2] if with_sink else None, RANK, 0.3)
    expected = torch.autograd.grad(out64, leaves, dout.double())
    assert dkv.shape == kv.shape and (dsink is None) is not with_sink
    found = (dq, dkv.squeeze(1), dsink) if with_sink else (dq, dkv.squeeze(1))
    for what, one, other in zip(("dq", "dkv", "dsink"), found, expected):
        assert_close(one, other, dtype=torch.float32, what=what)
        assert not one.requires_grad


def test_refusals(inputs):
    q, kv, indices = inputs
    out, lse = sparse_mla_func(q, kv, indices, None, RANK, return_lse=True)
    for changed, complaint in (
        ({"out": out[..., 1:]}, r"out is .*\[9, 4, 15\].*torch.float32 \[9, 4, 16\]"),
        ({"dout": out.bfloat16()}, "dout is .*bfloat16"),
        ({"lse": lse.double()}, "lse is .*float64"),
        ({"kv": kv[..., 1:]}, "kv is"),
    ):
        arguments = {"q": q, "kv": kv, "out": out, "dout": out, "topk_indices": indices, "lse": lse, **changed}
        with pytest.raises(UnsupportedError, match=f"sparse_mla_gradients: {complaint}"):
            sparse_mla_gradients(**arguments, kv_lora_rank=RANK)
