# SPDX-License-Identifier: MIT
"""Every Triton kernel of the wheel, compiled for gfx942 and gfx950 as it would be launched there.

Fails on a spill, on scratch, on LDS over the limit and on float64 in the kernel.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from turbo_core import arch_facts

ARCHS = ("gfx942", "gfx950")
KERNELS = {
    "block_kernel",
    "dual_kernel",
    "region_kernel",
    "kmajor_kernel",
    "line_amax_kernel",
    "group_amax_kernel",
    "group_scales_kernel",
    "mark_rows_kernel",
    "pad_groups_kernel",
    "mx_kernel",
    "dequantize_float_kernel",
    "dequantize_mx_kernel",
}


def problems(arch, found):
    """What is wrong with one compiled kernel, in words."""
    limit = arch_facts(arch).lds_bytes
    checks = {
        f"{found['vgpr_spills']} VGPR spills": found["vgpr_spills"],
        f"{found['sgpr_spills']} SGPR spills": found["sgpr_spills"],
        f"{found['scratch']} bytes of scratch": found["scratch"],
        f"{found['lds']} bytes of LDS, the limit is {limit}": found["lds"] > limit,
        "float64 in the kernel": found["float64"],
    }
    return [f"{found['case']} {arch}: {text}" for text, bad in checks.items() if bad]


def compile_launch(case, launch, arch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from turbo_core.launch import ALWAYS

    signature = launch.signature()
    source = ASTSource(launch.kernel, dict(signature.types), dict(signature.constants), dict(signature.attributes))
    kernel = triton.compile(source, target=GPUTarget("hip", arch, 64), options={**ALWAYS, **launch.options})
    text = kernel.asm["amdgcn"]

    def field(name):
        return int(re.search(rf"\.{name}:\s+(\d+)", text)[1])

    return {
        "case": case,
        "kernel": launch.kernel.fn.__name__,
        "vgpr_spills": field("vgpr_spill_count"),
        "sgpr_spills": field("sgpr_spill_count"),
        "scratch": field("private_segment_fixed_size"),
        "lds": kernel.metadata.shared,
        "float64": "f64" in kernel.asm["ttir"],
    }


def check(arch, size):
    """In a process of its own: this one's kernels belong to the interpreter."""
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, __file__, arch, size]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in found} == KERNELS
    wrong = [problem for kernel in found for problem in problems(arch, kernel)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("arch", ARCHS)
def test_audit(arch):
    check(arch, "short")


@pytest.mark.audit_full
@pytest.mark.parametrize("arch", ARCHS)
def test_audit_full(arch):
    check(arch, "full")


def test_the_audit_sees_a_problem():
    fine = {"case": "c", "vgpr_spills": 0, "sgpr_spills": 0, "scratch": 0, "lds": 65536, "float64": False}
    assert problems("gfx942", fine) == []
    for change in ({"vgpr_spills": 1}, {"sgpr_spills": 1}, {"scratch": 4}, {"lds": 65540}, {"float64": True}):
        assert len(problems("gfx942", {**fine, **change})) == 1, change


if __name__ == "__main__":
    from turbo_quant.audit import launches

    arch, size = sys.argv[1:]
    for case, launch in launches(arch, full=size == "full"):
        print(json.dumps(compile_launch(case, launch, arch)), flush=True)
