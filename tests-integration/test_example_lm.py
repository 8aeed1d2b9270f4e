# SPDX-License-Identifier: MIT
"""The language model of examples/ learns in every precision, as in plain torch, and notices when it does not."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from tools import quickstart  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TINY = ["--device", "cpu", "--steps", "12", "--batch-size", "4", "--context", "64", "--layers", "1"]
# What serves the block's Linears forward and backward, and how often: four of them, with three products each; the head.
GEMMS = {
    "fp32": ["15 gemm on TORCH"],
    "bf16": ["15 gemm on TORCH"],
    "fp8": ["12 gemm_fp8 on TORCH", "3 gemm on TORCH"],
    "mxfp8": ["12 gemm_fp8 on TORCH", "3 gemm on TORCH"],
    "mxfp4": ["12 gemm_fp4 on TORCH", "3 gemm on TORCH"],
}


@pytest.fixture
def train_lm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("train_lm")


@pytest.fixture
def lm_report(train_lm: ModuleType) -> ModuleType:
    return importlib.import_module("lm_report")


@pytest.mark.parametrize("precision", GEMMS)
def test_it_learns_as_torch_does(train_lm: ModuleType, precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_lm.main([*TINY, "--precision", precision, "--compare-torch"]) == 0
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"bits a byte: turbo +([\d.]+)", printed)]
    assert 7 < losses[0] < 9 and losses[-1] < losses[0] - 2, losses
    served = re.search(r"^a step: (.*)$", printed, re.MULTILINE)
    assert served is not None and set(GEMMS[precision]) <= set(served[1].split(", "))
    assert {"2 attention on TORCH", "2 glu on TORCH", "6 norm on TORCH"} <= set(served[1].split(", "))


def test_it_runs_outside_the_repository_and_plots(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_TURBO_", "TRITON_"))}
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    command = [
        sys.executable,
        str(ROOT / "examples" / "train_lm.py"),
        *TINY,
        "--plot",
        str(tmp_path / "made" / "a.png"),
    ]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (
        len(re.findall(r"^step +\d+/12 +bits a byte: turbo +[\d.]+ +\d+ tokens/s$", result.stdout, re.MULTILINE)) == 12
    )
    assert re.search(r"^PASS in ", result.stdout, re.MULTILINE)
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "made" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_no_matplotlib_no_picture(
    lm_report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    lm_report.plot(tmp_path / "a.png", {"turbo": [1.0, 0.5]})
    assert "matplotlib is not installed" in capsys.readouterr().out and not (tmp_path / "a.png").exists()


def _scale_gradients(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        weight.register_hook(lambda grad: grad * 1.05)


def _scale_attention(model: torch.nn.Module) -> None:
    model.blocks[0].attention.register_forward_hook(lambda module, inputs, out: out * 1.1)


def _look_ahead(model: torch.nn.Module) -> None:
    model.blocks[0].attention.options["causal"] = False


def _poison(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model.head.weight[3, 5] = math.nan


@pytest.mark.parametrize(
    ("perturb", "messages"),
    [
        (_scale_gradients, ["gradient of head.weight: relative difference"]),  # AdamW hides it from the losses
        (_scale_attention, ["gradient of blocks.0.qkv.weight"]),
        (_look_ahead, ["gradient of blocks.0.qkv.weight"]),
        (_poison, ["relative difference nan", "turbo learned nothing", "bits a byte apart"]),
    ],
)
def test_it_fails_when_one_model_is_wrong(
    perturb: Callable[[torch.nn.Module], None],
    messages: list[str],
    train_lm: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = train_lm.build_models

    def build_perturbed(*args: object) -> dict[str, torch.nn.Module]:
        models = build(*args)
        perturb(models["turbo"])
        return models

    monkeypatch.setattr(train_lm, "build_models", build_perturbed)
    assert train_lm.main([*TINY, "--compare-torch"]) == 1
    captured = capsys.readouterr()
    for message in messages:
        assert message in captured.err
    assert "FAIL in " in captured.out


def test_the_text_is_the_same_each_time_and_validation_is_held_out(train_lm: ModuleType) -> None:
    (train, held_out), again = train_lm.read_text(), train_lm.read_text()
    assert torch.equal(train, again[0]) and torch.equal(held_out, again[1])
    assert len(train) > 5 * len(held_out) > 50_000
    sample = bytes(held_out[1000:1400].tolist())
    assert sample not in bytes(train.numpy())


def test_windows_overlap_by_the_byte_to_predict(train_lm: ModuleType) -> None:
    text = torch.arange(100, dtype=torch.uint8)
    found = train_lm.windows(text, torch.tensor([0, 90]), 9, torch.device("cpu"))
    assert found.tolist() == [list(range(10)), list(range(90, 100))] and found.dtype == torch.int64


def test_the_rate_rises_then_falls_along_a_cosine(train_lm: ModuleType) -> None:
    rates = [train_lm.rate(step, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55) and rates[100] == pytest.approx(0.1)
    assert all(a > b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert train_lm.rate(0, 1) == 1.0


def test_no_difference_hides_behind_nan(lm_report: ModuleType) -> None:
    good = {"turbo": [8.0, 4.0], "torch": [8.0, 4.0]}
    assert not lm_report.run_faults(good, {"turbo": 4.0, "torch": 4.0}, 0.01)
    assert lm_report.run_faults(good, {"turbo": 4.0, "torch": 4.02}, 0.01)
    assert lm_report.run_faults(good, {"turbo": math.nan, "torch": 4.0}, 0.01)
    assert lm_report.run_faults({**good, "turbo": [8.0, math.nan]}, {"turbo": 4.0, "torch": 4.0}, 0.01)
    assert lm_report.run_faults({"turbo": [8.0, 8.0]}, {"turbo": 8.0}, 0.01), "nothing learned must not pass"
    later = {"turbo": [8.0] * 10 + [4.0] * 10, "torch": [8.0] * 10 + [4.1] * 10}
    assert lm_report.run_faults(later, {"turbo": 4.0, "torch": 4.0}, 0.05), "one point of the curve is enough"


def test_the_quickstart_runs_programs_with_options_that_they_have(
    train_lm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(quickstart, "install", lambda folder: tmp_path / "python")
    monkeypatch.setattr(quickstart.subprocess, "run", run)
    assert quickstart.main(["--precision", "mxfp4", "--steps", "7"]) == 0
    digits, language = commands
    assert digits[:2] == [str(tmp_path / "python"), "examples/train_digits.py"]
    importlib.import_module("train_digits").parse_args(digits[2:])
    assert language[:2] == [str(tmp_path / "python"), "examples/train_lm.py"]
    args = train_lm.parse_args(language[2:])
    assert args.compare_torch and (args.precision, args.steps) == ("mxfp4", 7), "the user's options come last"


def test_the_quickstart_stops_at_the_first_program_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes = iter([3])
    monkeypatch.setattr(quickstart, "install", lambda folder: tmp_path / "python")
    monkeypatch.setattr(
        quickstart.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, next(codes))
    )
    assert quickstart.main([]) == 3
