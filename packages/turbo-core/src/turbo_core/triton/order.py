# SPDX-License-Identifier: MIT
"""The order in which programs take their work."""

import triton
import triton.language as tl

__all__ = ["xcd_order"]


@triton.jit
def xcd_order(program, programs, XCDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Position of ``program`` in a list of ``programs`` positions that holds the programs of one XCD side by side.

    The hardware deals work-groups out round-robin: program p runs on XCD p % XCDS, and each XCD has an L2 of its own,
    so work that shares data belongs on one XCD. XCD x runs the programs x, x + XCDS, x + 2 XCDS, ...: that is
    programs // XCDS of them, and one more when x < programs % XCDS. Laying the XCDs' lists one after another, program
    p = x + l XCDS lands at

        x (programs // XCDS) + min(x, programs % XCDS) + l

    which is a bijection of [0, programs) for every count, divisible by XCDS or not.
    """
    xcd = program % XCDS
    return xcd * (programs // XCDS) + tl.minimum(xcd, programs % XCDS) + program // XCDS
