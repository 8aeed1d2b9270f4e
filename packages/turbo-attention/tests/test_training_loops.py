# SPDX-License-Identifier: MIT
"""What training loops wrap around attention: checkpointing, hooks, autocast, torch.func, frozen inputs, odd strides.

Each of the four functions goes through all of it, on small shapes; the numbers are compared with float64.
"""

import functools
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import turbo_attention as ta
from turbo_attention.calls import AttentionGradients, ForwardCall
from turbo_core import UnsupportedError
from turbo_testing.attention_references import attention, sparse_mla
from turbo_testing.metrics import assert_close, assert_snr

S, H, HKV, D, RANK = 6, 2, 1, 16, 8
STARTS = [0, 2, 2, S]
SLOTS = [[0, 2, -1], [1, 1, 5], [4, 3, 0], [2, 2, 2], [0, 1, 2], [5, -1, -1]]
HALF = (torch.bfloat16, torch.float16)


def dense(q, k, v, sink, **options):
    return ta.flash_attn_func(q, k, v, causal=True, sink=sink, **options)


def fp8(q, k, v, sink, **options):
    return ta.flash_attn_fp8_func(q, k, v, causal=True, sink=sink, **options)


def ragged(q, k, v, sink, **options):
    starts = torch.tensor(STARTS, dtype=torch.int32, device=q.device)
    return ta.flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 4, 4, causal=True, sink=sink, **options)


def sparse(q, k, v, sink, **options):
    """The first key head is the cache; v is not used."""
    slots = torch.tensor(SLOTS, dtype=torch.int32, device=q.device)
    return ta.sparse_mla_func(q[0], k[0, :, :1], slots, sink, RANK, **options)


FUNCTIONS = {"dense": dense, "ragged": ragged, "fp8": fp8, "sparse": sparse}
PUBLIC = {
    "dense": "flash_attn_func",
    "ragged": "flash_attn_varlen_func",
    "fp8": "flash_attn_fp8_func",
    "sparse": "sparse_mla_func",
}


def exact(name, q, k, v, sink):
    """out in float64, differentiable."""
    if name in ("dense", "fp8"):
        return attention(q, k, v, D**-0.5, -1, 0, sink=sink)[0]
    if name == "sparse":
        return sparse_mla(q[0], k[0, :, 0], torch.tensor(SLOTS, device=q.device), sink, RANK, D**-0.5)[0]
    spans = [slice(a, b) for a, b in itertools.pairwise(STARTS)]
    parts = [attention(q[:, rows], k[:, rows], v[:, rows], D**-0.5, -1, 0, sink=sink)[0][0] for rows in spans]
    return torch.cat(parts)


def inputs(device, dtype=torch.float32, frozen=()):
    shapes = {"q": (1, S, H, D), "k": (1, S, HKV, D), "v": (1, S, HKV, D)}
    made = {name: torch.randn(shape, device=device).to(dtype) for name, shape in shapes.items()}
    made["sink"] = torch.randn(H, device=device)
    return [value.requires_grad_(name not in frozen) for name, value in made.items()]


def used(name, leaves):
    return [
        leaf
        for leaf, what in zip(leaves, "qkvs", strict=True)
        if leaf.requires_grad and (name, what) != ("sparse", "v")
    ]


