# SPDX-License-Identifier: MIT
"""from_float of the three layers: the same layer with another product, or a refusal that leaves it as it was."""

import copy
import functools

import pytest
import torch
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import turbo_gemm
from turbo_core import UnsupportedError
from turbo_testing.metrics import assert_close, assert_snr

KINDS = {"Linear": turbo_gemm.Linear, "Float8Linear": turbo_gemm.Float8Linear, "Float4Linear": turbo_gemm.Float4Linear}
GATES = {"Linear": 100, "Float8Linear": 25, "Float4Linear": 10}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def linear(**options):
    torch.manual_seed(2)
    return torch.nn.Linear(64, 32, **options)


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_values_are_those_of_the_module(kind, bias, inplace):
    theirs = linear(bias=bias)
    x = torch.randn(2, 24, 64, requires_grad=True)
    want = theirs(x)
    grad_out = torch.randn_like(want)
    wanted = torch.autograd.grad(want, (x, *theirs.parameters()), grad_out)
    ours = kind.from_float(theirs, inplace=inplace)
    assert type(ours) is kind
    assert (ours is theirs) is inplace
    got = ours(x)
    assert_snr(got.double(), want.double(), GATES[kind.__name__])
    for one, other in zip(torch.autograd.grad(got, (x, *ours.parameters()), grad_out), wanted):
        assert_snr(one.double(), other.double(), GATES[kind.__name__])


def test_a_copy_keeps_what_the_module_has(kind):
    """Field case: hooks, buffers and attributes were dropped without a word."""
    theirs = linear().eval()
    seen = []
    theirs.register_forward_hook(lambda module, args, output: output + 1000)
    theirs.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    theirs.register_full_backward_hook(lambda module, gi, go: seen.append("backward"))
    theirs.register_buffer("counter", torch.tensor(3))
    theirs.register_buffer("scratch", torch.tensor(4), persistent=False)
    theirs.tag, theirs.weight.partition_dim = ["name"], 1
    theirs.weight.main_grad, theirs.weight.grad_added_to_main_grad = torch.ones(32, 64), False
    theirs.weight.register_hook(lambda gradient: seen.append("weight") or 2 * gradient)
    theirs.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    theirs.bias.requires_grad_(False)

    ours = kind.from_float(theirs, inplace=False)
    assert type(theirs) is torch.nn.Linear
    assert type(ours) is kind
    assert not ours.training
    assert ours.state_dict().keys() == theirs.state_dict().keys() == {"weight", "bias", "counter"}
    assert (ours.counter, ours.scratch, ours.tag) == (3, 4, ["name"])
    assert ours.tag is not theirs.tag
    assert ours.weight.partition_dim == 1
    assert torch.equal(ours.weight, theirs.weight)
    assert ours.weight.data_ptr() != theirs.weight.data_ptr()
    assert torch.equal(ours.weight.main_grad, theirs.weight.main_grad)
    assert ours.weight.main_grad is not theirs.weight.main_grad
    assert (ours.weight.requires_grad, ours.bias.requires_grad) == (True, False)

    x = torch.ones(3, 64, requires_grad=True)
    y = ours(x)
    assert_close(y, theirs(x), rtol=1e-2, atol=1, what="the forward hook adds 1000")
    seen.clear()
    ours(x).sum().backward()
    assert sorted(seen) == ["accumulated", "backward", "pre", "weight"]
    assert_close(ours.weight.grad, torch.full((32, 64), 6.0), rtol=1e-2, atol=1e-2, what="doubled by its hook")
    assert theirs.weight.grad is None


def test_in_place_keeps_the_object(kind):
    theirs = linear(dtype=torch.bfloat16)
    theirs.register_buffer("counter", torch.tensor(3))
    theirs.register_forward_hook(lambda module, args, output: output + 1000)
    weight, before = theirs.weight, vars(theirs).copy()
    kind.from_float(theirs)
    assert theirs.weight is weight
    assert before.keys() <= vars(theirs).keys()
    assert theirs(torch.zeros(1, 64, dtype=torch.bfloat16)).min() > 900


def test_from_one_of_ours_to_another(kind):
    x = torch.randn(24, 64)
    for other in KINDS.values():
        layer = kind.from_float(other.from_float(linear()))
        assert type(layer) is kind
        assert torch.equal(layer(x), kind.from_float(linear())(x))
        assert copy.deepcopy(layer)(x).equal(layer(x))


