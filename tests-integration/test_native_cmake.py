# SPDX-License-Identifier: MIT
"""csrc-common's CMake module on small projects: compiler and flags, architectures, rebuilds, what fails a build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turbo_testing.device_compiler import ARCHS, CSRC_COMMON, zig

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
find_package(Python REQUIRED COMPONENTS Interpreter)
include("{common}/cmake/TurboKernels.cmake")
turbo_add_kernels(kernels DESTINATION pkg/lib
  SOURCES plain.hip special_gfx950.hip
  INCLUDES "${{CMAKE_CURRENT_SOURCE_DIR}}/own"
  FLAGS -DEXTRA=1)
turbo_add_kernel_library(small_kernels DESTINATION pkg/lib SOURCES host.cpp)
"""
PLAIN = """
#include "turbo/arch.h"
#include "value.h"
TURBO_KERNEL(64, 1) void plain(float *x) { x[turbo::thread_index()] = VALUE + EXTRA; }
"""
SPILLING = """
#include "turbo/arch.h"
// An array that is indexed by what is only known at run time lives in scratch memory.
TURBO_KERNEL(64, 1) void plain(int *x) {
  volatile int table[64];
  for (int i = 0; i < 64; ++i) table[i] = x[i];
  x[turbo::thread_index()] = table[x[turbo::thread_index()] & 63];
}
"""
HOST = (
    '#include "turbo/kernels.h"\nextern "C" int turbo_small_check(int d) { return turbo::check_device(d, "plain"); }\n'
)


