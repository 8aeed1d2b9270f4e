# SPDX-License-Identifier: MIT
"""From a checkout to a trained model: `python -m tools.quickstart [--use-python PYTHON] [OPTIONS OF THE DEMO]`.

Runs the demo of primus-turbo. Where the developer's environment `.nox/dev` is up to date it serves, and nothing is
installed. Otherwise `.nox/quickstart` is made, with torch and what building takes; the wheels are built once and
installed, not editable, as a user would have them. A second run finds all of that there. Where there is no AMD GPU the
wheels are built without device code; the variable GPU_ARCHS says otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools import devenv
from tools.monorepo import ROOT, requirement_name, wheels

SOURCES = [str(ROOT / "packages" / name / "src") for name in ("turbo-core", "primus-turbo")]  # of the demo's options
DRIVER = Path("/dev/kfd")  # of AMD's compute driver
RUNS = ("torch", "numpy", "matplotlib")
BUILDS = ("hatchling", "scikit-build-core", "pybind11", "cmake", "ninja")
DEVICE_COMPILER = "ziglang"  # where there is no ROCm

# Seconds that each step took, with no cache of wheels or kernels; of the build without device code.
MEASURED = {"environment": 1, "download": 8, "install": 9, "build": 8, "wheels": 1, "demo": 19}
MEASURED_ON = "2 cores of a Xeon (Sapphire Rapids), 2026-12-01"


def say(text: str) -> None:
    print(text, flush=True)


class Step(NamedTuple):
    """Something to do, in words, and how long it computed where it was measured."""

    name: str
    what: str
    do: Callable[[], None]

    @property
    def seconds(self) -> int:
        return MEASURED[self.name]


class Environment(devenv.DevEnv):
    """`.nox/quickstart`, or one beside it that sees the packages of another Python."""

    FOLDER = "quickstart"

    @staticmethod
    def tell(text: str) -> None:
        say(f"      {text}")

    def __init__(self, base_python: str | None = None, root: Path = ROOT) -> None:
        super().__init__(base_python, root)
        self.packages = [wheel for wheel in wheels(root / "packages") if wheel.name != "turbo-sim"]  # for developers
        self.variables = {**os.environ, "GPU_ARCHS": os.environ.get("GPU_ARCHS") or self._archs()}

    def steps(self) -> list[Step]:
        """What is still to be done until the wheels are installed."""
        stamp, found = self._read_stamp(), []
        if stamp.get("base") != self._base_digest():
            stamp = {}
            names = ", ".join(requirement_name(line) for line in self._requirements())
            found.append(Step("environment", f"make an environment, {self._shown(self.path)}", self._make))
            if not self.base_python:
                found.append(Step("download", f"download {names}", self._download))
            found.append(Step("install", f"install {names}", self._install))
        if stamp.get("wheels") != self._wheels_digest():
            archs = self.variables["GPU_ARCHS"]
            kind = "without device code" if archs == "none" else f"for GPU_ARCHS={archs}, whose kernels take longer"
            names = ", ".join(wheel.name for wheel in self.packages)
            found.append(Step("build", f"build {names} {kind}", self._build))
            found.append(Step("wheels", "install these wheels", self._install_built))
        return found

    # Steps

    def _make(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.log.write_text("")
        maker = [sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update"]  # nox brings virtualenv
        self._run([*maker, "--python", self.base_python or sys.executable, str(self.path)])
        if self.base_python:
            self._add_base_packages()

    def _download(self) -> None:
        self._pip("download", "--dest", str(self.path / "downloads"), *self._requirements())

    def _install(self) -> None:
        """Without byte code for all of torch, which would take longer than to make it for what is imported."""
        offline = [] if self.base_python else ["--no-index", "--find-links", str(self.path / "downloads")]
        self._pip("install", "--no-compile", *offline, *self._requirements())
        shutil.rmtree(self.path / "downloads", ignore_errors=True)
        self._write_stamp({"base": self._base_digest()})

    def _build(self) -> None:
        shutil.rmtree(self.path / "wheels", ignore_errors=True)
        packages = [str(wheel.path) for wheel in self.packages]
        built = ["--wheel-dir", str(self.path / "wheels")]
        self._pip("wheel", "--verbose", "--no-deps", "--no-build-isolation", *built, *packages)

    def _install_built(self) -> None:
        made = [str(path) for path in sorted((self.path / "wheels").glob("*.whl"))]
        self._pip("install", "--no-index", "--no-deps", "--force-reinstall", *made)
        self._write_stamp({"base": self._base_digest(), "wheels": self._wheels_digest()})

    # Facts

    def _archs(self) -> str:
        return "native" if DRIVER.exists() else "none"

    def _requirements(self) -> list[str]:
        """The lines of requirements.txt for the wheels' build and the demo."""
        device_code = self.variables["GPU_ARCHS"] != "none" and not os.environ.get("ROCM_HOME")
        needed = {*RUNS, *BUILDS, *([DEVICE_COMPILER] if device_code else [])}
        return [line for line in super()._requirements() if requirement_name(line) in needed]

    def _base_digest(self) -> str:
        return devenv.digest(*self._base_facts(), *self._requirements())

    def _wheels_digest(self) -> str:
        """Of all that the wheels are made from."""
        folders = [
            self.root / "csrc-common",
            *(wheel.path / part for wheel in self.packages for part in ("src", "csrc")),
        ]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        files += [path for wheel in self.packages for path in wheel.path.glob("*") if path.is_file()]
        kept = sorted(path for path in files if path.suffix not in (".pyc", ".so", ".hsaco"))
        contents = (hashlib.sha256(path.read_bytes()).hexdigest() for path in kept)
        return devenv.digest(self.variables["GPU_ARCHS"], *map(str, kept), *contents)


