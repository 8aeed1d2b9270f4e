# SPDX-License-Identifier: MIT
"""What every function promises beside its numbers: errors, compilation, registration, choice of backend, modules."""

import copy
import io

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import turbo_attention as ta
from turbo_attention.calls import BackwardCall, ForwardCall
from turbo_attention.pytorch.kernels.attention_impl import AttentionDispatcher
from turbo_attention.pytorch.kernels.reference import attention_backward, attention_forward
from turbo_core import (
    BackendType,
    BackendUnavailableError,
    GlobalBackendManager,
    KernelBackend,
    UnsupportedError,
    explain,
    trace_dispatch,
)
from turbo_testing.metrics import assert_close

Q = torch.randn(2, 5, 4, 16)
K = torch.randn(2, 6, 2, 16)
R = torch.randn(10, 4, 16)
CU = torch.tensor([0, 4, 10], dtype=torch.int32)
KV, IDX = torch.randn(9, 16), torch.zeros(10, 3, dtype=torch.int32)

WRONG = [
    (lambda: ta.flash_attn_func(3, K, K), "q is 3"),
    (lambda: ta.flash_attn_func(Q[0], K, K), "q is a tensor of shape"),
    (lambda: ta.flash_attn_func(Q.double(), K.double(), K.double()), "q is .*float64"),
    (lambda: ta.flash_attn_func(Q, K.bfloat16(), K), "q is .*float32, k is .*bfloat16, v is .*float32; one dtype"),
    (lambda: ta.flash_attn_func(Q, K, K[:, :3]), "v is .*those of k"),
    (lambda: ta.flash_attn_func(Q, K[..., :8], K), "q has head dim 16"),
    (lambda: ta.flash_attn_func(Q, torch.randn(2, 6, 3, 16), torch.randn(2, 6, 3, 16)), "q has 4 heads"),
    (lambda: ta.flash_attn_func(Q, K[:1], K[:1]), "q has batch 2"),
    (lambda: ta.flash_attn_func(Q, K, K, dropout_p=1.0), "dropout_p is 1.0"),
    (lambda: ta.flash_attn_func(Q, K, K, dropout_p=float("nan")), "dropout_p is nan"),
    (lambda: ta.flash_attn_func(Q, K, K, softmax_scale=0), "softmax_scale is 0"),
    (lambda: ta.flash_attn_func(Q, K, K, softmax_scale=-1.0), "softmax_scale is -1.0"),
    (lambda: ta.flash_attn_func(Q, K, K, window_size=(-2, 0)), r"window_size is \(-2, 0\)"),
    (lambda: ta.flash_attn_func(Q, K, K, window_size=4), "window_size is 4"),
    (lambda: ta.flash_attn_func(Q, K, K, softcap=-1), "softcap is -1"),
    (lambda: ta.flash_attn_func(Q, K, K, alibi_slopes=torch.ones(3)), r"alibi_slopes is .*\[4\] or \[2, 4\]"),
    (lambda: ta.flash_attn_func(Q, K, K, sink=torch.ones(2)), r"sink is .*\[4\]"),
    (lambda: ta.flash_attn_func(Q, K, K, bias=torch.ones(5, 7)), "bias is .*broadcasts to"),
    (lambda: ta.flash_attn_func(Q, K, K, bias=torch.ones(5, 6).double()), "bias is .*float64"),
    (lambda: ta.flash_attn_varlen_func(R, R, R, CU.long(), CU, 6, 6), "cu_seqlens_q is .*int64"),
    (lambda: ta.flash_attn_varlen_func(R, R, R, CU, CU[:2], 6, 6), "cu_seqlens_q has shape"),
    (lambda: ta.flash_attn_varlen_func(R, R, R, CU, CU, 6.0, 6), "max_seqlen_q is 6.0"),
    (lambda: ta.flash_attn_varlen_func(R, R, R, CU, CU, 6, -1), "max_seqlen_k is -1"),
    (lambda: ta.flash_attn_varlen_func(R, R, R, CU, CU, 6, 6, bias=torch.ones(6, 6)), "bias is a Tensor"),
    (lambda: ta.sparse_mla_func(Q, KV, IDX), "sparse_mla_func: q is"),
    (lambda: ta.sparse_mla_func(R, KV[:, :8], IDX, kv_lora_rank=8), r"kv is .*\[rows, 16\]"),
    (lambda: ta.sparse_mla_func(R, KV.half(), IDX, kv_lora_rank=8), "q is .*float32, kv is .*float16; one dtype"),
    (lambda: ta.sparse_mla_func(R, KV, IDX, kv_lora_rank=8.0), "kv_lora_rank is 8.0"),
    (lambda: ta.sparse_mla_func(R, KV, IDX.long(), kv_lora_rank=8), "topk_indices is .*int64"),
    (lambda: ta.sparse_mla_func(R, KV, IDX[:3], kv_lora_rank=8), r"topk_indices is .*\[10, topk\]"),
    (lambda: ta.sparse_mla_func(R, KV, IDX, kv_lora_rank=17), "kv_lora_rank is 17"),
    (lambda: ta.sparse_mla_func(R, KV, IDX, torch.ones(3), 8), "attn_sink is"),
    (lambda: ta.sparse_mla_func(R, KV, IDX, None, 8, float("inf")), "scale is inf"),
    (lambda: ta.TurboAttention()(R, R, R, cu_seqlens_q=CU), "go together"),
]


