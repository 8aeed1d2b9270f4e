# SPDX-License-Identifier: MIT
"""Each op on DTensors of two ranks: values, gradients and placements equal those of whole tensors, on each backend.

The wanted placement of the first output is part of a case: an op that gathered its inputs to be right would be caught.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import primus_turbo.pytorch as turbo
from turbo_core import BackendType, GlobalBackendManager, UnsupportedError
from turbo_core.low_precision import Float8QuantConfig, ScaleDtype, ScalingGranularity, ScalingRecipe
from turbo_quant import (
    QuantizedTensor,
    dequantize_fp4,
    dequantize_fp8,
    grouped_quantize_fp8,
    quantize_fp4,
    quantize_fp8,
    quantize_fp8_with_trans,
)
from turbo_testing.distributed import run_ranks

pytestmark = pytest.mark.dist
ops = turbo.ops
R, S0, S1, S2, SUM = Replicate(), Shard(0), Shard(1), Shard(2), Partial()
TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE


class Case(NamedTuple):
    """``call`` of tensors of these shapes, each placed like its ``placements``; ``out``: where the result then lies."""

    name: str
    call: Any
    shapes: list[tuple[int, ...]]
    placements: list[Any]
    out: Any


# --- the cases ------------------------------------------------------------------------------------------------------


def norm_and_activation_cases():
    x, w = (3, 5, 8), (8,)
    for rows in (S0, S1):
        yield Case("rmsnorm", lambda x, w: ops.rmsnorm(x, w), [x, w], [rows, R], rows)
        yield Case("rmsnorm_residual", lambda x, r, w: ops.rmsnorm_residual(x, r, w), [x, x, w], [rows, R, R], rows)
        yield Case("layernorm", lambda x, w, b: ops.layernorm(x, w, b), [x, w, w], [rows, R, R], rows)
        yield Case("swiglu", lambda x: ops.swiglu(x), [x], [rows], rows)
        yield Case("geglu", lambda x, up: ops.geglu(x, up, approximate="tanh"), [x, x], [rows, rows], rows)
    yield Case("rmsnorm of columns", lambda x, w: ops.rmsnorm(x, w), [(4, 2, 8), w], [S2, S0], S0)
    yield Case("rmsnorm of terms", lambda x, w: ops.rmsnorm(x, w), [x, w], [SUM, R], S0)
    yield Case("swiglu, columns", lambda x, up: ops.swiglu(x, up), [x, x], [S2, S2], S2)
    yield Case("swiglu, interleaved", lambda x: ops.swiglu(x, interleaved=True, limit=7.0), [x], [S2], S2)
    with_probs = [(5, 8), (5,)]
    yield Case("swiglu_with_probs", lambda x, p: ops.swiglu_with_probs(x, p), with_probs, [S0, S0], S0)
    yield Case("geglu_with_probs", lambda x, p: ops.geglu_with_probs(x, p), [(4, 3, 8), (12,)], [S0, S0], S0)
    leading = [(4, 3, 8), (4, 3, 1)]
    yield Case("swiglu_with_probs, leading", lambda x, p: ops.swiglu_with_probs(x, p, None, 0.5), leading, [S0, S0], S0)
    columns = [(5, 8), (5,)], [S1, R], S1
    yield Case("geglu_with_probs, columns", lambda x, p: ops.geglu_with_probs(x, p, interleaved=True), *columns)


def gemm_cases():
    def nt(a, b, bias):
        return ops.gemm(a, b, trans_b=True, bias=bias)

    def tn(a, b, bias):
        return ops.gemm(a, b, trans_a=True, bias=bias)

    shapes = [(7, 9), (5, 9), (5,)]
    yield Case("gemm, M", nt, shapes, [S0, R, R], S0)
    yield Case("gemm, N", nt, shapes, [R, S0, S0], S1)
    yield Case("gemm, K", nt, shapes, [S1, S1, R], SUM)
    yield Case("gemm, whole", nt, shapes, [R, R, R], R)
    yield Case("gemm, M and N", nt, [(64, 8), (4, 8), (4,)], [S0, S0, S0], S0)
    yield Case("gemm of terms", nt, shapes, [SUM, S0, S0], SUM)
    turned = [(9, 7), (9, 5), (5,)]
    yield Case("gemm transposed, M", tn, turned, [S1, R, R], S0)
    yield Case("gemm transposed, N", tn, turned, [R, S1, S0], S1)
    yield Case("gemm transposed, K", tn, turned, [S0, S0, R], SUM)


def grouped_gemm_cases():
    lens = torch.tensor([3, 0, 4])
    order = torch.tensor([4, 1, 0, 4, 5, 2, 3, -1])
    places = torch.tensor([9, 2, 0, 7, 10, 1, 3, 99])  # the last is of no group

    def nt(a, b, bias):
        return ops.grouped_gemm(a, b, lens, trans_b=True, bias=bias)

    def by_indices(a, b, bias):
        return ops.grouped_gemm(a, b, lens, bias=bias, a_idx=order, out_idx=places, out_rows=11)

    shapes = [(8, 9), (3, 5, 9), (3, 5)]
    yield Case("grouped_gemm, N", nt, shapes, [R, S1, S1], S1)
    yield Case("grouped_gemm, K", nt, shapes, [S1, S2, R], SUM)
    yield Case("grouped_gemm, whole", nt, shapes, [R, R, R], R)
    yield Case("grouped_gemm, rows", nt, shapes, [S0, R, R], SUM)  # exchanged for columns: groups are of all rows
    yield Case("grouped_gemm masked, K", nt, [(3, 4, 9), (3, 5, 9), (3, 5)], [S2, S2, R], SUM)
    yield Case("grouped_gemm by indices, N", by_indices, [(6, 9), (3, 9, 5), (3, 5)], [R, S2, S1], S1)


def attention_cases():
    def dense(q, k, v, sink, bias):
        return ops.flash_attn_func(q, k, v, causal=True, sink=sink, bias=bias, return_lse=True)

    def fp8(q, k, v, sink, bias):
        return ops.flash_attn_fp8_func(q, k, v, causal=True, sink=sink, bias=bias, return_lse=True)

    def every_key(q, k, v, sink, bias):
        return ops.flash_attn_func(q, k, v, sink=sink, bias=bias, return_lse=True, return_attn_probs=True)

    def slopes(q, k, v, slopes):
        return ops.flash_attn_func(q, k, v, alibi_slopes=slopes.detach(), window_size=(3, 0))

    cu = torch.tensor([0, 2, 6], dtype=torch.int32)

    def ragged(q, k, v, sink):
        return ops.flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, causal=True, sink=sink, return_lse=True)

    for keys in (4, 2, 1):
        q, k = (3, 6, 4, 8), (3, 6, keys, 8)
        shapes = [q, k, k, (4,), (1, 4, 6, 6)]
        heads = S2 if keys > 1 else R
        for name, call in (("dense", dense), ("fp8", fp8)):
            yield Case(f"{name}, {keys}, batch", call, shapes, [S0, S0, S0, R, R], S0)
            yield Case(f"{name}, {keys}, heads", call, shapes, [S2, heads, heads, S0, S1], S2)
        yield Case(f"{keys}, queries", every_key, shapes, [S1, R, R, R, Shard(2)], S1)
        yield Case(f"slopes, {keys}", slopes, [q, k, k, (4,)], [S2, heads, heads, S0], S2)
        key_heads = S1 if keys > 1 else R
        yield Case(f"ragged, {keys}", ragged, [q[1:], k[1:], k[1:], (4,)], [S1, key_heads, key_heads, S0], S1)
    sequence = [(4, 6, 4, 8)] * 3 + [(4,), (4, 1, 6, 6)]
    yield Case("dense, sequence", dense, sequence, [S1, S1, S1, R, S0], S0)  # an exchange, not a gather
    indices = torch.randint(-1, 9, (6, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(1))

    def sparse(placement):
        def call(q, kv, sink):
            named = distribute_tensor(indices, q.device_mesh, [placement]) if isinstance(q, DTensor) else indices
            return ops.sparse_mla_func(q, kv, named, sink, kv_lora_rank=6, return_lse=True)

        return call

    latent = [(6, 4, 8), (9, 8), (4,)]
    yield Case("sparse, tokens", sparse(S0), latent, [S0, R, R], S0)
    yield Case("sparse, heads", sparse(R), latent, [S1, R, S0], S1)


def quant_gemm_cases():
    configs = {
        "tensorwise": Float8QuantConfig(),
        "blockwise": Float8QuantConfig(granularity=BLOCKWISE, block_size=16),
        "mx": Float8QuantConfig(granularity=MX, block_size=32, scale_dtype=ScaleDtype.E8M0),
        "fp4": None,
    }
    size = (64, 64)
    for name, config in configs.items():

        def nt(a, b, bias, config=config):
            if config is None:
                return ops.gemm_fp4(a, b, trans_b=True, bias=bias)
            return ops.gemm_fp8(a, b, trans_b=True, bias=bias, config=config)

        shapes = [size, size, (64,)]
        yield Case(f"{name}, M", nt, shapes, [S0, R, R], S0)
        yield Case(f"{name}, N", nt, shapes, [R, S0, S0], S1)
        yield Case(f"{name}, K", nt, shapes, [S1, S1, R], SUM)
    uneven = [(5, 32), (7, 32), (7,)]
    yield Case("uneven", lambda a, b, c: ops.gemm_fp8(a, b, trans_b=True, bias=c), uneven, [S0, R, R], S0)
    tiny = [(1, 32), (7, 32), (7,)]  # a rank without rows would have no part in the scale of a: divided along K
    yield Case("an empty piece", lambda a, b, c: ops.gemm_fp8(a, b, trans_b=True, bias=c), tiny, [S0, R, R], SUM)


CASES = (norm_and_activation_cases, gemm_cases, grouped_gemm_cases, attention_cases, quant_gemm_cases)
IN_THE_INTERPRETER = (
    "rmsnorm", "layernorm", "swiglu", "swiglu_with_probs", "gemm, M", "gemm, N", "gemm, K", "grouped_gemm, N",
    "dense, 2, heads", "ragged, 2", "sparse, tokens", "tensorwise, N", "tensorwise, K", "fp4, M",
)  # fmt: skip
"""The cases that take Triton's interpreter a moment; what divides a call does not know who computes it."""

