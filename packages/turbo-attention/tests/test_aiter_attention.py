# SPDX-License-Identifier: MIT
"""The AITER adapter, without a GPU: its calls are bound to the signatures in the amd-aiter wheel's source, and answered
by a stand-in that has these signatures and computes with the reference.

--aiter-wheel names the wheel (nox -s tests fetches it).
"""

import ast
import inspect
import logging
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import turbo_attention as ta
from turbo_attention.calls import BackwardCall, ForwardCall
from turbo_attention.layout import empty_like_rows
from turbo_attention.pytorch.kernels import aiter_attention
from turbo_attention.pytorch.kernels.aiter_attention import AITER_ARGUMENTS, aiter_arguments
from turbo_attention.pytorch.kernels.attention_impl import AttentionDispatcher
from turbo_attention.pytorch.kernels.reference import attention_backward, attention_forward
from turbo_attention.pytorch.ops.attention import FLASH_ATTN, FLASH_ATTN_VARLEN
from turbo_core import BackendType, BackendUnavailableError, GlobalBackendManager, trace_dispatch
from turbo_core.explain import explain_calls
from turbo_testing.attention_references import attention
from turbo_testing.metrics import assert_close
from turbo_testing.support_table import PLACES, standing_on

VERSION = "0.1.7.post2.dev18"
SINKS = "0.1.14.post1"  # after sinks came
VERSIONS = (VERSION, SINKS)

# The parameters of the functions that we call, as they stand in AITER's source of August 2026; those behind the bar
# have defaults.
WINDOW = "dropout_p softmax_scale causal window_size_left window_size_right"
V3 = "is_v3_atomic_fp32 how_v3_bf16_cvt"
RAGGED = "cu_seqlens_q cu_seqlens_k"
GIVEN = "dout q k v out softmax_lse dq dk dv"
NEWEST = {
    "_flash_attn_forward": f"q k v {WINDOW} sink_size bias alibi_slopes q_descale k_descale v_descale return_lse "
    "return_softmax | how_v3_bf16_cvt cu_seqlens_q cu_seqlens_kv sink_ptr out num_splits",
    "_flash_attn_backward": f"{GIVEN} dbias {WINDOW} bias alibi_slopes deterministic | rng_state {V3} sink d_sink",
    "_flash_attn_varlen_forward": f"q k v {RAGGED} cu_seqlens_q_padded cu_seqlens_k_padded max_seqlen_q max_seqlen_k "
    "min_seqlen_q dropout_p softmax_scale causal | logits_soft_cap window_size_left window_size_right sink_size bias "
    "alibi_slopes q_descale k_descale v_descale return_lse return_softmax how_v3_bf16_cvt block_table out",
    "_flash_attn_varlen_backward": f"{GIVEN} {RAGGED} max_seqlen_q max_seqlen_k {WINDOW} alibi_slopes deterministic | "
    f"rng_state {V3} zero_tensors cu_seqlens_q_padded cu_seqlens_k_padded sink d_sink",
}
BF16 = torch.bfloat16


def signatures(source, names):
    """The signatures of top-level functions, read without executing anything; defaults become None."""
    nodes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    kind, found = inspect.Parameter.POSITIONAL_OR_KEYWORD, {}
    for name in names:
        arguments = nodes[name].args
        first_default = len(arguments.args) - len(arguments.defaults)
        found[name] = inspect.Signature(
            [
                inspect.Parameter(argument.arg, kind, default=None if i >= first_default else inspect.Parameter.empty)
                for i, argument in enumerate(arguments.args)
            ]
        )
    return found


@pytest.fixture
def aiter_wheel(pytestconfig):
    given = pytestconfig.getoption("--aiter-wheel", default=None)
    if given is None:
        pytest.skip("no amd-aiter wheel (--aiter-wheel; nox -s tests fetches it)")
    return Path(given)


def test_our_keywords_bind_to_the_wheels_signatures(aiter_wheel):
    arguments = aiter_arguments(aiter_wheel.name.split("-")[1])
    assert arguments is not None, f"{aiter_wheel.name} is not in the table"
    with zipfile.ZipFile(aiter_wheel) as wheel:
        source = wheel.read("aiter/ops/mha.py").decode()
    for name, signature in signatures(source, arguments).items():
        assert set(signature.bind(**dict.fromkeys(arguments[name], 0)).arguments) == set(arguments[name])


