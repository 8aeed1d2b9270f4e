# SPDX-License-Identifier: MIT
"""The wheels with native code: what a build puts into them, from the tree, from an sdist and as an editable install.

Builds use this environment's build tools (`--no-build-isolation`), so nothing is downloaded; test_isolation.py shows
that the declared build requirements are enough.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from turbo_core import audit as audits
from turbo_core.code_object import CodeObject
from turbo_testing.device_compiler import ARCHS, CSRC_COMMON, ROOT

pytestmark = pytest.mark.xdist_group("native_build")  # one worker builds once

NATIVE = ["turbo-attention", "turbo-gemm", "turbo-grouped-gemm", "turbo-norm-act", "turbo-quant"]
SINGLE_ARCH = {"turbo-gemm": ["gemm_mx.gfx950"], "turbo-grouped-gemm": ["grouped_gemm_mx.gfx950"]}
each_package = pytest.mark.parametrize("package", NATIVE, scope="module")
LIMIT = 5 * 1024 * 1024
NOT_BUILT_HERE = re.compile(r"torch|c10|hip|hsa|rocm|amd", re.IGNORECASE)


def needs_build_tools() -> None:
    for module in ("scikit_build_core", "pybind11", "ziglang", "build"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the package {module}")


def run(*command: str, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("GPU_ARCHS", "MAX_JOBS", "ROCM_HOME")}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def copy_tree(folder: Path, package: str) -> Path:
    """A copy of what a build of the package needs, so that it cannot disturb the tree's own build folder."""
    leave_out = shutil.ignore_patterns("build", "dist", "__pycache__")
    shutil.copytree(CSRC_COMMON, folder / "csrc-common", ignore=leave_out)
    return Path(shutil.copytree(ROOT / "packages" / package, folder / "packages" / package, ignore=leave_out))


def pip_wheel(source: Path, output: Path, **variables: str) -> Path:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(output),
        str(source),
        **variables,
    )
    (wheel,) = output.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def tree(tmp_path_factory, package) -> Path:
    needs_build_tools()
    return copy_tree(tmp_path_factory.mktemp("tree"), package)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, tree) -> Path:
    return pip_wheel(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory, wheel) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def wheel_of_sdist(tmp_path_factory, tree) -> Path:
    """From an sdist, away from the repository, for one architecture."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(folder), str(tree))
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return pip_wheel(folder / sdist.name.removesuffix(".tar.gz"), folder / "wheel", GPU_ARCHS="gfx942")


def code_object_names(package: str) -> set[str]:
    """foo.hip is compiled for each architecture, foo_gfx950.hip is foo for that one alone."""
    names = set()
    for source in (ROOT / "packages" / package / "csrc" / "kernels").glob("*.hip"):
        only = [arch for arch in ARCHS if source.stem.endswith(f"_{arch}")]
        for arch in only or ARCHS:
            names.add(f"{source.stem.removesuffix(f'_{arch}')}.{arch}.hsaco")
    return names


def shared_objects(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.so"))
    assert len(found) == 2, found
    return found


# --- contents ---------------------------------------------------------------------------------------------------------


@each_package
def test_tags_and_size(wheel):
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"turbo_\w+-\d+\.\d+\.\d+-{version}-{version}-(many)?linux_\w+\.whl", wheel.name)
    assert wheel.stat().st_size < LIMIT


@each_package
def test_contents(wheel, package):
    name = package.replace("-", "_")
    with zipfile.ZipFile(wheel) as archive:
        inside = {entry for entry in archive.namelist() if not entry.startswith(f"{name}-")}
    source = ROOT / "packages" / package
    python = {
        path.relative_to(source / "src").as_posix()
        for path in (source / "src").rglob("*")
        if path.suffix in (".py", ".typed")
    }
    native = {entry for entry in inside if not entry.endswith((".py", "py.typed"))}
    assert inside - native == python
    expected = {f"{name}/lib/{file}" for file in code_object_names(package)}
    expected |= {f"{name}/lib/resources.json", f"{name}/lib/lib{name}_kernels.so"}
    extensions = {entry for entry in native if entry.startswith(f"{name}/pytorch/_C.")}
    assert len(extensions) == 1
    assert native - extensions == expected


@each_package
def test_wheel_of_the_sdist(wheel, wheel_of_sdist):
    """The same but for the architecture that it was not asked for."""
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(wheel_of_sdist) as other:
        full, half = set(one.namelist()), set(other.namelist())
    assert half < full
    assert {entry.split(".")[1] for entry in full - half} == {"gfx950"}
    assert any(entry.endswith(".gfx942.hsaco") for entry in half)


@each_package
def test_wheel_without_device_code(tree, tmp_path, package):
    """GPU_ARCHS=none: the Python files and an empty table, made without any compiler."""
    name = package.replace("-", "_")
    wheel = pip_wheel(tree, tmp_path, GPU_ARCHS="none", CXX="/nowhere/c++")
    with zipfile.ZipFile(wheel) as archive:
        inside = {entry for entry in archive.namelist() if not entry.startswith(f"{name}-")}
        table = json.loads(archive.read(f"{name}/lib/resources.json"))
        archive.extractall(tmp_path / "unpacked")
    assert {entry for entry in inside if not entry.endswith((".py", "py.typed"))} == {f"{name}/lib/resources.json"}
    assert table == {"version": 1, "single_arch": [], "kernels": []}
    program = f"from turbo_core.native import no_device_code; print(no_device_code({name!r}))"
    path = os.pathsep.join((str(tmp_path / "unpacked"), str(ROOT / "packages" / "turbo-core" / "src")))
    reason = run(sys.executable, "-S", "-c", program, PYTHONPATH=path).strip()
    assert (
        reason == f"{package} was built without device code (GPU_ARCHS=none); build it with GPU_ARCHS=gfx942 or gfx950"
    )


# --- no torch, no ROCm ------------------------------------------------------------------------------------------------


@each_package
def test_nothing_of_torch_or_rocm_is_linked(unpacked):
    elf = pytest.importorskip("elftools.elf.elffile", reason="needs the package pyelftools")
    for path in shared_objects(unpacked):
        with path.open("rb") as file:
            library = elf.ELFFile(file)
            dynamic = library.get_section_by_name(".dynamic")
            needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
            runpath = [tag.runpath for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_RUNPATH"]
            rpath = [tag.rpath for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_RPATH"]
            symbols = list(library.get_section_by_name(".dynsym").iter_symbols())
        undefined = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
        defined = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name}
        system = re.compile(r"lib(c|m|dl|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux.*|libturbo_\w+_kernels\.so")
        assert [name for name in needed if not system.fullmatch(name)] == [], path.name
        assert [name for name in undefined if NOT_BUILT_HERE.search(name)] == [], path.name
        if path.name.startswith("lib"):
            assert (runpath, rpath) == ([], []), "the library needs nothing that is not in the system"
            assert [name for name in defined if not name.startswith("turbo_")] == [], "only the C interface is visible"
        else:
            assert (runpath, rpath) == (["$ORIGIN/../lib"], [])


@each_package
def test_it_loads_and_answers_without_torch(unpacked, package):
    """In an interpreter without any package: the C library through ctypes, then the extension from its file."""
    library, extension = sorted(shared_objects(unpacked), key=lambda path: not path.name.startswith("lib"))
    program = f"""
