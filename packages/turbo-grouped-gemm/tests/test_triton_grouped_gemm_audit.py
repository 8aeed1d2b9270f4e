# SPDX-License-Identifier: MIT
"""Ahead-of-time audit: the Triton kernels of the 16- and 32-bit products compile for gfx942 and gfx950.

They spill nothing, use no scratch, fit LDS, and use the matrix instructions of full rate. The default run takes a few
forms of every row of the tables; `-m audit_full` takes them all. A process whose triton is interpreting cannot compile,
so the compilations run in a child without TRITON_INTERPRET.
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

KINDS = {"gemm": 20, "wgrad": 16}  # and how many compilations there are at least

# of 16-bit operands at half the rate of v_mfma_f32_16x16x32 and 32x32x16, which gfx950 has too
HALF_RATE = {"gfx942": (), "gfx950": ("_16x16x16_", "_16x16x16bf16_1k", "_16x16x16f16", "_32x32x8_", "_32x32x8bf16_1k")}

# Compiles every record and prints one JSON line each.
CHILD = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from turbo_grouped_gemm.triton.grouped_gemm_audit import gemm_configs, wgrad_configs

arch, full, kind = sys.argv[1], sys.argv[2] == "full", sys.argv[3]
for record in {"gemm": gemm_configs, "wgrad": wgrad_configs}[kind](arch, full=full):
    source = ASTSource(record.kernel, record.signature, record.constexprs, record.attrs)
    target = GPUTarget("hip", record.arch, 64)
    compiled = triton.compile(source, target=target, options=dict(record.options))
    text = compiled.asm["amdgcn"]
    read = lambda key: int(re.search(r"\\." + key + r":\\s+(\\d+)", text).group(1))
    keys = ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
    print(json.dumps({"name": record.name, "lds": compiled.metadata.shared, "lds_estimate": record.lds_estimate,
                      "mfma": sorted(set(re.findall(r"v_mfma_\\w+", text))), **{key: read(key) for key in keys}}),
          flush=True)
"""


def check(arch: str, extent: str, kind: str, at_least: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    done = subprocess.run(
        [sys.executable, "-c", CHILD, arch, extent, kind], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in done.stdout.splitlines()]
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
        if not record["mfma"] or any(half in name for name in record["mfma"] for half in HALF_RATE[arch]):
            faults.append(f"{record['name']}: matrix instructions {record['mfma']}")
    assert not faults, f"{len(faults)} of {len(records)} on {arch}:\n" + "\n".join(faults)


@pytest.mark.parametrize("kind, at_least", KINDS.items(), ids=KINDS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit(arch, kind, at_least):
    check(arch, "some", kind, at_least)


@pytest.mark.audit_full
@pytest.mark.parametrize("kind, at_least", KINDS.items(), ids=KINDS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit_full(arch, kind, at_least):
    check(arch, "full", kind, 5 * at_least)
