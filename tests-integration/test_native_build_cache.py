# SPDX-License-Identifier: MIT
"""The cache of compiled kernels and objects: what is found again, what is not, and what happens to its folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tools import wheelhouse
from turbo_testing.device_compiler import CSRC_COMMON, zig

CMAKE = CSRC_COMMON / "cmake"
KERNEL = """
#include "value.h"  // a comment
extern "C" __attribute__((global)) void tiny(float *x) { x[0] = VALUE; }
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_cache", CMAKE / "compile_cache.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look there
    spec.loader.exec_module(made)
    yield made
    del sys.modules[spec.name]


@dataclass
class Tree:
    """A folder with one kernel and one header, built into a cache that trees share."""

    folder: Path
    cache: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "tiny.hip").write_text(KERNEL)
        (self.folder / "value.h").write_text("#define VALUE 2.0f\n")

    @property
    def output(self) -> Path:
        return self.folder / "tiny.gfx950.hsaco"

    def command(self, *flags: str, arch: str = "gfx950", identity: str = "one") -> list[str]:
        tool = [sys.executable, "-B", str(CMAKE / "compile_kernels.py"), "compile", "--arch", arch]
        files = ["--source", str(self.folder / "tiny.hip"), "--output", str(self.output)]
        compilers = ["--compiler", f"{zig()};clang", "--linker", f"{zig()};ld.lld"]
        return [*tool, *files, *compilers, "--cache", str(self.cache), "--identity", identity, "--", *flags]

    def compile(self, *flags: str, **options: str) -> bool:
        """Whether the code object came from the cache."""
        done = subprocess.run(self.command(*flags, **options), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        self.messages = done.stderr
        return done.stdout.strip().startswith("tiny gfx9") and done.stdout.endswith(" cached\n")


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path / "first", tmp_path / "cache")


# --- kernels ----------------------------------------------------------------------------------------------------------


def test_the_same_kernel_is_compiled_once_wherever_it_lies(tree, tmp_path):
    assert not tree.compile(f"-I{tree.folder}")
    other = Tree(tmp_path / "second", tree.cache)
    os.utime(other.folder / "value.h", (1, 1))
    assert other.compile(f"-I{other.folder}", "-isystem", "/nowhere")
    assert other.output.read_bytes() == tree.output.read_bytes()
    assert (other.folder / "tiny.gfx950.hsaco.json").read_text() == (
        tree.folder / f"{tree.output.name}.json"
    ).read_text()
    dependencies = (other.folder / "tiny.gfx950.hsaco.d").read_text()
    assert str(other.folder / "value.h") in dependencies and str(tree.folder) not in dependencies


def test_what_decides_is_part_of_the_key(tree):
    assert not tree.compile()
    assert not tree.compile("-DUNUSED=1")
    assert not tree.compile(identity="another")
    first = tree.output.read_bytes()
    (tree.folder / "value.h").write_text("#define VALUE 3.0f\n")
    assert not tree.compile()
    assert tree.output.read_bytes() != first
    (tree.folder / "value.h").write_text("// as it was, and a comment more\n#define VALUE 2.0f\n")
    assert tree.compile()
    assert tree.output.read_bytes() == first
    assert not tree.compile("-g"), "debug information holds paths"


def test_warnings_are_said_again(tree):
    (tree.folder / "tiny.hip").write_text(KERNEL.replace("x[0]", "int unused_name; x[0]"))
    for cached in (False, True):
        assert tree.compile() is cached
        assert "unused_name" in tree.messages


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"?"])
def test_a_damaged_entry_is_made_again_and_said(tree, damage):
    tree.compile()
    good = tree.output.read_bytes()
    (entry,) = tree.cache.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert not tree.compile()
    assert f"{entry} is damaged: compiling again" in tree.messages
    assert tree.output.read_bytes() == good
    assert tree.compile()