def test_our_keywords_bind_to_the_newest_signatures():
    known, old = aiter_arguments(SINKS), aiter_arguments(VERSION)
    for name, text in NEWEST.items():
        required, optional = (part.split() for part in text.split("|"))
        source = f"def {name}({', '.join([*required, *(f'{word}=None' for word in optional)])}): pass"
        signature = signatures(source, [name])[name]
        assert set(signature.bind(**dict.fromkeys(known[name], 0)).arguments) == set(known[name])
        if name == "_flash_attn_forward":
            with pytest.raises(TypeError, match="sink_size"):
                signature.bind(**dict.fromkeys(old[name], 0))


def test_binding_would_notice_a_change():
    (name, known), *_ = aiter_arguments(VERSION).items()
    for wrong in ([*known, "sink_size"], known[1:]):
        source = f"def {name}({', '.join(wrong)}): pass"
        with pytest.raises(TypeError):
            signatures(source, [name])[name].bind(**dict.fromkeys(known, 0))


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.1.6", False),
        (VERSION, True),
        ("0.1.8", False),
        ("0.1.12.post2", False),
        ("0.1.13", True),
        (SINKS, True),
        ("0.1.99", True),
        ("0.2.0", False),
    ],
)
def test_versions(version, known):
    assert (aiter_arguments(version) is not None) is known


def test_the_releases_it_knows_stand_in_the_readme():
    assert aiter_attention.known_releases() == "0.1.7.* and >= 0.1.13, < 0.2"
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"amd-aiter ({aiter_attention.known_releases()})" in " ".join(readme.split())


# --- what it refuses ------------------------------------------------------------------------------------------------


def answer(monkeypatch, place="gfx942", version=VERSION, sq=256, sk=256, width=128, width_v=None, dtype=BF16, **more):
    """why_not of forward and of backward."""
    monkeypatch.setattr(aiter_attention, "_installed", lambda: version)
    change = more.pop("change", {})
    with standing_on(PLACES[place]) as where:
        tensors = {
            name: torch.empty(shape, dtype=kind, device=where)
            for name, (shape, kind) in more.pop("tensors", {}).items()
        }
        q = torch.empty(2, sq, 8, width, dtype=dtype, device=where)
        k = torch.empty(2, sk, 2, width, dtype=dtype, device=where)
        v = torch.empty(2, sk, 2, width_v or width, dtype=dtype, device=where)
        calls = FLASH_ATTN.calls(q, k, v, **more, **tensors)
        return aiter_attention.why_not(calls["forward"]), aiter_attention.why_not(calls["backward"]._replace(**change))


F32 = torch.float32
REFUSED = {
    "amd-aiter is not installed: pip install amd-aiter": {"version": None},
    "amd-aiter 0.1.9; this turbo-attention knows how to call the attention of 0.1.7.* and >= 0.1.13": {
        "version": "0.1.9"
    },
    "q is on cpu": {"place": "CPU"},
    "this is sm_90": {"place": "NVIDIA"},
    "q is torch.float32": {"dtype": F32},
    "the head dim is 264": {"width": 264},
    "the head dim is 512": {"width": 192, "width_v": 512},
    "2**31 elements": {"sq": 2**20, "sk": 2**20},
    "dropout_p is not 0": {"dropout_p": 0.1},
    "softcap is not 0": {"softcap": 1.0},
    "there is a sink": {"tensors": {"sink": ((8,), F32)}},
    "left bound is 0": {"window_size": (0, 3)},
    "more queries than keys": {"sq": 257, "causal": True},
    "there are bias and alibi_slopes": {"tensors": {"bias": ((256, 256), BF16), "alibi_slopes": ((8,), F32)}},
    "a bias of [Sq,Sk] alone": {"tensors": {"bias": ((8, 256, 256), BF16)}},
    "in q's dtype": {"tensors": {"bias": ((256, 256), F32)}},
    "alibi_slopes with causal": {"tensors": {"alibi_slopes": ((8,), F32)}, "causal": True},
    "adds slope * j": {"tensors": {"alibi_slopes": ((8,), F32)}, "causal": True, "window_size": (256, -1)},
    "distances below": {"tensors": {"alibi_slopes": ((8,), F32)}, "sk": 2**16},
}


