# SPDX-License-Identifier: MIT
"""The wheel's kernels for ``python -m turbo_core audit``: HIP code objects, and Triton launches as they are planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import turbo_grouped_gemm

if TYPE_CHECKING:
    from turbo_core.audit import CodeObject, TritonKernel

__all__ = ["kernels"]


def kernels(arch: str, full: bool) -> Iterator[TritonKernel | CodeObject]:
    """All kernels of the wheel for ``arch``; without ``full`` a part that compiles quickly."""
    from turbo_core.audit import code_objects
    from turbo_grouped_gemm.triton import grouped_fp8_audit, grouped_gemm_audit, grouped_mlp_audit

    yield from code_objects(turbo_grouped_gemm, arch)
    yield from grouped_gemm_audit.kernels(arch, full)
    yield from grouped_fp8_audit.fp8_kernels(arch, full)
    yield from grouped_mlp_audit.mlp_kernels(arch, full)
