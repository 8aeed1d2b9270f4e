# SPDX-License-Identifier: MIT
"""Ahead-of-time audit: the grouped FP8 and MX kernels compile for gfx942 and gfx950, spill nothing, fit LDS, and use
the fastest matrix instruction of the architecture.

The default run takes two forms of the largest tile of each kind; `-m audit_full` takes all.
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

# Compiles every record and prints one JSON line each.
CHILD = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from turbo_grouped_gemm.triton.grouped_fp8_audit import fp8_kernels

for record in fp8_kernels(sys.argv[1], sys.argv[2] == "full"):
    source = ASTSource(record.kernel, record.signature, record.constexprs, record.attrs)
    target = GPUTarget("hip", record.arch, 64)
    compiled = triton.compile(source, target=target, options=dict(record.options))
    text = compiled.asm["amdgcn"]
    read = lambda key: int(re.search(r"\\." + key + r":\\s+(\\d+)", text).group(1))
    keys = ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
    print(json.dumps({"name": record.name, "lds": compiled.metadata.shared, "lds_estimate": record.lds_estimate,
                      "matrix": sorted(set(re.findall(r"v_mfma_\\w+", text))),
                      **{key: read(key) for key in keys}}), flush=True)
"""

# kind -> matrix instructions: those with the most multiply-adds a clock. gfx950 has FP8 at twice that of gfx942 in
# instructions of 128 along K alone; gfx942 has no scaled ones, and Triton widens MX to 16 bits there.
FASTEST = {
    ("gfx950", "fp8"): ("v_mfma_f32_16x16x128_f8f6f4",),
    ("gfx950", "mxfp8"): ("v_mfma_scale_f32_16x16x128_f8f6f4",),
    ("gfx950", "mxfp4"): ("v_mfma_scale_f32_16x16x128_f8f6f4",),
    ("gfx942", "fp8"): ("v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x32_bf8_fp8", "v_mfma_f32_16x16x32_fp8_bf8",
                        "v_mfma_f32_16x16x32_bf8_bf8"),
    ("gfx942", "mxfp8"): ("v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16_f16"),
    ("gfx942", "mxfp4"): ("v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x16_f16"),
}  # fmt: skip


def audit(arch: str, extent: str) -> list[dict]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    done = subprocess.run([sys.executable, "-c", CHILD, arch, extent], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(arch: str, extent: str, at_least: int) -> None:
    records = audit(arch, extent)
    assert len(records) >= at_least
    limit = arch_facts(arch).lds_bytes
    faults = []
    for record in records:
        name = record["name"]
        for key in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
            if record[key]:
                faults.append(f"{name}: {key} = {record[key]}")
        if record["lds"] > limit:
            faults.append(f"{name}: {record['lds']} bytes of LDS, {limit} there are")
        if record["lds"] > record["lds_estimate"]:
            faults.append(f"{name}: {record['lds']} bytes of LDS, the table reckons {record['lds_estimate']}")
        if name.startswith("pack"):
            continue
        (kind,) = (word for word in name.split() if word in ("fp8", "mxfp8", "mxfp4"))
        slow = [found for found in record["matrix"] if found not in FASTEST[arch, kind]]
        if slow or not record["matrix"]:
            faults.append(f"{name}: matrix instructions are {record['matrix']}, not of {FASTEST[arch, kind]}")
    assert not faults, f"{len(faults)} of {len(records)} on {arch}:\n" + "\n".join(faults)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit(arch):
    check(arch, "some", 17)


@pytest.mark.audit_full
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_audit_full(arch):
    check(arch, "full", 150)
