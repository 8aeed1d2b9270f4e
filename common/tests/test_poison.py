# SPDX-License-Identifier: MIT
"""poison: an operator that writes only part of its output is caught, however it allocates, and nothing else changes."""

import math

import pytest
import torch

from turbo_testing.metrics import assert_close
from turbo_testing.poison import VALUES, poison, poisoned_empty

ALLOCATE = {
    "empty": lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    "empty_like": lambda x: torch.empty_like(x),
    "empty_strided": lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device),
    "empty_permuted": lambda x: torch.empty_permuted(x.shape, (1, 0), dtype=x.dtype, device=x.device),
    "new_empty": lambda x: x.new_empty(x.shape),
    "new_empty_strided": lambda x: x.new_empty_strided(x.shape, x.stride()),
}


def copy_all_but_the_last_row(x, allocate):
    out = allocate(x)
    out[:-1].copy_(x[:-1])
    return out


@pytest.mark.parametrize("allocate", ALLOCATE.values(), ids=ALLOCATE.keys())
def test_an_under_writing_operator_is_caught(poisoned_allocations, device, allocate):
    x = torch.zeros(8, 5, device=device)  # zeros: what fresh memory would be too
    with pytest.raises(AssertionError, match=r"5 of 40 elements.*\n.*first bad \(7, 0\)"):
        assert_close(copy_all_but_the_last_row(x, allocate), x)


@torch.library.custom_op("turbo_testing::under_write", mutates_args=())
def under_write(x: torch.Tensor) -> torch.Tensor:
    return copy_all_but_the_last_row(x, torch.empty_like)


@under_write.register_fake
def _(x):
    return torch.empty_like(x)


def test_inside_a_custom_operator_too(poisoned_allocations, device):
    x = torch.zeros(8, 5, device=device)
    with pytest.raises(AssertionError, match="5 of 40 elements"):
        assert_close(torch.ops.turbo_testing.under_write(x), x)


def test_under_fake_tensors(poisoned_allocations, device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert torch.ops.turbo_testing.under_write(torch.zeros(8, 5)).shape == (8, 5)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2fnuz],
)
def test_values_of_floats(dtype, device):
    with poisoned_empty(math.nan):
        assert bool(torch.empty(3, dtype=dtype, device=device).float().isnan().all())
    with poisoned_empty(12288.0):
        assert not bool((torch.empty(3, dtype=dtype, device=device).float() == 0).any())
    if dtype.itemsize > 1:
        with poisoned_empty(12288.0):
            assert torch.empty(3, dtype=dtype, device=device).tolist() == [12288.0] * 3


@pytest.mark.parametrize("dtype, large", [(torch.int64, 2**63 - 1), (torch.uint8, 255), (torch.int8, 127)])
def test_values_of_integers(dtype, large, device):
    with poisoned_empty(math.nan):
        assert torch.empty(2, dtype=dtype, device=device).tolist() == [large] * 2
    with poisoned_empty(12288.0):
        assert torch.empty(2, dtype=dtype, device=device).tolist() == [min(12288, large)] * 2


def test_packed_types_are_filled(device):
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    with poisoned_empty():
        packed = torch.empty(4, dtype=torch.float4_e2m1fn_x2, device=device)
    assert packed.dtype == torch.float4_e2m1fn_x2 and packed.view(torch.uint8).tolist() == [255] * 4


def test_requires_grad_and_out_still_work():
    with poisoned_empty():
        leaf = torch.empty(3, requires_grad=True)
        out = torch.zeros(3)
        torch.empty(3, out=out)
    assert leaf.is_leaf and leaf.requires_grad and bool(out.isnan().all())


def test_everything_is_put_back():
    before = [torch.empty, torch.empty_like, torch.Tensor.new_empty]
    with pytest.raises(ZeroDivisionError), poisoned_empty():
        1 / 0  # noqa: B018
    assert [torch.empty, torch.empty_like, torch.Tensor.new_empty] == before
    assert "new_empty" not in vars(torch.Tensor) or torch.Tensor.new_empty is before[2]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("nbytes", [512, 4096, 1 << 20, 3 << 20, 50 << 20, 300 << 20])
def test_recycled_device_memory_is_poisoned(value, nbytes):
    """Through the dispatcher, past the replaced torch.empty, as C++ would allocate."""
    torch.cuda.empty_cache()
    poison("cuda", nbytes, value=value)
    x = torch.ops.aten.empty.memory_format([nbytes // 2], dtype=torch.bfloat16, device="cuda")
    good = x.isnan() if math.isnan(value) else x == value
    assert bool(good.all())