# --- comparing ------------------------------------------------------------------------------------------------------


def gradients(outputs, inputs):
    """A pair: outputs, and gradients of a loss that weighs every element of the differentiable ones differently."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(6)
    loss = 0.0
    for output in outputs:
        if output.requires_grad:
            weights = torch.randn(output.shape, generator=generator)
            if isinstance(output, DTensor):
                weights = distribute_tensor(weights, output.device_mesh, [R])
            loss = loss + (output * weights).sum()
    loss.backward()
    return outputs, [x.grad for x in inputs]


def placed(tensor, mesh, placement):
    if placement != SUM:
        return distribute_tensor(tensor, mesh, [placement])
    share = tensor / mesh.size() if mesh.get_rank() else tensor - tensor / mesh.size() * (mesh.size() - 1)
    return DTensor.from_local(share, mesh, [SUM])


def close(found, expected, tolerance, what):
    torch.testing.assert_close(
        found.full_tensor(), expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}\n{m}"
    )


def check(case, mesh):
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(shape, generator=generator) for shape in case.shapes]
    whole = [tensor.clone().requires_grad_() for tensor in tensors]
    pieces = [
        placed(tensor, mesh, placement).detach().requires_grad_()
        for tensor, placement in zip(tensors, case.placements, strict=True)
    ]
    expected, expected_gradients = gradients(case.call(*whole), whole)
    found, found_gradients = gradients(case.call(*pieces), pieces)
    what = f"{case.name} of {case.placements}"
    assert found[0].placements == (case.out,), f"{what}: the result is {found[0].placements}"
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, what
        close(a, b, 2e-5, f"{what}: output {index}")
    for index, (a, b) in enumerate(zip(found_gradients, expected_gradients, strict=True)):
        if b is not None:
            close(a, b, 5e-5, f"{what}: gradient {index}")


def set_backend(name):
    backend = BackendType[name]
    for setter in ("gemm", "grouped_gemm", "attn", "sparse_attn", "norm_act", "quant"):
        getattr(GlobalBackendManager, f"set_{setter}_backend")(backend)


def every_case(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    for backend in ("TORCH", "TRITON"):
        set_backend(backend)
        for family in CASES:
            for case in family():
                if backend == "TORCH" or case.name in IN_THE_INTERPRETER:
                    check(case, mesh)


def test_pieces_equal_the_whole():
    run_ranks(every_case, 2, timeout=300)


# --- quantisation: bit for bit --------------------------------------------------------------------------------------


def as_bytes(tensor):
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def gathered(tensor):
    """The whole of a DTensor; gloo knows no FP8, so bytes go over the wire."""
    local = tensor.to_local()
    bytes_ = DTensor.from_local(
        as_bytes(local), tensor.device_mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride()
    )
    return bytes_.full_tensor()


def check_quantise(mesh, x, quantise, dequantise=None):
    expected = quantise(x)
    for dim in range(x.dim()):
        found = quantise(distribute_tensor(x, mesh, [Shard(dim)]))
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(gathered(a), as_bytes(b)), (x.shape, dim)
        if dequantise is not None and not found[0].placements[0].is_replicate():
            assert torch.equal(dequantise(*found).full_tensor(), dequantise(*expected)), (x.shape, dim)


def quantise_everywhere(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    e4m3 = torch.float8_e4m3fn
    for shape in ((256, 256), (2, 256, 256), (5, 130)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * torch.arange(shape[-1])
        check_quantise(
            mesh, x, lambda x: quantize_fp8(x, e4m3, TENSORWISE),
            lambda q, s: dequantize_fp8(q, torch.float32, TENSORWISE, scale_inv=s),
        )  # fmt: skip
        check_quantise(mesh, x, lambda x: quantize_fp8_with_trans(x, e4m3, BLOCKWISE, block_size=128))
        check_quantise(mesh, x, lambda x: quantize_fp8_with_trans(x, e4m3, MX))
        for axis in (-1, -2):
            check_quantise(
                mesh, x, lambda x, axis=axis: quantize_fp8(x, e4m3, ROWWISE, axis=axis),
                lambda q, s, axis=axis: dequantize_fp8(q, torch.float32, ROWWISE, axis=axis, scale_inv=s),
            )  # fmt: skip
            for recipe in (None, ScalingRecipe(use_2d_block=True)):
                options = {"axis": axis, "scaling_recipe": recipe}
                forms = [
                    (quantize_fp8, dequantize_fp8, e4m3, BLOCKWISE, {**options, "block_size": 128}),
                    (quantize_fp8, dequantize_fp8, e4m3, MX, options),
                    (quantize_fp4, dequantize_fp4, torch.uint8, MX, options),
                ]
                for quantise, dequantise, dtype, granularity, keywords in forms:
                    check_quantise(
                        mesh, x,
                        lambda x, f=quantise, d=dtype, g=granularity, k=keywords: f(x, d, g, **k),
                        lambda q, s, f=dequantise, g=granularity, k=keywords: f(q, torch.float32, g, scale_inv=s, **k),
                    )  # fmt: skip
    x = distribute_tensor(torch.tensor([[1.0, 2.0], [float("nan"), 4.0]]), mesh, [S0])
    _, scale_inv = quantize_fp8(x, e4m3, TENSORWISE)  # one rank's NaN is everybody's
    assert scale_inv.to_local().isnan()


# --- communication, and what is refused ----------------------------------------------------------------------------


def communication(rank, world_size):
    """Sequence-parallel norms and layers gather nothing; columns and then rows leave terms, which nobody has summed."""
    mesh = init_device_mesh("cpu", (world_size,))
    x = distribute_tensor(torch.randn(2, 6, 8), mesh, [S1])
    norm = turbo.modules.RMSNorm(8)
    norm.weight = torch.nn.Parameter(distribute_tensor(norm.weight.detach(), mesh, [R]))
    linear = turbo.modules.Linear(8, 4)
    for name in ("weight", "bias"):
        setattr(linear, name, torch.nn.Parameter(distribute_tensor(getattr(linear, name).detach(), mesh, [R])))
    with CommDebugMode() as mode:
        y = linear(norm(x))
    assert mode.get_total_counts() == 0
    assert y.placements == (S1,)
    column = torch.nn.Parameter(distribute_tensor(torch.randn(16, 8), mesh, [S0]))
    row = torch.nn.Parameter(distribute_tensor(torch.randn(8, 16), mesh, [S1]))
    whole = distribute_tensor(torch.randn(6, 8), mesh, [R])
    with CommDebugMode() as mode:
        y = ops.gemm(ops.gemm(whole, column, trans_b=True), row, trans_b=True)
        assert mode.get_total_counts() == 0
        y.sum().backward()
    assert mode.get_total_counts() == 0
    assert column.grad.placements == (S0,) and row.grad.placements == (S1,)


def refused(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    other = init_device_mesh("cpu", (world_size, 1))
    x, q = torch.randn(4, 8), torch.randn(2, 4, 2, 8)
    dx, dq = distribute_tensor(x, mesh, [S0]), distribute_tensor(q, mesh, [S0])
    weight = distribute_tensor(x, mesh, [R])
    weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(4, 8), False
    e4m3, groups = torch.float8_e4m3fn, (torch.tensor([1, 3]), torch.tensor([0, 1, 4]))
    for message, call in {
        "gemm: b is a Tensor and a a DTensor": lambda: ops.gemm(dx, x, trans_b=True),
        "gamma is a Parameter and x a DTensor": lambda: turbo.modules.RMSNorm(8)(dx),
        "one mesh is needed": lambda: ops.gemm(dx, distribute_tensor(x, other, [R, R]), trans_b=True),
        "flash_attn_func: dropout_p=0.5 of DTensors": lambda: ops.flash_attn_func(dq, dq, dq, 0.5),
        "flash_attn_fp8_func: dropout_p=0.5": lambda: ops.flash_attn_fp8_func(dq, dq, dq, 0.5),
        "fuse_bgrad_accum_pattern='megatron' of a DTensor": lambda: ops.gemm(
            dx, weight, trans_b=True, fuse_bgrad_accum_pattern="megatron"
        ),
        "QuantizedTensor.quantize: x is a DTensor": lambda: QuantizedTensor.quantize(dx, e4m3, TENSORWISE),
        "grouped_quantize_fp8: x is a DTensor": lambda: grouped_quantize_fp8(
            dx, e4m3, BLOCKWISE, *groups, block_size=128, axis=-1
        ),
        "K is": lambda: ops.gemm(dx, distribute_tensor(torch.randn(4, 6), mesh, [R]), trans_b=True),
    }.items():
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert message in str(caught.value), str(caught.value)


def quantisation_communication_refusals(rank, world_size):
    refused(rank, world_size)
    communication(rank, world_size)
    quantise_everywhere(rank, world_size)


def test_quantisation_communication_and_refusals():
    run_ranks(quantisation_communication_refusals, 2, timeout=300)
