# SPDX-License-Identifier: MIT
"""Every command that a document tells a reader to type works, in the smallest form that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.document_commands import CommandFailure, Trial, commands, documents, words_of
from tools.monorepo import ROOT
from turbo_core import GlobalBackendManager

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("turbo_sim")

WITH_COMMANDS = {str(path.relative_to(ROOT)): list(commands(path)) for path in documents()}
WITH_COMMANDS = {name: found for name, found in WITH_COMMANDS.items() if found}


@pytest.fixture
def trial(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trial:
    def unknown(options: list[str]) -> list[str]:
        return [word for word in pytestconfig._parser.parse_known_and_unknown_args(options)[1] if word.startswith("-")]

    monkeypatch.chdir(tmp_path)
    for variable in ("PRIMUS_TURBO_GEMM_BACKEND", "PRIMUS_TURBO_AUTO_TUNE"):
        monkeypatch.delenv(variable, raising=False)
    GlobalBackendManager.reset()
    return Trial(unknown, monkeypatch)


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_work(name: str, trial: Trial) -> None:
    """In their order and in one folder, since some read what others wrote."""
    seen: set[tuple[str, ...]] = set()
    for words in WITH_COMMANDS[name]:
        if tuple(words) in seen:
            continue
        seen.add(tuple(words))
        try:
            trial.run(words)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{name} says `{' '.join(words)}`: {type(error).__name__}: {error}") from error


def test_commands_are_found() -> None:
    found = {" ".join(words) for lists in WITH_COMMANDS.values() for words in lists}
    assert "python benchmark/ops/training/bench_quantize_turbo.py --smoke" in found, "in a fence"
    assert "nox -s test-sim-aiter" in found, "in an indented line"
    assert "pip install primus-turbo[torch]" in found, "inline"
    assert any(line.endswith("llama3.1-8b,llama3.1-70b --seconds 0.2") for line in found), "over two lines"
    assert words_of("HIP_VISIBLE_DEVICES=0 python x.py  # why") == ["python", "x.py"]
    assert words_of("import torch") == [] and words_of("it's") == []


@pytest.mark.parametrize(
    "line",
    [
        "python benchmark/ops/training/bench_gemm_turbo.py --dtypes bf16",
        "python benchmark/ops/training/bench_quantize_turbo.py --ops nothing",
        "python benchmark/core/bench_dispatch.py",
        "python examples/train_digits.py --epoch 3",
        "python tools/unknown.py",
        "python -m turbo_core doctr",
        "python -m primus_turbo demo --precision int4",
        "pip install turbo-gem",
        "pip install turbo-gemm[jax]",
        "pip install -e packages/turbo-none",
        "nox -s tests -- --deterministic",
        "nox -s tests -- packages/turbo-gemm/test",
        "nox -s quickstart -- --precisions mxfp4",
        "pytest --simulated gfx950",
        "turbo-sim run kernel.hsaco --grids 4",
        "cmake -S packages/turbo-core",
    ],
)
def test_a_command_that_fails_is_noticed(line: str, trial: Trial) -> None:
    with pytest.raises((CommandFailure, SystemExit, ModuleNotFoundError, KeyError)):
        trial.run(words_of(line))
