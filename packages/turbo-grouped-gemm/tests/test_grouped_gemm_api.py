# SPDX-License-Identifier: MIT
"""grouped_gemm: what it refuses, how it is registered, and how its backend is chosen."""

import inspect
import re

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

import turbo_grouped_gemm as tgg
from turbo_core import (
    BackendType,
    GlobalBackendManager,
    UnsupportedError,
    explain,
    simulated_arch,
    trace_dispatch,
    why_no_triton,
)
from turbo_grouped_gemm.calls import GroupedGemmCall, GroupedWgradCall, Groups
from turbo_grouped_gemm.developer import grouped_wgrad
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_blas
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_impl import GroupedGemmDispatcher
from turbo_testing.metrics import assert_close

A, B, LENS = torch.ones(6, 4), torch.ones(2, 4, 3), torch.tensor([2, 3])
INDEX = torch.arange(6)


def test_signature():
    """Names and order are those of the field."""
    names = list(inspect.signature(tgg.grouped_gemm).parameters)
    assert names == [
        "a", "b", "group_lens", "group_offs", "trans_b", "num_cu", "schedule", "fuse_bgrad_accum_pattern", "bias",
        "out_dtype", "a_idx", "out_idx", "out_rows",
    ]  # fmt: skip
    assert inspect.signature(tgg.grouped_gemm).parameters["trans_b"].default is False


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"a": None}, "a is None; a tensor of 2 or 3 dimensions is accepted"),
        ({"a": A[0]}, r"a has shape \[4\]; 2 or 3 dimensions are accepted"),
        ({"b": B[0]}, r"b has shape \[4, 3\]; 3 dimensions are accepted"),
        ({"a": A.double()}, "a.dtype=torch.float64; accepted are torch.bfloat16, torch.float16, torch.float32"),
        ({"b": B.int()}, "b.dtype=torch.int32; accepted are"),
        ({"b": B.to("meta")}, "a is on cpu and b is on meta; they must be on one device"),
        ({"trans_b": True}, r"K is 4 by a \(shape \[6, 4\]\) and 3 by b \(shape \[2, 4, 3\], trans_b=True\)"),
        ({"a": A.view(3, 2, 4)}, r"a has shape \[3, 2, 4\] and b \[2, 4, 3\]; a of 3 dimensions has a matrix for each"),
        ({"group_lens": [2, 3]}, r"group_lens is \[2, 3\]; a tensor of shape \[2\], int64 or int32, on cpu"),
        ({"group_lens": LENS[:1]}, r"group_lens is a tensor of shape \[1\], .*; a tensor of shape \[2\]"),
        ({"group_lens": LENS.float()}, r"group_lens is a tensor of shape \[2\], torch.float32"),
        ({"group_lens": LENS.to("meta")}, r"group_lens is .*on meta; .*on cpu is accepted"),
        ({"group_offs": LENS}, r"group_offs is a tensor of shape \[2\], .*; a tensor of shape \[3\]"),
        ({"a": A.view(2, 3, 4), "group_offs": torch.arange(3)}, "group_offs is .*; None is accepted where a has 3 dim"),
        ({"a": A.view(2, 3, 4), "a_idx": INDEX}, "a_idx is .*; None is accepted where a has 3 dimensions"),
        ({"a": A.view(2, 3, 4), "out_idx": INDEX}, "out_idx is .*; None is accepted where a has 3 dimensions"),
        ({"schedule": "steal"}, "schedule='steal'; accepted are 'static' and 'work_steal'"),
        ({"num_cu": 0}, "num_cu=0; None and numbers from 1 are accepted"),
        ({"num_cu": True}, "num_cu=True; None and numbers from 1 are accepted"),
        ({"num_cu": 8, "schedule": "work_steal"}, "num_cu=8 with schedule='work_steal'; None is accepted with it"),
        ({"bias": torch.ones(3)}, r"bias is a tensor of shape \[3\], .*; a tensor of shape \[2, 3\] in one of"),
        ({"bias": torch.ones(2, 3).int()}, r"bias is .*torch.int32"),
        ({"bias": torch.ones(2, 3, device="meta")}, "bias is on meta and a is on cpu"),
        ({"out_dtype": torch.int8}, "out_dtype=torch.int8; accepted are"),
        ({"a_idx": INDEX.float()}, "a_idx is .*torch.float32.*a tensor of 1 dimension, int64 or int32"),
        ({"a_idx": INDEX, "out_idx": INDEX[:5]}, r"out_idx is .*\[5\].*; a tensor of shape \[6\]"),
        ({"out_rows": 7}, "out_rows=7; without out_idx None and 6, the rows, are accepted"),
        ({"out_idx": INDEX, "out_rows": -1}, "out_rows=-1; None and numbers from 0 are accepted"),
        ({"out_idx": INDEX, "out_rows": 2.5}, "out_rows=2.5; None and numbers from 0 are accepted"),
        ({"fuse_bgrad_accum_pattern": "te"}, "fuse_bgrad_accum_pattern='te'; accepted are None and 'megatron'"),
        ({"fuse_bgrad_accum_pattern": "megatron"}, "needs b.main_grad"),
    ],
)  # fmt: skip
def test_refusals_name_argument_value_and_what_is_accepted(changed, complaint):
    with trace_dispatch() as trace, pytest.raises(UnsupportedError, match=f"^grouped_gemm: .*{complaint}"):
        tgg.grouped_gemm(**{"a": A, "b": B, "group_lens": LENS, **changed})
    assert not trace.records


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"y": A[:5]}, r"y is a tensor of shape \[5, 4\].*; 6 rows on cpu, as of x, are accepted"),
        ({"x": A.double()}, "x is .*torch.float64"),
        ({"x": B}, r"x is .*\[2, 4, 3\].*; a matrix in one of"),
        ({"out": torch.ones(2, 4, 5)}, r"out is .*; a tensor of shape \[2, 4, 4\] on cpu"),
        ({"out": torch.ones(2, 4, 4), "out_dtype": torch.bfloat16}, "out is .*, out_dtype=torch.bfloat16;"),
        ({"group_lens": LENS[None]}, "group_lens is"),
    ],
)
def test_refusals_of_the_contraction(changed, complaint):
    with pytest.raises(UnsupportedError, match=f"grouped_wgrad: {complaint}"):
        grouped_wgrad(**{"x": A, "y": A, "group_lens": LENS, **changed})


