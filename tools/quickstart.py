# SPDX-License-Identifier: MIT
"""Runs examples/ on the wheels as a user would install them: `python -m tools.quickstart [OPTIONS OF THE DEMO]`.

First the digits, which takes seconds, then a short run of the language model next to plain torch.

The wheels are built and installed, not editable, into `.nox/quickstart`, a virtual environment of its own that takes
torch and the other requirements from the shared environment by a plain path, so what is editable there stays there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tools.monorepo import ROOT, wheels

FOLDER = ROOT / ".nox" / "quickstart"
DIGITS = ["examples/train_digits.py", "--epochs", "5"]
LANGUAGE_MODEL = ["-m", "primus_turbo", "demo", "--plot", str(FOLDER / "loss.png")]


def install(folder: Path) -> Path:
    """The Python of a new environment in `folder` that has the wheels of this tree."""
    built, environment = folder / "wheels", folder / "env"
    shutil.rmtree(folder, ignore_errors=True)
    built.mkdir(parents=True)
    packages = [str(wheel.path) for wheel in wheels() if wheel.name != "turbo-sim"]  # a tool for developers
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    print(f"quickstart: building the wheels of {', '.join(Path(path).name for path in packages)} ...", flush=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), *packages], check=True)

    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    made = [str(path) for path in sorted(built.glob("*.whl"))]
    print("quickstart: installing them", flush=True)
    subprocess.run([*pip, f"--python={python}", "install", "--no-index", "--no-deps", *made], check=True)
    return python


def main(arguments: list[str]) -> int:
    python = install(FOLDER)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for program in (DIGITS, [*LANGUAGE_MODEL, *arguments]):
        print(f"\nquickstart: {' '.join(program)}", flush=True)
        if code := subprocess.run([str(python), *program], cwd=ROOT, env=environment).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
