# SPDX-License-Identifier: MIT
"""The wheels of this repository: where they are, what each must look like, and who may depend on whom."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; nox and pytest both bring tomli there
    import tomli as tomllib  # type: ignore[no-redef, import-not-found]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "packages"

REQUIRES_PYTHON = ">=3.10"
AUTHOR = "The Turbo authors"

# Every wheel that exists or is planned, and the wheels it may depend on. An arrow that is not here is a mistake in
# the code or a decision to be written here first.
ALLOWED_ARROWS: dict[str, frozenset[str]] = {
    "turbo-core": frozenset(),
    "turbo-gemm": frozenset({"turbo-core", "turbo-quant"}),
    "turbo-grouped-gemm": frozenset({"turbo-core", "turbo-gemm", "turbo-quant"}),
    "turbo-attention": frozenset({"turbo-core", "turbo-quant"}),
    "turbo-quant": frozenset({"turbo-core"}),
    "turbo-norm-act": frozenset({"turbo-core"}),
    "turbo-moe": frozenset({"turbo-core", "turbo-grouped-gemm", "turbo-quant", "turbo-norm-act"}),
    "turbo-async-tp": frozenset({"turbo-core"}),
    "turbo-sim": frozenset({"turbo-core"}),  # a developer's tool: no op depends on it
    "primus-turbo": frozenset(
        {
            "turbo-core",
            "turbo-gemm",
            "turbo-grouped-gemm",
            "turbo-attention",
            "turbo-quant",
            "turbo-norm-act",
            "turbo-moe",
            "turbo-async-tp",
        }
    ),
}

# Layer of a wheel -> dotted prefixes that it must not import; {wheel} is the import name of the wheel itself.
FORBIDDEN_IMPORTS = {
    "pytorch/modules": ("{wheel}.pytorch.kernels", "{wheel}.triton", "{wheel}._C", "triton"),
    "pytorch/ops": ("{wheel}.pytorch.modules", "{wheel}.triton", "triton"),
    "pytorch/kernels": ("{wheel}.pytorch.modules", "{wheel}.pytorch.ops", "torch.autograd.Function"),
    "triton": ("{wheel}.pytorch", "{wheel}.jax", "torch.autograd"),
}

# The user's own builds of these are used; a hard requirement would replace a ROCm build by a CUDA one.
USERS_OWN = frozenset({"torch", "triton", "jax", "jaxlib", "pytorch-triton-rocm"})
NO_FRAMEWORK = frozenset({"primus-turbo", "turbo-sim"})  # wheels that need not declare the extras torch and triton
SHARED = frozenset({"turbo-core"})  # every module of it is for the other wheels
WITHOUT_OPS = frozenset({"primus-turbo", "turbo-core", "turbo-sim"})  # wheels with no op that a training loop calls


def normalised(name: str) -> str:
    """The name of a distribution in the form in which two names can be compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if match is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    return normalised(match.group(1))


@dataclass(frozen=True)
class Wheel:
    """One folder under packages/."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def import_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.path / "src" / self.import_name

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return tomllib.loads((self.path / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def project(self) -> dict[str, Any]:
        return self.pyproject.get("project", {})

    @property
    def version(self) -> str:
        return self.project["version"]

    @property
    def requirements(self) -> list[str]:
        return list(self.project.get("dependencies", []))

    @property
    def wheel_requirements(self) -> set[str]:
        """The wheels of this repository that this one declares as dependencies."""
        return {name for name in map(requirement_name, self.requirements) if name in ALLOWED_ARROWS}

    def python_files(self) -> list[Path]:
        return sorted(path for path in self.source.rglob("*.py") if "__pycache__" not in path.parts)


def wheels(packages: Path = PACKAGES) -> list[Wheel]:
    """The wheels that exist, those that others depend on first."""
    found = {path.parent.name: Wheel(path.parent) for path in sorted(packages.glob("*/pyproject.toml"))}
    ordered: dict[str, Wheel] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            raise ValueError("the wheels depend on each other in a circle: " + " -> ".join((*trail, name)))
        if name in ordered or name not in found:
            return
        for needed in sorted(found[name].wheel_requirements):
            visit(needed, (*trail, name))
        ordered[name] = found[name]

    for name in found:
        visit(name, ())
    return list(ordered.values())


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) for everything that a source file imports, at its top or inside a function.

    `from a.b import c` gives `a.b.c`: c may be a module. The targets of the lazy packages (strings handed to
    `attach`) and literal `import_module("...")` calls are imports too.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in {"attach", "import_module", "__import__"}:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and "_" in inner.value:
                        yield node.lineno, inner.value


def imported_wheels(wheel: Wheel) -> dict[str, list[str]]:
    """Other wheels that this one's source imports: distribution name -> places ("file:line")."""
    by_import = {name.replace("-", "_"): name for name in ALLOWED_ARROWS}
    found: dict[str, list[str]] = {}
    for path in wheel.python_files():
        for line, dotted in imports(path):
            name = by_import.get(dotted.split(".")[0])
            if name is not None and name != wheel.name:
                found.setdefault(name, []).append(f"{path.relative_to(wheel.path)}:{line}")
    return found