def show_plan(steps: list[Step]) -> None:
    """What will be done, and how long each part takes."""
    say("quickstart: what will be done, with the seconds that it took")
    say(f"on {MEASURED_ON}, idle, with a fast network:")
    for number, step in enumerate(steps, 1):
        say(f"  {number}. {step.what} ({step.seconds} s)")
    say(f"  together about {sum(step.seconds for step in steps)} s")
    if len(steps) > 1:
        say(f"  a second run does the last part alone, in about {steps[-1].seconds} s")


def show_times(times: dict[str, float]) -> None:
    """How long it took, with downloads and torch's installation apart."""
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in times.items())
    say(f"\nquickstart: {sum(times.values()):.0f} s in all: {parts}")
    fetched = times.get("download", 0.0) + times.get("install", 0.0)
    if fetched:
        say(f"  downloads, and the installation of torch and the others: {fetched:.0f} s")
        say(f"  all the rest: {sum(times.values()) - fetched:.0f} s")


def show_next(python: Path) -> None:
    """What else there is, with this environment and without."""
    shown = python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    say(
        f"  python is {shown} here: source {shown.parent / 'activate'}\n"
        "  nox -s quickstart -- --precision mxfp8               this again, in another precision\n"
        "  nox -s tests                                         everything that this machine can show\n"
        "  nox -s build                                         wheels for other environments, into dist/"
    )


def hints(base_python: str | None) -> Iterator[str]:
    """What the user of this machine should know beforehand."""
    if DRIVER.exists() and base_python is None:
        yield (
            "there is an AMD GPU, which torch as pip installs it does not use: if you have a ROCm build of torch, "
            "name its Python: nox -s quickstart -- --use-python PYTHON"
        )


def why_not(options: list[str]) -> int | None:
    """The exit code at once where the demo does not know its options, or only shows them; None where it would run."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    code = "import sys; from primus_turbo.__main__ import parser; parser().parse_args(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, "demo", *options], env=variables)
    return done.returncode if done.returncode or {"-h", "--help"} & set(options) else None


def timed(step: Step, place: str) -> float:
    """Does a step, and says how long it took."""
    say(f"\n{place} {step.what}")
    started = time.monotonic()
    step.do()
    seconds = time.monotonic() - started
    say(f"{place} took {seconds:.0f} s")
    return seconds


def run(environment: devenv.DevEnv, missing: Callable[[], list[Step]], options: list[str]) -> int:
    """Take the steps that are missing, then run the demo in the environment; the demo's exit code."""
    codes: list[int] = []

    def demo() -> None:
        plot = ["--plot", str(ROOT / ".nox" / "loss.png")]
        command = [str(environment.python), "-m", "primus_turbo", "demo", *plot, *options]
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        codes.append(subprocess.run(command, cwd=environment.path, env=variables).returncode)

    last = Step("demo", "train a language model on Turbo and on plain torch, and compare the two", demo)
    times: dict[str, float] = {}
    with environment.locked():
        steps = missing()
        count = len(steps) + 1
        show_plan([*steps, last])
        for number, step in enumerate(steps, 1):
            times[step.name] = timed(step, f"[{number}/{count}]")
    times[last.name] = timed(last, f"[{count}/{count}]")
    show_times(times)
    if codes == [0]:
        show_next(environment.python)
    return codes[0]


def main(arguments: list[str]) -> int:
    try:
        base_python, options = devenv.base_python_option(arguments)
        if (code := why_not(options)) is not None:
            return code
        for hint in hints(base_python):
            say(f"quickstart: {hint}")
        developers = devenv.DevEnv(base_python)
        if developers.is_current():
            return run(developers, list, options)
        environment = Environment(base_python)
        return run(environment, environment.steps, options)
    except devenv.EnvironmentFailure as failure:
        print(f"quickstart: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
