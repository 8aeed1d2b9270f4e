# SPDX-License-Identifier: MIT
"""Every op and module of this wheel with small inputs, for the matrix of what training loops do to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import turbo_grouped_gemm
from turbo_testing.cases import load_file
from turbo_testing.training import ModuleCase, OpCase, floats

cases = load_file(Path(__file__).with_name("cases.py"), "cases_of_turbo_grouped_gemm")
WIDTH = 24


def _inputs(rows, dtype, device, residual):
    tensors = {"x": floats(rows, WIDTH, dtype=dtype, device=device), "scale": floats(rows, dtype=dtype, device=device)}
    if residual:
        tensors["residual"] = floats(rows, WIDTH, dtype=dtype, device=device)
    return tensors


OPS = [
    OpCase(
        "scale_rows",
        turbo_grouped_gemm.scale_rows,
        partial(_inputs, residual=True),
        ("x", "scale", "residual"),
        cases.scale_rows,
        second=True,
    ),
    OpCase(
        "scale_rows",
        turbo_grouped_gemm.scale_rows,
        partial(_inputs, residual=False),
        ("x", "scale"),
        cases.scale_rows,
        "without a residual",
        second=True,
    ),
]


def _module_inputs(device):
    x, scale = floats(2, 5, WIDTH, dtype=torch.float32, device=device), floats(2, 5, dtype=torch.float32, device=device)
    return x, scale, 2 * x


MODULES = [ModuleCase("ScaleRows", lambda device: turbo_grouped_gemm.ScaleRows(), _module_inputs)]

NOT_OPS: dict[str, str] = {}  # public names that are neither, each with what it is