@pytest.mark.parametrize(("reason", "options"), REFUSED.items(), ids=REFUSED)
def test_refusals(monkeypatch, reason, options):
    for role in answer(monkeypatch, **dict(options)):
        assert role is not None and reason in role
    assert "aiter" not in sys.modules, "why_not does not import it"


TAKEN = {
    "causal": {"causal": True},
    "gfx950, float16": {"place": "gfx950", "dtype": torch.float16},
    "fewer queries than keys": {"causal": True, "sq": 3},
    "more queries than keys": {"sq": 300, "window_size": (5, -1)},
    "window": {"window_size": (5, 2)},
    "odd head dims": {"width": 70, "width_v": 33},
    "latent attention": {"width": 192, "width_v": 128},
    "alibi": {"tensors": {"alibi_slopes": ((2, 8), F32)}, "window_size": (9, 0)},
}


@pytest.mark.parametrize("options", TAKEN.values(), ids=TAKEN)
def test_what_it_takes(monkeypatch, options):
    assert answer(monkeypatch, **dict(options)) == (None, None)


def test_what_the_backward_alone_refuses(monkeypatch):
    forward, backward = answer(monkeypatch, change={"dlse": torch.zeros(1)})
    assert forward is None and "lse has a gradient" in backward
    options = {"tensors": {"bias": ((256, 256), BF16)}}
    forward, backward = answer(monkeypatch, **options)
    assert forward is None and "the gradient of bias is wanted" in backward
    assert answer(monkeypatch, **options, change={"want_dbias": False}) == (None, None)


def test_ragged_lengths_are_one_tensor(monkeypatch):
    monkeypatch.setattr(aiter_attention, "_why_not_here", lambda call: None)
    with FakeTensorMode():
        q = torch.empty(100, 8, 64, dtype=BF16)
        starts, other = (torch.empty(4, dtype=torch.int32) for _ in range(2))

        def why_not(starts_k):
            return aiter_attention.why_not(FLASH_ATTN_VARLEN.calls(q, q, q, starts, starts_k, 50, 50)["backward"])

        assert why_not(starts) is None and why_not(starts.view(4)) is None
        longer = torch.empty(5, dtype=torch.int32)
        assert "two tensors" in why_not(other)
        starts = longer[:4]
        assert why_not(longer[:4]) is None and "two tensors" in why_not(longer[1:])


# --- who is chosen --------------------------------------------------------------------------------------------------


def chosen(place, change=None, **options):
    with standing_on(PLACES[place]) as where:
        q = torch.empty(2, 64, 8, 128, dtype=BF16, device=where)
        calls = FLASH_ATTN.calls(q, q, q, **options)
        if change:
            calls["backward"] = calls["backward"]._replace(**change)
        return [AttentionDispatcher.resolve(call) for call in calls.values()]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("version", [VERSION, "0.3.0", None])
def test_default(monkeypatch, caplog, place, version):
    monkeypatch.setattr(aiter_attention, "_installed", lambda: version)
    fallback = BackendType.TORCH if place == "CPU" else BackendType.TRITON
    best = BackendType.AITER if version == VERSION and place.startswith("gfx") else fallback
    with caplog.at_level(logging.WARNING):
        for decision in chosen(place, causal=True):
            assert (decision.backend, decision.reason) == (best, "default")
        for decision in chosen(place, softcap=2.0):
            assert (decision.backend, decision.reason) == (fallback, "default")
        forward, backward = chosen(place, {"dlse": torch.zeros(1)})
        assert (forward.backend, backward.backend) == (best, fallback)
    assert not caplog.records, "nobody is told to install anything"


def test_named_it_is_an_error_where_it_cannot(monkeypatch):
    monkeypatch.setattr(aiter_attention, "_installed", lambda: VERSION)
    GlobalBackendManager.set_attn_backend("AITER")
    assert {decision.backend for decision in chosen("gfx942")} == {BackendType.AITER}
    with pytest.raises(BackendUnavailableError, match="AITER .*set in code.* lse has a gradient"):
        chosen("gfx942", {"dlse": torch.zeros(1)})