class Project:
    def __init__(self, folder: Path) -> None:
        self.source, self.build_folder, self.cache = folder / "source", folder / "build", folder / "cache"
        (self.source / "own").mkdir(parents=True)
        self.write("CMakeLists.txt", PROJECT.format(common=CSRC_COMMON))
        self.write("plain.hip", PLAIN)
        self.write("special_gfx950.hip", PLAIN.replace("plain", "special"))
        self.write("host.cpp", HOST)
        self.write("own/value.h", "#define VALUE 2\n")

    def write(self, name: str, text: str) -> None:
        (self.source / name).write_text(text)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        environment = {
            key: value for key, value in os.environ.items() if key not in ("GPU_ARCHS", "MAX_JOBS", "ROCM_PATH")
        }
        environment |= {"ROCM_HOME": "/nowhere/rocm", "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"TURBO_BUILD_CACHE": str(self.cache)} | variables
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def configure(self, *options: str, **variables: str) -> subprocess.CompletedProcess:
        where = [
            "-G",
            "Ninja",
            "-S",
            str(self.source),
            "-B",
            str(self.build_folder),
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        trusted = ["-DCMAKE_CXX_COMPILER_WORKS=ON", "-DCMAKE_CXX_ABI_COMPILED=ON"]  # saves a second for each test
        return self.run("cmake", *where, *trusted, *options, **variables)

    def build(self, *targets: str, **variables: str) -> subprocess.CompletedProcess:
        return self.run(
            "cmake", "--build", str(self.build_folder), "-j1", "--target", *(targets or ("kernels",)), **variables
        )

    def objects(self) -> list[str]:
        return sorted(path.name for path in (self.build_folder / "kernels").glob("*.hsaco"))


@pytest.fixture
def project(tmp_path) -> Project:
    for program in ("cmake", "ninja"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    zig()
    return Project(tmp_path)


def failure(done: subprocess.CompletedProcess) -> str:
    """What a failed run said, without the line breaks that CMake puts into messages."""
    assert done.returncode != 0, done.stdout
    return " ".join((done.stdout + done.stderr).split())


def good(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- architectures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "archs, objects",
    [
        ("", ["plain.gfx942.hsaco", "plain.gfx950.hsaco", "special.gfx950.hsaco"]),
        ("gfx942", ["plain.gfx942.hsaco"]),
        ("gfx950", ["plain.gfx950.hsaco", "special.gfx950.hsaco"]),
        ("gfx942;gfx950", ["plain.gfx942.hsaco", "plain.gfx950.hsaco", "special.gfx950.hsaco"]),
        ("gfx950, gfx942", ["plain.gfx942.hsaco", "plain.gfx950.hsaco", "special.gfx950.hsaco"]),
    ],
)
def test_gpu_archs(project, archs, objects):
    good(project.configure(GPU_ARCHS=archs))
    good(project.build())
    assert project.objects() == objects


def test_an_unknown_architecture_is_refused(project):
    text = failure(project.configure(GPU_ARCHS="gfx942;gfx90a"))
    assert "gfx90a is not supported; accepted are gfx942;gfx950" in text


def test_native_asks_the_tools(project, tmp_path):
    folder = tmp_path / "rocm" / "bin"
    folder.mkdir(parents=True)
    tool = folder / "rocm_agent_enumerator"
    tool.write_text("#!/bin/sh\nprintf 'gfx000\\ngfx950\\ngfx950\\ngfx1036\\n'\n")
    tool.chmod(0o755)
    output = good(project.configure(GPU_ARCHS="native", ROCM_HOME=str(tmp_path / "rocm")))
    assert "kernels for gfx950\n" in output


def test_native_without_a_gpu_builds_for_both(project):
    output = good(project.configure(GPU_ARCHS="native"))
    assert "no AMD GPU was found" in output and "kernels for gfx942;gfx950" in output


# --- compiler ---------------------------------------------------------------------------------------------------------


def fake_rocm(folder: Path, names: tuple[str, ...] = ("amdclang++", "ld.lld")) -> tuple[Path, Path]:
    """A ROCm whose compiler writes down how it was called and lets zig do the work. Returns its root and the log."""
    binaries, log = folder / "rocm" / "lib" / "llvm" / "bin", folder / "calls.jsonl"
    binaries.mkdir(parents=True)
    for name in names:
        script = binaries / name
        script.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"open({str(log)!r}, 'a').write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n"
            f"os.execv({zig()!r}, ['zig', {'ld.lld' if name == 'ld.lld' else 'clang'!r}, *sys.argv[1:]])\n"
        )
        script.chmod(0o755)
    return folder / "rocm", log


@pytest.mark.parametrize("variable", ["ROCM_HOME", "ROCM_PATH"])
def test_rocms_compiler_is_called_with_the_right_flags(project, tmp_path, variable):
    rocm, log = fake_rocm(tmp_path)
    variables = {"ROCM_HOME": "", variable: str(rocm)}
    output = good(project.configure(**variables))
    assert f"device compiler of ROCm, {rocm}" in output
    log.unlink()  # the question for the version
    good(project.build(**variables))
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    compiles = [call for call in calls if call[0] == "amdclang++" and "-E" not in call]
    links = [call for call in calls if call[0] == "ld.lld"]
    assert len(compiles) == len(links) == 3
    done = set()
    for call in compiles:
        source = next(Path(word) for word in call if word.endswith(".hip"))
        (arch,) = (word.removeprefix("--offload-arch=") for word in call if word.startswith("--offload-arch="))
        done.add((source.name, arch))
        for flag in (
            "--offload-device-only",
            "-nogpuinc",
            "-nogpulib",
            "-mcode-object-version=5",
            "-fuse-cuid=none",
            "-std=c++17",
            "-O3",
            "-DEXTRA=1",
            f"-I{CSRC_COMMON}/include",
            f"-I{project.source}/own",
        ):
            assert flag in call, flag
        assert call[call.index("-x") + 1] == "hip"
        output_file = next(word for word in call if word.endswith(".hsaco.o"))
        assert f".{arch}." in output_file
    assert done == {("plain.hip", "gfx942"), ("plain.hip", "gfx950"), ("special_gfx950.hip", "gfx950")}
    for call in links:
        assert call[1:5] == ["-m", "elf64_amdgpu", "--no-undefined", "-shared"]


def test_a_rocm_without_compiler_leaves_it_to_ziglang(project, tmp_path):
    rocm, _ = fake_rocm(tmp_path, names=("amdclang++",))  # no linker
    assert "device compiler of ziglang" in good(project.configure(ROCM_HOME=str(rocm)))


def test_no_compiler_at_all(project):
    text = failure(project.configure("-DTURBO_DEVICE_COMPILER=ROCM"))
    assert "no compiler for AMD GPUs (no amdclang++ (or clang++) with ld.lld under /nowhere/rocm)" in text
    assert "Set ROCM_HOME to a ROCm installation, or pip install ziglang" in text


# --- rebuilding, jobs, audit ------------------------------------------------------------------------------------------


def test_a_changed_header_rebuilds_what_includes_it(project):
    good(project.configure(GPU_ARCHS="gfx942"))
    good(project.build())
    assert "no work to do" in good(project.build())
    before = (project.build_folder / "kernels" / "plain.gfx942.hsaco").read_bytes()
    project.write("own/value.h", "#define VALUE 3\n")
    good(project.build())
    assert (project.build_folder / "kernels" / "plain.gfx942.hsaco").read_bytes() != before


def test_equal_sources_give_equal_bytes(project, tmp_path):
    good(project.configure(GPU_ARCHS="gfx950"))
    good(project.build())
    other = Project(tmp_path / "elsewhere")
    good(other.configure(GPU_ARCHS="gfx950"))
    good(other.build())
    for name in project.objects():
        assert (project.build_folder / "kernels" / name).read_bytes() == (
            other.build_folder / "kernels" / name
        ).read_bytes()


def test_max_jobs(project):
    good(project.configure(MAX_JOBS="3"))
    text = (project.build_folder / "build.ninja").read_text() + (
        project.build_folder / "CMakeFiles" / "rules.ninja"
    ).read_text()
    assert "pool turbo\n  depth = 3" in text
    assert text.count("pool = turbo") >= 3 + 4  # code objects and host sources
    assert "MAX_JOBS is 'many'" in failure(Project(project.source.parent / "other").configure(MAX_JOBS="many"))


def test_scratch_fails_the_build(project):
    project.write("plain.hip", SPILLING)
    good(project.configure(GPU_ARCHS="gfx942"))
    text = failure(project.build())
    assert "error: plain [gfx942] uses " in text and "bytes of scratch a lane" in text
    assert project.objects() == []
    good(project.configure("-DTURBO_ALLOW_SPILLS=ON", GPU_ARCHS="gfx942"))
    assert "warning: plain [gfx942] uses" in good(project.build())


def test_the_table_of_resources(project):
    good(project.configure())
    output = good(project.build())
    whole = json.loads((project.build_folder / "kernels" / "resources.json").read_text())
    assert whole["single_arch"] == ["special.gfx950"]
    table = whole["kernels"]
    assert {(row["object"], row["kernel"], row["arch"]) for row in table} == {
        ("plain", "plain", "gfx942"),
        ("plain", "plain", "gfx950"),
        ("special", "special", "gfx950"),
    }
    for row in table:
        assert (row["threads"], row["kernarg"], row["lds"], row["scratch"], row["occupancy"]) == (64, 8, 0, 0, 8)
        assert row["vgpr"] > 0
    assert "kernel   arch" in output and "waves/SIMD" in output


def test_the_compiler_cache_is_used(project, tmp_path):
    log = tmp_path / "cached"
    launcher = tmp_path / "mycache"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec "$@"\n')
    launcher.chmod(0o755)
    good(project.configure(f"-DTURBO_COMPILER_CACHE={launcher}"))
    good(project.build("small_kernels"))
    assert "host.cpp" in log.read_text()


@pytest.mark.parametrize("arch", ARCHS)
def test_installed_files(project, tmp_path, arch):
    good(project.configure(f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'out'}", GPU_ARCHS=arch))
    good(project.build("all"))
    good(project.run("cmake", "--install", str(project.build_folder)))
    names = sorted(path.name for path in (tmp_path / "out" / "pkg" / "lib").iterdir())
    special = ["special.gfx950.hsaco"] if arch == "gfx950" else []
    assert names == sorted(["libsmall_kernels.so", f"plain.{arch}.hsaco", "resources.json", *special])
