# SPDX-License-Identifier: MIT
"""Every Triton configuration compiles for both architectures without a spill and within LDS.

Compiled in a program of its own: this process may have Triton's interpreter on, which replaces the compiler.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="triton is not installed")

PROGRAM = """
import json, sys
from turbo_core.audit import audit
rows = audit(full=sys.argv[2] == "full", archs=[sys.argv[1]], wheels=["turbo-attention"])
print(json.dumps([[row.resources.kernel, list(row.failures)] for row in rows]))
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
    failed = [f"{kernel} {arch}: {'; '.join(failures)}" for kernel, failures in found if failures]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_representative(arch):
    check(arch, "part", 30)


@pytest.mark.audit_full
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_all(arch):
    check(arch, "full", 200)


@pytest.mark.parametrize("vendor", ["amd", "nvidia"])
def test_widths_that_would_spill_are_refused(vendor, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from turbo_attention.audit import HEADS, MORE_FP8_HEADS, MORE_HEADS, _call
    from turbo_attention.triton import attention
    from turbo_core.device import arch_facts

    monkeypatch.setattr(attention, "device_facts", lambda device: replace(arch_facts("gfx950"), vendor=vendor))

    def reason(D, Dv):
        return attention.why_not_widths(_call(torch.bfloat16, D, Dv))

    assert not any(reason(*heads) for heads in (*HEADS, *MORE_HEADS, *MORE_FP8_HEADS, (127, 1), (252, 132)))
    assert "up to 576 is accepted" in reason(577, 8)
    assert "the head dim of v is 513; up to 512 is accepted" in reason(512, 513)
    for heads in ((250, 64), (64, 130), (264, 64), (512, 300)):
        assert (reason(*heads) is None) == (vendor == "nvidia")
    if vendor == "amd":
        assert "over 128 multiples of 4 are accepted, over 256 multiples of 16" in reason(250, 64)