def assert_equal(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.fixture(params=FUNCTIONS)
def name(request):
    return request.param


# --- memory that training loops save ---------------------------------------------------------------------------------


def keep_nothing(context, op, *args, **kwargs):
    return CheckpointPolicy.PREFER_RECOMPUTE


def keep_attention(context, op, *args, **kwargs):
    ours = "turbo_attention" in str(op)
    return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE


def selective(policy):
    return {"use_reentrant": False, "context_fn": functools.partial(create_selective_checkpoint_contexts, policy)}


CHECKPOINTS = {
    "non-reentrant": {"use_reentrant": False},
    "to the end": {"use_reentrant": False, "early_stop": False},
    "reentrant": {"use_reentrant": True},
    "selective, ours recomputed": selective(keep_nothing),
    "selective, ours kept": selective(keep_attention),
}


@pytest.mark.parametrize("how", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoint(device, name, how):
    leaves = inputs(device)
    calls = []

    def loss(*arguments):
        calls.append(len(arguments))
        return FUNCTIONS[name](*arguments).square().sum()

    wanted = torch.autograd.grad(loss(*leaves), used(name, leaves))
    checkpoint(loss, *leaves, **how).backward()
    assert len(calls) == 3, "the function is to run again in the backward"
    assert_equal([leaf.grad for leaf in used(name, leaves)], wanted)


def test_checkpoint_draws_the_same_dropout(device):
    q, k, v, sink = inputs(device)
    torch.manual_seed(7)
    wanted = torch.autograd.grad(dense(q, k, v, sink, dropout_p=0.5).square().sum(), (q, k, v))
    torch.manual_seed(7)
    out = checkpoint(functools.partial(dense, dropout_p=0.5), q, k, v, sink, use_reentrant=False)
    assert_equal(torch.autograd.grad(out.square().sum(), (q, k, v)), wanted)


def test_saved_tensors_are_unpacked_once(device, name):
    leaves = inputs(device)
    wanted = torch.autograd.grad(FUNCTIONS[name](*leaves).sum(), used(name, leaves))
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(tensor)
        return len(packed) - 1

    def unpack(place):
        unpacked.append(place)
        return packed[place]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = FUNCTIONS[name](*leaves)
    assert_equal(torch.autograd.grad(out.sum(), used(name, leaves)), wanted)
    assert packed and unpacked == sorted(set(unpacked)) == list(range(len(packed)))
    with torch.autograd.graph.save_on_cpu():
        out = FUNCTIONS[name](*leaves)
    assert_equal(torch.autograd.grad(out.sum(), used(name, leaves)), wanted)


@pytest.mark.parametrize("name", ["dense", "ragged", "sparse"])  # FP8 attention saves its own payloads
def test_a_change_between_forward_and_backward_is_an_error(device, name):
    q, k, v, sink = inputs(device)
    k = k * 1
    out = FUNCTIONS[name](q, k, v, sink)
    with torch.no_grad():
        k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# --- autocast --------------------------------------------------------------------------------------------------------

MIXTURES = [(torch.float32,) * 3, (torch.float32, torch.float32, torch.float16), (*HALF, torch.float32)]


@pytest.mark.parametrize(
    "mixture", MIXTURES, ids=lambda mixture: " ".join(str(d).removeprefix("torch.") for d in mixture)
)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_autocast_decides_the_dtype(device, name, dtype, mixture):
    check_autocast(device, name, dtype, mixture)


def test_autocast_and_each_backend(backend, device, name):
    check_autocast(device, name, torch.bfloat16, (torch.float32,) * 3)


def check_autocast(device, name, dtype, mixture):
    """As the tensors cast by hand, bit for bit, wherever the backward runs; gradients in the dtypes of the leaves."""
    leaves = [leaf.detach().to(to).requires_grad_() for leaf, to in zip(inputs(device), (*mixture, torch.float32))]
    cast = [leaf.detach().to(dtype) for leaf in leaves[:3]] + [leaves[3].detach()]
    cast = [leaf.requires_grad_() for leaf in cast]
    wanted = FUNCTIONS[name](*cast)
    grads = torch.autograd.grad(wanted.float().square().sum(), used(name, cast))
    grads = [grad.to(leaf.dtype) for grad, leaf in zip(grads, used(name, leaves), strict=True)]
    with torch.autocast(device.type, dtype):
        out = FUNCTIONS[name](*leaves)
        inside = torch.autograd.grad(out.float().square().sum(), used(name, leaves), retain_graph=True)
    outside = torch.autograd.grad(out.float().square().sum(), used(name, leaves))
    assert out.dtype is dtype and torch.equal(out, wanted)
    assert_equal(inside, grads)
    assert_equal(outside, grads)
    reference = exact(name, *(leaf.detach() for leaf in cast))
    assert_snr(out, reference, 20 if name == "fp8" else 40)


def test_without_autocast_dtypes_must_agree(name):
    q, k, v, sink = inputs(torch.device("cpu"))
    with pytest.raises(UnsupportedError, match=f"{PUBLIC[name]}: q is torch.float32, kv? is torch.bfloat16"):
        FUNCTIONS[name](q, k.bfloat16(), v, sink)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedError, match="q is .*float64"):
        FUNCTIONS[name](q.double(), k, v, sink)
    with torch.autocast("cpu", enabled=False), pytest.raises(UnsupportedError, match="is torch.bfloat16"):
        FUNCTIONS[name](q.bfloat16(), k, v, sink)


def test_scores_past_float16_under_autocast(backend, device):
    """q . k is 102400 and more than float16 holds; scores are float32 all the same, in the weights and lse too."""
    q = torch.full((1, 4, 1, 64), 40.0, device=device)
    v = torch.arange(4.0, device=device).view(1, 4, 1, 1).expand(1, 4, 1, 64)
    with torch.autocast(device.type, torch.float16):
        out, lse, weights = ta.flash_attn_func(q, q, v, return_lse=True, return_attn_probs=True)
    assert_close(out, torch.full_like(out, 1.5).double())
    assert_close(lse, torch.full_like(lse, 12800 + torch.log(torch.tensor(4.0)).item()).double(), rtol=1e-6, atol=0)
    assert_close(weights, torch.full_like(weights, 0.25).double())


def test_weights_are_those_without_autocast(backend, device):
    leaves = inputs(device, torch.bfloat16)
    for function in (dense, ragged, fp8):
        wanted = function(*leaves, return_attn_probs=True)[1]
        with torch.autocast(device.type, torch.bfloat16):
            got = function(*leaves, return_attn_probs=True)[1]
        assert torch.equal(got, wanted) and not got.requires_grad


def test_autocast_leaves_bias_sink_and_slopes(backend, device):
    """They are float32 where the scores are formed: a bias of 1 + 2**-10 is 1 in bfloat16."""
    q, k, v, _ = inputs(device, torch.bfloat16)
    bias = (1 + 2.0**-10 * torch.randn(H, S, S, device=device)).requires_grad_()
    sink = torch.randn(H, device=device, requires_grad=True)
    slopes = torch.rand(H, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        _, lse = ta.flash_attn_func(
            q.float(), k.float(), v.float(), bias=bias, sink=sink, alibi_slopes=slopes, return_lse=True
        )
    _, wanted = attention(q, k, v, D**-0.5, bias=bias, sink=sink, alibi=slopes)
    assert_close(lse, wanted.detach(), rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(lse.sum(), (bias, sink))
    for one, other in zip(got, torch.autograd.grad(wanted.sum(), (bias, sink)), strict=True):
        assert one.dtype is torch.float32
        assert_close(one, other.double(), dtype=torch.bfloat16)


# --- derivatives -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_torch_func(device, name):
    leaves = inputs(device)

    def loss(*arguments):
        return FUNCTIONS[name](*arguments).square().sum()

    wanted = torch.autograd.grad(loss(*leaves), used(name, leaves))
    plain = [leaf.detach() for leaf in leaves]
    places = tuple(place for place in range(4) if (name, place) != ("sparse", 2))
    assert_equal(torch.func.grad(loss, argnums=places)(*plain), wanted)
    _, pull = torch.func.vjp(loss, *plain)
    cotangents = pull(torch.ones((), device=device))
    assert_equal([cotangents[place] for place in places], wanted)
    assert_equal(torch.func.jacrev(loss, argnums=places)(*plain), wanted)
    samples = torch.stack([plain[0], -plain[0]])
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None, None, None))(samples, *plain[1:])
    for sample, gradient in zip(samples, each, strict=True):
        assert torch.equal(gradient, torch.func.grad(loss)(sample, *plain[1:]))


def test_second_derivatives_are_refused(device, name):
    leaves = inputs(device)
    wanted = torch.autograd.grad(FUNCTIONS[name](*leaves).square().sum(), used(name, leaves))
    first = torch.autograd.grad(FUNCTIONS[name](*leaves).square().sum(), used(name, leaves), create_graph=True)
    assert_equal([gradient.detach() for gradient in first], wanted)
    with pytest.raises(UnsupportedError, match=f"{PUBLIC[name]}.*: second derivatives are not supported"):
        sum(gradient.square().sum() for gradient in first).backward()
    loss = lambda q: FUNCTIONS[name](q, *(leaf.detach() for leaf in leaves[1:])).square().sum()  # noqa: E731
    with pytest.raises(UnsupportedError, match=f"{PUBLIC[name]}.*: second derivatives are not supported"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(leaves[0].detach())


def test_forward_mode_is_refused(device, name):
    q, *others = (leaf.detach() for leaf in inputs(device))
    with pytest.raises(UnsupportedError, match=f"{PUBLIC[name]}.*: forward-mode derivatives"):
        torch.func.jvp(lambda q: FUNCTIONS[name](q, *others), (q,), (q,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode derivatives"):
        FUNCTIONS[name](torch.autograd.forward_ad.make_dual(q, q), *others)


SUBSETS = [subset for size in range(1, 6) for subset in itertools.combinations(("q", "k", "v", "bias", "sink"), size)]


@pytest.mark.parametrize("function", [ta.flash_attn_func, ta.flash_attn_fp8_func], ids=["16 bits", "fp8"])
def test_every_frozen_combination(device, function):
    """Of q, k, v, bias and sink: what needs a gradient has the right one, what is frozen has none."""
    shapes = {"q": (1, S, H, D), "k": (1, S, HKV, D), "v": (1, S, HKV, D), "bias": (H, S, S), "sink": (H,)}
    values = {key: torch.randn(shape, device=device) for key, shape in shapes.items()}
    doubles = {key: value.double().requires_grad_() for key, value in values.items()}
    reference, _ = attention(
        **{key: doubles[key] for key in "qkv"}, scale=D**-0.5, bias=doubles["bias"], sink=doubles["sink"]
    )
    dout = torch.randn_like(values["q"])
    wanted = dict(zip(doubles, torch.autograd.grad(reference, tuple(doubles.values()), dout.double()), strict=True))
    for subset in SUBSETS:
        given = {key: value.clone().requires_grad_(key in subset) for key, value in values.items()}
        function(**given).backward(dout)
        for key, tensor in given.items():
            assert (tensor.grad is not None) == (key in subset), f"{key} of {subset}"
            if tensor.grad is not None and function is ta.flash_attn_func:
                assert_close(tensor.grad, wanted[key], what=f"d{key} of {subset}")
            elif tensor.grad is not None:
                assert_snr(tensor.grad, wanted[key], 20, what=f"d{key} of {subset}")


def test_sparse_frozen_combinations(device):
    q, k, _, sink = inputs(device)
    wanted = torch.autograd.grad(exact("sparse", q, k, None, sink).sum(), (q, k, sink))
    for subset in [subset for size in (1, 2, 3) for subset in itertools.combinations(range(3), size)]:
        given = [value.detach().clone().requires_grad_(place in subset) for place, value in enumerate((q, k, sink))]
        sparse(given[0], given[1], None, given[2]).sum().backward()
        for place, tensor in enumerate(given):
            assert (tensor.grad is not None) == (place in subset)
            if tensor.grad is not None:
                assert_close(
                    tensor.grad, wanted[place].double(), dtype=torch.float32, what=f"input {place} of {subset}"
                )


def test_gradients_belong_to_fields_of_the_call():
    """What the registered ops rely on, so that a new field of the call moves nothing."""
    assert {field.removeprefix("d") for field in AttentionGradients._fields} <= set(ForwardCall._fields)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
def test_gradients_have_the_dtypes_of_their_inputs(backend, device, dtype):
    q, k, v, _ = inputs(device)
    bias = torch.randn(S, S, device=device).to(dtype).requires_grad_()
    sink = torch.randn(H, device=device).to(dtype).requires_grad_()
    out = ta.flash_attn_func(q, k, v, bias=bias, sink=sink)
    reference, _ = attention(q, k, v, D**-0.5, bias=bias, sink=sink)
    got = torch.autograd.grad(out.square().sum(), (bias, sink))
    for one, other in zip(got, torch.autograd.grad(reference.square().sum(), (bias, sink)), strict=True):
        assert one.dtype is dtype
        assert_close(one, other.double(), dtype=dtype)


# --- strides of what is not q, k or v --------------------------------------------------------------------------------


def every_other(tensor):
    """Equal values, every last stride 2."""
    return torch.stack([tensor, torch.full_like(tensor, torch.nan)], dim=-1)[..., 0]


def turned(tensor):
    """Equal values, the memory of the transpose."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("change", [every_other, turned], ids=["strided", "transposed"])
def test_strides_of_bias_sink_slopes_and_gradients(backend, device, change):
    q, k, v, sink = inputs(device)
    bias, slopes = torch.randn(1, H, S, S, device=device), torch.rand(1, H, device=device)
    dout, dlse = torch.randn(1, S, H, D, device=device), torch.randn(1, H, S, device=device)

    def run(changed):
        own = bias.clone().requires_grad_(), sink.detach().clone().requires_grad_()
        given = (changed(own[0]), every_other(own[1]) if changed is not torch.clone else own[1])
        out, lse = ta.flash_attn_func(
            q, k, v, bias=given[0], sink=given[1], alibi_slopes=changed(slopes), return_lse=True
        )  # fmt: skip
        return torch.autograd.grad((out, lse), (q, k, v, *own), (changed(dout), changed(dlse)))

    reference = attention(q, k, v, D**-0.5, bias=(b := bias.clone().requires_grad_()), sink=sink, alibi=slopes)
    exact_gradients = torch.autograd.grad(reference, (q, k, v, b, sink), (dout.double(), dlse.double()))
    for got, plain, wanted in zip(run(change), run(torch.clone), exact_gradients, strict=True):
        assert_close(got, wanted.double(), dtype=torch.float32)
        assert torch.equal(got, plain)


@pytest.mark.parametrize("shape", [(), (S,), (H, 1, S), (1, 1, S, 1), (1, H, S, S)], ids=str)
def test_expanded_bias_and_gradients(backend, device, shape):
    """A broadcast bias has the sum of its gradients; out.sum() and lse.sum() give gradients of stride 0."""
    q, k, v, sink = inputs(device)
    bias = torch.randn(shape, device=device, requires_grad=True)
    out, lse = ta.flash_attn_func(q, k, v, bias=bias, sink=sink, return_lse=True)
    reference, reference_lse = attention(q, k, v, D**-0.5, bias=bias, sink=sink)
    got = torch.autograd.grad(out.sum() + 2 * lse.sum(), (q, k, v, bias, sink))
    wanted = torch.autograd.grad(reference.sum() + 2 * reference_lse.sum(), (q, k, v, bias, sink))
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert_close(one, other.double(), dtype=torch.float32)


def test_sparse_strides_of_sink_and_gradients(backend, device):
    q, k, _, sink = inputs(device)
    dout, dlse = torch.randn(S, H, RANK, device=device), torch.randn(S, H, device=device)
    slots = torch.tensor(SLOTS, dtype=torch.int32, device=device)

    def run(changed):
        sparse_inputs = (q[0], k[0, :, 0], changed(slots) if changed is torch.clone else turned(slots), changed(sink))
        return torch.autograd.grad(
            ta.sparse_mla_func(*sparse_inputs, RANK, return_lse=True), (q, k, sink), (changed(dout), changed(dlse))
        )

    assert_equal(run(every_other), run(torch.clone))


# --- the meta device -------------------------------------------------------------------------------------------------


def test_meta(name):
    """Shapes, dtypes and strides as on the CPU, gradients too; meta has no autocast."""
    real = inputs(torch.device("cpu"))
    meta = [leaf.detach().to("meta").requires_grad_() for leaf in real]
    wanted = FUNCTIONS[name](*real, return_lse=True)
    wanted = (*wanted, *torch.autograd.grad(wanted[0].sum(), used(name, real)))
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got = FUNCTIONS[name](*meta, return_lse=True)
            got = (*got, *torch.autograd.grad(got[0].sum(), used(name, meta)))
        for one, other in zip(got, wanted, strict=True):
            assert one.device.type == "meta" and one.dtype is other.dtype
            assert one.shape == other.shape and one.stride() == other.stride()


@pytest.mark.parametrize("name, kind", [*((name, "cpu") for name in FUNCTIONS), ("dense", "cuda"), ("fp8", "cuda")])
def test_fake_tensors(name, kind):
    """Shapes and strides without memory, on a device that need not be here (torch's own views ask for it)."""
    real = [leaf.detach() for leaf in inputs(torch.device("cpu"))]
    wanted = FUNCTIONS[name](*real, return_lse=True)
    with FakeTensorMode():
        q, k, v, sink = (torch.empty(leaf.shape, device=kind) for leaf in real)
        starts = torch.empty(len(STARTS), dtype=torch.int32, device=kind)
        slots = torch.empty(S, 3, dtype=torch.int32, device=kind)
        if name == "ragged":
            got = ta.flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 4, 4, sink=sink, return_lse=True)
        elif name == "sparse":
            got = ta.sparse_mla_func(q[0], k[0, :, :1], slots, sink, RANK, return_lse=True)
        else:
            got = FUNCTIONS[name](q, k, v, sink, return_lse=True)
    for one, other in zip(got, wanted, strict=True):
        assert one.device.type == kind and one.shape == other.shape and one.stride() == other.stride()
