# SPDX-License-Identifier: MIT
"""The layers inside a wheel: modules call ops, ops call kernels, kernels call triton/; and what no source may hold."""

import ast

import pytest

from tools.monorepo import FORBIDDEN_IMPORTS, Wheel, imports, wheels
from tools.new_wheel import render

# The one place that knows how torch names GPUs; everything else uses the device of its tensors.
MAY_NAME_CUDA = {"turbo-core"}

every_wheel = pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name)


def layer_problems(wheel: Wheel) -> list[str]:
    problems = []
    for path in wheel.python_files():
        inside = path.relative_to(wheel.source).as_posix()
        layer = next((name for name in FORBIDDEN_IMPORTS if inside.startswith(f"{name}/")), None)
        if layer is None:
            continue
        banned = [prefix.format(wheel=wheel.import_name) for prefix in FORBIDDEN_IMPORTS[layer]]
        used = [*imports(path), *dotted_names(path)]
        for line, name in used:
            if any(name == prefix or name.startswith(f"{prefix}.") for prefix in banned):
                problems.append(f"{inside}:{line}: {layer} must not use {name}")
    return problems


def dotted_names(path):
    """(line, "torch.autograd.Function") for attribute chains on plain names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id == "torch":
            yield node.lineno, ".".join([inner.id, *reversed(parts)])


def source_problems(wheel: Wheel) -> list[str]:
    problems = []
    for path in wheel.python_files():
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(wheel.path).as_posix()
        if not text.startswith("# SPDX-License-Identifier: MIT\n"):
            problems.append(f"{where}:1: no SPDX line")
        for node in ast.walk(ast.parse(text)):
            place = f"{where}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Assert):
                problems.append(f"{place}: assert is stripped by python -O: raise an error that says why")
            if isinstance(node, ast.ImportFrom) and node.level:
                problems.append(f"{place}: relative import")
            if isinstance(node, ast.Call) and wheel.name not in MAY_NAME_CUDA:
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                for value in values:
                    if isinstance(value, ast.Constant) and str(value.value).split(":")[0] == "cuda":
                        problems.append(f"{place}: a device named {value.value!r}: use the device of the tensors")
                if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
                    problems.append(f"{place}: .cuda(): use the device of the tensors")
    return problems


@every_wheel
def test_layers_call_downwards_only(wheel):
    assert layer_problems(wheel) == []


@every_wheel
def test_sources_hold_nothing_forbidden(wheel):
    assert source_problems(wheel) == []


@pytest.mark.parametrize(
    "file, line",
    [
        ("pytorch/modules/foo.py", "from turbo_foo.pytorch.kernels import foo_impl"),
        ("pytorch/modules/foo.py", "from turbo_foo.triton.foo import launch"),
        ("pytorch/ops/foo.py", "from turbo_foo.triton import foo"),
        ("pytorch/ops/foo.py", "import triton.language as tl"),
        ("pytorch/ops/foo.py", "from turbo_foo.pytorch import modules"),
        ("pytorch/kernels/foo.py", "import turbo_foo.pytorch.ops"),
        ("triton/foo.py", "from torch.autograd import Function"),
        ("triton/foo.py", "import torch\nclass F(torch.autograd.Function): pass"),
        ("triton/foo.py", "from turbo_foo.pytorch.kernels import reference"),
    ],
)
def test_a_call_upwards_is_found(tmp_path, file, line):
    wheel = render("turbo-foo", tmp_path)
    assert layer_problems(wheel) == []
    path = wheel.source / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(line + "\n")
    assert layer_problems(wheel)[0].startswith(f"{file}:")


@pytest.mark.parametrize(
    "line",
    [
        "def f(x):\n    assert x",
        "import torch\nx = torch.empty(3, device='cuda')",
        "import torch\nx = torch.empty(3).to('cuda:0')",
        "import torch\nx = torch.empty(3).cuda()",
        "from . import reference",
    ],
)
def test_a_forbidden_line_is_found(tmp_path, line):
    wheel = render("turbo-foo", tmp_path)
    assert source_problems(wheel) == []
    (wheel.source / "pytorch/ops/foo.py").write_text(f"# SPDX-License-Identifier: MIT\n{line}\n")
    assert len(source_problems(wheel)) == 1
