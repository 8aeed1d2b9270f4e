# SPDX-License-Identifier: MIT
"""The programs of examples/ and the Python code in the documents run, and the main job notices a wrong model."""

from __future__ import annotations

import csv
import doctest
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parent.parent
SHORT = ["--epochs", "3", "--device", "cpu"]  # 33 steps, enough to see a gradient that is wrong by 5 %


def run_python(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds what this one finds and examples/, started outside the repository, no settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_TURBO_", "TRITON_"))}
    env["PYTHONPATH"] = os.pathsep.join([*(entry for entry in sys.path if entry), str(ROOT / "examples")])
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def train_digits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("train_digits")


def test_train_digits_shows_everything_and_passes(tmp_path: Path) -> None:
    program = str(ROOT / "examples" / "train_digits.py")
    result = run_python([program, *SHORT, "--output", str(tmp_path / "out")], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^PASS in ", result.stdout, re.MULTILINE)
    assert re.search(r"^test accuracy: turbo \d+\.\d+%, torch \d+\.\d+%$", result.stdout, re.MULTILINE)
    # the first layer's input needs no gradient, so three forward, two dgrad, three wgrad
    served = re.findall(r"^  (forward|dgrad|wgrad) +([A-Z]+) +M=\d+ .*\n +because: \S", result.stdout, re.MULTILINE)
    assert sorted(served) == [("dgrad", "TORCH")] * 2 + [("forward", "TORCH")] * 3 + [("wgrad", "TORCH")] * 3
    assert "HIPBLASLT  a is on cpu" in result.stdout, "explain's answers are missing"

    with (tmp_path / "out" / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30 and list(rows[0]) == ["point", "turbo", "torch"]
    assert float(rows[-1]["turbo"]) < 0.7 * float(rows[0]["turbo"])
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_train_digits_in_fp32(train_digits: ModuleType) -> None:
    assert train_digits.main([*SHORT, "--precision", "fp32"]) == 0


def test_train_digits_refuses_a_backend_that_cannot_run_here(tmp_path: Path) -> None:
    program = str(ROOT / "examples" / "train_digits.py")
    result = run_python([program, *SHORT, "--backend", "HIPBLASLT"], tmp_path)
    assert result.returncode == 1
    assert "FAIL: gemm: backend HIPBLASLT (set in code) cannot take this call: a is on cpu" in result.stderr
    assert "Traceback" not in result.stderr


def _scale_weight_gradients(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        weight.register_hook(lambda grad: grad * 1.05)


def _scale_middle_activations(model: torch.nn.Module) -> None:
    model[2].register_forward_hook(lambda module, inputs, output: output * 1.05)


def _lose_a_bias_gradient(model: torch.nn.Module) -> None:
    model[4].bias.register_hook(torch.zeros_like)


def _poison_a_weight(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model[0].weight[0, 20] = math.nan


CURVE = "loss points differ by more than rtol = atol = 0.01"


@pytest.mark.parametrize(
    ("perturb", "messages"),
    [
        (_scale_weight_gradients, ["gradient of 0.weight: relative difference 5.", CURVE]),
        (_scale_middle_activations, ["gradient of 2.bias", CURVE]),
        (_lose_a_bias_gradient, ["gradient of 4.bias: relative difference 1.00e+00"]),  # no loss curve shows that
        (_poison_a_weight, ["gradient of 4.weight: relative difference nan", CURVE]),
    ],
)
def test_train_digits_fails_when_one_model_is_wrong(
    perturb: Callable[[torch.nn.Module], None],
    messages: list[str],
    train_digits: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = train_digits.build_learners

    def build_perturbed(*args: object) -> tuple[object, object]:
        on_turbo, on_torch = build(*args)
        perturb(on_turbo.model)
        return on_turbo, on_torch

    monkeypatch.setattr(train_digits, "build_learners", build_perturbed)
    assert train_digits.main(SHORT) == 1
    captured = capsys.readouterr()
    for message in messages:
        assert message in captured.err
    assert "FAIL in " in captured.out


def test_train_digits_notices_what_goes_wrong_later(
    train_digits: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gradients that are right for the first batch and 5 % too large afterwards show in the curve alone."""
    build = train_digits.build_learners

    def build_perturbed(*args: object) -> tuple[object, object]:
        on_turbo, on_torch = build(*args)
        for weight in on_turbo.model.parameters():
            weight.register_hook(lambda grad: grad * 1.05 if on_turbo.losses else grad)
        return on_turbo, on_torch

    monkeypatch.setattr(train_digits, "build_learners", build_perturbed)
    assert train_digits.main(SHORT) == 1
    captured = capsys.readouterr()
    assert CURVE in captured.err and "gradient of" not in captured.err


def test_loss_points_hold_at_least_128_samples(train_digits: ModuleType) -> None:
    assert train_digits.loss_points([1.0, 2.0, 4.0], [128, 64, 64]) == [1.0, 3.0]
    assert train_digits.loss_points([1.0, 5.0, 7.0], [120, 40, 40]) == [2.0]  # 40 left over are no point


def test_no_difference_hides_behind_nan(train_digits: ModuleType) -> None:
    assert train_digits.differences([math.nan, 1.0], [1.0, 1.0], 1e-2) == [math.inf, 0.0]
    assert train_digits.run_faults([1.0, 0.5], [1.0, 0.5], (math.nan, 0.9), 1e-2)
    assert train_digits.run_faults([1.0, 1.0], [1.0, 1.0], (0.9, 0.9), 1e-2), "nothing learned must not pass"
    assert not train_digits.run_faults([1.0, 0.5], [1.0, 0.5], (0.9, 0.9), 1e-2)


# --- documents ------------------------------------------------------------------------------------------------------

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "benchmark" / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)

RUNNER = """
import contextlib, io, json, pathlib
names, printed = {"__name__": "__main__"}, []
for block in json.loads(pathlib.Path("blocks.json").read_text()):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(block, "document", "exec"), names)
    printed.append(out.getvalue())
pathlib.Path("printed.json").write_text(json.dumps(printed))
"""


class Block(NamedTuple):
    """A ```python block, padded so that a traceback's line is the document's, and what must be printed if that is said.

    What is said is a ```text block that follows without a line between; ``...`` in it stands for anything.
    """

    code: str
    output: str | None


def python_blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    blocks = []
    for fence, following in itertools.zip_longest(fences, fences[1:]):
        if fence[2] != "python":
            continue
        adjoins = following is not None and following[2] == "text" and text[fence.end() : following.start()] == "\n"
        code = "\n" * text[: fence.start(4)].count("\n") + textwrap.dedent(fence[4])
        blocks.append(Block(code, following[4] if adjoins and following is not None else None))
    return blocks


WITH_CODE = [document for document in DOCUMENTS if python_blocks(document)]


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def test_the_documents_hold_runnable_code() -> None:
    assert {"README.md", "docs/gemm.md", "docs/backends.md", "docs/training.md"} <= {
        name_of(document) for document in WITH_CODE
    }


@pytest.mark.parametrize("document", WITH_CODE, ids=name_of)
def test_the_code_in_a_document_runs_and_prints_what_it_says(document: Path, tmp_path: Path) -> None:
    """All blocks of one document run in order in one process, as a reader would type them."""
    blocks = python_blocks(document)
    (tmp_path / "blocks.json").write_text(json.dumps([block.code for block in blocks]))
    result = run_python(["-c", RUNNER], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for block, printed in zip(blocks, json.loads((tmp_path / "printed.json").read_text()), strict=True):
        if block.output is not None:
            same = doctest.OutputChecker().check_output(block.output, printed, doctest.ELLIPSIS)
            assert same, f"{document.name} says\n{block.output}\nbut its code prints\n{printed}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}, which does not exist"


def test_the_readme_names_every_wheel_and_leads_to_every_document() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    roadmap = text.index("## Roadmap")
    for wheel in (path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")):
        assert f"](packages/{wheel})" in text[:roadmap], f"{wheel} exists, but README.md does not list it"
    for document in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{document.name})" in text, f"README.md does not lead to docs/{document.name}"
