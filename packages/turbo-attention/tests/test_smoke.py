# SPDX-License-Identifier: MIT
"""The smoke test, in the development environment."""

import runpy
import subprocess
import sys
from pathlib import Path

SMOKE = Path(__file__).with_name("smoke.py")


def test_smoke(capsys):
    runpy.run_path(str(SMOKE), run_name="__main__")
    assert capsys.readouterr().out.startswith("turbo-attention: ok with")


def test_importing_imports_no_torch():
    code = "import sys, turbo_attention; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_torch_every_name_says_what_to_type():
    hidden = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", hidden, str(SMOKE)], capture_output=True, text=True)
    assert found.stdout == "turbo-attention: ok without torch\n", found.stderr
