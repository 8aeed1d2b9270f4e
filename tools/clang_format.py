# SPDX-License-Identifier: MIT
"""Checks the format of the C++ and HIP sources: `python -m tools.clang_format`; `--fix` rewrites them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.monorepo import ROOT

SUFFIXES = (".h", ".hpp", ".cpp", ".hip", ".c", ".def")
FOLDERS = ("csrc-common", "packages", "common")


def sources() -> list[str]:
    """Every source that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in listed if name.endswith(SUFFIXES) and (ROOT / name).is_file()]


def main(arguments: list[str]) -> int:
    mode = ["-i"] if arguments == ["--fix"] else ["--dry-run", "-Werror"]
    files = sources()
    program = Path(sys.executable).with_name("clang-format")  # of the environment's clang-format package
    return subprocess.run([str(program), *mode, *files], cwd=ROOT).returncode if files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
