# SPDX-License-Identifier: MIT
"""Runs a program that takes long: its output goes to a log, and every few seconds a line says what it is at."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

EVERY = 5.0  # seconds between two lines
WIDTH = 100  # of a line


def run(
    command: list[str],
    log: Path,
    say: Callable[[str], None],
    cwd: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: Collection[int] = (),
    every: float = EVERY,
) -> int:
    """The program's exit code; its output is added to ``log``, after the command itself."""
    with log.open("a") as out:
        print("$", *command, file=out, flush=True)
        begin = out.tell()
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(pass_fds),
        )
        try:
            while True:
                try:
                    return process.wait(timeout=every)
                except subprocess.TimeoutExpired:
                    say(f"{time.monotonic() - started:4.0f} s  {last_line(log, begin)}"[:WIDTH])
        except BaseException:  # such as Ctrl-C
            process.terminate()
            process.wait()
            raise


def last_line(log: Path, begin: int) -> str:
    """The last line from ``begin`` on that is neither empty nor one of pip's warnings."""
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(begin, file.tell() - 4096))
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1] if lines else "started"
