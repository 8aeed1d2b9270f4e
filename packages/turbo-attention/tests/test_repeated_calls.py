# SPDX-License-Identifier: MIT
"""Calls that repeat: launches that were kept give the bits of a call of which nothing is kept."""

import pytest
import torch

import turbo_attention as ta
from turbo_core import GlobalBackendManager, why_no_triton
from turbo_testing.repeated import calls_are_kept

CU = torch.tensor([0, 7, 19], dtype=torch.int32)
INDICES = torch.randint(-1, 9, (5, 6), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
FORWARD, BACKWARD = ["forward_kernel"], ["delta_kernel", "backward_kv_kernel", "backward_q_kernel"]
CLEAR = ["clear_rows_kernel"]


def leaf(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype).requires_grad_()


def dense():
    return leaf(1, 20, 2, 16), leaf(1, 33, 1, 16), leaf(1, 33, 1, 16)


def ragged():
    return leaf(20, 2, 16), leaf(20, 1, 16), leaf(20, 1, 16), leaf(2)


# inputs, the function of them, and the kernels of a forward and a backward
CASES = {
    "causal": (dense, lambda q, k, v: ta.flash_attn_func(q, k, v, causal=True), FORWARD + BACKWARD),
    "bias, sink, gradient of lse": (
        lambda: (*dense(), leaf(2, 20, 33), leaf(2)),
        lambda q, k, v, bias, sink: ta.flash_attn_func(q, k, v, bias=bias, sink=sink, return_lse=True),
        FORWARD + BACKWARD,
    ),
    "fp8": (dense, ta.flash_attn_fp8_func, ["quantize_rows_kernel"] * 3 + FORWARD + BACKWARD),
    "ragged, dropout": (
        ragged,
        lambda q, k, v, sink: ta.flash_attn_varlen_func(q, k, v, CU, CU, 12, 12, dropout_p=0.2, sink=sink),
        FORWARD + CLEAR + BACKWARD + CLEAR * 2,
    ),
    "sparse": (
        lambda: (leaf(5, 2, 24), leaf(9, 24)),
        lambda q, kv: ta.sparse_mla_func(q, kv, INDICES, None, 16, return_lse=True),
        FORWARD,  # the backward is more than launches
    ),
}


def results_and_gradients(function, inputs):
    torch.manual_seed(1)  # of the dropout
    found = function(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    return *found, *torch.autograd.grad(sum(part.float().square().sum() for part in found), inputs)


@pytest.mark.parametrize("case", CASES)
def test_repeated_is_first(case):
    if reason := why_no_triton(torch.device("cpu")):
        pytest.skip(reason)
    GlobalBackendManager.set_attn_backend("TRITON")
    GlobalBackendManager.set_sparse_attn_backend("TRITON")
    make, function, kernels = CASES[case]
    first, second = make(), make()
    with calls_are_kept() as started:
        kept = [results_and_gradients(function, first)]
        assert started == []
        kept.append(results_and_gradients(function, second))
        assert started == kernels
    for inputs, found in zip((first, second), kept, strict=True):
        for one, other in zip(found, results_and_gradients(function, inputs), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