def test_the_contraction_by_itself(device):
    x, y = torch.randn(7, 5, device=device), torch.randn(7, 6, device=device)
    lens = torch.tensor([3, 0, 2], dtype=torch.int32, device=device)
    expected = torch.stack([x[:3].t() @ y[:3], torch.zeros(5, 6, device=device), x[3:5].t() @ y[3:5]])
    assert_close(grouped_wgrad(x, y, lens), expected.double(), dtype=torch.float32)
    out = torch.ones(3, 5, 6, device=device)
    assert grouped_wgrad(x, y, lens, out=out) is out
    assert_close(out, 1 + expected.double(), dtype=torch.float32)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"group_lens": torch.tensor([2, -1])}, r"group_lens\[1\] is -1; numbers from 0"),
        ({"group_lens": torch.tensor([2, 5])}, "group 1 ends with row 7; at most 6, the rows, are accepted"),
        ({"group_offs": torch.tensor([0, 4, 2])}, r"group_offs\[1\] is 4 and the next 2; ascending"),
        ({"group_offs": torch.tensor([0, 1, 6])}, r"group_lens\[0\] is 2 and group_offs give it 1 rows"),
        ({"a_idx": torch.tensor([0, 1, 2, 6, 0])}, r"a_idx\[3\] is 6; 0 to 5 are accepted"),
        ({"out_idx": torch.tensor([0, 1, 2, 1, 4, 4])}, r"out_idx\[3\] is 1 again; no row of a group may be named twi"),
        ({"out_idx": INDEX, "out_rows": 3}, r"out_idx\[3\] is 3; 0 to 2 are accepted"),
    ],
)  # fmt: skip
def test_values_are_read_on_request(monkeypatch, options, complaint):
    arguments = {"a": A, "b": B, "group_lens": LENS, **options}
    tgg.grouped_gemm(**arguments)
    monkeypatch.setenv("PRIMUS_TURBO_CHECK_INDICES", "1")
    with pytest.raises(UnsupportedError, match=rf"grouped_gemm: {complaint}.*\(PRIMUS_TURBO_CHECK_INDICES=1\)"):
        tgg.grouped_gemm(**arguments)
    right = {"a_idx": torch.tensor([0, 0, 5, 5, 5, 99]), "out_idx": torch.tensor([5, 4, 3, 1, 0, 99]), "out_rows": 6}
    tgg.grouped_gemm(A, B, LENS, **right)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_group_offs_from_lens(device, dtype):
    offs = tgg.group_offs_from_lens(torch.tensor([3, 0, 5], dtype=dtype, device=device))
    assert offs.dtype is torch.int64
    assert offs.tolist() == [0, 3, 3, 8]
    assert tgg.group_offs_from_lens(torch.zeros(0, dtype=dtype, device=device)).tolist() == [0]
    for wrong in (torch.ones(2), torch.ones(2, 2, dtype=torch.int64), [1, 2]):
        with pytest.raises(UnsupportedError, match="group_offs_from_lens: group_lens is"):
            tgg.group_offs_from_lens(wrong)


