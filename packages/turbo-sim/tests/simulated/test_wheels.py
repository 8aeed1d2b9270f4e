# SPDX-License-Identifier: MIT
"""The project's own ops through their public functions, on simulated devices: Triton kernels and HIP kernels,
forward and
backward, odd shapes. The dispatcher must take the backend that the test asks for: a fallback would prove nothing."""

from __future__ import annotations

import pytest
import torch

turbo_core = pytest.importorskip("turbo_core", reason="turbo-core is not installed")


@pytest.fixture(autouse=True)
def reset():
    yield
    turbo_core.GlobalBackendManager.reset()


def close(name, actual, expected, tolerance):
    error = (actual.double() - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error < tolerance, f"{name}: relative error {error:.2e}"


# --- turbo-gemm ------------------------------------------------------------------------------------------------------


@pytest.mark.covering(each="simulator")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 17, 33), (77, 130, 51), (128, 64, 200)])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(simulator, dtype, shape, trans_b):
    turbo_gemm = pytest.importorskip("turbo_gemm", reason="turbo-gemm is not installed")
    M, N, K = shape
    a = torch.randn(M, K).to(dtype).requires_grad_()
    b = torch.randn((N, K) if trans_b else (K, N)).to(dtype).requires_grad_()
    grad = torch.randn(M, N).to(dtype)
    turbo_core.GlobalBackendManager.set_gemm_backend(turbo_core.BackendType.TRITON)
    before = simulator.launches
    with turbo_core.trace_dispatch() as trace:
        out = turbo_gemm.gemm(a, b, trans_b=trans_b)
        out.backward(grad)
    assert {r.backend for r in trace.records} == {turbo_core.BackendType.TRITON}
    assert simulator.launches - before == 3
    a64, b64 = (t.detach().double().requires_grad_() for t in (a, b))
    expected = a64 @ (b64.T if trans_b else b64)
    expected.backward(grad.double())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    close("out", out.detach(), expected.detach(), tolerance)
    close("grad of a", a.grad, a64.grad, tolerance)
    close("grad of b", b.grad, b64.grad, tolerance)


# --- turbo-norm-act --------------------------------------------------------------------------------------------------


def norm_reference(x, residual, gamma, eps):
    s = x + residual if residual is not None else x
    return s * torch.rsqrt((s * s).mean(1, keepdim=True) + eps) * gamma


@pytest.mark.covering(each="simulator")
@pytest.mark.parametrize("backend", ["TRITON", "TURBO"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 64), (5, 123), (33, 1000), (2, 4096)])
def test_rmsnorm(simulator, backend, dtype, shape):
    norm_act = pytest.importorskip("turbo_norm_act", reason="turbo-norm-act is not installed")
    if backend == "TURBO":
        native = pytest.importorskip(
            "turbo_norm_act.pytorch.kernels.native", reason="turbo-norm-act has no native library here"
        )
        if (reason := native.library.why_not(torch.device("cpu"))) is not None:
            pytest.skip(f"TURBO: {reason}")
    turbo_core.GlobalBackendManager.set_norm_act_backend(backend)
    x = torch.randn(shape).to(dtype).requires_grad_()
    gamma = (torch.rand(shape[1]) + 0.5).to(dtype).requires_grad_()
    grad = torch.randn(shape).to(dtype)
    before = simulator.launches
    with turbo_core.trace_dispatch() as trace:
        y = norm_act.rmsnorm(x, gamma, 1e-5)
        y.backward(grad)
    assert {r.backend.name for r in trace.records} == {backend}
    assert simulator.launches - before >= 2
    x64, g64 = (t.detach().double().requires_grad_() for t in (x, gamma))
    expected = norm_reference(x64, None, g64, 1e-5)
    expected.backward(grad.double())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    close("y", y.detach(), expected.detach(), tolerance)
    close("grad of x", x.grad, x64.grad, tolerance)
    close("grad of gamma", gamma.grad, g64.grad, tolerance)


