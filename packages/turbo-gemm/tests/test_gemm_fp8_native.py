# SPDX-License-Identifier: MIT
"""gemm_fp8 and gemm_fp4 on our HIP kernels, on the card or in the simulator: forward, gradients, main_grad.

The kernels' own numbers are tested beside them; here it is that the ops hand them the right operands.
"""

import pytest
import torch

pytest.importorskip("turbo_gemm.pytorch._C", reason="turbo-gemm is not built (pip install -e)")

import turbo_gemm
import turbo_quant
from turbo_core import GlobalBackendManager, trace_dispatch
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import SIGN_MASK
from turbo_testing.metrics import assert_close
from turbo_testing.native_device import native_device
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, product

pytestmark = pytest.mark.simulated

CONFIGS = {**FP8_CONFIGS, **FP4_CONFIGS}
FLOAT_SCALES = ["tensorwise-e4m3", "rowwise-hybrid", "blockwise-hybrid"]
CASES = [("gfx942", name) for name in FLOAT_SCALES] + [
    ("gfx950", name) for name in [*FLOAT_SCALES, "mx-hybrid", "mxfp4"]
]
SIZES = [(1, 1, 1), (33, 17, 65), (129, 100, 257)]


def rotate(x, axis):
    padded = torch.nn.functional.pad(x.float().movedim(axis, -1), (0, -x.shape[axis] % 128))
    return turbo_quant.hadamard_transform(padded, SIGN_MASK).movedim(-1, axis)


@pytest.mark.covering
@pytest.mark.parametrize(("M", "N", "K"), SIZES)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("arch", "name"), CASES)
def test_forward_gradients_and_main_grad(arch, name, trans_a, trans_b, M, N, K):
    config = CONFIGS[name]
    with native_device(arch) as device:
        GlobalBackendManager.set_gemm_backend("TURBO")
        GlobalBackendManager.set_quant_backend("TORCH")
        a = torch.randn((K, M) if trans_a else (M, K)).to(device, torch.bfloat16).requires_grad_()
        b = torch.nn.Parameter(torch.randn((N, K) if trans_b else (K, N)).to(device, torch.bfloat16))
        b.main_grad, b.grad_added_to_main_grad = torch.ones(b.shape, device=device), False
        bias = torch.randn(N).to(device, torch.bfloat16)
        grad_out = torch.randn(M, N).to(device, torch.bfloat16)
        multiply = turbo_gemm.gemm_fp4 if name in FP4_CONFIGS else turbo_gemm.gemm_fp8
        with trace_dispatch() as trace:
            out = multiply(a, b, trans_a, trans_b, config=config, bias=bias, fuse_bgrad_accum_pattern="megatron")
            out.backward(grad_out)
        served = {(record.role, record.backend.name) for record in trace.records if record.op.startswith("gemm")}
        assert served == {("forward", "TURBO"), ("dgrad", "TURBO"), ("wgrad", "TURBO")}
        c, want_a, want_b = product(a, b, grad_out, trans_a, trans_b, config, rotate if name in FP4_CONFIGS else None)
        assert_close(out, c + bias.double(), what="out")
        assert_close(a.grad, want_a, what="dA")
        assert_close(b.main_grad, 1 + want_b, what="main_grad")
