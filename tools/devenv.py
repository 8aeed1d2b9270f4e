# SPDX-License-Identifier: MIT
"""The one environment that the nox sessions share: `.nox/dev`.

It is made once and holds requirements.txt and every wheel under packages/, editable. A stamp in it records what it was
made from and is written last: an environment without a stamp (interrupted) or with another one (requirements changed,
another interpreter, a moved checkout) is made anew; when only the wheels' pyproject.toml files changed, only the wheels
are installed again.

A user with a ROCm or CUDA build of torch points the sessions at the interpreter that has it. Nothing is installed
there: `.nox/dev-<digest>` is then an overlay, an environment of its own that sees the packages of the other one behind
its own and brings no torch and no triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from tools import progress
from tools.monorepo import ROOT, USERS_OWN, requirement_name, wheels

SCHEMA = "1"  # raise it when an existing environment must not be used any more
STAMP = "turbo-stamp.json"

# In an overlay any version that the user has of these will do: theirs fits their torch.
LIBRARIES = frozenset({"numpy", "ml-dtypes", "scikit-learn", "matplotlib"})

DESCRIBE = """
import importlib.util, json, sys
print(json.dumps({
    "version": sys.version,
    "paths": [path for path in sys.path if path.rstrip("/").endswith(("site-packages", "dist-packages"))],
    "torch": importlib.util.find_spec("torch") is not None,
}))
"""


class EnvironmentFailure(RuntimeError):
    """The environment could not be made; the message holds the end of the installer's output."""


def say(text: str) -> None:
    """Progress goes to stderr: the first line on stdout belongs to the session."""
    print(f"environment: {text}", file=sys.stderr, flush=True)


