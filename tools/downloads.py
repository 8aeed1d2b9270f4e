# SPDX-License-Identifier: MIT
"""Files of others that tests read and nothing installs: fetched once with pip into `.nox/downloads`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tools.monorepo import ROOT

FOLDER = ROOT / ".nox" / "downloads"

# Kernels that AMD wrote by hand for gfx942 and gfx950, 40 MB: turbo-sim disassembles and runs them. Never installed.
AITER = "amd-aiter==0.1.7.post2.dev18"


class DownloadFailure(RuntimeError):
    """The file could not be fetched; the message holds the end of pip's output."""


def wheel(python: str, requirement: str, folder: Path = FOLDER) -> Path:
    """The wheel of `requirement` ("name==version"), fetched unless it is there already."""
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = sorted(folder.glob(pattern))
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=20", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        command = [python, "-m", "pip", "download", "--quiet", *options, "--dest", unfinished, requirement]
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        fetched = sorted(Path(unfinished).glob(pattern))
        if run.returncode or not fetched:
            said = "\n".join((run.stderr or run.stdout).strip().splitlines()[-3:])
            raise DownloadFailure(f"{requirement} could not be fetched: {said or 'pip brought another file'}")
        target = folder / fetched[0].name
        os.replace(fetched[0], target)  # whole or not at all, also with two sessions at once
    return target
