# SPDX-License-Identifier: MIT
"""The order of programs over XCDs: a bijection for every count, in which those of one XCD lie side by side."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")
import triton.language as tl  # noqa: E402

from turbo_core.triton.order import xcd_order  # noqa: E402


@triton.jit
def order_kernel(out, XCDS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(out + program, xcd_order(program, tl.num_programs(0), XCDS))


@pytest.mark.parametrize("xcds", [1, 6, 8])
@pytest.mark.parametrize("programs", [1, 7, 8, 9, 23, 64])
def test_those_of_an_xcd_lie_side_by_side(programs, xcds, device):
    out = torch.full((programs,), -1, dtype=torch.int32, device=device)
    order_kernel[(programs,)](out, xcds)
    lists = [list(range(xcd, programs, xcds)) for xcd in range(xcds)]  # the programs of each
    expected = {program: place for place, program in enumerate(sum(lists, []))}
    assert out.tolist() == [expected[program] for program in range(programs)]
