# SPDX-License-Identifier: MIT
"""Triton's interpreter in a test session: asked for before triton is imported, and mended from the start.

The mending is the product's own (`turbo_core.interpreter`), which does it at a kernel's first call; here kernels of the
tests themselves run too, with no backend that would ask for it.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from turbo_core.interpreter import VARIABLE, install, requested

__all__ = ["install_if_requested", "request", "requested"]


def request() -> None:
    """Asks for the interpreter unless the caller decided; must come before triton is imported."""
    if VARIABLE in os.environ:
        return
    if "triton" in sys.modules:
        raise RuntimeError(f"triton was imported before {VARIABLE} could be set; set it before you start pytest")
    os.environ[VARIABLE] = "1"


def install_if_requested() -> bool:
    """Mends the interpreter when it is asked for and triton is there; says whether that was so."""
    if not requested() or importlib.util.find_spec("triton") is None:
        return False
    install()
    return True
