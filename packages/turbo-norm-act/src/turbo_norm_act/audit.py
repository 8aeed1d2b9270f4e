# SPDX-License-Identifier: MIT
"""The wheel's kernels for ``python -m turbo_core audit``: HIP code objects, and Triton launches as they are planned.

Triton kernels are listed by what the launchers plan for tensors of these widths on the target, so a new row of the tile
table needs nothing here but a width that reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import turbo_norm_act
from turbo_core.device import arch_facts
from turbo_core.requirements import require_torch
from turbo_norm_act.calls import GluBackward, GluForward, NormBackward, NormForward

if TYPE_CHECKING:
    import torch

    from turbo_core.audit import CodeObject, TritonKernel
    from turbo_core.launch import Launch

__all__ = ["kernels", "launches"]

ROWS = 2048
# one width a row of the tile table, and rows that do not begin on 16 bytes
WIDTHS = (1024, 4096, 16384, 65536, 8191, 8193)
MORE_WIDTHS = (1, 33, 128, 513, 1023, 2048, 5120, 7168, 8192, 14336, 16385, 32768, 65537)


def kernels(arch: str, full: bool) -> Iterator[TritonKernel | CodeObject]:
    """All kernels of the wheel for ``arch``; without ``full`` a part that compiles quickly."""
    from turbo_core.audit import TritonKernel, code_objects

    yield from code_objects(turbo_norm_act, arch)
    for name, launch in launches(arch, full):
        signature = launch.signature()
        yield TritonKernel(
            name,
            arch,
            launch.kernel,
            dict(signature.types),
            dict(signature.constants),
            dict(signature.attributes),
            launch.all_options(),
        )


def launches(arch: str, full: bool) -> Iterator[tuple[str, Launch]]:
    """Each distinct kernel once, under a name that says for what it is."""
    torch = require_torch()
    seen = set()
    for dtype in (torch.bfloat16, torch.float32) if full else (torch.bfloat16,):
        for width in (*WIDTHS, *MORE_WIDTHS) if full else WIDTHS:
            for case, launch in [*_norms(arch, width, dtype), *_activations(arch, width, dtype, full)]:
                key = (launch.kernel.fn.__name__, str(launch.signature()), str(launch.options))
                if key not in seen:
                    seen.add(key)
                    yield f"{launch.kernel.fn.__name__} {case}", launch


def _meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return require_torch().empty(shape, dtype=dtype, device="meta")


def _short(dtype: torch.dtype) -> str:
    return "fp32" if dtype.itemsize == 4 else "bf16"


def _norms(arch: str, width: int, dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """rmsnorm with all that it can have, and layernorm likewise."""
    from turbo_norm_act.triton import norm

    facts = arch_facts(arch)
    x, gamma = _meta(dtype, ROWS, width), _meta(dtype, width)
    for center in (False, True):
        case = f"{'layernorm' if center else 'rmsnorm_residual'} D={width} {_short(dtype)}"
        residual, beta = (None, gamma) if center else (x, None)
        (_, _, mean, rstd), forward = norm.plan(NormForward(x, residual, gamma, beta, 1e-6, not center, center), facts)
        wanted = True, True, dtype if center else None
        call = NormBackward(x, x, residual, gamma, mean, rstd, 1e-6, not center, *wanted)
        for launch in (*forward, *norm.plan(call, facts)[1]):
            yield case, launch


def _activations(arch: str, width: int, dtype: torch.dtype, full: bool) -> Iterator[tuple[str, Launch]]:
    """Every formula; silu packed with probs and mask, clamped interleaved, the others of two tensors.

    silu with a limit as well; ``full``: all of them.
    """
    from turbo_norm_act.triton import activation

    torch = require_torch()
    facts = arch_facts(arch)
    x, wide = _meta(dtype, ROWS, width), _meta(dtype, ROWS, 2 * width)
    probs, mask = _meta(torch.float32, ROWS), _meta(torch.int64, ROWS)
    forms = {
        "silu": (wide, None, probs, mask),
        "gelu": (x, x, None, None),
        "gelu_tanh": (x, x, None, None),
        "clamped": (wide, None, None, None),
    }
    for name, tensors in forms.items():
        limits = [7.0] if name == "clamped" else [math.inf, 7.0] if full or name == "silu" else [math.inf]
        for limit in limits:
            limited = " limited" if name != "clamped" and limit != math.inf else ""
            case = f"{name}{limited} H={width} {_short(dtype)}"
            forward = GluForward(*tensors, name, limit, 1.702, name == "clamped")
            backward = GluBackward(*forward, x, True, forward.up is not None, forward.probs is not None)
            for call in (forward, backward):
                for launch in activation.plan(call, facts)[1]:
                    yield case, launch
