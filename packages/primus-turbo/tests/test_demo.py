# SPDX-License-Identifier: MIT
"""The demo learns in every precision, as in plain torch, notices when it does not, and says what is missing."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from primus_turbo import __main__ as command_line
from primus_turbo.demo import command, model, report, text, training
from turbo_core import requirements

TINY = ["--device", "cpu", "--steps", "12", "--batch-size", "4", "--layers", "1"]
# What serves the block's Linears forward and backward, and how often: four of them, with three products each; the head.
GEMMS = {
    "fp32": {("gemm", "15")},
    "bf16": {("gemm", "15")},
    "fp8": {("gemm_fp8", "12"), ("gemm", "3")},
    "mxfp8": {("gemm_fp8", "12"), ("gemm", "3")},
    "mxfp4": {("gemm_fp4", "12"), ("gemm", "3")},
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The demo sets how many threads torch uses."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def demo(*arguments: str) -> int:
    return command_line.main(["demo", *arguments])


@pytest.mark.parametrize("precision", GEMMS)
def test_it_learns_as_torch_does(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo(*TINY, "--precision", precision) == 0
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"bits a byte: turbo +([\d.]+)", printed)]
    assert 7 < losses[0] < 9 and losses[-1] < losses[0] - 2, losses
    served = set(re.findall(r"^  (\w+) +(\d+) calls +TORCH +default$", printed, re.MULTILINE))
    assert served >= GEMMS[precision] | {("attention", "2"), ("glu", "2"), ("norm", "6")}
    assert "allowed is" in printed and re.search(r"^PASS in [\d.]+ s$", printed, re.MULTILINE)
    assert printed.rindex("PASS") < printed.index("what to try next:")


def test_the_command_line_lists_the_precisions_of_the_model() -> None:
    """It does so without importing torch, so the names stand there twice."""
    assert list(command_line.PRECISIONS) == list(model.LINEARS) == list(report.BANDS)


def test_it_runs_elsewhere_and_plots(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PRIMUS_TURBO_", "TRITON_"))}
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    line = [sys.executable, "-m", "primus_turbo", "demo", *TINY, "--plot", str(tmp_path / "made" / "a.png")]
    result = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    steps = r"^step +\d+/12 +bits a byte: turbo +[\d.]+ \( *\d+ tokens/s\) +torch +[\d.]+ \( *\d+ tokens/s\)$"
    assert len(re.findall(steps, result.stdout, re.MULTILINE)) == 12
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "made" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_commands_to_try_next_work(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^  python -m primus_turbo (demo .*?)(?:   .*)?$", command.NEXT, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        command_line.parser().parse_args(line.split())
    (code,) = re.findall(r'python -c "(.*)"', command.NEXT)
    exec(compile(code, "next", "exec"), {})
    assert "TORCH" in capsys.readouterr().out


def test_without_a_command_it_prints_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 0
    printed = capsys.readouterr().out
    assert "usage: python -m primus_turbo" in printed and "demo" in printed and "python -m turbo_core doctor" in printed


# Refusals


def test_without_torch_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"{name} is not installed: pip install it")

    monkeypatch.setattr(requirements, "_require", missing)
    assert demo() == 2
    assert capsys.readouterr().err == "python -m primus_turbo demo: torch is not installed: pip install it\n"


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--device", device) == 2
    captured = capsys.readouterr()
    assert f"--device {device} cannot be used here: " in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--context", "-1"], ["--precision", "int4"], ["--seed", "x"]])
def test_a_wrong_option_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        demo(*wrong)
    assert end.value.code == 2
    assert f"argument {wrong[0]}: " in capsys.readouterr().err


def test_a_backend_that_cannot_run_here_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "HIPBLASLT")
    assert demo(*TINY) == 2
    assert "python -m primus_turbo demo: gemm: backend HIPBLASLT" in capsys.readouterr().err


def test_a_folder_without_sources_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    with pytest.raises(FileNotFoundError, match="holds 1 Python sources"):
        text.read_text(tmp_path)


def test_no_matplotlib_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report.plot(tmp_path / "a.png", {"turbo": [1.0, 0.5]})
    assert "matplotlib is not installed" in capsys.readouterr().out and not (tmp_path / "a.png").exists()


# Faults


def _scale_gradients(one: torch.nn.Module) -> None:
    for weight in one.parameters():
        weight.register_hook(lambda grad: grad * 1.05)


def _scale_attention(one: torch.nn.Module) -> None:
    one.blocks[0].attention.register_forward_hook(lambda module, inputs, out: out * 1.1)


def _look_ahead(one: torch.nn.Module) -> None:
    one.blocks[0].attention.options["causal"] = False


def _poison(one: torch.nn.Module) -> None:
    with torch.no_grad():
        one.head.weight[3, 5] = math.nan


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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = model.build_models

    def build_perturbed(*args: object) -> dict[str, torch.nn.Module]:
        models = build(*args)
        perturb(models["turbo"])
        return models

    monkeypatch.setattr(model, "build_models", build_perturbed)
    assert demo(*TINY) == 1
    captured = capsys.readouterr()
    for message in messages:
        assert message in captured.err
    assert "FAIL in " in captured.out and "what to try next" not in captured.out


def test_no_difference_hides_behind_nan() -> None:
    good = {"turbo": [8.0, 4.0], "torch": [8.0, 4.0]}
    assert not report.run_faults(good, {"turbo": 4.0, "torch": 4.0}, 0.01)
    assert report.run_faults(good, {"turbo": 4.0, "torch": 4.02}, 0.01)
    assert report.run_faults(good, {"turbo": math.nan, "torch": 4.0}, 0.01)
    assert report.run_faults({**good, "turbo": [8.0, math.nan]}, {"turbo": 4.0, "torch": 4.0}, 0.01)
    level = {"turbo": [8.0, 8.0], "torch": [8.0, 8.0]}
    assert report.run_faults(level, {"turbo": 8.0, "torch": 8.0}, 0.01), "nothing learned must not pass"
    later = {"turbo": [8.0] * 10 + [4.0] * 10, "torch": [8.0] * 10 + [4.1] * 10}
    assert report.run_faults(later, {"turbo": 4.0, "torch": 4.0}, 0.05), "one point of the curve is enough"


# Parts


def test_the_text_is_the_same_each_time_and_validation_is_held_out() -> None:
    (train, held_out), again = text.read_text(), text.read_text()
    assert torch.equal(train, again[0]) and torch.equal(held_out, again[1])
    assert len(train) > 5 * len(held_out) > 50_000
    sample = bytes(held_out[1000:1400].tolist())
    assert sample not in bytes(train.numpy())


def test_windows_overlap_by_the_byte_to_predict() -> None:
    source = torch.arange(100, dtype=torch.uint8)
    found = text.windows(source, torch.tensor([0, 90]), 9, torch.device("cpu"))
    assert found.tolist() == [list(range(10)), list(range(90, 100))] and found.dtype == torch.int64


def test_the_rate_rises_then_falls_along_a_cosine() -> None:
    rates = [training.rate(step, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55) and rates[100] == pytest.approx(0.1)
    assert all(a > b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert training.rate(0, 1) == 1.0
