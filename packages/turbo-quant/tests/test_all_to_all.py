# SPDX-License-Identifier: MIT
"""FP8AllToAll over gloo and NCCL: each row comes with its own rank's scale, both ways, uneven and empty splits too."""

import pytest
import torch
import torch.distributed as dist

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float8QuantConfig, Format, ScalingGranularity
from turbo_quant import FP8AllToAll, dequantize_fp8, quantize_fp8
from turbo_testing.distributed import run_ranks

pytestmark = pytest.mark.dist
TENSORWISE = ScalingGranularity.TENSORWISE
SPLITS = {1: [[5]], 2: [[3, 0], [1, 6]], 3: [[2, 0, 3], [0, 0, 0], [4, 1, 0]]}  # [from][to]


def inputs(rank, rows, seed):
    """Rank r's rows; magnitudes differ a thousandfold between ranks."""
    generator = torch.Generator().manual_seed(seed + rank)
    return torch.randn(rows, 3, 4, generator=generator) * 10.0 ** (2 * rank - 1)


def exchange(rank, world_size, format, fwd_quant, bwd_quant, device="cpu"):
    config = Float8QuantConfig(format=format)
    splits = SPLITS[world_size]
    send, receive = splits[rank], [row[rank] for row in splits]
    x = inputs(rank, sum(send), 1).to(device).requires_grad_()
    y = FP8AllToAll.apply(None, x, receive, send, fwd_quant, bwd_quant, config)
    grad = inputs(rank, sum(receive), 100).to(device).transpose(1, 2).contiguous().transpose(1, 2)  # not contiguous
    y.backward(grad)
    return y.detach().cpu(), x.grad.cpu()


def expected(world_size, seed, splits, dtype):
    """What each rank receives when rank r sends ``splits[r]`` of its rows."""
    pieces = []
    for rank in range(world_size):
        x = inputs(rank, sum(splits[rank]), seed)
        if dtype is not None and world_size > 1:
            q, scale_inv = quantize_fp8(x, dtype, TENSORWISE)
            x = dequantize_fp8(q, x.dtype, TENSORWISE, scale_inv=scale_inv)
        pieces.append(x.split(splits[rank]))
    return [torch.cat([pieces[sender][rank] for sender in range(world_size)]) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("format, fwd_quant, bwd_quant", [
    (Format.E4M3, True, True), (Format.HYBRID, True, True), (Format.E4M3, False, True), (Format.E4M3, False, False),
])  # fmt: skip
def test_each_rows_scale_travels_with_it(world_size, format, fwd_quant, bwd_quant):
    results = run_ranks(exchange, world_size, format, fwd_quant, bwd_quant)
    check(results, world_size, format, fwd_quant, bwd_quant)


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("format", [Format.E4M3, Format.HYBRID])
def test_over_nccl(format):
    check(run_ranks(exchange, 2, format, True, True, "cuda", backend="nccl"), 2, format, True, True)


def check(results, world_size, format, fwd_quant, bwd_quant):
    splits = SPLITS[world_size]
    back = [[splits[other][rank] for other in range(world_size)] for rank in range(world_size)]
    backward = torch.float8_e5m2 if format is Format.HYBRID else torch.float8_e4m3fn
    outputs = expected(world_size, 1, splits, torch.float8_e4m3fn if fwd_quant else None)
    gradients = expected(world_size, 100, back, backward if bwd_quant else None)
    for (y, grad), y_expected, grad_expected in zip(results, outputs, gradients):
        assert torch.equal(y, y_expected)
        assert torch.equal(grad, grad_expected)


def differentiated_twice(rank, world_size):
    """The exchange is linear: what reaches a gradient goes on to what the gradient was made of."""
    splits = SPLITS[world_size]
    send, receive = splits[rank], [row[rank] for row in splits]
    x = inputs(rank, sum(send), 1).requires_grad_()
    grad = inputs(rank, sum(receive), 100).requires_grad_()
    y = FP8AllToAll.apply(None, x, receive, send, False, False, None)
    (dx,) = torch.autograd.grad(y, [x], grad, create_graph=True)
    onto = inputs(rank, sum(send), 7)
    (found,) = torch.autograd.grad(dx, [grad], onto)
    return found, FP8AllToAll.apply(None, onto, receive, send, False, False, None)


def test_second_derivatives():
    for found, expected in run_ranks(differentiated_twice, 2):
        assert torch.equal(found, expected) and found.any()


def equal_splits(rank, world_size):
    x = torch.full((4, 8), 10.0**rank, dtype=torch.bfloat16)
    return FP8AllToAll.apply(dist.group.WORLD, x, None, None, True, True, Float8QuantConfig())


def test_equal_splits():
    for y in run_ranks(equal_splits, 2):
        assert y.dtype == torch.bfloat16
        assert torch.allclose(y[:2], torch.tensor(1.0, dtype=y.dtype))
        assert torch.allclose(y[2:], torch.tensor(10.0, dtype=y.dtype))


def refusals(rank, world_size):
    x, good = torch.randn(4, 8), Float8QuantConfig()
    rowwise = Float8QuantConfig(granularity=ScalingGranularity.ROWWISE)
    messages = []
    for arguments in (
        (x.double(), None, None, True, True, good),
        (x, None, None, True, True, rowwise),
        (x, None, None, True, True, None),
        (x[:3], None, None, True, True, good),
        (x, [2, 2], [2, 3], True, True, good),
        (x, [4], [2, 2], True, True, good),
    ):
        with pytest.raises(UnsupportedError) as error:
            FP8AllToAll.apply(None, *arguments)
        messages.append(str(error.value))
    return messages


def test_refusals():
    for messages in run_ranks(refusals, 2):
        words = ("input is", "TENSORWISE", "config=None", "3 rows", "add up to 4", "2 numbers")
        for message, word in zip(messages, words, strict=True):
            assert word in message
