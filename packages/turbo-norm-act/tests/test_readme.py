# SPDX-License-Identifier: MIT
"""The README's table of backends is what the backends themselves answer, and its example runs."""

import re
from pathlib import Path

import torch

from turbo_core import simulated_arch
from turbo_norm_act.pytorch.ops import activation, norm

README = Path(__file__).resolve().parents[1] / "README.md"
INFOS = [norm.RMSNORM, norm.RMSNORM_RESIDUAL, norm.LAYERNORM, activation.SWIGLU, activation.GEGLU]
INFOS += [activation.SWIGLU_WITH_PROBS, activation.GEGLU_WITH_PROBS]


def row(info):
    """The cells of an op: its backends that have a kernel, those of other GPUs, the reference."""
    call = info.example(torch.device("cpu"))["forward"]
    backends = {backend.name: impl for backend, impl in info.dispatcher.backends.items()}
    cells = []
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch):
            names = [name for name, impl in backends.items() if "no HIP kernel" not in (impl.why_not(call) or "")]
            assert names[0] == info.dispatcher.default_backend(call).name
        cells.append(", ".join(names))
    without_hip = [name for name in backends if name != "TURBO"]
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
    assert names["h"].shape == (128, 1024) and names["g"].shape == (128, 1024)