# --- registration with torch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_indices", [False, True])
def test_opcheck(device, by_indices):
    assert tgg.grouped_gemm, "imported, and with it registered"
    ops = torch.ops.turbo_grouped_gemm
    a, b = torch.randn(6, 4, device=device, requires_grad=True), torch.randn(2, 3, 4, device=device, requires_grad=True)
    bias = torch.randn(2, 3, device=device, requires_grad=True)
    lens, offs = LENS.to(device), torch.tensor([0, 2, 6], device=device) if by_indices else None
    a_idx, out_idx = (INDEX.to(device), INDEX.flip(0).to(device)) if by_indices else (None, None)
    rest = (torch.float32, a_idx, out_idx, 8 if by_indices else 6, None, "static", "forward")
    torch.library.opcheck(ops.grouped_gemm.default, (a, b, bias, lens, offs, True, *rest))
    y = torch.randn(6, 3, device=device, requires_grad=True)
    rest = (lens, offs, torch.float32, a_idx, out_idx)
    torch.library.opcheck(ops.grouped_wgrad.default, (a, y, *rest, None, "static"))
    out = torch.zeros(2, 4, 3, device=device)
    arguments = (a.detach(), y.detach(), *rest, out, None, "static")
    torch.library.opcheck(ops.grouped_wgrad_accumulate.default, arguments)


def step(a, b, lens, bias=None):
    return tgg.grouped_gemm(torch.relu(a), b, lens, trans_b=True, bias=bias) * 2


def test_one_graph_for_all_numbers_of_rows(device):
    """fullgraph, dynamic rows: lens are data, and another total compiles nothing anew."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    b, bias = torch.randn(3, 5, 6, device=device), torch.randn(3, 5, device=device)
    b.requires_grad_()
    for lens in ((2, 0, 3), (4, 4, 9), (1, 30, 0), (0, 0, 2), (7, 7, 7)):
        a = torch.randn(sum(lens) + 2, 6, device=device)
        torch._dynamo.mark_dynamic(a, 0)
        lens = torch.tensor(lens, device=device)
        results = []
        for function in (step, compiled):
            leaf = a.detach().requires_grad_()
            if function is compiled:
                torch._dynamo.mark_dynamic(leaf, 0)
            out = function(leaf, b, lens, bias)
            results.append((out, *torch.autograd.grad(out.square().sum(), (leaf, b))))
        for eager, graph in zip(*results, strict=True):
            assert eager.stride() == graph.stride()
            assert_close(graph, eager)
    assert counter.frame_count == 1


@pytest.mark.parametrize("pattern", [None, "megatron"])
def test_one_graph_where_every_size_is_a_symbol(device, pattern):
    """Rows of a, rows of the groups and rows of C change, each by itself."""
    weight = torch.nn.Parameter(torch.randn(3, 6, 5, device=device))

    def gathered(a, lens, a_idx, out_idx):
        out_rows = a_idx.shape[0] + 3
        return tgg.grouped_gemm(
            torch.relu(a), weight, lens, fuse_bgrad_accum_pattern=pattern, a_idx=a_idx, out_idx=out_idx,
            out_rows=out_rows,
        )  # fmt: skip

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(gathered, fullgraph=True, backend=counter, dynamic=True)
    for rows, slots in ((7, 11), (9, 20), (30, 15)):
        lens = torch.tensor([slots // 2, 0, slots // 3], device=device)
        a, a_idx = torch.randn(rows, 6, device=device), torch.randint(rows, (slots,), device=device)
        out_idx, results = torch.randperm(slots, device=device), []
        for function in (gathered, compiled):
            weight.grad, weight.main_grad = None, torch.zeros_like(weight)
            weight.grad_added_to_main_grad = False
            leaf = a.clone().requires_grad_()
            out = function(leaf, lens, a_idx, out_idx)
            out.square().sum().backward()
            results.append((out, leaf.grad, weight.grad, weight.main_grad))
        for eager, graph in zip(*results, strict=True):
            assert_close(graph, eager)
        assert bool(weight.main_grad.any()) == (pattern is not None)
    assert counter.frame_count == 1


def test_lens_computed_in_the_graph(device):
    """A router's counts: made on the device, used, and never read."""

    def experts(a, b, choice):
        lens = torch.zeros(3, dtype=torch.int64, device=a.device).index_add(0, choice, torch.ones_like(choice))
        order = torch.argsort(choice, stable=True)
        return tgg.grouped_gemm(a, b, lens, a_idx=order, out_idx=order)

    a, b = torch.randn(9, 6, device=device), torch.randn(3, 6, 4, device=device)
    choice = torch.tensor([2, 0, 2, 2, 0, 2, 0, 2, 2], device=device)
    expected = torch.stack([row.double() @ b[expert].double() for row, expert in zip(a, choice.tolist())])
    assert_close(torch.compile(experts, fullgraph=True, backend="aot_eager")(a, b, choice), expected)
    graph = make_fx(experts, tracing_mode="fake")(a, b, choice)
    assert torch.ops.turbo_grouped_gemm.grouped_gemm.default in [node.target for node in graph.graph.nodes]
    assert_close(graph(a, b, choice), expected)