@pytest.mark.parametrize("backend", ["TRITON", "TURBO"])
def test_rmsnorm_residual(simulator, backend):
    norm_act = pytest.importorskip("turbo_norm_act", reason="turbo-norm-act is not installed")
    if backend == "TURBO":
        native = pytest.importorskip(
            "turbo_norm_act.pytorch.kernels.native", reason="turbo-norm-act has no native library here"
        )
        if (reason := native.library.why_not(torch.device("cpu"))) is not None:
            pytest.skip(f"TURBO: {reason}")
    turbo_core.GlobalBackendManager.set_norm_act_backend(backend)
    x, residual = (torch.randn(9, 259, requires_grad=True) for _ in range(2))
    gamma = torch.rand(259, requires_grad=True)
    y, s = norm_act.rmsnorm_residual(x, residual, gamma, 1e-5)
    grads = torch.randn(9, 259), torch.randn(9, 259)
    torch.autograd.backward([y, s], grads)
    wide = [t.detach().double().requires_grad_() for t in (x, residual, gamma)]
    expected = norm_reference(*wide, 1e-5)
    torch.autograd.backward([expected, wide[0] + wide[1]], [g.double() for g in grads])
    close("y", y.detach(), expected.detach(), 1e-5)
    for name, mine, theirs in zip(("x", "residual", "gamma"), (x, residual, gamma), wide):
        close(f"grad of {name}", mine.grad, theirs.grad, 1e-5)


def test_swiglu(simulator):
    norm_act = pytest.importorskip("turbo_norm_act", reason="turbo-norm-act is not installed")
    turbo_core.GlobalBackendManager.set_norm_act_backend("TRITON")
    x = torch.randn(7, 2 * 75, requires_grad=True)
    grad = torch.randn(7, 75)
    before = simulator.launches
    out = norm_act.swiglu(x)
    out.backward(grad)
    assert simulator.launches - before == 2
    wide = x.detach().double().requires_grad_()
    gate, up = wide.chunk(2, 1)
    expected = torch.nn.functional.silu(gate) * up
    expected.backward(grad.double())
    close("out", out.detach(), expected.detach(), 1e-5)
    close("grad", x.grad, wide.grad, 1e-5)


# --- turbo-quant -----------------------------------------------------------------------------------------------------


