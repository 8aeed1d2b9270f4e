# SPDX-License-Identifier: MIT
"""The README's table of backends is what the backends themselves answer, and its example runs."""

import re
from pathlib import Path

import torch

from turbo_core import simulated_arch
from turbo_norm_act.pytorch.ops import activation, norm
from turbo_testing.cases import load
from turbo_testing.metrics import assert_close

cases = load("turbo-norm-act")
README = Path(__file__).resolve().parents[1] / "README.md"
INFOS = [norm.RMSNORM, norm.RMSNORM_RESIDUAL, norm.LAYERNORM, activation.SWIGLU, activation.GEGLU]
INFOS += [activation.SWIGLU_WITH_PROBS, activation.GEGLU_WITH_PROBS]


def row(info):
    """The cells of an op: its backends, those of other GPUs, the reference."""
    call = info.example(torch.device("cpu"))["forward"]
    names = [backend.name for backend in info.dispatcher.backends]
    cells = []
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch):
            assert names[0] == info.dispatcher.default_backend(call).name
        cells.append(", ".join(names))
    without_hip = [name for name in names if name != "TURBO"]
    assert info.dispatcher.default_backend(call).name == without_hip[-1]
    return [info.name, *cells, ", ".join(without_hip), without_hip[-1]]


def test_table_of_backends():
    text = README.read_text(encoding="utf-8")
    table = text.split("| op | gfx942 |")[1].split("\n\n")[0].splitlines()[2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert found == [row(info) for info in INFOS]


def test_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names = {}
    exec(compile(example, str(README), "exec"), names)
    x, residual, y, s = (names[name].double() for name in ("x", "residual", "y", "s"))
    assert_close(names["s"], x + residual, dtype=torch.bfloat16)
    assert_close(names["y"], cases.norm(x + residual, names["norm"].weight.double(), eps=1e-6), dtype=torch.bfloat16)
    assert_close(names["h"], cases.glu(y, s, "silu"), dtype=torch.bfloat16)
    assert_close(names["g"], cases.glu(y, s, "clamped"), dtype=torch.bfloat16)
