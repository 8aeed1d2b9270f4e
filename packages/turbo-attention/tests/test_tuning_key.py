# SPDX-License-Identifier: MIT
"""Calls that differ in any field have different tuning keys: shapes, strides and dtypes of tensors, every number."""

import pytest
import torch

from turbo_attention.calls import BackwardCall, ForwardCall
from turbo_attention.pytorch.kernels.attention_impl import AttentionDispatcher
from turbo_attention.pytorch.kernels.fp8_impl import Fp8AttentionDispatcher
from turbo_attention.pytorch.kernels.sparse_mla_impl import SparseMlaDispatcher
from turbo_attention.sparse_calls import SparseBackward, SparseForward
from turbo_core.calls import device_of

HALF = torch.bfloat16


def tensor(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


FORWARD = ForwardCall(
    q=tensor(2, 4, 2, 16, dtype=HALF),
    k=tensor(2, 5, 2, 16, dtype=HALF),
    v=tensor(2, 5, 2, 24, dtype=HALF),
    softmax_scale=0.25,
    left=3,
    right=2,
    softcap=1.5,
    dropout_p=0.125,
    bias=tensor(2, 2, 4, 5),
    alibi_slopes=tensor(2, 2),
    sink=tensor(2),
    rng=tensor(2, dtype=torch.int64),
    cu_seqlens_q=tensor(3, dtype=torch.int32),
    cu_seqlens_k=tensor(3, dtype=torch.int32),
    max_seqlen_q=4,
    max_seqlen_k=5,
)
BACKWARD = BackwardCall(
    forward=FORWARD,
    out=tensor(2, 4, 2, 24, dtype=HALF),
    lse=tensor(2, 2, 4),
    lse_low=tensor(2, 2, 4),
    dout=tensor(2, 4, 2, 24, dtype=HALF),
    dlse=tensor(2, 2, 4),
    want_dbias=False,
)
SPARSE = SparseForward(
    q=tensor(4, 2, 16, dtype=HALF),
    kv=tensor(5, 16, dtype=HALF),
    indices=tensor(4, 3, dtype=torch.int32),
    sink=tensor(2),
    rank=8,
    softmax_scale=0.25,
)
SPARSE_BACKWARD = SparseBackward(
    forward=SPARSE,
    out=tensor(4, 2, 8, dtype=HALF),
    lse=tensor(4, 2),
    lse_low=tensor(4, 2),
    dout=tensor(4, 2, 8, dtype=HALF),
    dlse=tensor(4, 2),
)
CALLS = {
    "forward": (AttentionDispatcher, FORWARD),
    "backward": (AttentionDispatcher, BACKWARD),
    "fp8": (Fp8AttentionDispatcher, FORWARD),
    "sparse forward": (SparseMlaDispatcher, SPARSE),
    "sparse backward": (SparseMlaDispatcher, SPARSE_BACKWARD),
}


def others(value):
    """Values that differ from ``value`` in one thing."""
    if isinstance(value, bool):
        return {"not": not value}
    if not isinstance(value, torch.Tensor):
        return {"+1": value + 1}
    wider = torch.stack([value, value], dim=-1)[..., 0]
    longer = torch.cat([value, value])
    return {"dtype": value.half(), "strides": wider, "shape": longer, "none": None}


def changed(call):
    """(which field, how, the call with it changed), for every field of ``call`` and of the calls in it."""
    for field, value in zip(call._fields, call, strict=True):
        if hasattr(value, "_fields"):
            yield from ((f"{field}.{name}", how, call._replace(**{field: new})) for name, how, new in changed(value))
        else:
            yield from ((field, how, call._replace(**{field: new})) for how, new in others(value).items())


@pytest.mark.parametrize("kind", CALLS)
def test_every_field_is_in_the_key(kind):
    dispatcher, call = CALLS[kind]
    seen = {dispatcher.make_key(call): "the call itself"}
    for field, how, other in changed(call):
        if how == "none" and field.split(".")[-1] in ("q", "k", "v", "kv", "indices"):
            continue
        key = dispatcher.make_key(other)
        assert key not in seen, f"{kind}: {field} ({how}) has the key of {seen[key]}"
        seen[key] = f"{field} ({how})"
    assert dispatcher.make_key(call) in seen


def test_forward_and_backward_are_told_apart():
    keys = [(dispatcher.op, dispatcher.make_key(call)) for dispatcher, call in CALLS.values()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kind", CALLS)
def test_calls_are_timed_on_the_device_of_their_tensors(kind):
    assert device_of(CALLS[kind][1]) == FORWARD.q.device