@pytest.mark.parametrize("inplace", [True, False])
def test_fused_accumulation_by_from_float(kind, inplace):
    layer = kind.from_float(linear(), inplace=inplace, fuse_wgrad_accumulation=True)
    plain = kind.from_float(linear())
    assert layer.fuse_wgrad_accumulation
    assert not plain.fuse_wgrad_accumulation
    layer.weight.main_grad, layer.weight.grad_added_to_main_grad = torch.zeros(32, 64), False
    x = torch.randn(24, 64)
    for module in (layer, plain):
        module(x).sum().backward()
    assert_close(layer.weight.main_grad, plain.weight.grad.double())
    assert not kind.from_float(layer).fuse_wgrad_accumulation


def test_a_layer_is_made_on_its_device_without_initialisation(kind):
    layer = torch.nn.utils.skip_init(kind, 64, 32, dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
    assert (layer.weight.dtype, layer.weight.device.type) == (torch.bfloat16, "cpu")
    assert layer.fuse_wgrad_accumulation


def test_a_materialised_lazy_layer_is_a_linear(kind):
    lazy = torch.nn.LazyLinear(32)
    lazy(torch.zeros(1, 64))
    x = torch.randn(24, 64)
    want = lazy(x)
    assert_snr(kind.from_float(lazy)(x).double(), want.double(), GATES[kind.__name__])


# --- refusals -------------------------------------------------------------------------------------------------------


class Scaled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(torch.nn.Linear):
    """One that computes the same."""


class OfOurs(turbo_gemm.Float8Linear):
    def forward(self, x):
        return -super().forward(x)


def replaced():
    module = linear()
    module.forward = functools.partial(Scaled.forward, module)
    return module


def fully_sharded():
    """What fully_shard does to a module's class, without the process group that it wants."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "FSDPModule"):
        pytest.skip("this torch has no fully_shard")
    module = linear()
    module.__class__ = type("FSDPLinear", (fsdp.FSDPModule, torch.nn.Linear), {})
    return module


def pruned_bias():
    module = linear()
    prune.l1_unstructured(module, "bias", 3)
    return module


REFUSED = {
    "parametrized weight_norm": (
        lambda: parametrizations.weight_norm(linear()),
        r"ParametrizedLinear\(in_features=64, out_features=32\) whose weight is computed by a parametrization",
    ),
    "parametrized spectral_norm": (lambda: parametrizations.spectral_norm(linear()), "weight is computed by a param"),
    "orthogonal": (lambda: parametrizations.orthogonal(linear()), "weight is computed by a parametrization"),
    "weight_norm": (lambda: weight_norm(linear()), r"a Linear\(in_features=64.* whose weight is no parameter"),
    "spectral_norm": (lambda: spectral_norm(linear()), "whose weight is no parameter"),
    "pruned": (lambda: prune.identity(linear(), "weight"), "whose weight is no parameter .*pruning"),
    "pruned bias": (pruned_bias, "whose bias is no parameter"),
    "lazy": (lambda: torch.nn.LazyLinear(32), "LazyLinear.* whose weight is not initialised; run it once before"),
    "fully_shard": (fully_sharded, "FSDPLinear.* that fully_shard has wrapped; convert it before it is sharded"),
    "another forward": (lambda: Scaled(64, 32), "mod is a Scaled.*a subclass of Linear whose behaviour would be lost"),
    "a subclass": (lambda: Named(64, 32), "mod is a Named.*a subclass of Linear"),
    "a subclass of ours": (lambda: OfOurs(64, 32), "mod is a OfOurs.*a subclass of Linear"),
    "in attention": (
        lambda: torch.nn.MultiheadAttention(32, 4).out_proj,
        "NonDynamicallyQuantizableLinear.*a subclass of Linear",
    ),
    "forward replaced": (replaced, "whose forward was replaced on the object"),
    "another module": (lambda: torch.nn.Conv1d(64, 32, 1), "mod is a Conv1d; a Linear is accepted"),
    "no module": (lambda: None, "mod is a NoneType; a Linear is accepted"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(kind, case, inplace):
    make, complaint = REFUSED[case]
    module = make()
    before, cls = dict(vars(module)) if module is not None else {}, type(module)
    with pytest.raises(UnsupportedError, match=f"{kind.__name__}.from_float: .*{complaint}"):
        kind.from_float(module, inplace=inplace)
    assert type(module) is cls
    assert module is None or vars(module).keys() == before.keys()


@pytest.mark.parametrize("kind", [turbo_gemm.Float8Linear, turbo_gemm.Float4Linear])
def test_a_refused_config_leaves_the_module(kind):
    module = linear()
    with pytest.raises(UnsupportedError, match=f"{kind.__name__}: config is a str"):
        kind.from_float(module, "fp8")
    assert type(module) is torch.nn.Linear
    assert "config" not in vars(module)


def test_once_the_norm_is_removed_it_works(kind):
    module = parametrizations.weight_norm(linear())
    x = torch.randn(24, 64)
    want = module(x)
    torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert_snr(kind.from_float(module)(x).double(), want.double(), GATES[kind.__name__])
