# SPDX-License-Identifier: MIT
"""The wheel's kernels for ``python -m turbo_core audit``: HIP code objects, and Triton launches as they are planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import turbo_attention
from turbo_core.device import arch_facts
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

    from turbo_attention.calls import ForwardCall
    from turbo_core.audit import CodeObject, TritonKernel
    from turbo_core.launch import Launch

__all__ = ["kernels", "launches"]

# (D, Dv): one of each row of the tile table, and widths that need masks
HEADS = ((128, 128), (64, 64), (192, 128))
MORE_HEADS = ((256, 256), (576, 512), (512, 512), (288, 272), (96, 96), (80, 80), (40, 24), (8, 8))
MORE_FP8_HEADS = ((256, 256), (576, 512), (288, 272), (80, 80), (40, 40), (16, 16))
LENGTH = 1000  # no multiple of a tile: edges are masked

# what a call may bring, from the plainest to all of it
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"right": 0},
    "ragged window sink": {"left": 127, "right": 0, "ragged": True, "sink": True},
    "everything": {
        "left": 100,
        "right": 5,
        "sink": True,
        "softcap": 5.0,
        "dropout_p": 0.1,
        "bias": True,
        "alibi": True,
    },
}
MORE_OPTIONS: dict[str, dict[str, Any]] = {
    "full, whole tiles": {"length": 4096},
    "dropout window": {"dropout_p": 0.1, "left": 100, "right": 5},
    "bias window sink": {"bias": True, "left": 100, "right": 5, "sink": True},
    "all but bias": {
        "left": 100,
        "right": 5,
        "sink": True,
        "softcap": 5.0,
        "dropout_p": 0.1,
        "alibi": True,
    },
}
# the head dims with which each option stands for all in the short form
SHORT = {"causal": ((128, 128),), "ragged window sink": ((64, 64), (192, 128)), "everything": ((64, 64), (128, 128))}
SHORT_FP8 = {"causal": ((192, 128),), "everything": ((64, 64), (128, 128))}


def kernels(arch: str, full: bool) -> Iterator[TritonKernel | CodeObject]:
    """All kernels of the wheel for ``arch``; without ``full`` a part that compiles quickly."""
    from turbo_core.audit import TritonKernel, code_objects

    yield from code_objects(turbo_attention, arch)
    seen = set()
    for name, launch in launches(arch, full):
        signature = launch.signature()
        key = (launch.kernel.fn.__name__, str(signature), str(launch.all_options()))
        if key in seen:
            continue
        seen.add(key)
        yield TritonKernel(
            f"{launch.kernel.fn.__name__} {name}",
            arch,
            launch.kernel,
            dict(signature.types),
            dict(signature.constants),
            dict(signature.attributes),
            launch.all_options(),
        )


def launches(arch: str, full: bool) -> Iterator[tuple[str, Launch]]:
    """Each launch under a name that says for what it is."""
    torch = require_torch()
    dtypes = (torch.bfloat16, torch.float16, torch.float32) if full else (torch.bfloat16,)
    for dtype in dtypes:
        short = str(dtype).removeprefix("torch.")
        for D, Dv in (*HEADS, *MORE_HEADS) if full else HEADS:
            for option, given in {**OPTIONS, **MORE_OPTIONS}.items() if full else OPTIONS.items():
                if not full and (D, Dv) not in SHORT[option]:
                    continue
                if option == "everything" and (D, Dv) not in ((64, 64), (128, 128)):
                    continue  # refused: triton.attention.why_not
                if option == "all but bias" and max(D, Dv) > 256:
                    continue  # likewise
                for launch in _attention(arch, dtype, D, Dv, **given):
                    yield f"D={D}/{Dv} {option} {short}", launch
        for launch in _sparse(arch, dtype):
            yield f"D=576/512 {short}", launch
    for D, Dv in (*HEADS, *MORE_FP8_HEADS) if full else HEADS:
        for option, given in {**OPTIONS, **MORE_OPTIONS}.items() if full else OPTIONS.items():
            if given.get("ragged"):
                continue  # dense batches only
            if not full and (D, Dv) not in SHORT_FP8[option]:
                continue
            for launch in _fp8(arch, D, Dv, **given):
                yield f"D={D}/{Dv} {option} FP8", launch


def _call(
    dtype: torch.dtype,
    D: int,
    Dv: int,
    *,
    length: int = LENGTH,
    left: int = -1,
    right: int = -1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    bias: bool = False,
    alibi: bool = False,
    sink: bool = False,
    ragged: bool = False,
) -> ForwardCall:
    from turbo_attention.calls import ForwardCall

    torch = require_torch()

    def meta(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    B, S = (1, 4 * length) if ragged else (4, length)
    starts = meta(5, dtype=torch.int32) if ragged else None
    return ForwardCall(
        meta(B, S, 32, D),
        meta(B, S, 8, D),
        meta(B, S, 8, Dv),
        D**-0.5,
        left,
        right,
        softcap,
        dropout_p,
        meta(B, 32, S, S) if bias else None,
        meta(4, 32, dtype=torch.float32) if alibi else None,
        meta(32, dtype=torch.float32) if sink else None,
        meta(2, dtype=torch.int64) if dropout_p else None,
        starts,
        starts,
        length,
        length,
    )


def _attention(arch: str, dtype: torch.dtype, D: int, Dv: int, **given: Any) -> list[Launch]:
    from turbo_attention.calls import BackwardCall
    from turbo_attention.triton import attention

    facts = arch_facts(arch)
    call = _call(dtype, D, Dv, **given)
    result, forward = attention.plan_forward(call, facts)
    backward = BackwardCall(call, *result, result.out, result.lse, call.bias is not None)
    return [*forward, *attention.plan_backward(backward, facts)[1]]


def _fp8(arch: str, D: int, Dv: int, **given: Any) -> list[Launch]:
    from turbo_attention.triton import attention_fp8

    return attention_fp8.plan(_call(require_torch().bfloat16, D, Dv, **given), arch_facts(arch))[1]


def _sparse(arch: str, dtype: torch.dtype) -> list[Launch]:
    from turbo_attention.sparse_calls import SparseBackward, SparseForward
    from turbo_attention.triton import sparse_mla

    torch = require_torch()
    facts = arch_facts(arch)
    q = torch.empty(512, 64, 576, dtype=dtype, device="meta")
    indices = torch.empty(512, 100, dtype=torch.int32, device="meta")
    call = SparseForward(q, q[:, 0].contiguous(), indices, q.new_empty(64, dtype=torch.float32), 512, 576**-0.5)
    result, forward = sparse_mla.plan_forward(call, facts)
    backward = SparseBackward(call, *result, result.out, None)
    _, _, queries = sparse_mla.plan_queries(backward, result.lse, facts)
    shares, slots = sparse_mla.plan_shares(backward, result.lse, 0, 512, facts)
    return [
        *forward,
        queries,
        slots,
        sparse_mla.plan_sum(call, shares, 0, 512, q.new_empty(512, 576, dtype=torch.float32)),
    ]
