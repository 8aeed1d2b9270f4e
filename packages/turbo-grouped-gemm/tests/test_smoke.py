# SPDX-License-Identifier: MIT
"""The smoke test, in the development environment."""

import runpy
import subprocess
import sys
from pathlib import Path

SMOKE = Path(__file__).with_name("smoke.py")


def test_smoke(capsys):
    runpy.run_path(str(SMOKE), run_name="__main__")
    assert capsys.readouterr().out.startswith("turbo-grouped-gemm: ok with")


def test_importing_imports_no_torch():
    code = "import sys, turbo_grouped_gemm; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