import ctypes, importlib.util, sys
assert importlib.util.find_spec("torch") is None
library = ctypes.CDLL({str(library)!r})
library.{package.replace("-", "_")}_last_error.restype = ctypes.c_char_p
assert library.{package.replace("-", "_")}_check(0) == 2
assert b"no HIP run time" in library.{package.replace("-", "_")}_last_error()
spec = importlib.util.spec_from_file_location("_C", {str(extension)!r})
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
assert native.check(0) == native.ERROR_NO_RUNTIME
assert "no HIP run time" in native.last_error()
print("answered")
"""
    assert run(sys.executable, "-I", "-S", "-c", program, ROCM_HOME="/nowhere").strip() == "answered"


# --- code objects -----------------------------------------------------------------------------------------------------


@each_package
def test_code_objects(unpacked, package):
    """Both architectures have the same kernels, but for sources of one; none spills, uses scratch or needs a symbol."""
    kernels: dict[str, set[str]] = {arch: set() for arch in ARCHS}
    names = code_object_names(package)
    both = {
        name.split(".")[0] for name in names if all(f"{name.split('.')[0]}.{arch}.hsaco" in names for arch in ARCHS)
    }
    for path in sorted(unpacked.rglob("*.hsaco")):
        code_object = CodeObject(path)
        arch = path.name.split(".")[-2]
        assert code_object.arch == arch
        assert code_object.abi_version == 3, "code object version 5, which every ROCm 6 and 7 loads"
        assert code_object.undefined_symbols() == []
        for kernel in code_object.kernels():
            assert kernel.problems() == []
            assert kernel.occupancy > 0, f"{kernel.kernel} cannot be launched"
            kernels[arch].add(f"{path.name.split('.')[0]}/{kernel.kernel}")
    shared = [{kernel for kernel in kernels[arch] if kernel.split("/")[0] in both} for arch in ARCHS]
    assert shared[0] == shared[1] != set()
    table = json.loads(next(unpacked.rglob("resources.json")).read_text())["kernels"]
    for arch in ARCHS:
        assert {f"{row['object']}/{row['kernel']}" for row in table if row["arch"] == arch} == kernels[arch]


@each_package
def test_audit(unpacked, package, monkeypatch):
    """What `python -m turbo_core audit` says of the HIP kernels of a wheel, as it was built."""
    name = package.replace("-", "_")
    module = ModuleType(name)
    module.__path__ = [str(unpacked / name)]
    monkeypatch.setattr(audits, "find_kernels", lambda: {package: lambda arch, full: audits.code_objects(module, arch)})
    rows = list(audits.audit())
    assert [(row.resources.kernel, row.resources.arch, row.failures) for row in rows if row.failures] == []
    table = json.loads((unpacked / name / "lib" / "resources.json").read_text())
    assert {(row.resources.kernel, row.resources.arch) for row in rows} == {
        (row["kernel"], row["arch"]) for row in table["kernels"]
    }
    assert table["single_arch"] == SINGLE_ARCH.get(package, [])


# --- build requirements and options -----------------------------------------------------------------------------------


@each_package
@pytest.mark.parametrize(
    "rocm, archs, required",
    [
        (None, None, True),
        (None, "", True),
        (None, "gfx942", True),
        (None, "gfx942;gfx950", True),
        (None, "native", True),
        (None, "none", False),
        ("/opt/rocm", None, False),
        ("/opt/rocm", "gfx950", False),
    ],
)
def test_ziglang_is_required_where_kernels_are_compiled_without_rocm(package, rocm, archs, required, monkeypatch):
    backend = pytest.importorskip("scikit_build_core.build", reason="needs the package scikit_build_core")
    monkeypatch.chdir(ROOT / "packages" / package)
    for variable, value in (("ROCM_HOME", rocm), ("GPU_ARCHS", archs)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    asked = {re.split(r"[=<>~]", requirement)[0] for requirement in backend.get_requires_for_build_wheel({})}
    assert ("ziglang" in asked) is required
    assert "turbo-core" not in asked, "turbo-core is not needed for a build: csrc-common is in the sdist"
    assert "ziglang" not in {
        re.split(r"[=<>~]", requirement)[0] for requirement in backend.get_requires_for_build_sdist({})
    }


@each_package
@pytest.mark.parametrize(
    "frameworks, text", [("JAX", "has no JAX front end yet"), ("PYTORCH;MXNET", "MXNET is unknown")]
)
def test_other_frameworks_are_refused(tree, tmp_path, frameworks, text):
    command = ["cmake", "-G", "Ninja", "-S", str(tree), "-B", str(tmp_path), f"-DPRIMUS_TURBO_FRAMEWORK={frameworks}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert text in " ".join(done.stderr.split())


# --- editable install -------------------------------------------------------------------------------------------------


class Editable:
    """An environment with an editable install of a copy of the package, and the documented command that rebuilds it."""

    def __init__(self, folder: Path, source: Path) -> None:
        venv.create(folder, with_pip=False)
        self.source, self.python = source, folder / "bin" / "python"
        site_packages = next((folder / "lib").glob("python*/site-packages"))
        ours = {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
        (site_packages / "build_tools.pth").write_text("".join(f"{path}\n" for path in sorted(ours)))
        (site_packages / "core.pth").write_text(f"{ROOT / 'packages' / 'turbo-core' / 'src'}\n")

    def install(self) -> None:
        command = [
            "-m",
            "pip",
            f"--python={self.python}",
            "install",
            "--no-deps",
            "--no-build-isolation",
            "-e",
            str(self.source),
        ]
        run(sys.executable, *command, GPU_ARCHS="gfx942")

    def ask(self, program: str) -> str:
        return run(str(self.python), "-c", program).strip()


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("package", ["turbo-norm-act"], scope="module")  # all wheels are built alike
def test_editable_install(tree, tmp_path, package):
    """A Python change is there at once; one of a .hip or .cpp file after the install command was repeated."""
    name = package.replace("-", "_")
    source = Path(shutil.copytree(tree, tree.parent / f"{package}-editable", ignore=shutil.ignore_patterns("build")))
    editable = Editable(tmp_path / "env", source)
    editable.install()
    digest = f"""
