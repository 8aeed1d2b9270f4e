# SPDX-License-Identifier: MIT
"""multiply_grouped_payloads and contract_grouped_payloads: operands quantised beforehand, against float64."""

import pytest
import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import ScalingGranularity, ScalingRecipe
from turbo_grouped_gemm.developer import contract_grouped_payloads, multiply_grouped_payloads
from turbo_quant import dequantize_fp8, grouped_dequantize_fp8, grouped_quantize_fp8, quantize_fp4, quantize_fp8
from turbo_testing.metrics import assert_close

TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FINE = (BLOCKWISE, MX)
N, K = 48, 96
LENS, OFFS = [7, 0, 140, 3], [0, 7, 7, 147, 150]


def options_of(granularity, axis, tiles=False):
    options = {} if granularity is TENSORWISE else {"axis": axis}
    if granularity is BLOCKWISE:
        options["block_size"] = 128
    if granularity in FINE and tiles:
        options["scaling_recipe"] = ScalingRecipe(use_2d_block=True)
    return options


def quantised(x, granularity, axis, tiles=False, dtype=E4M3):
    """Payload, scales and the values in float64."""
    options = options_of(granularity, axis, tiles)
    q, scale = quantize_fp8(x, dtype, granularity, **options)
    size = {"size": x.shape[axis]} if granularity is MX else {}
    return q, scale, dequantize_fp8(q, torch.float32, granularity, scale_inv=scale, **options, **size).double()


def groups_on(device):
    return torch.tensor(LENS, device=device), torch.tensor(OFFS, device=device)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("granularity", list(ScalingGranularity), ids=lambda g: g.name)
def test_rows_times_matrices(device, granularity, trans_b):
    lens, offs = groups_on(device)
    a, b = torch.randn(152, K, device=device), torch.randn((4, N, K) if trans_b else (4, K, N), device=device)
    a8, a_scale, a64 = quantised(a, granularity, 1)
    b8, b_scale, b64 = quantised(b, granularity, 2 if trans_b or granularity is MX else 1, True, E5M2)
    if granularity is MX and not trans_b:
        with pytest.raises(UnsupportedError, match="trans_b=False with MX_BLOCKWISE"):
            multiply_grouped_payloads(a8, a_scale, b8, b_scale, lens, None, False, torch.float32, granularity)
        return
    expected = torch.zeros(152, N, dtype=torch.float64, device=device)
    for g, (first, last) in enumerate(zip(OFFS, OFFS[1:])):
        expected[first:last] = a64[first:last] @ (b64[g].mT if trans_b else b64[g])
    for given in (None, offs):
        c = multiply_grouped_payloads(a8, a_scale, b8, b_scale, lens, given, trans_b, torch.float32, granularity)
        assert_close(c, expected, dtype=torch.float32)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("granularity", list(ScalingGranularity), ids=lambda g: g.name)
def test_contraction_over_rows(device, granularity):
    lens, offs = groups_on(device)
    operands, wide, groups = [], [], (lens, None)
    for width, dtype in ((N, E5M2), (K, E4M3)):
        x = torch.randn(152, width, device=device)
        if granularity in FINE:
            options = options_of(granularity, 0)
            q, scale, *groups = grouped_quantize_fp8(x, dtype, granularity, lens, offs, **options)
            back = grouped_dequantize_fp8(
                q, torch.float32, granularity, offs, groups[1], scale_inv=scale, total_M=152, **options
            ).double()
        else:
            q, scale, back = quantised(x, granularity, 0, dtype=dtype)
        operands += [q, scale]
        wide.append(back)
    c = contract_grouped_payloads(*operands, *groups, torch.float32, granularity)
    expected = torch.stack([wide[0][i:j].mT @ wide[1][i:j] for i, j in zip(OFFS, OFFS[1:])])
    assert_close(c, expected, dtype=torch.float32)
    assert not c[1].count_nonzero()


def test_mxfp4(device):
    lens, _ = groups_on(device)
    a, b = torch.randn(152, 128, device=device), torch.randn(4, N, 128, device=device)
    a8, a_scale = quantize_fp4(a, torch.uint8, MX, axis=1)
    b8, b_scale = quantize_fp4(b, torch.uint8, MX, axis=2)
    c = multiply_grouped_payloads(a8, a_scale, b8, b_scale, lens, None, True, torch.float32, MX)
    assert torch.nn.functional.cosine_similarity(c[:7], a[:7] @ b[0].mT).min() > 0.9


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"granularity": "rowwise"}, "granularity='rowwise'; a ScalingGranularity is accepted"),
        ({"out_dtype": E4M3}, "out_dtype=torch.float8_e4m3fn; accepted are"),
        ({"a": torch.ones(5, 8)}, "a is a tensor .*float32.* of 2 dimensions of an FP8 type is accepted"),
        ({"b": torch.ones(8, 8).to(E4M3)}, "b is a tensor .* of 3 dimensions of an FP8 type"),
        ({"a_scale_inv": torch.ones(1, 5)}, r"a_scale_inv is .*; \[5, 1\] in torch.float32 on cpu"),
        ({"b_scale_inv": torch.ones(2, 1, 4)}, r"b_scale_inv is .*; \[2, 4, 1\] in torch.float32"),
        ({"b": torch.ones(2, 4, 9).to(E4M3)}, "a is .* and b .*; one K, on one device"),
        ({"group_lens": torch.ones(3).long()}, r"group_lens is .* of shape \[2\]"),
    ],
)
def test_refusals(change, complaint):
    arguments = {
        "a": torch.ones(5, 8).to(E4M3), "a_scale_inv": torch.ones(5, 1), "b": torch.ones(2, 4, 8).to(E4M3),
        "b_scale_inv": torch.ones(2, 4, 1), "group_lens": torch.tensor([2, 3]), "group_offs": None, "trans_b": True,
        "out_dtype": torch.float32, "granularity": ROWWISE,
    }  # fmt: skip
    assert torch.equal(multiply_grouped_payloads(**arguments), torch.full((5, 4), 8.0))
    with pytest.raises(UnsupportedError, match=f"multiply_grouped_payloads: {complaint}"):
        multiply_grouped_payloads(**{**arguments, **change})


def test_refusals_of_contractions():
    x, scale, lens = torch.ones(5, 8).to(E4M3), torch.ones(1, 8), torch.tensor([2, 3])
    kind = (torch.float32, ROWWISE)
    assert torch.equal(contract_grouped_payloads(x, scale, x, scale, lens, None, *kind)[1], torch.full((8, 8), 3.0))
    with pytest.raises(UnsupportedError, match=r"contract_grouped_payloads: y_scale_inv is .*; \[1, 8\]"):
        contract_grouped_payloads(x, scale, x, scale.t(), lens, None, *kind)
    with pytest.raises(UnsupportedError, match="as many rows of groups, on one device"):
        contract_grouped_payloads(x, scale, x[:4], scale, lens, None, *kind)
    with pytest.raises(UnsupportedError, match="group_lens is None"):
        contract_grouped_payloads(x, scale, x, scale, None, None, *kind)
