# SPDX-License-Identifier: MIT
"""Builds wheels and sdists and checks what is in them.

    python -m tools.wheelhouse [--isolated] OUT_DIR [WHEEL ...]

A package is built as pip would build it: the sdist from the tree, then the wheel from the sdist, so a file that the
sdist lost is missing in the wheel too, and the check says so. Needs the packages `build` and `packaging`, and without
--isolated the build requirements of the wheels, which the development environment has.
"""

from __future__ import annotations

import argparse
import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from tools.monorepo import PACKAGES, USERS_OWN, Wheel, normalised, wheels

AT_ONCE = 2  # wheels that `main` builds at a time: one is configured or packed while kernels of another are compiled
WHEEL_LIMIT = 5 * 1024 * 1024
SDIST_TOP = {"PKG-INFO", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "src", "tests", ".gitignore"}
SDIST_TOP |= {"CMakeLists.txt", "csrc", "csrc-common", "hatch_build.py", "tools", ".clang-format"}  # native code
# What a build makes (kernels, their library, front ends) or brings from csrc-common, inside the package.
BUILT = re.compile(r"\w+/(lib/(v\d/)?[\w.]+\.(so|hsaco|json)|((pytorch|jax)/_C|_sim_v\d)\.[\w.-]+\.so|csrc_common/.+)")

STEP = re.compile(r"\[[1-9]\d*/\d+\] |    \w+ gfx\d+ (cached|[\d.]+ s)$")  # what Ninja and compile_kernels.py print


@dataclass(frozen=True)
class Built:
    package: Wheel
    wheel: Path
    sdist: Path


def build(package: Wheel, out: Path, isolated: bool = True, show: Callable[[str], None] | None = None) -> Built:
    """The wheel and the sdist of one package, in `out`; `show` gets a line for each step of a native build.

    Isolated: with build requirements fetched for this build.
    """
    with tempfile.TemporaryDirectory(prefix="turbo-build-") as scratch:
        command = [sys.executable, "-m", "build", "--outdir", scratch, str(package.path)]
        if not isolated:
            command.insert(3, "--no-isolation")
        output = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout or ():
                output.append(line)
                if show is not None and STEP.match(line):
                    show(line.rstrip())
        if process.returncode:
            raise RuntimeError(f"{package.name} does not build:\n{''.join(output)}")
        out.mkdir(parents=True, exist_ok=True)
        for path in Path(scratch).iterdir():
            shutil.move(path, out / path.name)
    return find(package, out)


def find(package: Wheel, folder: Path) -> Built:
    """The wheel and the sdist of the package's current version in `folder`."""
    stem = f"{package.import_name}-{package.version}"
    found = [*folder.glob(f"{stem}-*.whl")], [*folder.glob(f"{stem}.tar.gz")]
    if [len(paths) for paths in found] != [1, 1]:
        raise RuntimeError(f"{folder} must hold one wheel and one sdist of {stem}; it has {found}")
    return Built(package, found[0][0], found[1][0])


def wheel_problems(package: Wheel, path: Path) -> list[str]:
    """What is wrong with a built wheel; an empty list when nothing is."""
    problems: list[str] = []
    if path.stat().st_size > WHEEL_LIMIT:
        problems.append(f"{path.stat().st_size} bytes: the limit is {WHEEL_LIMIT}")
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        info = f"{package.import_name}-{package.version}.dist-info"
        inside = {name for name in names if name.startswith(f"{package.import_name}/")}
        problems += [f"stray file {name}" for name in names if name not in inside and not name.startswith(f"{info}/")]
        problems += [f"stray file {name}" for name in inside if _is_rubbish(name)]
        problems += _difference(package, inside)
        if f"{info}/licenses/LICENSE" not in names:
            problems.append("no LICENSE")
        problems += _metadata_problems(package, archive.read(f"{info}/METADATA").decode())
        if f"{info}/entry_points.txt" in names:
            problems += _entry_point_problems(archive.read(f"{info}/entry_points.txt").decode(), inside)
    return [f"{path.name}: {problem}" for problem in problems]


