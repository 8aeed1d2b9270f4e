# SPDX-License-Identifier: MIT
"""The commands that documents tell a reader to type, and the smallest form in which each can be tried here."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.monorepo import ROOT, Wheel, wheels

PROGRAMS = ("nox", "pip", "python", "python3", "python3.12", "pytest", "turbo-sim", "cmake")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
SHOWN = re.compile(r"^    +(\S.*)$", re.MULTILINE)
# What installs a build's tools, and names that stand for something of the reader's.
OTHERS_PACKAGES = {"nox", "scikit-build-core", "pybind11", "ninja", "ziglang", "turbo-example"}
PLACEHOLDERS = {"PROGRAM", "tests/", "...", "turbo-foo", "/opt/rocm-venv/bin/python"}


def documents() -> list[Path]:
    """Every document that may hold commands."""
    patterns = ("*.md", "docs/*.md", "benchmark/*.md", "csrc-common/*.md", "packages/*/*.md", "packages/*/csrc/**/*.md")
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def words_of(line: str) -> list[str]:
    """A command's words without comment and environment; empty where the line is none."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words and re.fullmatch(r"[A-Z][A-Z0-9_]*=\S*", words[0]):
        words.pop(0)
    return words if words and words[0] in PROGRAMS else []


def commands(document: Path) -> Iterator[list[str]]:
    """The commands of a document: in fences of bash or of no language, in indented lines, and inline."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    fences = [fence[3] for fence in FENCE.finditer(text) if fence[2] in ("", "bash")]
    lines = [line for fence in fences for line in fence.splitlines()]
    rest = FENCE.sub("", text)
    lines += SHOWN.findall(rest)
    lines += [" ".join(code.split()) for code in INLINE.findall(rest) if " " in code]
    for line in lines:
        if words := words_of(line):
            yield words


def find_wheel(name: str) -> Wheel | None:
    return next((wheel for wheel in wheels() if wheel.name == name.replace("_", "-")), None)


class CommandFailure(Exception):
    """A command in a document does not work; the message says why."""


def need(condition: object, why: str) -> None:
    if not condition:
        raise CommandFailure(why)


class Trial:
    """Tries commands: each program by the function of its name, which raises where the command would not work."""

    def __init__(self, pytest_options: Callable[[list[str]], list[str]], monkeypatch: Any) -> None:
        self.pytest_options = pytest_options  # the options of a list that pytest does not know
        self.monkeypatch = monkeypatch

    def run(self, words: list[str]) -> None:
        program, *arguments = words
        getattr(self, re.sub(r"[\d.]+$", "", program).replace("-", "_"))(arguments)

    def nox(self, arguments: list[str]) -> None:
        """That sessions exist is tested elsewhere; here the arguments that they pass on."""
        if "--" not in arguments:
            return
        session, rest = arguments[1], arguments[arguments.index("--") + 1 :]
        if session == "quickstart":
            self.module("primus_turbo", ["demo", *rest])
        elif session == "benchmark":
            self.benchmark([f"benchmark/{rest[0]}", *rest[1:]])
        elif session.startswith("test"):
            self.pytest([word for word in rest if word not in (*PLACEHOLDERS, "--use-python", "--use-current-python")])

    def pip(self, arguments: list[str]) -> None:
        """Only names: the wheels are installed, alone and together, by test_isolation.py."""
        need(arguments[0] in ("install", "uninstall"), f"pip {arguments[0]}: nobody has said how to try it")
        rest, takes_value = [], ("--find-links", "-C", "--no-binary", "--python")
        for before, word in zip(arguments, arguments[1:], strict=False):
            if not word.startswith("-") and before not in takes_value:
                rest.append(word)
        for word in rest:
            name, extras = re.fullmatch(r"([\w./-]+)(?:\[([\w,]+)\])?(?:==[\d.]+)?", word).groups()  # type: ignore[union-attr]
            wheel = find_wheel(Path(name).name)
            need(wheel or name in OTHERS_PACKAGES, f"pip install {name}: there is no such wheel")
            need("/" not in name or (ROOT / name).is_dir(), f"{name} is no folder")
            known = {} if wheel is None else wheel.project.get("optional-dependencies", {})
            need(set(extras.split(",") if extras else ()) <= set(known), f"{name} has no extra {extras}")

    def python(self, arguments: list[str]) -> None:
        first, *rest = arguments
        if first.startswith("benchmark/"):
            self.benchmark(arguments)
        elif first.startswith("examples/"):
            self.options_of(ROOT / first, rest)
        elif first == "-c":
            exec(compile(rest[0], "document", "exec"), {})
        elif first == "-m":
            self.module(rest[0], rest[1:])
        else:
            raise CommandFailure(f"python {' '.join(arguments)}: nobody has said how to try it")

    def module(self, name: str, arguments: list[str]) -> None:
        if name == "turbo_core":
            from turbo_core import __main__, audit

            self.monkeypatch.setattr(audit, "audit", lambda **options: iter(()))  # compiling takes minutes
            expected = {"doctor": 0, "audit": 1}[arguments[0]]  # 1: nothing was audited
            need(__main__.main(arguments) == expected, f"its exit code is not {expected}")
        elif name == "primus_turbo":
            from primus_turbo import __main__ as meta

            least = ["--steps", "2", "--layers", "1"] if arguments[:1] == ["demo"] else []
            need(meta.main([*arguments, *least]) == 0, "its exit code is not 0")
        elif name in ("nox", "pytest"):
            getattr(self, name)(arguments)
        elif name in ("tools.documents", "tools.build_times"):  # the latter builds for minutes
            importlib.import_module(name)
        else:
            self.monkeypatch.setattr(sys, "argv", [name, *arguments])
            try:
                runpy.run_module(name, run_name="__main__")
            except SystemExit as end:
                need(not end.code, f"exit code {end.code}")

    def benchmark(self, arguments: list[str]) -> None:
        """On the smallest shape, with the reference in the place of backends that need a GPU."""
        if arguments[0].removeprefix("benchmark/") in PLACEHOLDERS:
            return
        program, rest = ROOT / arguments[0], list(arguments[1:])
        for index, word in enumerate(rest[:-1]):
            if word == "--backend":
                rest[index + 1] = "torch" if rest[index + 1].islower() else "TORCH"
        module = importlib.import_module(".".join(program.relative_to(ROOT).with_suffix("").parts))
        smoke = [] if "--smoke" in rest else ["--smoke"]
        need(module.main([*rest, "--device", "cpu", *smoke]) == 0, "its exit code is not 0")

    def options_of(self, program: Path, arguments: list[str]) -> None:
        """That a program which has tests of its own has these options, too."""
        text = program.read_text(encoding="utf-8")
        missing = [word for word in arguments if word.startswith("--") and f'"{word}"' not in text]
        need(not missing, f"{program.name} has no {missing}")

    def pytest(self, arguments: list[str]) -> None:
        paths = [word for word in arguments if "/" in word and word not in PLACEHOLDERS]
        need(all((ROOT / path).exists() for path in paths), f"one of {paths} does not exist")
        unknown = self.pytest_options([word for word in arguments if word not in PLACEHOLDERS])
        need(not unknown, f"pytest has no {unknown}")

    def turbo_sim(self, arguments: list[str]) -> None:
        if len(arguments) < 2:
            return  # the name of a command alone
        from turbo_sim.cli import _parser

        _parser().parse_args(arguments)

    def cmake(self, arguments: list[str]) -> None:
        """Configured and built in test_native_cmake.py."""
        if "-S" in arguments:
            folder = ROOT / arguments[arguments.index("-S") + 1]
            need((folder / "CMakeLists.txt").is_file(), f"there is no CMakeLists.txt in {folder}")
