# SPDX-License-Identifier: MIT
"""Compiles one HIP source for one architecture, and makes the table of what the kernels use.

    compile_kernels.py compile --arch A --source S.hip --output O.hsaco --compiler CC --linker LD
                               [--cache FOLDER --identity TEXT] [-- flag ...]
    compile_kernels.py table --output resources.json [--single-arch foo.gfx950 ...] -- O.hsaco.json ...

TurboKernels.cmake calls it. `compile` writes O.hsaco, its dependency file O.hsaco.d and its resources O.hsaco.json, and
fails when a kernel spills registers or uses scratch memory. CC and LD are command lines with ';' between the words.
With --cache the code object comes from the cache of compile_cache.py, if it is there; TEXT tells one compiler from
another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from code_object import CodeObject
from compile_cache import CompileCache, Entry, key_of, may_be_cached, without_folders

# Compilation and linking are two steps because zig's clang cannot start a linker by itself; ROCm's takes the same
# steps. The odd ones among the flags:
#   -mcode-object-version=5   the oldest that current compilers write; loaded by every ROCm 6 and 7
#   -fuse-cuid=none           no symbol derived from the source's path: equal sources give equal bytes
#   -S -Xclang -emit-obj      an object file, where -c would make the driver link
#   -Xclang -dependency-file  -MD is ignored in a device-only compile
#   -ffp-contract=fast        a * b + c is one v_fma_f32 (HIP's own default, said aloud)
FLAGS = [
    *("-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib"),
    *("-mcode-object-version=5", "-fuse-cuid=none"),
    *("-std=c++17", "-O3", "-ffp-contract=fast", "-Wall", "-Wextra"),
]
TO_OBJECT = ["-S", "-Xclang", "-emit-obj"]
LINK_FLAGS = ["-m", "elf64_amdgpu", "--no-undefined", "-shared", "-s"]

# Heading, attribute: one column of the table each.
COLUMNS = (
    ("VGPR", "vgpr"),
    ("AGPR", "agpr"),
    ("SGPR", "sgpr"),
    ("LDS B", "lds"),
    ("scratch B", "scratch"),
    ("spills", "spills"),
    ("threads", "threads"),
    ("waves/SIMD", "occupancy"),
)


def run(command: list[str]) -> subprocess.CompletedProcess:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(f"failed with status {done.returncode}: {' '.join(command)}")
    return done


def compiler_line(options: argparse.Namespace, *words: str) -> list[str]:
    fixed = [*options.compiler.split(";"), f"--offload-arch={options.arch}", *FLAGS]
    return [*fixed, *options.flags, str(options.source), *words]


def preprocess(options: argparse.Namespace) -> str:
    """The source with its headers, without comments; writes the dependency file."""
    dependencies = ["-dependency-file", f"{options.output}.d", "-MT", str(options.output)]
    words = [word for flag in dependencies for word in ("-Xclang", flag)]
    return run(compiler_line(options, "-E", "-P", *words)).stdout


def make_code_object(options: argparse.Namespace) -> Entry:
    intermediate = Path(f"{options.output}.o")
    messages = run(compiler_line(options, *TO_OBJECT, "-o", str(intermediate))).stderr
    run([*options.linker.split(";"), *LINK_FLAGS, str(intermediate), "-o", str(options.output)])
    intermediate.unlink()
    return Entry(options.output.read_bytes(), messages)


def code_object_of(options: argparse.Namespace) -> tuple[Entry, bool]:
    """The code object, and whether it came from the cache."""
    before = preprocess(options)
    if options.cache is None or not may_be_cached(options.flags):
        return make_code_object(options), False
    cache = CompileCache(options.cache)
    flags = [*FLAGS, *TO_OBJECT, *LINK_FLAGS, *without_folders(options.flags)]
    key = key_of(before.encode(), options.identity, options.arch, options.source.name, *flags)
    if entry := cache.get(key):
        options.output.write_bytes(entry.data)
        return entry, True
    entry = make_code_object(options)
    if preprocess(options) == before:  # not one that was changed under the compiler's hands
        cache.put(key, entry)
    return entry, False


def compile_source(options: argparse.Namespace) -> int:
    started = time.monotonic()
    output: Path = options.output
    output.unlink(missing_ok=True)
    entry, cached = code_object_of(options)
    sys.stderr.write(entry.messages)
    name = output.name.removesuffix(f".{options.arch}.hsaco")
    took = "cached" if cached else f"{time.monotonic() - started:.1f} s"
    print(f"    {name} {options.arch} {took}", flush=True)
    code_object = CodeObject(output)
    kernels = code_object.kernels()
    problems = [problem for kernel in kernels for problem in kernel.problems()]
    if code_object.arch != options.arch:
        problems.append(f"{output.name} is for {code_object.arch}")
    for problem in problems:
        print(f"{'warning' if options.allow_spills else 'error'}: {problem}", file=sys.stderr)
    if problems and not options.allow_spills:
        output.unlink()
        return 1
    rows = [{"object": name, **kernel.as_dict()} for kernel in kernels]
    Path(f"{output}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def table_text(rows: list[dict[str, Any]]) -> str:
    """The rows as text, one line a kernel, with the architectures of a kernel next to each other."""
    rows = sorted(rows, key=lambda row: (row["object"], row["kernel"], row["arch"]))
    width = max((len(row["kernel"]) for row in rows), default=6)
    lines = [f"{'kernel':<{width}}  arch    " + "".join(f"{heading:>11}" for heading, _ in COLUMNS)]
    for row in rows:
        values = {**row, "spills": row["vgpr_spills"] + row["sgpr_spills"]}
        lines.append(
            f"{row['kernel']:<{width}}  {row['arch']:<8}" + "".join(f"{values[key]:>11}" for _, key in COLUMNS)
        )
    return "\n".join(lines)


def write_table(options: argparse.Namespace) -> int:
    rows = [row for path in options.parts for row in json.loads(path.read_text(encoding="utf-8"))]
    table = {"version": 1, "single_arch": options.single_arch, "kernels": rows}
    options.output.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(table_text(rows) if rows else "no device code", flush=True)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(required=True)
    action = actions.add_parser("compile")
    action.set_defaults(function=compile_source)
    action.add_argument("--arch", required=True)
    action.add_argument("--source", type=Path, required=True)
    action.add_argument("--output", type=Path, required=True)
    action.add_argument("--compiler", required=True)
    action.add_argument("--linker", required=True)
    action.add_argument("--cache", type=Path, help="folder of code objects that were compiled before")
    action.add_argument("--identity", default="", help="of compiler and linker: part of an entry's key")
    action.add_argument("--allow-spills", action="store_true")
    action.add_argument("flags", nargs="*")
    action = actions.add_parser("table")
    action.set_defaults(function=write_table)
    action.add_argument("--output", type=Path, required=True)
    action.add_argument("--single-arch", nargs="*", default=[], help="objects whose source is for one architecture")
    action.add_argument("parts", nargs="*", type=Path)
    options = parser.parse_args(argv)
    return options.function(options)


if __name__ == "__main__":
    sys.exit(main())
