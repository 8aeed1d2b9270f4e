# SPDX-License-Identifier: MIT
"""Errors of the Python front doors."""

from __future__ import annotations

__all__ = ["SimulationError"]


class SimulationError(RuntimeError):
    """A launch that the simulator stopped, or that met findings. The text lists them, one a line."""