def test_explain(monkeypatch):
    monkeypatch.setattr(aiter_attention, "_installed", lambda: VERSION)
    with standing_on(PLACES["gfx942"]) as where:
        q = torch.empty(2, 64, 8, 128, dtype=BF16, device=where)
        told = explain_calls(FLASH_ATTN, FLASH_ATTN.calls(q, q, q, causal=True))
        refused = explain_calls(FLASH_ATTN, FLASH_ATTN.calls(q, q, q, softcap=3.0))
    assert [entry.backend for entry in told.entries] == [BackendType.AITER, BackendType.AITER]
    assert "-> AITER      can take it" in str(told)
    assert "AITER      softcap is not 0" in str(refused) and "-> TRITON" in str(refused)


# --- what it passes on ----------------------------------------------------------------------------------------------


class StandIn:
    """The functions of aiter.ops.mha in the signatures of the table, computed by the reference."""

    def __init__(self, version):
        self.seen = []
        self.version = version
        self.module = types.ModuleType("aiter.ops.mha")
        for name in aiter_arguments(version):
            setattr(self.module, name, self.function(name))

    def function(self, name):
        def called(**values):
            assert tuple(values) == aiter_arguments(self.version)[name], "a keyword is missing, or is one too many"
            self.seen.append((name, values))
            return (self.backward if "backward" in name else self.forward)(values)

        return called

    def call(self, values):
        rows = [values[name] for name in ("q", "k", "v")]
        ragged = "cu_seqlens_q" in values
        assert {tensor.dim() for tensor in rows} == {3 if ragged else 4}
        q, k, v = (tensor[None] if ragged else tensor for tensor in rows)
        for tensor in (q, k, v):
            assert tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0 and tensor.shape[3] % 8 == 0
            assert all(stride > 0 and stride % 8 == 0 for stride in tensor.stride()[:-1])
        widths = q.shape[3], v.shape[3]
        assert widths[0] == widths[1] or (widths == (192, 128) and (ragged or q.shape[1] > 1))
        assert values["dropout_p"] == 0.0
        left, right = values["window_size_left"], values["window_size_right"]
        right = 0 if values["causal"] else right
        bias, slopes = values.get("bias"), values.get("alibi_slopes")
        if bias is not None:
            assert bias.shape == (q.shape[1], k.shape[1]) and bias.stride(1) == 1
            bias = bias.expand(q.shape[0], q.shape[2], *bias.shape)
        starts = values.get("cu_seqlens_q"), values.get("cu_seqlens_k")
        assert slopes is None or slopes.is_contiguous()
        lengths = values.get("max_seqlen_q", q.shape[1]), values.get("max_seqlen_k", k.shape[1])
        scale = values["softmax_scale"]
        return ForwardCall(q, k, v, scale, left, right, 0.0, 0.0, bias, slopes, None, None, *starts, *lengths)

    def forward(self, values):
        assert values["return_lse"] and not values["return_softmax"] and values.get("sink_size", 0) == 0
        assert all(values.get(f"{name}_descale") is None for name in "qkv")
        out, lse, _ = attention_forward(self.call(values))
        out, lse = out.contiguous(), lse.contiguous()
        nothing = torch.empty(0)
        return (out[0], lse[0], nothing, nothing) if "cu_seqlens_q" in values else (out, lse, nothing, nothing)

    def backward(self, values):
        assert values["rng_state"].shape == (2,) and values.get("dbias") is None
        call = self.call(values)
        out, lse, dout = (
            values[name][None] if "cu_seqlens_q" in values else values[name] for name in ("out", "softmax_lse", "dout")
        )
        assert lse.shape == (call.q.shape[0], call.q.shape[2], call.q.shape[1]) and lse.is_contiguous()
        gradients = attention_backward(BackwardCall(call, out, lse, torch.zeros_like(lse), dout, None, False))
        for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=False):
            values[name].copy_(gradient[0] if "cu_seqlens_q" in values else gradient)
        return torch.empty(0)  # softmax_d


