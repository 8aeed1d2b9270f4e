# SPDX-License-Identifier: MIT
"""Runs a C++ compiler, or takes the object from the cache of compile_cache.py. CMake calls it as compiler launcher.

    compile_host.py FOLDER COMPILER flag ... -c SOURCE -o OBJECT

What is no such command (a link, a compile with debug information) goes to the compiler as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from compile_cache import CompileCache, Entry, key_of, may_be_cached, without_folders

SOURCES = (".c", ".cc", ".cpp", ".cxx")


def identity(compiler: str) -> str:
    """What tells one compiler from another."""
    status = os.stat(shutil.which(compiler) or compiler)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    return f"{version} {status.st_size} {status.st_mtime_ns}"


def run(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)


def main(argv: list[str]) -> int:
    folder, command = Path(argv[0]), argv[1:]
    compiler, flags = command[0], command[1:]
    sources = [flag for flag in flags if flag.endswith(SOURCES) and not flag.startswith("-")]
    if "-c" not in flags or flags.count("-o") != 1 or len(sources) != 1 or not may_be_cached(flags):
        run(command)
    at = flags.index("-o")
    output = Path(flags[at + 1])
    flags = flags[:at] + flags[at + 2 :]

    # Writes the dependency file as well, where the flags ask for one.
    preprocess = [compiler, *(flag for flag in flags if flag != "-c"), "-E", "-P"]
    before = subprocess.run(preprocess, capture_output=True)
    if before.returncode:
        run(command)
    decisive, rest = [], iter(without_folders(flags))
    for flag in rest:
        if flag in ("-MF", "-MT", "-MQ"):
            next(rest, None)
        elif flag not in ("-c", "-MD", "-MMD", *sources):
            decisive.append(flag)
    key = key_of(before.stdout, identity(compiler), Path(sources[0]).name, *decisive)

    cache = CompileCache(folder)
    entry = cache.get(key)
    if entry is None:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode:
            return done.returncode
        # Not one that was changed under the compiler's hands.
        if subprocess.run(preprocess, capture_output=True).stdout == before.stdout:
            cache.put(key, Entry(output.read_bytes(), done.stderr))
        return 0
    sys.stderr.write(entry.messages)
    output.write_bytes(entry.data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
