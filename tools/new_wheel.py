# SPDX-License-Identifier: MIT
"""Makes a new wheel from common/template, itself a complete wheel named turbo-template.

nox -s new-wheel -- turbo-foo              Triton kernels and plain PyTorch
nox -s new-wheel -- turbo-foo --native     HIP kernels as well

The template is the native form. Of the other one it says what to leave out: the files of `NATIVE_FILES`, lines that end
with the comment ``native only``, and what stands between the comments ``native: begin`` and ``native: end``. Between
``pure: begin`` and ``pure: end`` stands what only the other form has. A file whose name ends in ``.in`` loses that.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tools.clang_format import SUFFIXES
from tools.monorepo import ALLOWED_ARROWS, PACKAGES, ROOT, Wheel, skeleton_problems

TEMPLATE = ROOT / "common" / "template"
BENCHMARK = TEMPLATE / "benchmark" / "bench_template_turbo.py"
NATIVE_FILES = ("CMakeLists.txt", "csrc/*", "src/*native.py", "tests/*native*.py")
NOT_OF_THE_WHEEL = {"__pycache__", "build", "benchmark"}

# what an op consists of, in the order in which one writes it: files of the template
PARTS = {
    "the call, its results": ("src/*/calls.py",),
    "`TORCH`: the formula": ("src/*/<op>_reference.py",),
    "`TRITON`: kernels": ("src/*/triton/<op>_kernel.py",),
    "`TRITON`: launches and tiles": ("src/*/triton/<op>.py", "src/*/triton/tiles.py"),
    "`TURBO`: kernels": ("csrc/kernels/<op>.hip", "csrc/kernels/<op>_args.h"),
    "`TURBO`: launcher": ("csrc/kernels/<op>.cpp",),
    "`TURBO`: C interface, its fields": ("csrc/kernels/include/turbo_foo.h", "csrc/pytorch/module.cpp"),
    "`TURBO`: from tensors to addresses": ("src/*/<op>_native.py", "src/*/native.py"),
    "the choice of backend": ("src/*/<op>_impl.py",),
    "the op: checks, gradients, registration": ("src/*/ops/<op>.py",),
    "the module": ("src/*/modules/<op>.py",),
    "the list of launches to audit": ("src/*/audit.py",),
    "tests, smoke test, cases": ("tests/*.py",),
    "the benchmark": ("benchmark/*.py",),
}

_BOUND = re.compile(r"\s*(#|<!--) (native|pure): (begin|end)( -->)?")
_NATIVE_LINE = "  # native only"


def render(name: str, packages: Path = PACKAGES, native: bool = False) -> Wheel:
    """A new folder `packages/<name>`; raises ValueError when the name is not fit or taken."""
    if not re.fullmatch(r"turbo(-[a-z][a-z0-9]*)+", name):
        raise ValueError(f"{name!r}: a wheel is named turbo-<words>, lower case, such as turbo-norm-act")
    target = packages / name
    if target.exists():
        raise ValueError(f"{target} exists")
    unfinished = packages / f".{name}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    for source in _sources(native):
        path = unfinished / _renamed(source.relative_to(TEMPLATE).as_posix().removesuffix(".in"), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _of_form(source.read_text(encoding="utf-8"), native)
        path.write_text(_renamed(text, name), encoding="utf-8")
    _format(unfinished)
    unfinished.rename(target)  # a half-made wheel is never seen
    return Wheel(target)


def render_benchmark(name: str, folder: Path) -> Path:
    """The program in `folder` that measures a new wheel's op."""
    path = folder / _renamed(BENCHMARK.name, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_renamed(BENCHMARK.read_text(encoding="utf-8"), name), encoding="utf-8")
    _format(path)
    return path


def lines_of_an_op() -> Iterator[tuple[str, str, int]]:
    """Each of `PARTS` with its files and the number of their lines."""
    for part, patterns in PARTS.items():
        lines = 0
        for pattern in patterns:
            pattern = pattern.replace("<op>", "scale_rows").replace("turbo_foo", "turbo_template")
            files = [path for path in TEMPLATE.rglob("*") if fnmatch(path.relative_to(TEMPLATE).as_posix(), pattern)]
            lines += sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        yield part, ", ".join(f"`{pattern.removeprefix('src/*/')}`" for pattern in patterns), lines


def _sources(native: bool) -> Iterator[Path]:
    for source in sorted(TEMPLATE.rglob("*")):
        inside = source.relative_to(TEMPLATE)
        if source.is_dir() or NOT_OF_THE_WHEEL & set(inside.parts):
            continue
        if native or not any(fnmatch(inside.as_posix(), pattern) for pattern in NATIVE_FILES):
            yield source


def _of_form(text: str, native: bool) -> str:
    """The lines of one of the two forms, without the comments that tell them apart."""
    kept = []
    left_out = False
    for line in text.splitlines(keepends=True):
        if bound := _BOUND.fullmatch(line.rstrip("\n")):
            left_out = bound[3] == "begin" and (bound[2] == "native") is not native
        elif not left_out and (native or not line.endswith(f"{_NATIVE_LINE}\n")):
            kept.append(line.replace(_NATIVE_LINE, ""))
    return "".join(kept)


def _renamed(text: str, name: str) -> str:
    package, words = name.replace("-", "_"), name.removeprefix("turbo-")
    replacements = {
        "turbo-template": name,
        "turbo_template": package,
        "TURBO_TEMPLATE": package.upper(),
        "template ops": f"{words} ops",
        "template kernels": f"{words} kernels",
        "bench_template": f"bench_{words.replace('-', '_')}",
        "template.csv": f"{words}.csv",
    }
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _format(path: Path) -> None:
    """As the linters want it: a name moves imports and makes lines longer or shorter."""
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--quiet", "--config", str(ROOT / "pyproject.toml"), str(path)]
    subprocess.run([*ruff, "check", "--select", "I", "--fix", *config], check=True)
    subprocess.run([*ruff, "format", *config], check=True)
    native = [str(file) for file in path.rglob("*") if file.suffix in SUFFIXES]
    if native:
        program = Path(sys.executable).with_name("clang-format")
        subprocess.run([program, f"--style=file:{ROOT / '.clang-format'}", "-i", *native], check=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s new-wheel --", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="such as turbo-norm-act")
    parser.add_argument("--native", action="store_true", help="with HIP kernels")
    options = parser.parse_args(argv)
    try:
        wheel = render(options.name, native=options.native)
    except ValueError as error:
        parser.error(str(error))
    benchmark = render_benchmark(options.name, ROOT / "benchmark" / "ops" / "training")
    problems = skeleton_problems(wheel)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"made {wheel.path.relative_to(ROOT)} and {benchmark.relative_to(ROOT)}; tests: nox -s test-{wheel.name}")
    if wheel.name not in ALLOWED_ARROWS:
        print("next: write in ALLOWED_ARROWS of tools/monorepo.py which wheels it may depend on")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
