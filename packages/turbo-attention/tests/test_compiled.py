# SPDX-License-Identifier: MIT
"""torch.compile(fullgraph=True): what changes from call to call is a symbol, a number, or known at run time only."""

import numpy as np
import pytest
import torch

import turbo_attention as ta
from turbo_core import UnsupportedError
from turbo_testing.attention_references import attention
from turbo_testing.metrics import assert_close, assert_snr

FUNCTIONS = {"16 bits": ta.flash_attn_func, "fp8": ta.flash_attn_fp8_func}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True, recompile_limit=64
    ):
        yield
    torch._dynamo.reset()


@pytest.fixture(params=FUNCTIONS)
def function(request):
    return FUNCTIONS[request.param]


def compiled(run, **options):
    return torch.compile(run, fullgraph=True, backend="aot_eager", **options)


def equal_results_and_gradients(run, other, *arguments, seed=0):
    """``run`` and ``other`` give the same bits, and their first results the same gradients of the first argument."""
    results = []
    for each in (run, other):
        torch.manual_seed(seed)
        found = each(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        results.append((*found, *torch.autograd.grad(found[0].square().sum(), arguments[0])))
    for one, wanted in zip(*results, strict=True):
        assert one.shape == wanted.shape and torch.equal(one, wanted)


# softmax_scale, softcap and dropout_p of each kind, and others, so that the second call meets a compiled function
NUMBERS = {
    "float": ((0.5, 2.0, 0.25), (0.25, 3.0, 0.5)),
    "int": ((2, 2, 0), (1, 3, 0)),
    "numpy float32": (np.float32([0.5, 2.0, 0.25]), np.float32([0.25, 3.0, 0.5])),
    "numpy float64": (np.float64([0.5, 2.0, 0.25]), np.float64([0.25, 3.0, 0.5])),
    "tensor": (torch.tensor([0.5, 2.0, 0.25]), torch.tensor([0.25, 3.0, 0.5])),
    "double tensor": (torch.tensor([[0.5], [2.0], [0.25]]).double(), torch.tensor([[0.25], [3.0], [0.5]]).double()),
}


@pytest.mark.parametrize(
    "function, kind", [*((ta.flash_attn_func, kind) for kind in NUMBERS), (ta.flash_attn_fp8_func, "tensor")]
)
def test_changing_numbers(function, kind):
    def run(q, scale, cap, p):
        return function(q, q, q, p, scale, causal=True, softcap=cap)

    other = compiled(run, dynamic=True)
    q = torch.randn(1, 5, 2, 16, requires_grad=True)
    for scale, cap, p in NUMBERS[kind]:
        equal_results_and_gradients(run, other, q, scale, cap, p)
    wanted, _ = attention(q, q, q, float(scale), -1, 0, float(cap))
    assert_snr(other(q, scale, cap, 0.0), wanted.detach(), 20)


def test_changing_floats_of_a_static_function():
    run = lambda q, scale: ta.flash_attn_func(q, q, q, softmax_scale=scale)  # noqa: E731
    other, q = compiled(run), torch.randn(1, 5, 2, 16, requires_grad=True)
    for scale in (0.5, 0.25, 0.125):
        equal_results_and_gradients(run, other, q, scale)


def test_numbers_in_tensors_need_no_second_compilation():
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module

    run = torch.compile(
        lambda q, scale: ta.flash_attn_func(q, q, q, softmax_scale=scale), fullgraph=True, backend=count, dynamic=True
    )
    q = torch.randn(1, 5, 2, 16)
    for scale in (0.5, 0.25, 0.125):
        wanted, _ = attention(q, q, q, scale)
        assert_close(run(q, torch.tensor(scale)), wanted)
    assert len(graphs) == 1


@pytest.mark.parametrize("value", [torch.tensor(-1.0), np.float32(-1)], ids=["tensor", "numpy"])
def test_wrong_numbers_are_refused_at_run_time(value):
    run = compiled(lambda q, scale: ta.flash_attn_func(q, q, q, softmax_scale=scale))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        run(torch.randn(1, 5, 2, 16), value)


def test_changing_shapes(function):
    def run(q, k, bias, sink):
        return function(q, k, k, bias=bias, sink=sink, causal=True, return_lse=True, return_attn_probs=True)

    other = compiled(run, dynamic=True)
    for batch, seqlen_q, seqlen_k in ((2, 5, 6), (3, 70, 65)):
        q = torch.randn(batch, seqlen_q, 4, 16, requires_grad=True)
        k, bias = torch.randn(batch, seqlen_k, 2, 16), torch.randn(seqlen_q, seqlen_k)
        equal_results_and_gradients(run, other, q, k, bias, torch.randn(4))


def test_changing_windows():
    def run(q, left, right):
        return ta.flash_attn_func(q, q, q, window_size=(left, right))

    other, q = compiled(run, dynamic=True), torch.randn(1, 9, 2, 16, requires_grad=True)
    for window in ((3, 2), (4, 3), (np.int64(2), np.int64(5))):
        equal_results_and_gradients(run, other, q, *window)
        wanted, _ = attention(q, q, q, 0.25, *map(int, window))
        assert_close(other(q, *window), wanted.detach())


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_ragged_with_lengths_of_the_run(dynamic):
    """max_seqlen comes out of a tensor, as loops that pack documents make it."""

    def run(q, lens):
        starts = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
        longest = lens.max().item()
        return ta.flash_attn_varlen_func(
            q, q, q, starts, starts, longest, longest, causal=True, return_lse=True, return_attn_probs=True
        )

    other, q = compiled(run, dynamic=dynamic), torch.randn(9, 2, 16, requires_grad=True)
    for lens in ([4, 5], [2, 7], [3, 3, 3]):
        equal_results_and_gradients(run, other, q, torch.tensor(lens))
        spans = torch.tensor(lens).cumsum(0).tolist()
        parts = [q[None, end - length : end] for length, end in zip(lens, spans, strict=True)]
        wanted = torch.cat([attention(part, part, part, 0.25, -1, 0)[0][0] for part in parts])
        assert_close(other(q, torch.tensor(lens))[0], wanted.detach())


def test_ragged_with_tokens_of_the_run():
    """Tokens chosen by a mask: their number is known at run time only."""

    def run(x, mask):
        lens = mask.sum(1, dtype=torch.int32)
        starts = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
        tokens, longest = x[mask], lens.max().item()
        return ta.flash_attn_varlen_func(tokens, tokens, tokens, starts, starts, longest, longest, causal=True)

    other, x = compiled(run), torch.randn(2, 6, 2, 16, requires_grad=True)
    for lens in ([3, 5], [6, 1]):
        mask = torch.arange(6) < torch.tensor(lens)[:, None]
        equal_results_and_gradients(run, other, x, mask)


def test_max_seqlen_of_any_integer():
    q, starts = torch.randn(9, 2, 16), torch.tensor([0, 4, 9], dtype=torch.int32)
    wanted = ta.flash_attn_varlen_func(q, q, q, starts, starts, 5, 5)
    for longest in (np.int64(5), torch.tensor(5), torch.tensor([5], dtype=torch.int32)):
        assert torch.equal(ta.flash_attn_varlen_func(q, q, q, starts, starts, longest, longest), wanted)
    for wrong in (5.0, torch.tensor(5.0), torch.tensor(5, device="meta"), True, "5"):
        with pytest.raises(UnsupportedError, match="flash_attn_varlen_func: max_seqlen_q is"):
            ta.flash_attn_varlen_func(q, q, q, starts, starts, wrong, 5)


def test_autocast_in_and_around_compiled_code(function):
    def inside(q, k):
        with torch.autocast("cpu", torch.bfloat16):
            return function(q, k, k, causal=True)

    q, k = torch.randn(1, 5, 2, 16, requires_grad=True), torch.randn(1, 5, 2, 16).bfloat16()
    equal_results_and_gradients(inside, compiled(inside), q, k)
    outside = compiled(lambda q: function(q, q, q, causal=True))
    assert outside(q).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        equal_results_and_gradients(lambda q: function(q, q, q, causal=True), outside, q)
        assert outside(q).dtype is torch.bfloat16


def test_sparse_with_numbers_of_the_run():
    kv, slots = torch.randn(9, 1, 16), torch.randint(-1, 9, (5, 3), dtype=torch.int32)

    def run(q, scale, rank):
        return ta.sparse_mla_func(q, kv, slots, None, rank, scale, return_lse=True)

    other, q = compiled(run, dynamic=True), torch.randn(5, 2, 16, requires_grad=True)
    for scale, rank in ((0.5, 8), (0.25, 4), (torch.tensor(0.5), 12), (np.float32(0.25), 16), (None, 8)):
        equal_results_and_gradients(run, other, q, scale, rank)


def test_module_compiles_and_learns():
    module = ta.TurboAttention(causal=True, sink=torch.nn.Parameter(torch.zeros(2)), alibi_slopes=torch.rand(2))
    other, q = compiled(module), torch.randn(1, 5, 2, 16, requires_grad=True)
    equal_results_and_gradients(module, other, q, q.detach(), q.detach())
    wanted = torch.autograd.grad(module(q, q, q).square().sum(), module.sink)
    assert torch.equal(torch.autograd.grad(other(q, q, q).square().sum(), module.sink)[0], wanted[0])


# --- numbers outside of torch.compile --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["softmax_scale", "softcap", "dropout_p"])
def test_what_float_does_not_take_is_refused(function, option):
    q = torch.randn(1, 5, 2, 16)
    scale = torch.tensor(0.5, requires_grad=True)
    for wrong in (True, "0.5", 1j, torch.tensor([0.5, 0.5]), torch.tensor(0.5, device="meta"), scale, float("nan"), -1):
        with pytest.raises(UnsupportedError, match=f"{function.__name__}: {option} is"):
            function(q, q, q, **{option: wrong})
    with torch.no_grad():  # nothing could be learned there
        assert torch.equal(function(q, q, q, softmax_scale=scale), function(q, q, q, softmax_scale=0.5))
