# SPDX-License-Identifier: MIT
"""Makes memory that nobody wrote show.

An operator that allocates with torch.empty and leaves part of it unwritten often passes its tests: fresh memory is
zero, recycled memory holds the right answer of the run before. Two layers take that luck away.

1. `poisoned_empty(value)` replaces torch.empty, empty_like, empty_strided, empty_permuted, Tensor.new_empty and
   Tensor.new_empty_strided by versions that fill: floats with `value`, integers with as much of it as fits. It works on
   every device and inside custom operators' Python kernels, where a torch mode is no longer active, and leaves the
   deterministic mode alone. It does not see a name imported by `from torch import empty`, nor C++ allocations.
2. `poison(device, ...)` fills and frees blocks, so that torch's caching allocator hands them out again, to C++ too.
   On the CPU it does nothing: malloc promises no reuse.

Two values, because each hides from something: NaN from max and from nan_to_num, 12288.0 from a loose tolerance.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

VALUES = (math.nan, 12288.0)

_MIB = 1 << 20
# torch serves requests up to 1 MiB from 2 MiB segments, up to 10 MiB from 20 MiB segments, larger ones by themselves.
_BLOCKS = (*[_MIB] * 8, *[10 * _MIB] * 4, *[64 * _MIB] * 2)


def fill(tensor: Any, value: float) -> Any:
    """Fills a tensor of any dtype: floats with `value`, integers with value or their largest, bool with True."""
    import torch

    dtype = tensor.dtype
    with torch.no_grad():
        if dtype.is_floating_point or dtype.is_complex:
            try:
                return tensor.fill_(value)
            except (RuntimeError, NotImplementedError):  # packed types have no fill
                tensor.view(torch.uint8).fill_(0xFF)
                return tensor
        if dtype == torch.bool:
            return tensor.fill_(True)
        largest = torch.iinfo(dtype).max
        return tensor.fill_(largest if math.isnan(value) else min(int(value), largest))


@contextlib.contextmanager
def poisoned_empty(value: float = math.nan) -> Iterator[None]:
    """While active, every torch.empty and its relatives return memory filled with `value`."""
    import torch

    def filled(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def allocate(*args: Any, **kwargs: Any) -> Any:
            return fill(original(*args, **kwargs), value)

        return allocate

    names = [(torch, name) for name in ("empty", "empty_like", "empty_strided", "empty_permuted")]
    names += [(torch.Tensor, name) for name in ("new_empty", "new_empty_strided")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in names:
            patch.setattr(owner, name, filled(getattr(owner, name)))
        yield


def poison(device: Any, *nbytes: int, value: float = math.nan) -> None:
    """Fills and frees device memory of typical block sizes, and three blocks of each size in `nbytes`.

    NaN is written as bytes 0xff, which is NaN in every float format but e4m3fnuz; 12288.0 as bf16, whose pairs read
    as about 12300 in float32 too.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return
    blocks = []
    for size in (*_BLOCKS, *(size for size in nbytes for _ in range(3))):
        block = torch.ops.aten.empty.memory_format([max(size, 2) // 2], dtype=torch.bfloat16, device=device)
        if math.isnan(value):
            block.view(torch.int16).fill_(-1)
        else:
            block.fill_(value)
        blocks.append(block)
    torch.cuda.synchronize(device)


@pytest.fixture(params=VALUES, ids=["poison=nan", "poison=12288"])
def poisoned_allocations(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Runs the test twice, with NaN and with 12288.0 in all memory that nobody wrote.

    The value of the fixture is a function: call it with sizes in bytes (of the outputs, say) to fill and free blocks of
    those sizes again in the middle of a test.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def again(*nbytes: int) -> None:
        poison(device, *nbytes, value=request.param)

    again()
    with poisoned_empty(request.param):
        yield again
