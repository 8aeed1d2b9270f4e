# SPDX-License-Identifier: MIT
"""Linear is torch.nn.Linear on gemm: same parameters, same numbers, any leading dimensions."""

import pytest
import torch

import turbo_gemm
from turbo_core import UnsupportedError, trace_dispatch
from turbo_testing.metrics import assert_close


def pair(bias=True, dtype=torch.float32, device="cpu"):
    torch.manual_seed(1)
    ours = turbo_gemm.Linear(6, 8, bias=bias, dtype=dtype, device=device)
    torch.manual_seed(1)
    return ours, torch.nn.Linear(6, 8, bias=bias, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (2, 0, 3), (0,), (1, 1, 1, 4)], ids=str)
def test_same_as_torch(device, leading, bias, dtype):
    ours, theirs = pair(bias, dtype, device)
    x = torch.randn(*leading, 6).to(device, dtype).requires_grad_()
    grad_out = torch.randn(*leading, 8).to(device, dtype)
    out = ours(x)
    assert out.shape == (*leading, 8)
    for got, want, what in [
        (out, theirs(x), "out"),
        *zip(
            torch.autograd.grad(ours(x), (x, *ours.parameters()), grad_out),
            torch.autograd.grad(theirs(x), (x, *theirs.parameters()), grad_out),
            ("dx", "dW", "dbias"),
        ),
    ]:
        assert_close(got, want, what=what)


def test_same_parameters_and_state_dict():
    ours, theirs = pair()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))
    theirs.load_state_dict(ours.state_dict())
    assert isinstance(ours, torch.nn.Linear)
    assert "in_features=6, out_features=8" in repr(ours)


def test_it_runs_gemm_for_every_part(device):
    ours, _ = pair(device=device)
    with trace_dispatch() as trace:
        ours(torch.randn(3, 6, device=device, requires_grad=True)).sum().backward()
    assert [(r.op, r.role) for r in trace.records] == [("gemm", "forward"), ("gemm", "dgrad"), ("gemm", "wgrad")]


def test_strided_input(device):
    ours, theirs = pair(device=device)
    x = torch.randn(6, 5, 3, device=device).transpose(0, 2)
    assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("shape", [(7,), (2, 7), ()])
def test_wrong_width_is_refused(shape):
    with pytest.raises(UnsupportedError, match=r"Linear: x has shape .*; \[\.\.\., 6\] is accepted"):
        pair()[0](torch.ones(shape))


def test_compiles_whole(device):
    ours, theirs = pair(device=device)
    x = torch.randn(2, 3, 6, device=device)
    assert_close(torch.compile(ours, fullgraph=True, backend="aot_eager")(x), theirs(x))