def private_imports(wheel: Wheel) -> list[str]:
    """What this wheel takes of another that is not declared: "file:line: name".

    Declared are the names of the package itself (its ``__all__``), all of its module ``developer``, and the modules of
    `SHARED`, which is there to be built on.
    """
    by_import = {name.replace("-", "_"): name for name in ALLOWED_ARROWS if name not in SHARED}
    found = []
    for path in wheel.python_files():
        for line, dotted in imports(path):
            owner, *inner = dotted.split(".")
            if owner not in by_import or by_import[owner] == wheel.name or not inner or inner[0] == "developer":
                continue
            public = importlib.import_module(owner).__all__
            if len(inner) > 1 or inner[0] not in public:
                found.append(f"{path.relative_to(wheel.path)}:{line}: {dotted}")
    return found


def skeleton_problems(wheel: Wheel) -> list[str]:
    """How a wheel departs from the one skeleton that all wheels share; an empty list when it does not."""
    problems: list[str] = []

    def check(condition: Any, problem: str) -> None:
        if not condition:
            problems.append(f"{wheel.name}: {problem}")

    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        check((wheel.path / name).is_file(), f"{name} is missing")
    if (wheel.path / "LICENSE").is_file():
        same = (wheel.path / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        check(same, "LICENSE differs from that of the repository")
    check((wheel.source / "__init__.py").is_file(), f"src/{wheel.import_name}/__init__.py is missing")
    check((wheel.source / "py.typed").is_file(), f"src/{wheel.import_name}/py.typed is missing")
    check((wheel.path / "tests" / "smoke.py").is_file(), "tests/smoke.py is missing (isolation runs it)")
    check(list((wheel.path / "tests").rglob("test_*.py")), "tests/ holds no test_*.py")
    if wheel.name not in WITHOUT_OPS:
        for name in ("training_cases.py", "test_training_matrix.py"):
            check(
                (wheel.path / "tests" / name).is_file(), f"tests/{name} is missing (what training loops do to its ops)"
            )
    sources = [path.name for path in (wheel.path / "src").glob("*") if path.name != "__pycache__"]
    check(sources == [wheel.import_name], f"src/ must hold {wheel.import_name} alone, not {sorted(sources)}")
    for folder in sorted({path.parent for path in wheel.python_files()}):
        check(
            (folder / "__init__.py").is_file(),
            f"{folder.relative_to(wheel.path)}/__init__.py is missing",
        )

    project = wheel.project
    version = str(project.get("version", ""))
    check(project.get("name") == wheel.name, f"project.name is {project.get('name')!r}, the folder {wheel.name!r}")
    check(re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version), f"project.version {version!r} is not static")
    check(not project.get("dynamic"), f"project.dynamic is {project.get('dynamic')}: nothing may be dynamic")
    check(project.get("description"), "project.description is missing")
    check(project.get("readme") == "README.md", "project.readme must be README.md")
    check(
        project.get("requires-python") == REQUIRES_PYTHON,
        f"project.requires-python must be {REQUIRES_PYTHON!r}",
    )
    check(project.get("license") == "MIT", 'project.license must be "MIT"')
    check(project.get("license-files") == ["LICENSE"], 'project.license-files must be ["LICENSE"]')
    check({"name": AUTHOR} in project.get("authors", []), f"project.authors must hold {AUTHOR!r}")

    for requirement in wheel.requirements:
        name = requirement_name(requirement)
        check(name not in USERS_OWN, f"{requirement!r} is a requirement; torch, triton and jax are extras")
    extras = project.get("optional-dependencies", {})
    for extra, floor in (("torch", "torch>=2.6"), ("triton", "triton>=3.4")):
        if wheel.name not in NO_FRAMEWORK:
            check(extras.get(extra) == [floor], f"extra {extra!r} must be [{floor!r}], not {extras.get(extra)}")

    backend = wheel.pyproject.get("build-system", {}).get("build-backend", "")
    check(
        backend in {"hatchling.build", "scikit_build_core.build"},
        f"build-backend {backend!r} is neither hatchling nor scikit-build-core",
    )
    if (wheel.path / "CHANGELOG.md").is_file():
        changelog = (wheel.path / "CHANGELOG.md").read_text(encoding="utf-8")
        check(re.search(rf"^## {re.escape(version)}\b", changelog, re.M), f"CHANGELOG.md says nothing of {version}")
    if (wheel.path / "README.md").is_file():
        readme = (wheel.path / "README.md").read_text(encoding="utf-8")
        check(readme.startswith(f"# {wheel.name}\n"), f"README.md must begin with '# {wheel.name}'")
        check(f"pip install {wheel.name}" in readme, f"README.md lacks the line 'pip install {wheel.name}'")
    return problems
