# SPDX-License-Identifier: MIT
"""The README's tables of backends are what the backends answer, and its example runs."""

import re
from pathlib import Path

import torch

from turbo_attention.pytorch.ops import attention, attention_fp8, sparse_mla
from turbo_core import BackendType
from turbo_testing import attention_references as references
from turbo_testing.metrics import assert_close
from turbo_testing.support_table import check_readme, support_table

README = Path(__file__).resolve().parents[1] / "README.md"
BUILT = (BackendType.AITER,)  # its answers depend on what else is installed


def dense(dtype=torch.bfloat16, width=128, **options):
    def make(device):
        q = torch.empty(2, 256, 8, width, dtype=dtype, device=device)
        k = torch.empty(2, 256, 2, width, dtype=dtype, device=device)
        return attention.FLASH_ATTN.calls(q, k, k, **options)

    return make


def ragged(device):
    q = torch.empty(256, 8, 128, dtype=torch.bfloat16, device=device)
    starts = torch.empty(4, dtype=torch.int32, device=device)
    return attention.FLASH_ATTN_VARLEN.calls(q, q, q, starts, starts, 100, 100, causal=True)


def fp8(device):
    q = torch.empty(2, 256, 8, 128, dtype=torch.bfloat16, device=device)
    return attention_fp8.FLASH_ATTN_FP8.calls(q, q, q, causal=True)


def sparse(device):
    q = torch.empty(256, 64, 576, dtype=torch.bfloat16, device=device)
    indices = torch.empty(256, 64, dtype=torch.int32, device=device)
    kv = torch.empty(256, 576, dtype=torch.bfloat16, device=device)
    return sparse_mla.SPARSE_MLA.calls(q, kv, indices)


def role(make, name):
    return lambda device: make(device)[name]


def test_tables():
    calls = {
        "bf16, fp16, forward": role(dense(causal=True), "forward"),
        "bf16, fp16, backward": role(dense(causal=True), "backward"),
        "fp32": role(dense(torch.float32), "forward"),
        "windows, sinks, soft-cap": role(dense(window_size=(64, 0), softcap=1.0), "forward"),
        "variable lengths": role(ragged, "forward"),
    }
    check_readme(README, support_table(attention.AttentionDispatcher, calls, BUILT))
    table = support_table(attention_fp8.Fp8AttentionDispatcher, {"FP8, forward": role(fp8, "forward")}, BUILT)
    check_readme(README, table, "fp8")
    calls = {"sparse MLA, forward": role(sparse, "forward"), "sparse MLA, backward": role(sparse, "backward")}
    check_readme(README, support_table(sparse_mla.SparseMlaDispatcher, calls, BUILT), "sparse")


def test_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names = {}
    exec(compile(example, str(README), "exec"), names)
    q, k, v = names["q"], names["k"], names["v"]
    scale = 64**-0.5
    out, lse = references.attention(q, k, v, scale, left=127, right=0, sink=torch.zeros(8, device=q.device))
    assert_close(names["out"], out, dtype=q.dtype)
    assert_close(names["lse"], lse, dtype=torch.float32)
    assert_close(q.grad, torch.autograd.grad(out.sum(), q)[0].double(), dtype=q.dtype)
    assert_close(names["dense"], references.attention(q, k, v, scale, right=0)[0], dtype=q.dtype)
    for rows in (slice(0, 100), slice(100, 256)):
        sequence = [tensor[:1, rows] for tensor in (q, k, v)]
        expected = references.attention(*sequence, scale, right=0)[0][0]
        assert_close(names["ragged"][rows], expected, dtype=q.dtype)
