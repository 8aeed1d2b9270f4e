# SPDX-License-Identifier: MIT
"""Which backend serves an op, and how it is chosen."""

from turbo_core import (
    AutoKernelDispatcher,
    BackendChoice,
    BackendType,
    GlobalBackendManager,
    KernelBackend,
    PrecisionType,
    TuneCache,
)

__all__ = [
    "AutoKernelDispatcher",
    "BackendChoice",
    "BackendType",
    "GlobalBackendManager",
    "KernelBackend",
    "PrecisionType",
    "TuneCache",
]
