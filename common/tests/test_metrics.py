# SPDX-License-Identifier: MIT
"""metrics: a comparison must fail where it should, and its message must point at the place."""

import math

import pytest
import torch

from turbo_testing import metrics
from turbo_testing.metrics import assert_close, assert_snr, compute_snr, get_tolerances


@pytest.mark.parametrize(
    "dtype, value",
    [
        (torch.float32, 1e-4),
        (torch.float16, 1e-2),
        (torch.bfloat16, 1e-2),
        (torch.float8_e4m3fn, 1e-1),
        (torch.float8_e5m2fnuz, 1e-1),
        (torch.int32, 0.0),
        (torch.bool, 0.0),
    ],
)
def test_tolerances(dtype, value):
    assert get_tolerances(dtype) == {"rtol": value, "atol": value}


def test_tolerance_of_fp4():
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    assert get_tolerances(torch.float4_e2m1fn_x2) == {"rtol": 0.5, "atol": 0.5}


def test_tolerance_of_an_unknown_dtype_is_an_error():
    with pytest.raises(ValueError, match="complex64"):
        get_tolerances(torch.complex64)


def test_snr_of_a_known_ratio():
    ref = torch.ones(1000)
    assert compute_snr(ref, ref + 0.1) == pytest.approx(20.0, abs=1e-5)
    assert compute_snr(ref, ref * 1.01) == pytest.approx(40.0, abs=1e-4)


def test_snr_of_edge_cases():
    ones = torch.ones(4)
    assert compute_snr(ones, ones) == math.inf
    assert compute_snr(torch.empty(0, 3), torch.empty(0, 3)) == math.inf
    assert compute_snr(ones, torch.tensor([1.0, math.nan, 1.0, 1.0])) == -math.inf
    assert compute_snr(ones, torch.tensor([1.0, math.inf, 1.0, 1.0])) == -math.inf
    assert compute_snr(torch.zeros(4), ones) == -math.inf
    with pytest.raises(ValueError, match="reference"):
        compute_snr(torch.tensor([math.nan]), torch.tensor([1.0]))


def test_snr_sums_over_blocks(monkeypatch):
    ref, x = torch.randn(7, 11, 5), torch.randn(7, 11, 5)
    whole = compute_snr(ref, x)
    monkeypatch.setattr(metrics, "_BLOCK", 13)
    assert compute_snr(ref, x) == pytest.approx(whole, rel=1e-12)


def test_assert_snr():
    ref = torch.randn(64, dtype=torch.float64)
    assert_snr(ref * 1.01, ref, 39.9)
    with pytest.raises(AssertionError, match=r"grad: SNR 40\.00 dB, must be above 40\.1"):
        assert_snr(ref * 1.01, ref, 40.1, what="grad")
    broken = ref.clone()
    broken[3] = math.nan
    with pytest.raises(AssertionError, match="1 element.* not finite"):
        assert_snr(broken, ref, 10)
    with pytest.raises(AssertionError, match="shape"):
        assert_snr(ref[:1], ref, 10)


def failure(actual, expected, **kwargs) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("block", [1 << 22, 16, 5, 1])
def test_message_names_first_worst_count_and_box(monkeypatch, block):
    monkeypatch.setattr(metrics, "_BLOCK", block)
    expected = torch.zeros(4, 3, 8, dtype=torch.float64)
    actual = torch.zeros(4, 3, 8)
    actual[1, 2, 5] = 0.5
    actual[2, 0, 7] = -2.0
    actual[3, 1, 5] = 1.0
    text = failure(actual, expected, what="dA")
    assert "dA: 3 of 96 elements (3.12 %)" in text
    assert "shape (4, 3, 8)" in text
    assert "first bad (1, 2, 5): actual 0.5, expected 0" in text
    assert "worst (2, 0, 7): actual -2, expected 0" in text
    assert "[1:4, 0:3, 5:8]" in text


def test_tolerance_follows_the_dtype_and_can_be_overridden():
    expected = torch.ones(8, dtype=torch.float64)
    assert_close((expected * 1.015).bfloat16(), expected)
    assert "8 of 8" in failure((expected * 1.015).float(), expected)
    assert_close((expected * 1.015).float(), expected, dtype=torch.float16)
    assert "8 of 8" in failure((expected * 1.015).bfloat16(), expected, rtol=0.0, atol=1e-3)
    assert_close(expected * 1.015, expected, rtol=0.02, atol=0.0)


def test_the_bound_is_atol_plus_rtol_times_expected():
    expected = torch.tensor([100.0], dtype=torch.float64)
    assert_close(expected + 1.9, expected, rtol=0.01, atol=1.0)
    failure(expected + 2.1, expected, rtol=0.01, atol=1.0)
    failure(expected * 1.6, expected, rtol=0.5, atol=0.0)  # of expected, not of actual


@pytest.mark.parametrize(
    "actual, expected, good",
    [
        ([math.nan], [math.nan], True),
        ([math.nan], [1.0], False),
        ([1.0], [math.nan], False),
        ([math.inf], [math.inf], True),
        ([math.inf], [-math.inf], False),
        ([1.0], [math.inf], False),
        ([math.inf], [1.0], False),
        ([math.nan], [math.inf], False),
        ([0.0], [-0.0], True),
    ],
)
def test_nan_and_inf(actual, expected, good):
    actual, expected = torch.tensor(actual), torch.tensor(expected)
    if good:
        assert_close(actual, expected)
    else:
        assert "1 of 1 elements" in failure(actual, expected)


def test_nan_count_and_worst():
    actual = torch.tensor([5.0, math.nan, 0.0, math.nan])
    text = failure(actual, torch.zeros(4))
    assert "2 NaN where the reference has a number" in text
    assert "worst (1,): actual nan" in text


def test_integers_must_be_equal():
    big = torch.tensor([2**60, 3])
    assert_close(big, big.clone())
    assert "first bad (0,)" in failure(big + torch.tensor([1, 0]), big)  # equal as float64


def test_scalars_empty_strided_and_shapes():
    assert_close(torch.tensor(1.0), torch.tensor(1.0))
    assert "first bad ()" in failure(torch.tensor(1.0), torch.tensor(2.0))
    assert_close(torch.empty(0, 5), torch.empty(0, 5))
    x = torch.randn(6, 10)
    assert_close(x.t()[::2], x.t()[::2].clone())
    assert_close(torch.ones(1).expand(4, 4), torch.ones(4, 4))
    assert "shape (2,), expected (3,)" in failure(torch.ones(2), torch.ones(3))


def test_blocks_cover_every_shape_once():
    for shape in [(), (5,), (3, 4, 5), (1, 7), (2, 0, 3), (13, 2)]:
        for limit in (1, 3, 8, 1000):
            seen = torch.zeros(shape)
            for block in metrics._blocks(torch.Size(shape), limit):
                seen[block] += 1
                assert seen[block].numel() <= limit
            assert bool((seen == 1).all())


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements():
    """Past the wrap of a 32-bit index, within a small share of the tensor's own memory."""
    shape = (3, 2**30)
    actual = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    expected = torch.zeros(1, dtype=torch.bfloat16, device="cuda").expand(shape)
    actual[2, 2**30 - 3] = 1.0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    text = failure(actual, expected)
    assert f"first bad (2, {2**30 - 3})" in text
    assert torch.cuda.max_memory_allocated() - before < 2**29
