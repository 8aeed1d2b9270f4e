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
import torch

from turbo_core import arch_facts
from turbo_norm_act.values import Formula, Wanted

ARCHS = ("gfx942", "gfx950")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROWS = 2048
# short: one width a row of the tile table and both alignments; the long half adds the rest
WIDTHS = [1024, 4096, 16384, 65536, 8191, 8193]
MORE_WIDTHS = [1, 33, 128, 513, 2048, 5120, 7168, 8192, 14336, 16385, 32768, 65537]


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
        return [f"{self.kernel} {self.case} {self.arch}: {text}" for text, bad in checks.items() if bad]


def planned_launches(arch, width, dtype):
    """(case, launch) for all kernels at one width."""
    from turbo_norm_act.triton import activation, norm

    def meta(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    facts = arch_facts(arch)
    x, gamma = meta(ROWS, width), meta(width)
    for center in (False, True):
        residual = None if center else x
        beta = gamma if center else None
        case = f"{'layernorm' if center else 'rmsnorm_residual'} D={width} {dtype}"
        keywords = {"zero_centered": not center, "facts": facts}
        result, launches = norm.plan_forward(x, residual, gamma, beta, 1e-6, center=center, **keywords)
        wanted = Wanted(True, dtype, dtype if center else None)
        statistics = result.mean, result.rstd
        launches = launches + norm.plan_backward(x, residual, x, gamma, *statistics, wanted=wanted, **keywords)[1]
        yield from ((case, launch) for launch in launches)
    probs, mask = meta(ROWS, dtype=torch.float32), meta(ROWS, dtype=torch.int64)
    for name in ("silu", "gelu", "gelu_tanh", "clamped"):
        formula = Formula(name, 7.0, 1.702)
        packed = name == "silu"  # halves of one tensor, with all the extras; else two tensors and none
        wide = meta(ROWS, 2 * width)
        gate, up = (wide[:, :width], wide[:, width:]) if packed else (x, x)
        if name == "clamped":
            gate, up = wide[:, ::2], wide[:, 1::2]
        extras = (probs, mask) if packed else (None, None)
        case = f"{name} H={width} {dtype}"
        yield case, activation.plan_forward(gate, up, *extras, formula, x, facts=facts)
        yield (
            case,
            activation.plan_backward(x, gate, up, *extras, formula, gate, up, probs if packed else None, facts=facts),
        )


def compile_launch(case, launch, arch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from turbo_norm_act.triton.launch import ALWAYS

    signature = launch.signature()
    source = ASTSource(launch.kernel, dict(signature.types), dict(signature.constants), dict(signature.attributes))
    kernel = triton.compile(source, target=GPUTarget("hip", arch, 64), options={**launch.options, **ALWAYS})
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


def configurations(arch, widths, dtypes):
    """Each distinct kernel once."""
    seen = set()
    for dtype in dtypes:
        for width in widths:
            for case, launch in planned_launches(arch, width, DTYPES[dtype]):
                signature = launch.signature()
                key = (launch.kernel.fn.__name__, str(signature), str(launch.options))
                if key not in seen:
                    seen.add(key)
                    yield compile_launch(case, launch, arch)


def audit(arch, widths, dtypes):
    """In a process of its own: this one's kernels belong to the interpreter."""
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, __file__, arch, ",".join(map(str, widths)), ",".join(dtypes)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return [Configuration(**json.loads(line)) for line in result.stdout.splitlines()]


def check(found, archs_kernels):
    assert {configuration.kernel for configuration in found} == archs_kernels
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
    check(audit(arch, WIDTHS, ["bf16"]), KERNELS)


@pytest.mark.audit_full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ARCHS)
def test_audit_full(arch, dtype):
    check(audit(arch, [*WIDTHS, *MORE_WIDTHS], [dtype]), KERNELS)


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
    arch, widths, dtypes = sys.argv[1:]
    for configuration in configurations(arch, [int(width) for width in widths.split(",")], dtypes.split(",")):
        print(json.dumps(asdict(configuration)), flush=True)