@pytest.mark.gpu
def test_compiled_by_inductor(device):
    a = torch.randn(96, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    b = torch.randn(3, 32, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    lens = torch.tensor([30, 0, 60], device=device)
    out = torch.compile(step, fullgraph=True)(a, b, lens)
    assert_close(out, step(a, b, lens))
    out.sum().backward()


# --- the choice of backend ------------------------------------------------------------------------------------------


def call(device="cpu", dtype=torch.bfloat16, **options):
    a, b = torch.ones(16, 32, dtype=dtype, device=device), torch.ones(2, 24, 32, dtype=dtype, device=device)
    made = GroupedGemmCall(a, b, None, Groups(LENS.to(device), None), True, dtype, None, None, 16)
    return made._replace(**options)


@pytest.mark.usefixtures("plain_cpu")
def test_default_on_a_cpu_is_torch_without_a_word(capfd):
    with trace_dispatch() as trace:
        tgg.grouped_gemm(A, B, LENS)
    assert [(r.op, r.backend, r.reason) for r in trace.records] == [("grouped_gemm", BackendType.TORCH, "default")]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_on_a_simulated_gpu_the_default_is_triton(arch):
    if reason := why_no_triton(torch.device("cpu")):
        pytest.skip(reason)
    with simulated_arch(arch):
        assert GroupedGemmDispatcher.resolve(call()).backend is BackendType.TRITON


@pytest.mark.usefixtures("plain_cpu")
def test_explain_tells_the_three_products(capsys):
    entries = explain("grouped_gemm", A, B, LENS).entries
    assert [entry.role for entry in entries] == ["forward", "dgrad", "wgrad"]
    said = [entry.call.split(",")[0] for entry in entries]
    assert said == ["G=2 rows=6 N=3 K=4 NN", "G=2 rows=6 N=4 K=3 NT", "G=2 rows=6 X=4 Y=3"]
    assert {entry.backend for entry in entries} == {BackendType.TORCH}
    assert "a is torch.float32; torch's grouped product takes and gives torch.bfloat16" in capsys.readouterr().out


def test_the_setting_of_its_family(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_GROUPED_GEMM_BACKEND", "hipblaslt")
    decision = GroupedGemmDispatcher.resolve(call())
    assert decision.backend is BackendType.HIPBLASLT
    assert "PRIMUS_TURBO_GROUPED_GEMM_BACKEND" in decision.reason
    GlobalBackendManager.set_grouped_gemm_backend("TORCH")
    assert GroupedGemmDispatcher.resolve(call()).backend is BackendType.TORCH


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"bias": torch.ones(2, 24)}, "bias"),
        ({"groups": Groups(LENS, torch.arange(3))}, "offsets"),
        ({"a_idx": INDEX}, "by indices"),
        ({"out_idx": INDEX}, "by indices"),
        ({"num_cu": 4}, "num_cu is 4"),
        ({"schedule": "work_steal"}, "'work_steal'"),
        ({"out_dtype": torch.float32}, "out_dtype is torch.float32"),
        ({"a": torch.ones(16, 32)}, "a is torch.float32"),
        ({"a": torch.ones(16, 33, dtype=torch.bfloat16)}, r"a has shape \[16, 33\]"),
        ({"b": torch.ones(2, 24, 33, dtype=torch.bfloat16)}, "b has shape .*rows of a multiple of 8 are needed"),
    ],
)  # fmt: skip
def test_what_torchs_own_product_does_not_take(changed, reason):
    assert grouped_gemm_blas.why_not(call()) is None
    assert re.search(reason, grouped_gemm_blas.why_not(call(**changed)) or "it takes it")