def test_two_builds_at_once(tree, tmp_path):
    other = Tree(tmp_path / "second", tree.cache)
    running = [subprocess.Popen(each.command(), stdout=subprocess.DEVNULL) for each in (tree, other)]
    assert [process.wait() for process in running] == [0, 0]
    assert tree.output.read_bytes() == other.output.read_bytes()
    assert len(list(tree.cache.iterdir())) == 1


def test_a_folder_that_cannot_be_written_to_is_no_failure(tree):
    tree.cache.write_text("a file")
    assert not tree.compile()
    assert f"not stored in {tree.cache}" in tree.messages and tree.output.exists()


# --- the folder -------------------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_leaves(module, tmp_path):
    entry = module.Entry(b"x" * 1000, "")
    cache = module.CompileCache(tmp_path, limit=3500)
    for age, key in ((300, "oldest"), (200, "used"), (100, "newer")):
        cache.put(key, entry)
        os.utime(tmp_path / key, (2000 - age, 2000 - age))
    assert cache.get("used") == entry
    cache.put("newest", entry)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newer", "newest", "used"]


def test_half_written_files_of_killed_builds_leave(module, tmp_path):
    for name, modified in ((".new-old", 1), (".new-now", None)):
        (tmp_path / name).touch()
        if modified:
            os.utime(tmp_path / name, (modified, modified))
    module.CompileCache(tmp_path).put("key", module.Entry(b"", ""))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-now", "key"]


# --- host code --------------------------------------------------------------------------------------------------------


def test_objects_of_the_host_compiler(tmp_path):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs g++ or clang++")

    def compile_in(folder: Path, *flags: str) -> bytes:
        folder.mkdir(exist_ok=True)
        (folder / "value.h").write_text(value)
        (folder / "small.cpp").write_text('#include "value.h"\nint small() { return VALUE; }\n')
        files = ["-MD", "-MT", "small.o", "-MF", str(folder / "small.d"), "-o", str(folder / "small.o"), "-c"]
        command = [compiler, *flags, f"-I{folder}", *files, str(folder / "small.cpp")]
        launcher = [sys.executable, "-B", str(CMAKE / "compile_host.py"), str(tmp_path / "cache")]
        done = subprocess.run([*launcher, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "value.h" in (folder / "small.d").read_text()
        return (folder / "small.o").read_bytes()

    def entries() -> int:
        return len(list((tmp_path / "cache").iterdir())) if (tmp_path / "cache").exists() else 0

    value = "#define VALUE 1\n"
    first = compile_in(tmp_path / "one", "-O2")
    assert (compile_in(tmp_path / "two", "-O2"), entries()) == (first, 1)
    assert compile_in(tmp_path / "two", "-O2", "-g") and entries() == 1
    compile_in(tmp_path / "two", "-O1")
    assert entries() == 2
    value = "#define VALUE 2\n"
    assert compile_in(tmp_path / "two", "-O2") != first and entries() == 3


def test_an_error_of_the_host_compiler_is_its_own(tmp_path):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs g++ or clang++")
    (tmp_path / "wrong.cpp").write_text("int wrong( {\n")
    launcher = [sys.executable, "-B", str(CMAKE / "compile_host.py"), str(tmp_path / "cache")]
    command = [compiler, "-c", str(tmp_path / "wrong.cpp"), "-o", str(tmp_path / "wrong.o")]
    done = subprocess.run([*launcher, *command], capture_output=True, text=True)
    assert done.returncode != 0 and "wrong.cpp:1" in done.stderr
    assert not (tmp_path / "cache").exists()


# --- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "jobs, at_once, each", [("", 2, "3"), ("1", 1, "1"), ("2", 2, "1"), ("5", 2, "2"), ("many", 2, "many")]
)
def test_wheels_that_are_built_at_once_share_max_jobs(monkeypatch, jobs, at_once, each):
    monkeypatch.setenv("MAX_JOBS", jobs)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert wheelhouse.share_jobs() == at_once
    assert os.environ["MAX_JOBS"] == each
