# SPDX-License-Identifier: MIT
"""Every wheel and sdist, built and then installed alone in a clean environment, works from outside the tree.

A clean environment is a new `venv` without pip: the pip of this environment installs into it, with no index at all, so
that whatever a wheel needs beyond the wheels built here would be an error. The sdist is built by pip in an isolated
build environment, which proves the build requirements, and what comes out is installed the same way.

Torch is not installed into each of them. The distributions of torch's own dependency tree, without triton, are linked
into one folder, and the tests that need torch put that folder on the path of the clean environment's Python.

Under pytest-xdist the workers share what is built: whoever needs an artefact or an environment first makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import wheelhouse
from tools.monorepo import Wheel, normalised, wheels

FORMS = ("wheel", "sdist")
each_artefact = pytest.mark.parametrize("form", FORMS)
# turbo-sim is a developer's tool that no wheel depends on and that takes minutes to build: test_the_simulator_alone
PACKAGES = [wheel for wheel in wheels() if wheel.name != "turbo-sim"]
each_wheel = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


class CleanEnvironment:
    """A Python with nothing but one wheel and the wheels that it depends on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.outside = path / "elsewhere"  # the working directory of all that runs here: not the tree
        self.variables: dict[str, str] = {}
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site_packages = path / "lib" / version / "site-packages"

    def make(self) -> None:
        venv.create(self.path, with_pip=False)
        self.outside.mkdir()

    def install(self, requirement: str, folder: Path) -> None:
        pip(f"--python={self.python}", "install", "--no-index", "--find-links", str(folder), requirement)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        environment = {
            "PATH": str(self.path / "bin"),  # no git, no compiler, no rocm-smi
            "HOME": str(self.outside),
            "LANG": "C.UTF-8",
            **self.variables,
            **variables,
        }
        command = [str(self.python), *arguments]
        return subprocess.run(command, cwd=self.outside, env=environment, capture_output=True, text=True, timeout=120)

    def output(self, *arguments: str, **variables: str) -> str:
        done = self.run(*arguments, **variables)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def smoke(self, package: Wheel) -> str:
        """The wheel's smoke test, from a copy outside the tree."""
        copy = self.outside / f"smoke-{os.getpid()}.py"
        copy.write_text((package.path / "tests" / "smoke.py").read_text())
        return self.output(str(copy)).splitlines()[-1]


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"pip {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """A folder that all workers of this run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "isolation"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """True for the first process that comes here, which makes `folder`; the others wait, and go without."""
    done = folder.with_name(folder.name + ".done")
    with folder.with_name(folder.name + ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        first = not done.exists()
        if first:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed on the way
        yield first
        done.touch()


@pytest.fixture(scope="session")
def dist(shared) -> Path:
    """All wheels and sdists of the repository, in one folder."""
    folder = shared / "dist"
    with made_once(folder) as first:
        if first:
            for package in PACKAGES:
                wheelhouse.build(package, folder, isolated=False)
    return folder


@pytest.fixture(scope="session")
def built(dist) -> dict[str, wheelhouse.Built]:
    return {package.name: wheelhouse.find(package, dist) for package in PACKAGES}


def install_from_sdist(environment: CleanEnvironment, artefacts: wheelhouse.Built, dist: Path) -> None:
    """As pip would, but with the dependencies from `dist`, and only the build requirements from an index."""
    out = environment.path / "from-sdist"
    pip("wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(out), str(artefacts.sdist))
    for requirement in artefacts.package.requirements:
        environment.install(Requirement(requirement).name, dist)
    (wheel,) = out.glob("*.whl")
    environment.install(str(wheel), dist)


@pytest.fixture
def environment(package, form, shared, built, dist) -> CleanEnvironment:
    """The clean environment of one wheel in one form."""
    environment = CleanEnvironment(shared / f"{package.name}-{form}")
    with made_once(environment.path) as first:
        if first:
            environment.make()
            if form == "wheel":
                environment.install(f"{package.name}=={package.version}", dist)
            else:
                install_from_sdist(environment, built[package.name], dist)
    return environment


@pytest.fixture(scope="session")
def torch_alone(tmp_path_factory) -> Path:
    """A folder of links to torch and what it depends on, without triton."""
    folder = tmp_path_factory.mktemp("torch-alone")
    site = Path(sysconfig.get_path("purelib"))
    waiting, seen = ["torch"], {"triton", "pytorch-triton-rocm"}
    while waiting:
        name = normalised(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a dependency of another platform
        for file in distribution.files or []:
            top = file.parts[0]
            source = Path(distribution.locate_file(top))
            if top != ".." and top != "__pycache__" and not (folder / top).exists():
                (folder / top).symlink_to(source)
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    assert (folder / "torch").is_dir(), f"torch is not in {site}"
    assert not (folder / "triton").exists()
    return folder


@pytest.fixture
def with_torch(environment, torch_alone) -> CleanEnvironment:
    """The clean environment, which sees torch as well."""
    environment.variables["PYTHONPATH"] = str(torch_alone)
    return environment


# The artefacts


@each_wheel
def test_wheel_holds_what_it_should(package, built):
    assert wheelhouse.wheel_problems(package, built[package.name].wheel) == []


@each_wheel
def test_sdist_holds_what_it_should(package, built):
    assert wheelhouse.sdist_problems(package, built[package.name].sdist) == []


# Nothing but the wheel


@each_wheel
@each_artefact
def test_installed_alone(package, environment):
    """Nothing but the declared wheels of this repository came with it, and it is imported from its own place."""
    code = (
        "import importlib.metadata as m, json; print(json.dumps(sorted(d.metadata['Name'] for d in m.distributions())))"
    )
    installed = set(map(normalised, json.loads(environment.output("-c", code))))
    assert package.name in installed
    assert installed - {package.name} <= {wheel.name for wheel in wheels()}
    where = environment.output("-c", f"import {package.import_name} as m; print(m.__file__)").strip()
    assert Path(where).is_relative_to(environment.site_packages)
    pip(f"--python={environment.python}", "check")


@each_wheel
@each_artefact
def test_import_loads_little_and_brings_no_framework(package, environment):
    """Counted, since a time depends on what else the machine does."""
    code = (
        f"import sys; before = set(sys.modules); import {package.import_name}\n"
        "print(len(set(sys.modules) - before), 'torch' in sys.modules, 'triton' in sys.modules)"
    )
    count, *frameworks = environment.output("-c", code).split()
    assert frameworks == ["False", "False"] and int(count) < 220


@each_wheel
@each_artefact
def test_smoke_without_torch(package, environment):
    """A name that needs torch is an ImportError with the line to type; the rest works."""
    assert environment.smoke(package) == f"{package.name}: ok without torch"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("package", [w for w in wheels() if w.name == "turbo-core"], ids=lambda package: package.name)
def test_doctor_works_with_nothing_else_installed(package, environment):
    report = environment.output("-m", "turbo_core", "doctor")
    assert "torch is not installed" in report
    assert "pip install" in report


# With torch, without triton


@each_wheel
@each_artefact
def test_smoke_with_torch_and_no_triton(package, with_torch):
    code = "import importlib.util as u; print(*(bool(u.find_spec(name)) for name in ('torch', 'triton')))"
    assert with_torch.output("-c", code).split() == ["True", "False"]
    assert with_torch.smoke(package) == f"{package.name}: ok with torch"


@each_artefact
@pytest.mark.parametrize("package", [w for w in wheels() if w.name == "turbo-gemm"], ids=lambda package: package.name)
def test_doctor_names_the_missing_triton(package, with_torch):
    report = with_torch.output("-m", "turbo_core", "doctor", TRITON_INTERPRET="1")
    assert re.search(r"TRITON +triton is not installed: pip install", report), report
    assert re.search(r"TORCH +available", report), report


# The simulator


@pytest.mark.long_build
def test_the_simulator_alone(tmp_path):
    """turbo-sim from its sdist, with nothing but numpy beside it."""
    (package,) = [wheel for wheel in wheels() if wheel.name == "turbo-sim"]
    artefacts = wheelhouse.build(package, tmp_path / "dist", isolated=False)
    assert wheelhouse.wheel_problems(package, artefacts.wheel) == []
    assert wheelhouse.sdist_problems(package, artefacts.sdist) == []
    pip("wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(tmp_path / "from-sdist"), str(artefacts.sdist))
    (built_again,) = (tmp_path / "from-sdist").glob("*.whl")

    environment = CleanEnvironment(tmp_path / "env")
    environment.make()
    pip(f"--python={environment.python}", "install", "--no-index", "--no-deps", str(built_again))
    for name in ("numpy", "numpy.libs"):
        source = Path(sysconfig.get_path("purelib")) / name
        if source.exists():
            (environment.site_packages / name).symlink_to(source)
    assert environment.smoke(package) == "turbo-sim: ok without torch"


# The checks themselves


@pytest.fixture
def broken(built, tmp_path):
    """Copies a built wheel with one file changed, added or left out."""

    def change(name: str, *, add: dict[str, str] | None = None, drop: str | None = None, replace=None) -> list[str]:
        original = built[name]
        path = tmp_path / original.wheel.name
        with zipfile.ZipFile(original.wheel) as source, zipfile.ZipFile(path, "w") as target:
            for member in source.namelist():
                if member == drop:
                    continue
                data = source.read(member)
                if replace and member.endswith(replace[0]):
                    data = data.replace(replace[1].encode(), replace[2].encode())
                target.writestr(member, data)
            for member, text in (add or {}).items():
                target.writestr(member, text)
        return wheelhouse.wheel_problems(original.package, path)

    return change


def test_a_broken_wheel_is_found(broken, built):
    version = built["turbo-gemm"].package.version
    cases = [
        (broken("turbo-gemm", add={"tests/test_gemm.py": ""}), "stray file tests/test_gemm.py"),
        (broken("turbo-gemm", add={"turbo_gemm/x.pyc": ""}), "stray file turbo_gemm/x.pyc"),
        (broken("turbo-gemm", add={"turbo_gemm/x.py": ""}), "turbo_gemm/x.py is not in src/"),
        (broken("turbo-gemm", drop="turbo_gemm/py.typed"), "lost src/turbo_gemm/py.typed"),
        (broken("turbo-gemm", drop="turbo_gemm/pytorch/__init__.py"), "lost src/turbo_gemm/pytorch/__init__.py"),
        (broken("turbo-gemm", drop=f"turbo_gemm-{version}.dist-info/licenses/LICENSE"), "no LICENSE"),
        (
            broken(
                "turbo-gemm",
                replace=("METADATA", 'Requires-Dist: torch>=2.6; extra == "torch"', "Requires-Dist: torch"),
            ),
            "requires 'torch'",
        ),
        (broken("turbo-gemm", replace=("METADATA", f"Version: {version}", "Version: 9")), "turbo-gemm 9"),
        (broken("turbo-gemm", replace=("entry_points.txt", "turbo_gemm.", "turbo_gemm.gone.")), "names no module"),
    ]
    for problems, expected in cases:
        assert any(expected in problem for problem in problems), f"{expected!r} not in {problems}"


def test_the_clean_environment_is_clean(tmp_path):
    environment = CleanEnvironment(tmp_path / "env")
    environment.make()
    assert environment.output("-c", "import shutil; print(shutil.which('git'))").strip() == "None"
    for name in ("pip", "turbo_core", "torch", "pytest"):
        done = environment.run("-c", f"import {name}")
        assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr
    assert os.path.realpath(environment.outside) == environment.output("-c", "import os; print(os.getcwd())").strip()