def sdist_problems(package: Wheel, path: Path) -> list[str]:
    """What is wrong with a built sdist; an empty list when nothing is."""
    problems: list[str] = []
    root = f"{package.import_name}-{package.version}"
    with tarfile.open(path) as archive:
        names = {member.name for member in archive.getmembers() if member.isfile()}
        for name in sorted(names):
            parts = PurePosixPath(name).parts
            if parts[0] != root or parts[1] not in SDIST_TOP or _is_rubbish(name):
                problems.append(f"stray file {name}")
        for name in ("PKG-INFO", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"):
            if f"{root}/{name}" not in names:
                problems.append(f"no {name}")
        inside = {name.removeprefix(f"{root}/src/") for name in names if name.startswith(f"{root}/src/")}
        problems += _difference(package, inside)
        pkg_info = archive.extractfile(f"{root}/PKG-INFO")
        if pkg_info is not None:
            problems += _metadata_problems(package, pkg_info.read().decode())
    return [f"{path.name}: {problem}" for problem in problems]


def _difference(package: Wheel, inside: set[str]) -> list[str]:
    """Files of src/ that an archive lost, and files that it has and src/ has not."""
    source = package.path / "src"
    tree = {path.relative_to(source).as_posix() for path in package.source.rglob("*") if path.is_file()}
    tree = {name for name in tree if not _is_rubbish(name)}
    lost = [f"lost src/{name}" for name in sorted(tree - inside)]
    more = [name for name in sorted(inside - tree) if not (_is_rubbish(name) or BUILT.fullmatch(name))]
    return lost + [f"{name} is not in src/" for name in more]


def _is_rubbish(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = path.name.startswith(".") and path.name not in {".gitignore", ".clang-format"}
    return hidden or "__pycache__" in path.parts or path.suffix in {".pyc", ".pyo", ".orig", ".rej", ".swp"}


def _metadata_problems(package: Wheel, text: str) -> list[str]:
    metadata = email.message_from_string(text)
    problems = []
    if normalised(metadata["Name"]) != package.name or metadata["Version"] != package.version:
        problems.append(
            f"metadata is of {metadata['Name']} {metadata['Version']}, not {package.name} {package.version}"
        )
    if metadata["License-Expression"] != "MIT":
        problems.append(f"License-Expression is {metadata['License-Expression']!r}, not 'MIT'")
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        outside_extras = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if outside_extras and normalised(requirement.name) in USERS_OWN:
            problems.append(f"requires {line!r}: it belongs into an extra")
    return problems


def _entry_point_problems(text: str, inside: set[str]) -> list[str]:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string(text)
    problems = []
    for section in parser.sections():
        for name, target in parser.items(section):
            module = target.split(":")[0].strip().replace(".", "/")
            if not {f"{module}.py", f"{module}/__init__.py"} & inside:
                problems.append(f"entry point {section}: {name} = {target} names no module of the wheel")
    return problems


def share_jobs() -> int:
    """How many wheels are built at a time. Each gets its part of MAX_JOBS; without it, of a few more than the cores."""
    jobs = os.environ.get("MAX_JOBS") or str((os.cpu_count() or 1) + 2)
    if not jobs.isdecimal():
        return AT_ONCE  # the builds refuse it by name
    at_once = max(1, min(AT_ONCE, int(jobs)))
    os.environ["MAX_JOBS"] = str(int(jobs) // at_once)
    return at_once


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.wheelhouse", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder that receives the wheels and sdists")
    parser.add_argument("--isolated", action="store_true", help="fetch each wheel's build requirements, as pip does")
    parser.add_argument("names", nargs="*", metavar="WHEEL", help="packages to build (default: all)")
    options = parser.parse_args(argv)
    known = {package.name: package for package in wheels()}
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no such package: {', '.join(sorted(unknown))}; there are {', '.join(known)} in {PACKAGES}")
    packages = [known[name] for name in options.names] or list(known.values())
    problems: list[str] = []

    def build_and_check(package: Wheel) -> list[str]:
        started = time.monotonic()
        built = build(package, options.out, options.isolated, lambda line: print(f"{package.name} {line}", flush=True))
        sizes = (f"{path}  {path.stat().st_size / 1024:.0f} KiB" for path in (built.wheel, built.sdist))
        print("\n".join([*sizes, f"{package.name}: {time.monotonic() - started:.1f} s"]), flush=True)
        return wheel_problems(package, built.wheel) + sdist_problems(package, built.sdist)

    with ThreadPoolExecutor(share_jobs()) as pool:
        for found in pool.map(build_and_check, packages):
            problems += found
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