@pytest.fixture(params=VERSIONS)
def stand_in(monkeypatch, request):
    made = StandIn(request.param)
    for name in ("aiter", "aiter.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "aiter.ops.mha", made.module)
    monkeypatch.setattr(aiter_attention, "_installed", lambda: request.param)
    monkeypatch.setattr(aiter_attention, "_why_not_here", lambda call: None)  # not a GPU: the rest is asked
    GlobalBackendManager.set_attn_backend("AITER")
    return made


def leaf(B, S, H, D, layout="bshd"):
    order = {"bshd": (0, 1, 2), "sbhd": (1, 0, 2), "bhsd": (0, 2, 1)}[layout]
    shape = [(B, S, H)[axis] for axis in order]
    back = [order.index(axis) for axis in range(3)]
    return torch.randn(*shape, D).to(BF16).permute(*back, 3).requires_grad_()


DENSE = {
    "full": ({}, (2, 33, 65, 4, 2, 64, 64)),
    "causal": ({"causal": True}, (2, 33, 65, 4, 2, 64, 64)),
    "causal, wide window": ({"causal": True, "window_size": (100, -1)}, (1, 40, 65, 4, 4, 64, 64)),
    "window": ({"window_size": (9, 3)}, (1, 40, 40, 3, 1, 32, 32)),
    "causal window": ({"window_size": (9, 0)}, (1, 40, 50, 3, 1, 32, 32)),
    "left, more queries than keys": ({"window_size": (5, -1)}, (1, 65, 33, 2, 1, 16, 16)),
    "odd head dims": ({"causal": True}, (1, 33, 40, 4, 2, 37, 22)),
    "wider v": ({}, (1, 20, 30, 2, 2, 24, 48)),
    "latent": ({"causal": True}, (1, 33, 40, 2, 2, 192, 128)),
    "latent, one query": ({"causal": True}, (1, 1, 40, 4, 2, 192, 128)),
    "alibi": ({"alibi": True, "window_size": (20, 5)}, (2, 33, 40, 4, 2, 32, 32)),
    "bias": ({"bias": True, "causal": True, "softmax_scale": 0.3}, (2, 33, 37, 4, 2, 32, 32)),
}


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
@pytest.mark.parametrize(("options", "shape"), DENSE.values(), ids=DENSE)
def test_dense_numbers(stand_in, options, shape, layout):
    B, Sq, Sk, Hq, Hkv, D, Dv = shape
    options = dict(options)
    q, k, v = leaf(B, Sq, Hq, D, layout), leaf(B, Sk, Hkv, D, layout), leaf(B, Sk, Hkv, Dv, layout)
    slopes = torch.rand(B, Hq) if options.pop("alibi", False) else None
    bias = torch.randn(Sq, Sk).to(BF16) if options.pop("bias", False) else None
    left, right = options.get("window_size", (-1, -1))
    right = 0 if options.get("causal") else right
    wanted, wanted_lse = attention(q, k, v, options.get("softmax_scale", D**-0.5), left, right, bias=bias, alibi=slopes)
    dout = torch.randn(Sq, 1, Dv).to(BF16).expand(B, Sq, Hq, Dv)
    with trace_dispatch() as trace:
        out, lse = ta.flash_attn_func(q, k, v, **options, bias=bias, alibi_slopes=slopes, return_lse=True)
        got = torch.autograd.grad(out, (q, k, v), dout)
    assert [record.backend for record in trace.records] == [BackendType.AITER] * 2
    assert out.shape == (B, Sq, Hq, Dv) and lse.shape == (B, Hq, Sq)
    assert_close(out, wanted.detach(), rtol=2e-2, atol=2e-2, what="out")
    assert_close(lse, wanted_lse.detach(), rtol=1e-4, atol=1e-4, what="lse")
    exact = torch.autograd.grad(wanted, (q, k, v), dout.double())
    for name, x, actual, gradient in zip(("dq", "dk", "dv"), (q, k, v), got, exact, strict=True):
        assert_close(actual, gradient, rtol=2e-2, atol=5e-2, what=name)
        assert actual.stride() == empty_like_rows(x, x.shape[3]).stride()
    assert [name for name, _ in stand_in.seen] == ["_flash_attn_forward", "_flash_attn_backward"]


def test_what_is_passed(stand_in):
    q, k, v = leaf(1, 40, 4, 64), leaf(1, 65, 2, 64), leaf(1, 65, 2, 64)
    out = ta.flash_attn_func(q, k, v, causal=True, window_size=(100, -1), deterministic=True)
    out.backward(torch.ones_like(out))
    (_, forward), (_, backward) = stand_in.seen
    for values in (forward, backward):
        assert values["causal"] is True and (values["window_size_left"], values["window_size_right"]) == (-1, -1)
        assert values["q"].data_ptr() == q.data_ptr(), "what AITER can read is not copied"
    assert backward["deterministic"] is True
    stand_in.seen.clear()
    out = ta.flash_attn_func(q, k, v, window_size=(7, 2))
    out.backward(torch.ones_like(out))
    for _, values in stand_in.seen:
        assert values["causal"] is False and (values["window_size_left"], values["window_size_right"]) == (7, 2)
    assert stand_in.seen[1][1]["deterministic"] is False
    packed = torch.randn(1, 40, 4, 3 * 40 + 1).to(BF16)[..., 1:]  # rows that begin at odd addresses
    ta.flash_attn_func(*packed.split(40, 3))
    ta.flash_attn_func(leaf(1, 40, 4, 64), *(leaf(1, 65, 1, 64).expand(1, 65, 4, 64) for _ in range(2)))
    assert stand_in.seen[-1][1]["k"].is_contiguous()


@pytest.mark.parametrize(("D", "Dv"), [(64, 64), (20, 12)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (9, 2)}, {"alibi": True}], ids=str)
def test_ragged_numbers(stand_in, options, D, Dv):
    lengths, options = (0, 5, 5, 70, 71), dict(options)
    starts = torch.tensor(lengths, dtype=torch.int32)
    q, k, v = (leaf(1, 71, H, width)[0].detach().requires_grad_() for H, width in ((4, D), (2, D), (2, Dv)))
    slopes = torch.rand(4) if options.pop("alibi", False) else None
    left, right = options.get("window_size", (-1, -1))
    right = 0 if options.get("causal") else right
    wanted, wanted_lse = [], []
    for first, end in zip(lengths, lengths[1:], strict=False):
        one = (tensor[None, first:end] for tensor in (q, k, v))
        out, lse = attention(*one, D**-0.5, left, right, alibi=slopes)
        wanted.append(out[0])
        wanted_lse.append(lse[0])
    wanted, wanted_lse = torch.cat(wanted), torch.cat(wanted_lse, 1)
    out, lse = ta.flash_attn_varlen_func(
        q, k, v, starts, starts, 65, 65, alibi_slopes=slopes, return_lse=True, **options
    )
    dout = torch.randn(71, 4, Dv).to(BF16)
    got = torch.autograd.grad(out, (q, k, v), dout)
    assert_close(out, wanted.detach(), rtol=2e-2, atol=2e-2, what="out")
    assert_close(lse, wanted_lse.detach(), rtol=1e-4, atol=1e-4, what="lse")
    for name, actual, gradient in zip(
        ("dq", "dk", "dv"), got, torch.autograd.grad(wanted, (q, k, v), dout.double()), strict=True
    ):
        assert_close(actual, gradient, rtol=2e-2, atol=5e-2, what=name)
    assert [name for name, _ in stand_in.seen] == ["_flash_attn_varlen_forward", "_flash_attn_varlen_backward"]


def test_a_gradient_of_lse_goes_elsewhere(stand_in, monkeypatch):
    """Unless AITER was named, the backward resolves for itself; named, it is an error with the reason."""
    q = leaf(1, 20, 2, 16)
    _, lse = ta.flash_attn_func(q, q, q, causal=True, return_lse=True)
    with pytest.raises(BackendUnavailableError, match="lse has a gradient"):
        lse.sum().backward()
    GlobalBackendManager.reset()
    monkeypatch.setattr(AttentionDispatcher, "default_backend", lambda call: BackendType.TORCH)
    lse.sum().backward()
    assert q.grad.isfinite().all()


def test_the_table_names_each_function_once():
    for first, end, functions in AITER_ARGUMENTS:
        assert first < end
        assert all(len(set(names)) == len(names) for names in functions.values())
