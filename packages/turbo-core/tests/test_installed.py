# SPDX-License-Identifier: MIT
"""Wheels that are found by their metadata, by the pyproject.toml of a checkout, or not at all."""

import importlib.machinery
import sys
from pathlib import Path

import pytest

import turbo_core
from turbo_core import UnsupportedError, explain
from turbo_core.__main__ import main
from turbo_core.audit import find_kernels
from turbo_core.installed import checkouts, entry_points, foreign_namesake, read_project, unnamed, versions

OP = """
from turbo_core import OpInfo
from turbo_testing.fake_op import FakeCall, make_backend, make_dispatcher
from turbo_core import BackendType


def lookup_op(x: "Tensor", scale: float = 1.0) -> "Tensor":
    return x


calls = lambda x, scale=1.0: {"forward": FakeCall(x)}
OP = OpInfo("lookup_op", make_dispatcher({BackendType.TORCH: make_backend("TORCH")}, default=BackendType.TORCH),
            calls, lambda device: calls(__import__("torch").ones(1, device=device)))
kernels = lambda arch, full: ()
"""
PROJECT = """
[project]  # of the wheel
name = "turbo-lookup"
version = '3.1.4'
dependencies = [
  "name = not this one",
]

[project.entry-points."turbo_core.ops"]
lookup_op = "turbo_lookup.pytorch:OP"

[project.entry-points.'turbo_core.audit']
turbo-lookup = "turbo_lookup.pytorch:kernels"
"""


def make_source(folder, project=PROJECT):
    """src/turbo_lookup with one op, and the pyproject.toml beside src; returns src."""
    package = folder / "src" / "turbo_lookup" / "pytorch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("from turbo_lookup.pytorch import lookup_op\n")
    (package / "__init__.py").write_text(OP)
    if project:
        (folder / "pyproject.toml").write_text(project)
    return folder / "src"


def make_metadata(site, version, op="lookup_op"):
    """The metadata of an installed wheel in ``site``."""
    info = site / f"turbo_lookup-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Turbo_Lookup\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[turbo_core.ops]\n{op} = turbo_lookup.pytorch:OP\n")
    return site


@pytest.fixture
def on_path(monkeypatch):
    """on_path(*folders) puts them first on the path, in this order, and forgets the package afterwards."""

    def put(*folders):
        for folder in reversed(folders):
            monkeypatch.syspath_prepend(str(folder))

    yield put
    for name in [name for name in sys.modules if name.startswith("turbo_lookup")]:
        del sys.modules[name]


def test_ops_of_a_checkout_are_explained_and_reported(on_path, tmp_path, capsys):
    import torch

    on_path(make_source(tmp_path))
    assert explain("lookup_op", torch.ones(2, 3)).entries[0].call == "x [2, 3]"
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "lookup_op forward: TORCH (default)" in out and "turbo-lookup          3.1.4" in out
    assert "turbo-lookup" in find_kernels()
    assert unnamed() == []


def test_arguments_are_held_against_the_public_function(on_path, tmp_path):
    on_path(make_source(tmp_path))
    takes = r"lookup_op takes \(x, scale=1.0\)"
    with pytest.raises(UnsupportedError, match=rf"explain: missing a required argument: 'x'; {takes}"):
        explain("lookup_op")
    with pytest.raises(UnsupportedError, match=rf"explain: got an unexpected keyword argument 'sale'; {takes}"):
        explain("lookup_op", 1, sale=2)
    with pytest.raises(UnsupportedError, match=rf"explain: too many positional arguments; {takes}"):
        explain("lookup_op", 1, 2, 3)


def test_a_package_without_metadata_and_pyproject_is_named(on_path, tmp_path):
    folder = make_source(tmp_path, project=None)
    on_path(folder, folder)
    assert unnamed() == [str(folder / "turbo_lookup")]
    with pytest.raises(UnsupportedError) as error:
        explain("lookup_op", 1)
    assert f"Nothing says which ops are in {folder / 'turbo_lookup'}: no metadata" in str(error.value)


def test_without_any_op_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("src")])
    with pytest.raises(UnsupportedError, match="there are none: no wheel with ops is installed"):
        explain("gemm")
    assert main(["doctor"]) == 0
    assert "there are none: no wheel with ops is installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "project",
    [PROJECT.replace("turbo-lookup", "lookup"), PROJECT.replace("turbo-lookup", "turbo-other"), "not = [TOML", ""],
    ids=["not ours", "of another package", "damaged", "empty"],
)
def test_a_pyproject_of_something_else_says_nothing(on_path, tmp_path, project):
    on_path(make_source(tmp_path, project=None))
    (tmp_path / "pyproject.toml").write_text(project)
    assert "lookup_op" not in entry_points("turbo_core.ops")
    assert "turbo-lookup" not in versions()


