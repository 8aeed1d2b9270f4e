# SPDX-License-Identifier: MIT
"""Ahead-of-time audit: the Triton GEMM compiles for gfx942 and gfx950, spills nothing, uses no scratch, fits LDS.

The default run takes a few forms of every row of the table; `-m audit_full` takes them all.
A process whose triton is interpreting cannot compile, so the compilations run in a child without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from turbo_core import arch_facts

# what is compiled: operands of 2 and 4 bytes, FP8, MX; and how many compilations there are at least
KINDS = {"2": 12, "4": 12, "fp8": 30, "mx": 8}

# Compiles every record and prints one JSON line each.
CHILD = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from turbo_gemm.triton.gemm_audit import audit_configs, fp8_configs, mx_configs

arch, full, kind = sys.argv[1], sys.argv[2] == "full", sys.argv[3]
listed = {"fp8": fp8_configs, "mx": mx_configs}.get(kind)
records = listed(arch, full=full) if listed else audit_configs(arch, full=full, operand_bytes=int(kind))
for record in records:
    source = ASTSource(record.kernel, record.signature, record.constexprs, record.attrs)
    target = GPUTarget("hip", record.arch, 64)
    compiled = triton.compile(source, target=target, options=dict(record.options))
    text = compiled.asm["amdgcn"]
    read = lambda key: int(re.search(r"\\." + key + r":\\s+(\\d+)", text).group(1))
    keys = ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
    print(json.dumps({"name": record.name, "lds": compiled.metadata.shared, "lds_estimate": record.lds_estimate,
                      "mfma": text.count("v_mfma"), **{key: read(key) for key in keys}}), flush=True)
"""


def audit(arch: str, extent: str, kind: str) -> list[dict]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    done = subprocess.run(
        [sys.executable, "-c", CHILD, arch, extent, kind], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(arch: str, extent: str, kind: str, at_least: int) -> None:
    records = audit(arch, extent, kind)
    assert len(records) >= at_least
    limit = arch_facts(arch).lds_bytes
    faults = []
    for record in records:
        for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
            if record[key]:
                faults.append(f"{record['name']}: {key} = {record[key]}")
        if record["lds"] > limit:
            faults.append(f"{record['name']}: {record['lds']} bytes of LDS, {limit} there are")
        if record["lds"] > record["lds_estimate"]:
            faults.append(f"{record['name']}: {record['lds']} bytes of LDS, the table reckons {record['lds_estimate']}")
        if record["mfma"] == 0 and not record["name"].startswith("pack"):
            faults.append(f"{record['name']}: no matrix instruction")
    assert not faults, f"{len(faults)} of {len(records)} on {arch}:\n" + "\n".join(faults)


@pytest.mark.parametrize("kind, at_least", KINDS.items(), ids=KINDS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit(arch, kind, at_least):
    check(arch, "some", kind, at_least)


@pytest.mark.audit_full
@pytest.mark.parametrize("kind, at_least", KINDS.items(), ids=KINDS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit_full(arch, kind, at_least):
    check(arch, "full", kind, 2 * at_least)
