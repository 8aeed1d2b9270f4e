# SPDX-License-Identifier: MIT
"""The tools of LLVM 22, with which turbo-sim's tests assemble their vectors and compare its decoder.

A session installs them where it can do so without a question: as root, from the package lists of this Debian or Ubuntu.
Anywhere else those tests are skipped with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

PACKAGE = "llvm-22"
TOOLS = ("llvm-mc-22", "llvm-objdump-22")
_FETCH = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]


def install() -> str | None:
    """Install LLVM 22 where the tools are missing, apt offers it and this is root; returns a line to print, or None."""
    if all(shutil.which(tool) for tool in TOOLS) or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    if not _offered():  # the lists may be older than the package, or not there at all
        _run(["apt-get", *_FETCH, "update", "-qq"])
        if not _offered():
            return None  # not in this release of the distribution
    done = _run(["apt-get", *_FETCH, "install", "-y", "-qq", "--no-install-recommends", PACKAGE])
    if done.returncode:
        return f"{PACKAGE} could not be installed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return f"installed {PACKAGE}, which turbo-sim's tests assemble with"


def _offered() -> bool:
    return re.search(r"Candidate: \d", _run(["apt-cache", "policy", PACKAGE]).stdout) is not None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
