# SPDX-License-Identifier: MIT
"""The README's table of backends is what the backends themselves answer, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from turbo_grouped_gemm.pytorch.kernels.scale_rows_impl import ScaleRowsDispatcher  # noqa: E402
from turbo_grouped_gemm.pytorch.ops.scale_rows import SCALE_ROWS  # noqa: E402
from turbo_testing.metrics import assert_close  # noqa: E402
from turbo_testing.support_table import check_readme, support_table  # noqa: E402

README = Path(__file__).resolve().parents[1] / "README.md"


def test_table_of_backends():
    rows = {role: lambda where, role=role: SCALE_ROWS.example(where)[role] for role in ("forward", "backward")}
    check_readme(README, support_table(ScaleRowsDispatcher, rows))


def test_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names = {}
    exec(compile(example, str(README), "exec"), names)
    x, scale, residual, y = (names[name].detach().double() for name in ("x", "scale", "residual", "y"))
    assert_close(y, x * scale[..., None] + residual, dtype=names["y"].dtype)
    assert_close(names["scale"].grad.double(), x.sum(-1), rtol=1e-2, atol=1e-1)