import hashlib, pathlib, {name}.pytorch._C as native
files = sorted((pathlib.Path(native.__file__).parents[1] / "lib").glob("*.hsaco"))
print(*(hashlib.sha256(file.read_bytes()).hexdigest() for file in files), native.norm_backward_partials(10**6, 8, 0))
"""
    before = editable.ask(digest)

    replace(source / "src" / name / "__init__.py", "__name__,\n    {", '__name__,\n    {\n        "added_later": "os",')
    assert "added_later" in editable.ask(f"import {name}; print(dir({name}))")
    assert editable.ask(digest) == before

    replace(source / "csrc" / "kernels" / "norm_forward.h", "squares / a.dim + a.eps", "squares / a.dim + 2.0f * a.eps")
    replace(source / "csrc" / "kernels" / "norm.cpp", "row_bytes <= 16384 ? 1024", "row_bytes <= 16384 ? 1000")
    assert editable.ask(digest) == before
    editable.install()
    after = editable.ask(digest)
    assert (before.split()[-1], after.split()[-1]) == ("1024", "1000")
    *before, _ = before.split()  # by name: layernorm_backward, layernorm_forward, norm_parameter_sum, rmsnorm_...
    *after, _ = after.split()
    changed = [old != new for old, new in zip(before, after, strict=True)]
    assert changed == [False, True, False, False, True], "the forward kernels, of both norms, and nothing else"
