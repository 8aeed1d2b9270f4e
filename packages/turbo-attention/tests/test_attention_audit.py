# SPDX-License-Identifier: MIT
"""Every Triton configuration compiles for both architectures without a spill and within LDS.

Compiled in a program of its own: this process may have Triton's interpreter on, which replaces the compiler.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

PROGRAM = """
import json, sys
from turbo_core.audit import audit
rows = audit(full=sys.argv[2] == "full", archs=[sys.argv[1]], wheels=["turbo-attention"])
print(json.dumps([[row.source, list(row.failures)] for row in rows]))
"""


def rows(arch, part):
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", PROGRAM, arch, part]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(arch, part, at_least):
    found = rows(arch, part)
    assert len(found) >= at_least
    failed = [f"{source}: {'; '.join(failures)}" for source, failures in found if failures]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_representative(arch):
    check(arch, "part", 30)


@pytest.mark.audit_full
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_all(arch):
    check(arch, "full", 200)
