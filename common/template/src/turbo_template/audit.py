# SPDX-License-Identifier: MIT
"""The wheel's kernels for ``python -m turbo_core audit``: HIP code objects, and Triton launches as they are planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import turbo_template  # native only
from turbo_core.device import arch_facts
from turbo_core.requirements import require_torch
from turbo_template.calls import ScaleRows, ScaleRowsBackward, ScaleRowsCall

if TYPE_CHECKING:
    import torch

    from turbo_core.audit import CodeObject, TritonKernel
    from turbo_core.launch import Launch

__all__ = ["kernels", "launches"]

ROWS = 2048
WIDTHS = (512, 4096, 8191)  # one a row of the tile table, and rows that do not begin on 16 bytes
MORE_WIDTHS = (1, 33, 1024, 16384, 65537)


def kernels(arch: str, full: bool) -> Iterator[TritonKernel | CodeObject]:
    """All kernels of the wheel for ``arch``; without ``full`` a part that compiles quickly."""
    from turbo_core import audit

    yield from audit.code_objects(turbo_template, arch)  # native only
    for name, launch in launches(arch, full):
        signature = launch.signature()
        yield audit.TritonKernel(
            name,
            arch,
            launch.kernel,
            signature.types,
            signature.constants,
            signature.attributes,
            launch.all_options(),
        )


def launches(arch: str, full: bool) -> Iterator[tuple[str, Launch]]:
    """Each distinct kernel once, under a name that says for what it is."""
    from turbo_template.triton.scale_rows import plan

    torch = require_torch()
    seen = set()
    for dtype in (torch.bfloat16, torch.float32) if full else (torch.bfloat16,):
        for width in (*WIDTHS, *MORE_WIDTHS) if full else WIDTHS:
            for call in _calls(width, dtype):
                (launch,) = plan(call, arch_facts(arch))[1]
                key = (launch.kernel.fn.__name__, str(launch.signature()), str(launch.all_options()))
                if key not in seen:
                    seen.add(key)
                    yield f"{launch.kernel.fn.__name__} D={width} {str(dtype).removeprefix('torch.')}", launch


def _calls(width: int, dtype: torch.dtype) -> Iterator[ScaleRowsCall]:
    """With all that a call can have, on tensors without memory."""
    torch = require_torch()
    x = torch.empty((ROWS, width), dtype=dtype, device="meta")
    scale = torch.empty((ROWS,), dtype=torch.float32, device="meta")
    yield ScaleRows(x, scale, x)
    yield ScaleRowsBackward(x, x, scale, True)