@pytest.mark.covering(each="simulator")
@pytest.mark.parametrize("backend", ["TRITON", "TURBO"])
@pytest.mark.parametrize("kind", ["tensorwise", "rowwise", "blockwise", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("shape", [(3, 64), (130, 259)])
def test_quantise_gives_the_bits_of_torch(simulator, backend, kind, shape):
    quant = pytest.importorskip("turbo_quant", reason="turbo-quant is not installed")
    from turbo_core.low_precision import Format, ScalingGranularity, ScalingRecipe, fp8_dtype

    if backend == "TURBO":
        pytest.importorskip("turbo_quant.pytorch._C", reason="turbo-quant has no native library here")
    x = torch.randn(shape).bfloat16()
    fp4 = kind == "mxfp4"
    granularity = ScalingGranularity.MX_BLOCKWISE if kind.startswith("mx") else ScalingGranularity[kind.upper()]
    dtype = torch.float8_e4m3fn if kind == "mxfp8" else fp8_dtype(Format.E4M3, x.device)
    dtype = getattr(torch, "float4_e2m1fn_x2", torch.uint8) if fp4 else dtype
    options = {"block_size": 128} if kind == "blockwise" else {}
    if fp4:
        options = {"scaling_recipe_for_trans": ScalingRecipe(use_rht=True, use_sr=True), "sign_mask": 0x2F61}
        options["rng"] = torch.tensor([7, 1 << 40])
    both = quant.quantize_fp4_with_trans if fp4 else quant.quantize_fp8_with_trans
    function = quant.quantize_fp8 if kind == "tensorwise" else both
    found = {}
    for name in ("TORCH", backend):
        turbo_core.GlobalBackendManager.set_quant_backend(name)
        before = simulator.launches
        found[name] = function(x, dtype, granularity, **options)
        assert (simulator.launches > before) is (name != "TORCH")
    for expected, actual in zip(found["TORCH"], found[backend]):
        assert torch.equal(expected.reshape(-1).view(torch.uint8), actual.reshape(-1).view(torch.uint8))


# --- turbo-gemm, FP8 and MX ------------------------------------------------------------------------------------------


@pytest.mark.covering(each="simulator")
@pytest.mark.parametrize("pair", [(0, 0), (0, 1)], ids=["e4m3", "e4m3xe5m2"])
@pytest.mark.parametrize("granularity", ["TENSORWISE", "ROWWISE", "BLOCKWISE"])
@pytest.mark.parametrize("trans", [(False, True), (True, False)], ids=["NT", "TN"])
def test_matmul_fp8(simulator, granularity, pair, trans):
    """The types of the architecture; K with a remainder of the block and of 16 bytes; scales differ in every block."""
    pytest.importorskip("turbo_gemm", reason="turbo-gemm is not installed")
    from turbo_core.low_precision import Format, ScalingGranularity, fp8_dtype
    from turbo_gemm.triton import gemm_fp8
    from turbo_testing.gemm_calls import fp8_call, launch

    M, N, K, block = 77, 130, 200, 128
    types = [fp8_dtype(f, "cpu") for f in (Format.E4M3, Format.E5M2)]
    a, b = torch.randn(M, K).to(types[pair[0]]), torch.randn(N, K).to(types[pair[1]])
    blockwise = granularity == "BLOCKWISE"
    rows = {"TENSORWISE": (1, 1), "ROWWISE": (M, N), "BLOCKWISE": (M, -(-N // block))}[granularity]
    a_scale, b_scale = (torch.rand(count, -(-K // block) if blockwise else 1) + 0.5 for count in rows)
    wide_a, wide_b = a_scale.double(), b_scale.double()
    if blockwise:
        wide_a, wide_b = (s.repeat_interleave(block, 1)[:, :K] for s in (wide_a, wide_b))
        wide_b = wide_b.repeat_interleave(block, 0)[:N]
    expected = (a.double() * wide_a) @ (b.double() * wide_b).T
    if trans[0]:
        a, a_scale = a.t().contiguous(), a_scale.t().contiguous()
    if not trans[1]:
        b, b_scale = b.t().contiguous(), b_scale.t().contiguous()
    if granularity == "TENSORWISE":
        a_scale, b_scale = a_scale.reshape(()), b_scale.reshape(())
    call = fp8_call(
        a, a_scale, b, b_scale, ScalingGranularity[granularity], *trans, block if blockwise else 0, b_tiles=blockwise
    )
    out = launch(gemm_fp8, call, c=torch.full((M, N), float("nan")))
    close("out", out, expected, 1e-6)


@pytest.mark.parametrize("kinds", [("e4m3", "e5m2"), ("e2m1", "e2m1")], ids=["mxfp8", "mxfp4"])
def test_matmul_mx(simulator, kinds):
    """Scaled matrix instructions on gfx950, widened operands on gfx942."""
    pytest.importorskip("turbo_gemm", reason="turbo-gemm is not installed")
    from turbo_gemm.triton import gemm_fp8
    from turbo_testing.gemm_calls import launch, mx_call

    M, N, K = 70, 33, 256
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    tensors, wide = [], []
    for rows, kind in ((M, kinds[0]), (N, kinds[1])):
        scale = torch.randint(119, 136, (rows, K // 32), dtype=torch.uint8)
        if kind == "e2m1":
            codes = torch.randint(0, 16, (rows, K))
            payload, values = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), e2m1[codes]
        else:
            payload = torch.randn(rows, K).to(torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2)
            values = payload.double()
        tensors += [payload, scale]
        wide.append(values * torch.exp2(scale.double() - 127).repeat_interleave(32, 1))
    out = launch(gemm_fp8, mx_call(*tensors, kinds))
    close("out", out, wide[0] @ wide[1].T, 1e-6)


# --- turbo-attention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_hip_attention_and_its_backward(simulator, causal):
    """Forward by TURBO; the backward that goes with it is Triton's and takes its out and lse."""
    turbo_attention = pytest.importorskip("turbo_attention", reason="turbo-attention is not installed")
    pytest.importorskip("turbo_attention.pytorch._C", reason="turbo-attention has no native library here")
    from turbo_testing.attention_references import attention

    turbo_core.GlobalBackendManager.set_attn_backend("TURBO")
    B, sq, sk, heads, key_heads, D = 2, 66, 70, 4, 2, 64
    q = torch.randn(B, sq, heads, D).bfloat16().requires_grad_()
    k, v = (torch.randn(B, sk, key_heads, D).bfloat16().requires_grad_() for _ in range(2))
    with turbo_core.trace_dispatch() as trace:
        out, lse = turbo_attention.flash_attn_func(q, k, v, causal=causal, return_lse=True)
        dout, dlse = torch.randn_like(out), torch.randn_like(lse)
        found = torch.autograd.grad([out, lse], (q, k, v), [dout, dlse])
    assert [r.backend.name for r in trace.records] == ["TURBO", "TURBO"]
    wanted, wanted_lse = attention(q, k, v, D**-0.5, right=0 if causal else -1)
    expected = torch.autograd.grad([wanted, wanted_lse], (q, k, v), [dout.double(), dlse.double()])
    close("out", out.detach(), wanted.detach(), 1e-2)
    close("lse", lse.detach(), wanted_lse.detach(), 1e-5)
    for name, actual, exact in zip(("dq", "dk", "dv"), found, expected, strict=True):
        close(name, actual, exact, 1e-2)
