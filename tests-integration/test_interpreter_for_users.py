# SPDX-License-Identifier: MIT
"""bf16 and FP8 on the TRITON backend in a user's process on a CPU: TRITON_INTERPRET=1 and no test plugin.

Values against float64, forward and backward.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import json
import torch
import primus_turbo.pytorch as turbo
from turbo_core import GlobalBackendManager, trace_dispatch
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity

torch.manual_seed(0)
for setter in ("gemm", "attn", "norm_act", "quant"):
    getattr(GlobalBackendManager, f"set_{setter}_backend")("triton")


def draw(*size):
    return torch.randn(*size, dtype=torch.bfloat16, requires_grad=True)


def exact(*tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def errors(outputs, inputs, wanted, references):
    grad = torch.randn_like(wanted)
    outputs.backward(grad.to(outputs.dtype))
    wanted.backward(grad.to(outputs.dtype).double())
    pairs = [(outputs, wanted), *((x.grad, r.grad) for x, r in zip(inputs, references))]
    return [float((a.double() - b).norm() / b.norm()) for a, b in pairs]


found = {}
with trace_dispatch() as trace:
    a, b = draw(24, 40), draw(24, 40)
    ra, rb = exact(a, b)
    found["gemm"] = errors(turbo.ops.gemm(a, b, trans_b=True), (a, b), ra @ rb.t(), (ra, rb))

    a, b = draw(32, 64), draw(48, 64)
    ra, rb = exact(a, b)
    config = Float8QuantConfig(granularity=ScalingGranularity.TENSORWISE)
    found["gemm_fp8"] = errors(
        turbo.ops.gemm_fp8(a, b, trans_b=True, config=config), (a, b), ra @ rb.t(), (ra, rb)
    )

    x, weight = draw(6, 40), draw(40)
    rx, rw = exact(x, weight)
    found["rmsnorm"] = errors(
        turbo.ops.rmsnorm(x, weight, 1e-6), (x, weight), rx * (rx.square().mean(-1, True) + 1e-6).rsqrt() * rw, (rx, rw)
    )

    gate, up = draw(6, 40), draw(6, 40)
    rg, ru = exact(gate, up)
    found["swiglu"] = errors(
        turbo.ops.swiglu(gate, up), (gate, up), torch.nn.functional.silu(rg) * ru, (rg, ru)
    )

    q, k, v = draw(1, 20, 2, 32), draw(1, 20, 2, 32), draw(1, 20, 2, 32)
    references = exact(q, k, v)
    rq, rk, rv = (r.transpose(1, 2) for r in references)
    mask = torch.ones(20, 20).tril().log().double()
    wanted = ((rq @ rk.transpose(-1, -2) / 32**0.5 + mask).softmax(-1) @ rv).transpose(1, 2)
    found["flash_attn_func"] = errors(turbo.ops.flash_attn_func(q, k, v, causal=True), (q, k, v), wanted, references)

    x = draw(16, 64).detach()
    payload, scale_inv = turbo.ops.quantize_fp8(x, torch.float8_e4m3fn, ScalingGranularity.TENSORWISE)
    found["quantize_fp8"] = [
        float((payload.double() * scale_inv.double() - x.double()).norm() / x.double().norm())
    ]
print(json.dumps([found, sorted({record.backend.name for record in trace.records}), len(trace.records)]))
"""

# relative errors in the norm: the rounding of the output, of e4m3 operands, of e4m3 payloads
LIMITS = {"gemm_fp8": 6e-2, "quantize_fp8": 4e-2}


def run(program, **environment):
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TURBO", "TRITON"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**keep, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_values_in_a_plain_process():
    pytest.importorskip("triton", reason="triton is not installed")
    pytest.importorskip("numpy", reason="Triton's interpreter needs numpy")
    if torch.cuda.is_available():
        pytest.skip("the tensors would be on a CPU, and the kernels are tested on the GPU")
    found, backends, calls = run(PROGRAM, TRITON_INTERPRET="1")
    assert backends == ["TRITON"] and calls >= 12
    wrong = {name: errors for name, errors in found.items() if not max(errors) < LIMITS.get(name, 6e-3)}
    assert not wrong
