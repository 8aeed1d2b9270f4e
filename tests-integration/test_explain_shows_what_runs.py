# SPDX-License-Identifier: MIT
"""`explain` against the record of the same call: each part of each op runs as explained, in and out of autocast."""

import contextlib
import inspect

import pytest
import torch

import primus_turbo.pytorch as turbo
from turbo_core import UnsupportedError, explain, trace_dispatch
from turbo_core.explain import find_ops
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, ScaleDtype, ScalingGranularity

F8, F32 = torch.float8_e4m3fn, torch.float32
ROWWISE, BLOCKWISE = ScalingGranularity.ROWWISE, ScalingGranularity.BLOCKWISE
TENSORWISE, MX = ScalingGranularity.TENSORWISE, ScalingGranularity.MX_BLOCKWISE
MX8 = Float8QuantConfig(granularity=MX, block_size=32, scale_dtype=ScaleDtype.E8M0)


def draw(*shape, dtype=F32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def matrices(dtype=F32, other=F32, bias=False):
    keywords = {"trans_b": True} | ({"bias": draw(24)} if bias else {})
    return (draw(12, 40, dtype=dtype), draw(24, 40, dtype=other)), keywords


def heads(dtype=F32, **keywords):
    return tuple(draw(2, 9, heads, 32, dtype=dtype) for heads in (4, 2, 2)), {"causal": True, **keywords}


def ragged():
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    tensors = tuple(draw(9, heads, 32) for heads in (4, 2, 2))
    return (*tensors, offsets, offsets, 5, 5), {"causal": True}


def latent():
    topk = torch.tensor([[0, 1, -1, -1]] * 3, dtype=torch.int32)
    return (draw(3, 2, 48), draw(3, 48), topk), {"kv_lora_rank": 32}


def quantised(format, granularity, **keywords):
    return (torch.randn(32, 64, dtype=torch.bfloat16), format, granularity), keywords


CASES = {
    "gemm": {
        "float32": matrices,
        "bfloat16 with bias": lambda: matrices(torch.bfloat16, torch.bfloat16, bias=True),
        "mixed": lambda: matrices(torch.float16),
    },
    "gemm_fp8": {
        "float32": matrices,
        "rowwise": lambda: (matrices()[0], {"trans_b": True, "config": Float8QuantConfig(granularity=ROWWISE)}),
        "mx": lambda: (matrices(torch.bfloat16)[0], {"trans_b": True, "config": MX8}),
    },
    "gemm_fp4": {"float32": lambda: (matrices()[0], {"trans_b": True, "config": Float4QuantConfig()})},
    "flash_attn_func": {
        "float32": heads,
        "bfloat16 and a window": lambda: heads(torch.bfloat16, window_size=(4, 0)),
    },
    "flash_attn_varlen_func": {"float32": ragged},
    "flash_attn_fp8_func": {"float32": heads},
    "sparse_mla_func": {"float32": latent},
    "rmsnorm": {"float32": lambda: ((draw(6, 40), draw(40), 1e-6), {})},
    "rmsnorm_residual": {"mixed": lambda: ((draw(6, 40), draw(6, 40, dtype=torch.bfloat16), draw(40), 1e-6), {})},
    "layernorm": {"float32": lambda: ((draw(6, 40), draw(40), draw(40), 1e-6), {})},
    "swiglu": {
        "mixed": lambda: ((draw(6, 40), draw(6, 40, dtype=torch.bfloat16)), {}),
        "packed": lambda: ((draw(6, 40),), {}),
    },
    "geglu": {"float16": lambda: ((draw(6, 40, dtype=torch.float16), draw(6, 40, dtype=torch.float16)), {})},
    "swiglu_with_probs": {"float32": lambda: ((draw(6, 80), draw(6)), {})},
    "geglu_with_probs": {"float32": lambda: ((draw(6, 80), draw(6)), {})},
    "quantize_fp8": {"rowwise": lambda: quantised(F8, ROWWISE, axis=-1)},
    "quantize_fp8_with_trans": {"blockwise": lambda: quantised(F8, BLOCKWISE, block_size=16)},
    "quantize_fp4": {"mx": lambda: quantised(torch.float4_e2m1fn_x2, MX, axis=-1)},
    "quantize_fp4_with_trans": {"mx": lambda: quantised(torch.float4_e2m1fn_x2, MX)},
}
ALL = [(op, label) for op, made in CASES.items() for label in made]
AUTOCAST = [None, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("autocast", AUTOCAST, ids=str)
@pytest.mark.parametrize(("op", "label"), ALL, ids=[f"{op}-{label}" for op, label in ALL])
def test_each_part_runs_as_explained(op, label, autocast):
    args, keywords = CASES[op][label]()
    cast = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)
    with trace_dispatch() as trace:
        with cast:
            explained = explain(op, *args, **keywords)
            result = getattr(turbo.ops, op)(*args, **keywords)
        outputs = result if isinstance(result, tuple) else (result,)
        reached = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
        if reached:
            torch.autograd.backward(reached, [torch.randn_like(value) for value in reached])
    name = find_ops()[op].load().dispatcher.op
    ran = {record.role: (record.backend, record.reason, record.call) for record in trace.records if record.op == name}
    assert {entry.role: (entry.backend, entry.reason, entry.call) for entry in explained.entries} == ran


@pytest.mark.parametrize("op", sorted(find_ops()))
def test_arguments_that_an_op_does_not_take_are_named(op):
    """The message is the user's, with the op's own parameters: no private function, no bare TypeError."""
    with pytest.raises(UnsupportedError, match=rf"explain: missing a required argument: '\w+'; {op} takes \(\w+, "):
        explain(op)
    parameters = inspect.signature(getattr(turbo.ops, op)).parameters.values()
    needed = {parameter.name: None for parameter in parameters if parameter.default is parameter.empty}
    with pytest.raises(UnsupportedError, match=rf"explain: got an unexpected keyword argument 'no_such'; {op} takes"):
        explain(op, **needed, no_such=1)