@pytest.mark.parametrize("call, message", WRONG, ids=[message for _, message in WRONG])
def test_errors(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()


# --- compilation and registration -------------------------------------------------------------------------------------


def leaf(*shape, layout="bshd"):
    x = torch.randn(*shape)
    if layout == "sbhd":
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "bhsd":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.requires_grad_()


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize("function", [ta.flash_attn_func, ta.flash_attn_fp8_func], ids=["16 bits", "fp8"])
def test_compiled_is_eager(device, layout, function):
    q, k = leaf(2, 32, 4, 64, layout=layout), leaf(2, 32, 4, 64, layout=layout)
    sink = torch.zeros(4, requires_grad=True)

    def run(q, k, sink):
        out, lse = function(q, k, k, causal=True, sink=sink, return_lse=True)
        return out, lse

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for one, other in zip(run(q, k, sink), compiled(q, k, sink), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    eager = torch.autograd.grad(run(q, k, sink)[0].square().sum(), (q, k, sink))
    traced = torch.autograd.grad(compiled(q, k, sink)[0].square().sum(), (q, k, sink))
    for one, other in zip(eager, traced, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_sparse_and_ragged_compile():
    q = R.clone().requires_grad_()

    def run(q):
        return ta.flash_attn_varlen_func(q, q, q, CU, CU, 6, 6, dropout_p=0.0), ta.sparse_mla_func(q, KV, IDX, None, 8)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for one, other in zip(run(q), compiled(q), strict=True):
        assert torch.equal(one, other)
    sum(out.sum() for out in compiled(q)).backward()


def test_opcheck():
    q, k, v = (torch.randn(1, 5, 2, 8, requires_grad=True) for _ in range(3))
    sink, bias = torch.randn(2, requires_grad=True), torch.randn(1, 2, 5, 5, requires_grad=True)
    dense = (q, k, v, 0.3, -1, 0, 0.0, 0.0, bias, None, sink, None, None, None, 5, 5, False)
    torch.library.opcheck(torch.ops.turbo_attention.attention.default, dense)
    # the others take sums of the outputs, which torch has none of in FP8
    fp8_tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.turbo_attention.attention_fp8.default, dense, test_utils=fp8_tests)
    rows = tuple(tensor.detach()[0].reshape(1, 5, 2, 8).requires_grad_() for tensor in (q, k, v))
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    ragged = (*rows, 0.3, -1, 0, 0.0, 0.0, None, None, None, None, starts, starts, 3, 3, False)
    torch.library.opcheck(torch.ops.turbo_attention.attention.default, ragged)
    sparse = (R.clone().requires_grad_(), KV.clone().requires_grad_(), IDX, torch.randn(4, requires_grad=True), 8, 0.3)
    torch.library.opcheck(torch.ops.turbo_attention.sparse_mla.default, sparse)


# --- the reference itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left, right, softcap, with_bias, with_sink", [(-1, -1, 0.0, False, False), (3, 0, 2.0, True, True)]
)
def test_gradients_of_the_reference_by_differences(left, right, softcap, with_bias, with_sink):
    """gradcheck, in float64, of the formulas that stand in for autograd."""
    q, k, v = (torch.randn(1, n, h, 4, dtype=torch.float64, requires_grad=True) for n, h in ((4, 2), (5, 1), (5, 1)))
    bias = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True) if with_bias else None
    sink = torch.randn(2, dtype=torch.float64, requires_grad=True) if with_sink else None

    class Reference(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias, sink):
            ctx.call = ForwardCall(q, k, v, 0.5, left, right, softcap, 0.0, bias, None, sink, None, None, None, 4, 5)
            ctx.result = attention_forward(ctx.call)
            return tuple(ctx.result[:2])

        @staticmethod
        def backward(ctx, dout, dlse):
            return tuple(attention_backward(BackwardCall(ctx.call, *ctx.result, dout, dlse, with_bias)))

    assert torch.autograd.gradcheck(Reference.apply, (q, k, v, bias, sink))


# --- choice of backend ------------------------------------------------------------------------------------------------


def test_explain_and_trace():
    explanation = explain("flash_attn_func", Q, K, K, causal=True)
    assert [entry.role for entry in explanation.entries] == ["forward", "backward"]
    assert "Hq=4 Hkv=2" in str(explanation)
    q = Q.clone().requires_grad_()
    with trace_dispatch() as trace:
        ta.flash_attn_func(q, K, K).sum().backward()
    assert [record.role for record in trace.records] == ["forward", "backward"]


