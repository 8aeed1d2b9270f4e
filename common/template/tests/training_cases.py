# SPDX-License-Identifier: MIT
"""Every op and module of this wheel with small inputs, for the matrix of what training loops do to them."""

from __future__ import annotations

from turbo_testing.training import ModuleCase, OpCase

OPS: list[OpCase] = []

MODULES: list[ModuleCase] = []

NOT_OPS: dict[str, str] = {}  # public names that are neither, each with what it is
