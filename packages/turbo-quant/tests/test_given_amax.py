# SPDX-License-Identifier: MIT
"""Pieces of a tensor quantised with the amax of all of it have the bits that the whole has, on every backend."""

import pytest
import torch

from turbo_quant.calls import QuantizeFloatCall
from turbo_quant.pytorch.kernels.quantize_impl import quantize_float
from turbo_testing.cases import load

cases = load("turbo-quant")
FP8 = torch.float8_e4m3fn


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("kind", ["random", "zeros", "nan", "inf", "tiny"])
@pytest.mark.parametrize("shape, cut", [((1, 31, 100), (1, 11)), ((1, 3, 7167), (2, 4000)), ((2, 129, 127), (0, 1))])
def test_pieces_are_the_whole(backend, device, poisoned, kind, shape, cut):
    x = cases.draw(kind, shape, torch.bfloat16, device)
    q, scale_inv, _, _ = cases.run(quantize_float, QuantizeFloatCall(x, FP8, cases.TENSORWISE, 0, True, False))
    dim, size = cut
    amax = x.float().abs().amax()
    pieces = []
    for piece in x.tensor_split([size], dim):
        call = QuantizeFloatCall(piece, FP8, cases.TENSORWISE, 0, True, False, amax=amax)
        payload, scale, _, _ = cases.run(quantize_float, call)
        torch.testing.assert_close(scale, scale_inv, rtol=0, atol=0, equal_nan=True)
        pieces.append(payload.view(torch.uint8))
    assert torch.equal(torch.cat(pieces, dim), q.view(torch.uint8))


def test_an_empty_piece_has_the_scale_of_the_whole(device):
    amax = torch.tensor(3.0, device=device)
    call = QuantizeFloatCall(torch.empty(1, 0, 8, device=device), FP8, cases.TENSORWISE, 0, True, False, amax=amax)
    q, scale_inv, _, _ = quantize_float(call)
    assert q.shape == (1, 0, 8)
    torch.testing.assert_close(scale_inv, amax / 448)