def test_explain_under_autocast():
    """It names the dtype that would run, not that of the arguments."""
    with torch.autocast("cpu", torch.bfloat16):
        told = [
            explain("flash_attn_func", Q, K, K),
            explain("flash_attn_varlen_func", R, R, R, CU, CU, 6, 6),
            explain("sparse_mla_func", R, KV, IDX, None, 8),
        ]
    for explanation in told:
        assert all("bf16" in entry.call or "bfloat16" in entry.call for entry in explanation.entries)


def test_a_backend_that_cannot_is_an_error():
    GlobalBackendManager.set_attn_backend("CK")
    with pytest.raises(BackendUnavailableError, match="attention: backend CK .*does not exist for this op"):
        ta.flash_attn_func(Q, K, K)


class Recording(KernelBackend):
    """The reference, which keeps the calls."""

    calls = []

    @classmethod
    def why_not(cls, call):
        return None

    @classmethod
    def execute(cls, call):
        cls.calls.append(call)
        return attention_forward(call) if isinstance(call, ForwardCall) else attention_backward(call)


@pytest.fixture
def recorded(monkeypatch):
    """The calls that reach the backend of attention."""
    Recording.calls = []
    monkeypatch.setitem(AttentionDispatcher.backends, BackendType.TORCH, Recording)
    GlobalBackendManager.set_attn_backend("TORCH")
    return Recording.calls


def ragged(q, k, v, **options):
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    return ta.flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 3, 3, **options)


@pytest.mark.parametrize(
    "function", [ta.flash_attn_func, ragged, ta.flash_attn_fp8_func], ids=["dense", "ragged", "fp8"]
)
@pytest.mark.parametrize("when", ["never", "argument", "forward", "backward", "both"])
def test_deterministic_reaches_the_backend(recorded, function, when):
    """By the argument, or under torch.use_deterministic_algorithms while the forward or the backward runs."""
    q = Q.clone().requires_grad_()
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(when in ("forward", "both"))
        out = function(q, K, K, deterministic=when == "argument")
        torch.use_deterministic_algorithms(when in ("backward", "both"))
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(before)
    backward = [call for call in recorded if isinstance(call, BackwardCall)]
    assert [call.forward.deterministic for call in backward] == [when != "never"]


def test_module():
    module = ta.TurboAttention(dropout_p=0.5, causal=True, softcap=2.0)
    wanted = ta.flash_attn_func(Q, K, K, causal=True, softcap=2.0)
    assert torch.equal(module.eval()(Q, K, K), wanted)
    assert not torch.equal(module.train()(Q, K, K), wanted)
    assert "causal=True" in repr(module)
    assert_close(ta.TurboAttention(return_lse=True)(Q, K, K)[0], ta.flash_attn_func(Q, K, K).double(), dtype=Q.dtype)


def copied(module):
    return copy.deepcopy(module)


def pickled(module):
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def through_meta(module):
    """As large models are built: without memory first, then the state dict."""
    other = copy.deepcopy(module).to("meta").to_empty(device="cpu")
    other.load_state_dict(module.state_dict())
    other.alibi_slopes = module.alibi_slopes  # a buffer that no state dict holds
    return other


@pytest.mark.parametrize("way", [copied, pickled, through_meta])
def test_copies_of_the_module(way):
    options = {
        "causal": True,
        "window_size": (3, 0),
        "softcap": 2.0,
        "softmax_scale": 0.3,
        "alibi_slopes": torch.rand(4),
    }
    module = ta.TurboAttention(**options, sink=torch.nn.Parameter(torch.randn(4)))
    other = way(module)
    assert isinstance(other.sink, torch.nn.Parameter) and other.sink is not module.sink
    for each in (module, other):
        each(Q, K, K).square().sum().backward()
    assert torch.equal(other(Q, K, K), module(Q, K, K)) and torch.equal(other.sink.grad, module.sink.grad)
    with torch.no_grad():
        other.sink.add_(1)
    wanted = ta.flash_attn_func(Q, K, K, **options, sink=module.sink)
    assert torch.equal(module(Q, K, K), wanted) and not torch.equal(other(Q, K, K), wanted)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_module_under_checkpointing(reentrant):
    """Dropout included: the second forward drops what the first dropped."""
    module = ta.TurboAttention(dropout_p=0.5, causal=True, sink=torch.nn.Parameter(torch.randn(4)))
    q = Q.clone().requires_grad_()
    torch.manual_seed(3)
    wanted = torch.autograd.grad(module(q, K, K).square().sum(), (q, module.sink))
    torch.manual_seed(3)
    checkpoint(module, q, K, K, use_reentrant=reentrant).square().sum().backward()
    assert torch.equal(q.grad, wanted[0]) and torch.equal(module.sink.grad, wanted[1])


def test_a_sink_that_is_no_parameter_is_refused():
    with pytest.raises(UnsupportedError, match="TurboAttention: sink is a Tensor; a torch.nn.Parameter or None"):
        ta.TurboAttention(sink=torch.zeros(4))
