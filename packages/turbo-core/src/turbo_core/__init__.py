# SPDX-License-Identifier: MIT
"""Turbo's core: backend choice, dispatch, low-precision types and device facts.

Importing it imports no torch; a function that needs torch or triton finds it at first use.
"""

from turbo_core.backend import BackendChoice, BackendType, PrecisionType
from turbo_core.device import DeviceFacts, arch_facts, device_facts, simulated_arch
from turbo_core.dispatch import (
    AutoKernelDispatcher,
    Decision,
    DispatchRecord,
    DispatchTrace,
    KernelBackend,
    trace_dispatch,
)
from turbo_core.errors import BackendUnavailableError, UnsupportedError
from turbo_core.explain import Explanation, ExplanationEntry, OpInfo, explain
from turbo_core.log import logger
from turbo_core.manager import GlobalBackendManager
from turbo_core.requirements import require_torch, require_triton, why_no_triton
from turbo_core.tune_cache import TuneCache
from turbo_core.tune_file import load_tune_cache, save_tune_cache
from turbo_core.tuning import set_tune_group

__all__ = [
    "AutoKernelDispatcher",
    "BackendChoice",
    "BackendType",
    "BackendUnavailableError",
    "Decision",
    "DeviceFacts",
    "DispatchRecord",
    "DispatchTrace",
    "Explanation",
    "ExplanationEntry",
    "GlobalBackendManager",
    "KernelBackend",
    "OpInfo",
    "PrecisionType",
    "TuneCache",
    "UnsupportedError",
    "arch_facts",
    "device_facts",
    "explain",
    "load_tune_cache",
    "logger",
    "require_torch",
    "require_triton",
    "save_tune_cache",
    "set_tune_group",
    "simulated_arch",
    "trace_dispatch",
    "why_no_triton",
]
