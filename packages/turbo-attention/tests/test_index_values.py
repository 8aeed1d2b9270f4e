# SPDX-License-Identifier: MIT
"""PRIMUS_TURBO_CHECK_INDICES=1 names the first wrong index; without it no value is read and none breaks a process."""

import pytest
import torch

import turbo_attention as ta
from turbo_attention.pytorch.ops import index_values
from turbo_core import UnsupportedError
from turbo_core.environment import CHECK_INDICES_VARIABLE
from turbo_testing.attention_references import attention
from turbo_testing.metrics import assert_close

GOOD = [0, 4, 4, 10]
WRONG_STARTS = {
    "past the tokens": ([0, 4, 90000], r"cu_seqlens_q\[2\] is 90000; 4 to 10, the tokens of q"),
    "negative": ([-1, 4, 10], r"cu_seqlens_q\[0\] is -1; 0 to 10"),
    "decreasing": ([0, 6, 4, 10], r"cu_seqlens_q\[2\] is 4; 6 to 10"),
    "too long": ([0, 8, 10], r"max_seqlen_q is 6, but sequence 0 of q has 8 tokens"),
}


def ragged(starts_q, starts_k=GOOD, longest=6, device="cpu"):
    q, k = torch.randn(10, 2, 16, device=device), torch.randn(10, 2, 16, device=device)
    starts = [torch.tensor(starts, dtype=torch.int32, device=device) for starts in (starts_q, starts_k)]
    return ta.flash_attn_varlen_func(q, k, k, *starts, longest, longest)


def sparse(slots, device="cpu"):
    q, kv = torch.randn(2, 2, 16, device=device), torch.randn(5, 16, device=device)
    return ta.sparse_mla_func(q, kv, torch.tensor(slots, dtype=torch.int32, device=device), None, 8)


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv(CHECK_INDICES_VARIABLE, "1")


@pytest.mark.parametrize("starts, message", WRONG_STARTS.values(), ids=WRONG_STARTS)
def test_wrong_sequences_are_named(backend, device, checked, starts, message):
    good = torch.linspace(0, 10, len(starts)).int().tolist()
    with pytest.raises(UnsupportedError, match=f"flash_attn_varlen_func: {message}.*{CHECK_INDICES_VARIABLE}=1"):
        ragged(starts, good, device=device)
    with pytest.raises(UnsupportedError, match=message.replace("_q", "_k").replace("of q", "of k")):
        ragged(good, starts, device=device)


@pytest.mark.parametrize("slots", [[[0, 4], [5, 9]], [[0, -7], [2**31 - 1, 0]]], ids=str)
def test_wrong_slots_are_named(backend, device, checked, slots):
    with pytest.raises(UnsupportedError, match=rf"sparse_mla_func: topk_indices\[1, 0\] is {slots[1][0]}; below 5"):
        sparse(slots, device)


def test_right_values_pass(backend, device, checked):
    q = torch.randn(10, 2, 16, device=device, requires_grad=True)
    starts = torch.tensor([1, 4, 4, 9], dtype=torch.int32, device=device)  # a row before the first, one behind the last
    out = ta.flash_attn_varlen_func(q, q, q, starts, starts, 5, 5)
    for rows in (slice(1, 4), slice(4, 9)):
        part = q[None, rows].detach()
        assert_close(out[rows], attention(part, part, part, 0.25)[0][0])
    sparse([[0, 4], [-1, -5]], device)


def test_compiled_code_is_checked_where_it_runs(checked):
    run = torch.compile(lambda q, starts: ta.flash_attn_varlen_func(q, q, q, starts, starts, 6, 6), backend="aot_eager")
    q = torch.randn(10, 2, 16)
    run(q, torch.tensor(GOOD, dtype=torch.int32))
    with pytest.raises(UnsupportedError, match=r"cu_seqlens_q\[3\] is 11"):
        run(q, torch.tensor([0, 4, 4, 11], dtype=torch.int32))


@pytest.mark.parametrize("value", [None, "", "0"], ids=str)
def test_off_reads_nothing(monkeypatch, value):
    if value is None:
        monkeypatch.delenv(CHECK_INDICES_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(CHECK_INDICES_VARIABLE, value)
    assert not index_values._wanted(torch.device("cpu"))
    sparse([[0, 4], [5, 9]])
    ragged([0, 4, 90000], [0, 4, 10])


def test_under_capture_nothing_is_read(monkeypatch, checked):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not index_values._wanted(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert index_values._wanted(torch.device("cuda"))


def test_another_value_is_an_error(monkeypatch):
    monkeypatch.setenv(CHECK_INDICES_VARIABLE, "yes")
    with pytest.raises(UnsupportedError, match="PRIMUS_TURBO_CHECK_INDICES='yes': accepted are 0 and 1"):
        sparse([[0, 4], [5, 9]])