def test_a_folder_of_another_name_is_no_checkout(on_path, tmp_path):
    folder = make_source(tmp_path).rename(tmp_path / "lib")
    on_path(folder)
    assert "turbo-lookup" not in {checkout.name for checkout in checkouts()}


def test_a_folder_that_is_no_package_is_no_checkout(on_path, tmp_path):
    """Python takes a folder without __init__.py for a part of a package."""
    folder = make_source(tmp_path)
    (folder / "turbo_lookup" / "__init__.py").unlink()
    on_path(folder)
    assert "turbo-lookup" not in versions() and "lookup_op" not in entry_points("turbo_core.ops")


def test_a_checkout_behind_another_place_is_not_taken(on_path, tmp_path):
    first = make_source(tmp_path / "first", PROJECT.replace("3.1.4", "1.0"))
    second = make_source(tmp_path / "second", PROJECT.replace("lookup_op", "gone_op"))
    on_path(first, second)
    assert versions()["turbo-lookup"] == "1.0"
    assert {"lookup_op", "gone_op"} & entry_points("turbo_core.ops").keys() == {"lookup_op"}


def test_an_installed_wheel_is_found_by_its_metadata(on_path, tmp_path):
    folder = make_source(tmp_path, project=None)
    on_path(make_metadata(folder, "0.9"))
    assert versions()["turbo-lookup"] == "0.9" and "lookup_op" in entry_points("turbo_core.ops")
    assert unnamed() == []


def test_a_checkout_speaks_for_its_installed_wheel(on_path, tmp_path):
    source = make_source(tmp_path)
    on_path(source, make_metadata(tmp_path / "site", "0.9", op="removed_op"))
    assert versions()["turbo-lookup"] == "3.1.4"
    assert {"lookup_op", "removed_op"} & entry_points("turbo_core.ops").keys() == {"lookup_op"}


def test_of_two_installed_wheels_the_first_on_the_path_counts(on_path, tmp_path):
    on_path(make_metadata(tmp_path / "a", "2.0"), make_metadata(tmp_path / "b", "1.0"))
    assert versions()["turbo-lookup"] == "2.0"


def test_the_meta_package_is_one_of_the_wheels(monkeypatch, tmp_path):
    info = tmp_path / "primus_turbo-7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: primus-turbo\nVersion: 7.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert versions() == {"primus-turbo": "7.0"}


def test_other_distributions_are_told_where_asked_for():
    assert "pytest" not in versions()
    assert versions(("pytest",))["pytest"] == pytest.__version__


def test_project_files_are_read_as_toml_reads_them():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    root = Path(turbo_core.__file__).parents[4]
    files = sorted(root.glob("packages/*/pyproject.toml"))
    assert files
    for file in files:
        project = tomllib.loads(file.read_text())["project"]
        sections = read_project(file)
        assert (sections["project"]["name"], sections["project"]["version"]) == (project["name"], project["version"])
        for group, points in project.get("entry-points", {}).items():
            assert sections[f"project.entry-points.{group}"] == points


# --- the other primus_turbo ------------------------------------------------------------------------------------------


def make_meta_package(folder, init, *others):
    package = folder / "primus_turbo"
    (package / "pytorch").mkdir(parents=True)
    (package / "py.typed").touch()
    (package / "__init__.py").write_text(init)
    for name in others:
        (package / name).touch()
    return package


OURS = "from turbo_core.lazy import attach\n"


@pytest.mark.parametrize(
    ("init", "others", "says"),
    [
        (OURS, (), None),
        ("raise RuntimeError('imported')\n", (), "is another library; AMD's Primus-Turbo has the same import name"),
        (OURS, ("pytorch/_C.cpython-312.so",), "holds files of another library (_C.cpython-312.so)"),
    ],
)
def test_a_library_of_the_same_name_is_told_without_importing_it(monkeypatch, tmp_path, init, others, says):
    package = make_meta_package(tmp_path, init, *others)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    monkeypatch.delitem(sys.modules, "primus_turbo", raising=False)
    found = foreign_namesake()
    if says is None:
        assert found is None
    else:
        assert f"{package} {says}" in found and "pip uninstall primus_turbo" in found and "turbo_gemm" in found
    assert "primus_turbo" not in sys.modules


def test_of_our_own_meta_package_there_is_nothing_to_say():
    pytest.importorskip("primus_turbo")
    assert foreign_namesake() is None


def test_without_the_meta_package_there_is_nothing_to_say(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.PathFinder])
    monkeypatch.delitem(sys.modules, "primus_turbo", raising=False)
    assert foreign_namesake() is None
