# SPDX-License-Identifier: MIT
"""Every Triton kernel of the wheel, compiled for gfx942 and gfx950 as it would be launched there.

Fails on a spill, on scratch, on LDS over the limit and on float64 in the kernel (field case 16: a Python number that
reached the kernel as a double). What is compiled is what the launchers plan for tensors of these shapes, so that a new
row in the tile table is audited with no change here but a shape that reaches it.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass

import pytest

from turbo_core import arch_facts

ARCHS = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Configuration:
    """One compiled kernel of the audit."""

    wheel: str
    kernel: str
    case: str
    arch: str
    vgprs: int
    agprs: int
    sgprs: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    float64: bool

    def problems(self) -> list[str]:
        limit = arch_facts(self.arch).lds_bytes
        checks = {
            f"{self.vgpr_spills} VGPR spills": self.vgpr_spills,
            f"{self.sgpr_spills} SGPR spills": self.sgpr_spills,
            f"{self.scratch_bytes} bytes of scratch": self.scratch_bytes,
            f"{self.lds_bytes} bytes of LDS, the limit is {limit}": self.lds_bytes > limit,
            "float64 in the kernel": self.float64,
        }
        return [f"{self.case} {self.arch}: {text}" for text, bad in checks.items() if bad]


def compile_launch(case, launch, arch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = launch.signature()
    source = ASTSource(launch.kernel, dict(signature.types), dict(signature.constants), dict(signature.attributes))
    kernel = triton.compile(source, target=GPUTarget("hip", arch, 64), options=launch.all_options())
    text = kernel.asm["amdgcn"]

    def field(name):
        return int(re.search(rf"\.{name}:\s+(\d+)", text)[1])

    return Configuration(
        "turbo-norm-act",
        launch.kernel.fn.__name__,
        case,
        arch,
        field("vgpr_count"),
        field("agpr_count"),
        field("sgpr_count"),
        kernel.metadata.shared,
        field("private_segment_fixed_size"),
        field("vgpr_spill_count"),
        field("sgpr_spill_count"),
        "f64" in kernel.asm["ttir"],
    )


def audit(arch, full):
    """In a process of its own: this one's kernels belong to the interpreter."""
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, __file__, arch, "full" if full else "short"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return [Configuration(**json.loads(line)) for line in result.stdout.splitlines()]


def check(found, kernels):
    assert {configuration.kernel for configuration in found} == kernels
    problems = [problem for configuration in found for problem in configuration.problems()]
    assert not problems, "\n".join(problems)


KERNELS = {
    "norm_forward_kernel",
    "norm_terms_kernel",
    "norm_backward_kernel",
    "column_sum_kernel",
    "glu_forward_kernel",
    "glu_backward_kernel",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_audit(arch):
    check(audit(arch, full=False), KERNELS)


@pytest.mark.audit_full
@pytest.mark.parametrize("arch", ARCHS)
def test_audit_full(arch):
    check(audit(arch, full=True), KERNELS)


def test_the_audit_sees_a_problem():
    fine = Configuration("w", "k", "c", "gfx942", 64, 0, 32, 65536, 0, 0, 0, False)
    assert fine.problems() == []
    for change in (
        {"vgpr_spills": 1},
        {"sgpr_spills": 1},
        {"scratch_bytes": 4},
        {"lds_bytes": 65540},
        {"float64": True},
    ):
        assert len(Configuration(**{**asdict(fine), **change}).problems()) == 1, change


if __name__ == "__main__":
    from turbo_norm_act.audit import launches

    arch, size = sys.argv[1:]
    for case, launch in launches(arch, full=size == "full"):
        print(json.dumps(asdict(compile_launch(case, launch, arch))), flush=True)