def test_torchs_own_product_adds_to_out_and_takes_any_address(device):
    GlobalBackendManager.set_grouped_gemm_backend("HIPBLASLT")
    flat = torch.randn(16 * 32 + 1, device=device).bfloat16()
    x, y = flat[1:].view(16, 32), torch.randn(16, 24, device=device).bfloat16()
    out = torch.ones(2, 32, 24, device=device)
    lens = LENS.to(device)
    made = GroupedWgradCall(x, y, Groups(lens, None), torch.float32, None, None, out)
    assert GroupedGemmDispatcher.run(made) is out
    expected = torch.stack([x[:2].double().t() @ y[:2].double(), x[2:5].double().t() @ y[2:5].double()])
    assert_close(out, 1 + expected, dtype=torch.bfloat16)


def test_torchs_own_product_copies_what_it_does_not_read(device):
    """Expanded, strided, transposed and misplaced operands: the gradient of a sum is one."""
    GlobalBackendManager.set_grouped_gemm_backend("HIPBLASLT")
    lens = LENS.to(device)
    wide = torch.randn(16, 67, device=device).bfloat16()
    flat = torch.randn(2 * 24 * 32 + 3, device=device).bfloat16()
    for a, b in (
        (wide[:, 1:65:2], torch.randn(2, 24, 32, device=device).bfloat16()),
        (wide[:1, :32].expand(16, 32), flat[3:].view(2, 32, 24).mT),
        (wide[:, 2:34], flat[3:].view(2, 24, 32)),
    ):
        leaves = a.detach().requires_grad_(), b.detach().requires_grad_()
        out = tgg.grouped_gemm(*leaves, lens, trans_b=True)
        da, db = torch.autograd.grad(out.sum(), leaves)
        a64, b64 = a.double(), b.double()
        assert_close(out[2:5], a64[2:5] @ b64[1].t(), dtype=torch.bfloat16)
        assert_close(da[:2], b64[0].sum(0).expand(2, 32), dtype=torch.bfloat16)
        assert_close(db[1], a64[2:5].sum(0).expand(24, 32), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "other",
    [
        lambda c: c._replace(a=torch.ones(17, 32, dtype=torch.bfloat16)),
        lambda c: c._replace(a=c.a.half()),
        lambda c: c._replace(b=c.b.mT.contiguous(), trans_b=False),
        lambda c: c._replace(bias=torch.ones(2, 24)),
        lambda c: c._replace(groups=Groups(LENS.int(), None)),
        lambda c: c._replace(groups=Groups(LENS, torch.arange(3))),
        lambda c: c._replace(out_dtype=torch.float32),
        lambda c: c._replace(a_idx=INDEX),
        lambda c: c._replace(out_idx=INDEX, out_rows=9),
        lambda c: c._replace(num_cu=8),
        lambda c: c._replace(schedule="work_steal"),
        lambda c: c._replace(role="dgrad"),
    ],
)
def test_tuning_key_holds_all_that_changes_the_answer(other):
    assert GroupedGemmDispatcher.make_key(call()) == GroupedGemmDispatcher.make_key(call())
    assert GroupedGemmDispatcher.make_key(other(call())) != GroupedGemmDispatcher.make_key(call())


def test_tuning_writes_to_memory_of_its_own():
    """Field case: a winner that was timed without accumulation swallowed ``out``."""
    out = torch.ones(2, 4, 4)
    made = GroupedWgradCall(A, A, Groups(LENS, None), torch.float32, None, None, out)
    scratch = GroupedGemmDispatcher.scratch(made)
    assert scratch.out is not out and not scratch.out.any()
    assert GroupedGemmDispatcher.make_key(made) != GroupedGemmDispatcher.make_key(made._replace(out=None))