class DevEnv:
    """`DevEnv().ensure()` gives the path of a Python interpreter that has everything."""

    FOLDER = "dev"
    tell = staticmethod(say)  # where lines of progress go
    variables: Mapping[str, str] | None = None  # the environment of installers; None: this process's

    def __init__(self, base_python: str | None = None, root: Path = ROOT) -> None:
        self.root = root
        self.base_python = os.path.abspath(base_python) if base_python else None
        name = self.FOLDER + ("-" + digest(self.base_python)[:8] if self.base_python else "")
        self.path = root / ".nox" / name
        self.log = root / ".nox" / f"{name}.log"
        self.python = self.path / "bin" / "python"
        self._lock: int | None = None

    def is_current(self) -> bool:
        """Whether it is there and `ensure` would do nothing."""
        stamp = self._read_stamp()
        return bool(stamp) and all(stamp.get(key) == value for key, value in self._want().items())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time makes the environment."""
        self.path.parent.mkdir(exist_ok=True)
        with _locked(self.path.with_suffix(".lock")) as self._lock:
            yield

    def ensure(self) -> Path:
        with self.locked():
            stamp, want = self._read_stamp(), self._want()
            if stamp.get("base") != want["base"]:
                self._make()
                stamp = {}
            if stamp.get("wheels") != want["wheels"]:
                self._install_wheels(stale=set(stamp.get("names", [])))
                self._write_stamp({**want, "names": [wheel.name for wheel in wheels(self.root / "packages")]})
        return self.python

    # Steps

    def _make(self) -> None:
        started = time.monotonic()
        shutil.rmtree(self.path, ignore_errors=True)
        self.log.write_text("")
        say(f"making {self._shown(self.path)} from requirements.txt (about a minute) ...")
        maker = [sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update"]  # nox brings virtualenv
        self._run([*maker, "--python", self.base_python or sys.executable, str(self.path)])
        if self.base_python:
            self._add_base_packages()
        requirements = self._requirements()
        alone = [line for line in requirements if requirement_name(line) == "triton"]
        rest = [line for line in requirements if line not in alone]
        self._pip("install", *rest)
        if alone:  # torch's PyPI build pins a triton of its own, which pip would not let us replace in one step
            self._pip("install", "--no-deps", *alone)
        say(f"made in {time.monotonic() - started:.0f} s")

    def _install_wheels(self, stale: set[str]) -> None:
        """Editable, with the build backend of the environment and nothing that could pull in a torch."""
        (self.path / STAMP).unlink(missing_ok=True)
        present = wheels(self.root / "packages")
        gone = stale - {wheel.name for wheel in present}
        if gone:
            self._pip("uninstall", "--yes", *sorted(gone))
        if present:
            say("installing the wheels, editable: " + ", ".join(wheel.name for wheel in present))
        slow = [wheel for wheel in present if wheel.name == "turbo-sim"]
        editable = [argument for wheel in present if wheel not in slow for argument in ("--editable", str(wheel.path))]
        options = ["--verbose", "--no-deps", "--no-build-isolation"]  # verbose: the log names each kernel
        if editable:
            self._pip("install", *options, *editable)
        for wheel in slow:  # C++ of minutes: for this machine's kind of processor only
            level = ["-C", f"cmake.define.TURBO_SIM_LEVELS={_processor_level()}"]
            self._pip("install", *options, *level, "--editable", str(wheel.path))

    def _add_base_packages(self) -> None:
        base = self._describe_base()
        if not base["torch"]:
            raise EnvironmentFailure(f"{self.base_python} has no torch: leave the option out to get a CPU build")
        lines = [f"import site; site.addsitedir({path!r})" for path in base["paths"]]
        purelib = self._output([str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        Path(purelib.strip(), "zz-base-environment.pth").write_text("\n".join(lines) + "\n")

    # Facts

    def _requirements(self) -> list[str]:
        lines = (line.split("#")[0].strip() for line in (self.root / "requirements.txt").read_text().splitlines())
        found = [line for line in lines if line]
        if not self.base_python:
            return found
        kept = [line for line in found if requirement_name(line) not in USERS_OWN]
        return [requirement_name(line) if requirement_name(line) in LIBRARIES else line for line in kept]

    def _want(self) -> dict[str, str]:
        """What the stamp of an environment says that is up to date."""
        return {"base": self._base_digest(), "wheels": self._wheels_digest()}

    def _base_digest(self) -> str:
        return digest(*self._base_facts(), (self.root / "requirements.txt").read_text())

    def _base_facts(self) -> tuple[str, ...]:
        """What any environment here is made of, beside its packages."""
        version = self._describe_base()["version"] if self.base_python else sys.version
        where = self.base_python or sys.base_prefix  # the same whichever environment nox itself is in
        return SCHEMA, str(self.path), where, str(version)

    def _wheels_digest(self) -> str:
        """Of what an editable install is made from: every pyproject.toml, and native code, which is compiled then."""
        present = wheels(self.root / "packages")
        parts = [text for wheel in present for text in (wheel.name, (wheel.path / "pyproject.toml").read_text())]
        if any((wheel.path / "CMakeLists.txt").exists() for wheel in present):
            folders = [self.root / "csrc-common", *(wheel.path / "csrc" for wheel in present)]
            files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
            files += [wheel.path / "CMakeLists.txt" for wheel in present if (wheel.path / "CMakeLists.txt").exists()]
            parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)]
        return digest(*parts)

    def _describe_base(self) -> dict:
        return json.loads(self._output([self.base_python or sys.executable, "-c", DESCRIBE]))

    def _read_stamp(self) -> dict:
        if not self.python.exists():
            return {}
        try:
            return json.loads((self.path / STAMP).read_text())
        except (OSError, ValueError):
            return {}

    def _write_stamp(self, stamp: dict) -> None:
        temporary = self.path / (STAMP + ".tmp")
        temporary.write_text(json.dumps(stamp))
        os.replace(temporary, self.path / STAMP)

    # Running things

    def _pip(self, *arguments: str) -> None:
        self._run([str(self.python), "-m", "pip", *arguments, "--disable-pip-version-check"])

    def _run(self, command: list[str]) -> None:
        held = () if self._lock is None else (self._lock,)  # an installer that outlives nox keeps the lock
        code = progress.run(command, self.log, self.tell, self.root, env=self.variables, pass_fds=held)
        if code:
            self._fail(command, code)

    def _fail(self, command: list[str], code: int) -> NoReturn:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        raise EnvironmentFailure(
            f"{' '.join(command[:6])} ... ended with {code}; the whole output is in {self._shown(self.log)}:\n{tail}"
        )

    @staticmethod
    def _output(command: list[str]) -> str:
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise EnvironmentFailure(f"{command[0]} does not run as a Python interpreter: {error}") from error

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def _processor_level() -> str:
    """The x86-64 level that turbo-sim is built for here: v3 with AVX2 and FMA, else the baseline."""
    try:
        flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    except (OSError, AttributeError):
        return "v1"
    return "v3" if {"avx2", "fma", "bmi2"} <= flags else "v1"


def base_python_option(posargs: list[str]) -> tuple[str | None, list[str]]:
    """Takes `--use-python PATH` and `--use-current-python` out of a session's arguments."""
    base: str | None = None
    rest: list[str] = []
    arguments = iter(posargs)
    for argument in arguments:
        if argument == "--use-current-python":
            base = shutil.which("python3") or shutil.which("python")
            if base is None:
                raise EnvironmentFailure("--use-current-python: there is no python3 on PATH")
        elif argument == "--use-python":
            base = next(arguments, None)
            if base is None:
                raise EnvironmentFailure("--use-python needs the path of an interpreter")
        elif match := re.fullmatch(r"--use-python=(.+)", argument):
            base = match.group(1)
        else:
            rest.append(argument)
    return base, rest


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """One process at a time makes an environment; a second nox waits for it. The lock ends with its last holder."""
    import fcntl

    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is making the environment; waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()
