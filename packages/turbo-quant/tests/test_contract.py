# SPDX-License-Identifier: MIT
"""What every function promises beside its numbers: errors, compilation, registration, choice of backend."""

import inspect
import itertools

import pytest
import torch
from torch.utils._pytree import tree_leaves

import turbo_quant as tq
from turbo_core import (
    BackendUnavailableError,
    GlobalBackendManager,
    PrecisionType,
    UnsupportedError,
    simulated_arch,
    trace_dispatch,
)
from turbo_core.low_precision import ScalingRecipe
from turbo_quant.developer import padded_groups
from turbo_quant.formats import fp4_dtype
from turbo_quant.pytorch.ops import infos
from turbo_testing.cases import load

cases = load("turbo-quant")
E4M3, FP4 = torch.float8_e4m3fn, fp4_dtype()
TENSORWISE, ROWWISE, BLOCKWISE, MX = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE, cases.MX_BLOCKWISE
TILE, ROTATED = cases.RECIPES["tile"], cases.RECIPES["rotated"]
SHUFFLED, STOCHASTIC = cases.RECIPES["shuffled"], cases.RECIPES["stochastic"]

# --- errors ---------------------------------------------------------------------------------------------------------

X = torch.randn(64, 96)
LENS, OFFS = torch.tensor([30, 34]), torch.tensor([0, 30, 64])
ONE = torch.ones(())
Q = X.to(E4M3)
Q4, S4 = torch.zeros(64, 64, dtype=torch.uint8), torch.zeros(64, 4, dtype=torch.uint8)
WRONG = [
    (lambda: tq.quantize_fp8(3, E4M3, TENSORWISE), "x is 3"),
    (lambda: tq.quantize_fp8(X.double(), E4M3, TENSORWISE), "x is .*float64"),
    (lambda: tq.quantize_fp8(X, torch.float16, TENSORWISE), "out_dtype=torch.float16"),
    (lambda: tq.quantize_fp8(X, None, TENSORWISE), "out_dtype=None"),
    (lambda: tq.quantize_fp8(X, E4M3, "tensorwise"), "granularity='tensorwise'"),
    (lambda: tq.quantize_fp8(X, E4M3, TENSORWISE, axis=2), "axis=2"),
    (lambda: tq.quantize_fp8(X, E4M3, TENSORWISE, block_size=128), "block_size=128"),
    (lambda: tq.quantize_fp8(X, E4M3, ROWWISE), "axis=None"),
    (lambda: tq.quantize_fp8(ONE, E4M3, ROWWISE, axis=0), "at least 1 dimension"),
    (lambda: tq.quantize_fp8(X, E4M3, ROWWISE, axis=-3), "axis=-3"),
    (lambda: tq.quantize_fp8(X, E4M3, ROWWISE, axis=True), "axis=True"),
    (lambda: tq.quantize_fp8(X, E4M3, ROWWISE, axis=0, scaling_recipe=TILE), "use_2d_block, which ROWWISE"),
    (lambda: tq.quantize_fp8(X, E4M3, BLOCKWISE, axis=0), "block_size=None"),
    (lambda: tq.quantize_fp8(X, E4M3, BLOCKWISE, axis=0, block_size=0), "block_size=0"),
    (lambda: tq.quantize_fp8(X, E4M3, BLOCKWISE, block_size=32), "axis=None"),
    (lambda: tq.quantize_fp8(X[0], E4M3, BLOCKWISE, axis=0, block_size=32), "2 or 3 dimensions"),
    (lambda: tq.quantize_fp8(X[None], E4M3, BLOCKWISE, axis=0, block_size=32), r"accepted .* 1 \(-2\), 2 \(-1\)"),
    (lambda: tq.quantize_fp8(X, E4M3, BLOCKWISE, axis=0, block_size=32, scaling_recipe=STOCHASTIC), "use_sr"),
    (lambda: tq.quantize_fp8(X, E4M3, MX, axis=0, block_size=64), "block_size=64"),
    (lambda: tq.quantize_fp8(X, torch.float8_e4m3fnuz, MX, axis=0), "out_dtype=torch.float8_e4m3fnuz"),
    (lambda: tq.quantize_fp8(X, E4M3, MX, axis=0, scaling_recipe=(True,)), "scaling_recipe="),
    (lambda: tq.quantize_fp8(X, E4M3, MX, axis=0, scaling_recipe=ScalingRecipe(True, use_rht=True)), "use_rht"),
    (lambda: tq.quantize_fp8(X[:50], E4M3, MX, axis=1, scaling_recipe=SHUFFLED), "50 rows"),
    (lambda: tq.quantize_fp8(X, E4M3, MX, axis=0, sign_mask=1 << 16), "sign_mask=65536"),
    (lambda: tq.quantize_fp8(X, E4M3, MX, axis=0, rng=torch.zeros(2)), "rng is"),
    (lambda: tq.quantize_fp8_with_trans(X, E4M3, TENSORWISE), "TENSORWISE.*accepted are ROWWISE"),
    (lambda: tq.quantize_fp4(X, E4M3, MX, axis=0), "out_dtype=torch.float8_e4m3fn"),
    (lambda: tq.quantize_fp4(X, FP4, ROWWISE, axis=0), "accepted are MX_BLOCKWISE"),
    (lambda: tq.quantize_fp4_with_trans(X, FP4, MX, axis=0), "axis=0"),
    (lambda: tq.dequantize_fp8(X, X.dtype, TENSORWISE, scale_inv=ONE), "x.dtype=torch.float32"),
    (lambda: tq.dequantize_fp8(Q, torch.float64, TENSORWISE, scale_inv=ONE), "out_dtype=torch.float64"),
    (lambda: tq.dequantize_fp8(Q, X.dtype, TENSORWISE, scale_inv=torch.ones(2)), r"scale_inv is .*\[2\]"),
    (lambda: tq.dequantize_fp8(Q, X.dtype, TENSORWISE, scale_inv=1.0), "scale_inv is 1.0"),
    (lambda: tq.dequantize_fp8(Q, X.dtype, TENSORWISE, scale_inv=ONE, size=3), "size=3"),
    (lambda: tq.dequantize_fp8(Q, X.dtype, ROWWISE, axis=0, scale_inv=torch.ones(64, 1)), r"shape \[1, 96\]"),
    (
        lambda: tq.dequantize_fp8(Q, X.dtype, BLOCKWISE, axis=0, block_size=32, scale_inv=torch.ones(3, 96)),
        r"\[2, 96\]",
    ),
    (lambda: tq.dequantize_fp8(Q, X.dtype, MX, axis=1, scale_inv=S4), "96 values"),
    (lambda: tq.dequantize_fp4(Q4, X.dtype, MX, axis=1, scale_inv=S4[:, :3]), r"scale_inv is .*\[64, 3\]"),
    (lambda: tq.dequantize_fp4(Q4, X.dtype, MX, axis=1, scale_inv=S4, size=129), "size=129"),
    (lambda: tq.dequantize_fp4(Q4, X.dtype, MX, scale_inv=S4), "axis=None"),
    (lambda: tq.grouped_quantize_fp8(X, E4M3, ROWWISE, LENS, OFFS, axis=0), "ROWWISE"),
    (lambda: tq.grouped_quantize_fp8(X[None], E4M3, MX, LENS, OFFS, axis=1), "2 dimensions"),
    (lambda: tq.grouped_quantize_fp8(X, E4M3, MX, LENS.float(), OFFS, axis=1), "group_lens is"),
    (lambda: tq.grouped_quantize_fp8(X, E4M3, MX, LENS, OFFS[:2], axis=1), "G and G . 1"),
    (lambda: tq.grouped_quantize_fp8(X, E4M3, MX, LENS, OFFS, axis=1, scaling_recipe=SHUFFLED), "shuffled order"),
    (lambda: tq.grouped_quantize_fp8(X, E4M3, BLOCKWISE, LENS, OFFS, block_size=8, axis=0, scaling_recipe=TILE), "1-D"),
    (lambda: tq.grouped_dequantize_fp4(Q4, X.dtype, MX, axis=0, scale_inv=S4), "group_offs is None"),
    (lambda: tq.grouped_dequantize_fp8(Q, X.dtype, MX, OFFS, OFFS, axis=0, scale_inv=S4, total_M=-1), "total_M=-1"),
    (lambda: tq.hadamard_transform(torch.randn(3, 24)), "multiple of 16"),
    (lambda: tq.hadamard_transform(X, -1), "sign_mask=-1"),
    (lambda: tq.shuffle_scale(X), "scale is"),
    (lambda: tq.unshuffle_scale(torch.zeros(256, 8, dtype=torch.uint8), 257, 8), "rows=257"),
    (lambda: tq.shuffle_weight(torch.zeros(15, 32, dtype=torch.uint8)), "multiple of 16"),
]


@pytest.mark.parametrize("call, message", WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_argument(call, message):
    with pytest.raises(UnsupportedError, match=message):
        call()


# --- torch.library and torch.compile --------------------------------------------------------------------------------


def raw_calls(device):
    """The registered ops and arguments of theirs."""
    ops = torch.ops.turbo_quant
    x = torch.randn(2, 33, 100, device=device)
    rng = torch.tensor([1, 2], device=device)
    plain, everything = [False] * 5, [False, True, True, True, False]
    offs, padded = padded_groups(torch.tensor([20, 13], device=device), None, 33, 32)
    lens, index = torch.tensor([20, 10], device=device), torch.arange(40, device=device) % 33
    simple, k_major = (False, None, None, None, False, None, None), (False, None, None, None, True, None, None)
    q = x.to(E4M3)
    scale = torch.zeros(256, 8, dtype=torch.uint8, device=device)
    mx = torch.zeros(2, 33, 128, dtype=torch.uint8, device=device).view(E4M3)
    exponents = torch.full((2, 33, 4), 127, dtype=torch.uint8, device=device)
    return {
        "tensorwise": (ops.quantize_float, (x, E4M3, "tensorwise", 0, True, False, *simple)),
        "rowwise": (ops.quantize_float, (x, E4M3, "rowwise", 0, True, True, *simple)),
        "tile": (ops.quantize_float, (x, E4M3, "blockwise", 32, True, False, True, *simple[1:])),
        "blockwise": (ops.quantize_float, (x, E4M3, "blockwise", 32, True, True, *simple)),
        "k-major": (ops.quantize_float, (x, E4M3, "blockwise", 32, True, True, *k_major)),
        "k-major tensor": (ops.quantize_float, (x, E4M3, "tensorwise", 0, False, True, *k_major)),
        "groups": (ops.quantize_float, (x[:1], E4M3, "blockwise", 32, True, True, False, offs, padded, *simple[3:])),
        "k-major groups": (
            ops.quantize_float,
            (x[:1], E4M3, "rowwise", 0, True, True, False, offs, padded * 4, None, True, lens, index),
        ),
        "mxfp8": (ops.quantize_mx, (x, "e4m3", plain, None, 0, None, None, None, None, None)),
        "mxfp4": (ops.quantize_mx, (x, "e2m1", plain, everything, 7, rng, None, None, None, None)),
        "mx-groups": (ops.quantize_mx, (x[:1], "e5m2", None, plain, 0, None, offs, padded * 4, None, None)),
        "mx-groups named": (ops.quantize_mx, (x[:1], "e5m2", None, plain, 0, None, offs, padded * 4, lens, index)),
        "dequantize": (ops.dequantize_float, (q, torch.ones((), device=device), "tensorwise", 0, 0, torch.bfloat16)),
        "dequantize-mx": (ops.dequantize_mx, (mx, exponents, "e4m3", 100, True, True, 5, torch.float32)),
        "pad_groups": (ops.pad_groups, (lens, None, 33, 128)),
        "shuffle_scale": (ops.shuffle_scale, (scale[:100, :5].contiguous(),)),
        "unshuffle_scale": (ops.unshuffle_scale, (scale, 100, 5)),
        "shuffle_weight": (ops.shuffle_weight, (scale[:, :].repeat(1, 4),)),
        "unshuffle_weight": (ops.unshuffle_weight, (scale.repeat(1, 4),)),
    }


@pytest.mark.parametrize("name", raw_calls("cpu"))
def test_opcheck(device, name):
    op, arguments = raw_calls(device)[name]
    # the schema test draws inputs and the dispatch tests compare outputs with operations that FP8 and FP4 do not have
    fp8_inputs = name.startswith("dequantize")
    tests = ("test_faketensor",) if fp8_inputs else ("test_schema", "test_faketensor")
    torch.library.opcheck(op, arguments, test_utils=tests)
    if fp8_inputs or "shuffle" in name:
        torch.library.opcheck(op, arguments, test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"))


def everything(x, lens, offs):
    yield tq.quantize_fp8(x, E4M3, TENSORWISE)
    yield tq.quantize_fp8(x, E4M3, ROWWISE, axis=0)
    yield tq.quantize_fp8(x, torch.float8_e5m2, BLOCKWISE, axis=1, block_size=32)
    yield tq.quantize_fp8_with_trans(x, E4M3, BLOCKWISE, block_size=32, scaling_recipe=TILE)
    eight = tq.quantize_fp8_with_trans(x, E4M3, MX, scaling_recipe=STOCHASTIC)
    yield eight
    yield tq.dequantize_fp8(eight[2], torch.bfloat16, MX, axis=0, scale_inv=eight[3], size=x.shape[0])
    four = tq.quantize_fp4_with_trans(
        x, FP4, MX, scaling_recipe=SHUFFLED, scaling_recipe_for_trans=ROTATED, sign_mask=9
    )
    yield four
    yield tq.dequantize_fp4(four[0], x.dtype, MX, axis=1, scale_inv=four[1], scaling_recipe=SHUFFLED, size=x.shape[1])
    groups = tq.grouped_quantize_fp8_with_trans(x, E4M3, BLOCKWISE, lens, offs, block_size=16)
    yield groups
    yield tq.grouped_dequantize_fp8(
        groups[2], x.dtype, BLOCKWISE, offs, groups[7], block_size=16, axis=0, scale_inv=groups[3], total_M=x.shape[0]
    )
    yield tq.hadamard_transform(x[:, :32], 77)
    yield tq.unshuffle_weight(tq.shuffle_weight(four[2][:16]))


@pytest.mark.parametrize("view", ["contiguous", "transposed"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_as_eager(device, view, dynamic, compiler):
    """Whole graph; bits and strides as in eager mode (field case 11)."""
    if compiler == "inductor" and (device.type != "cuda" or view == "transposed"):
        pytest.skip("inductor runs on a GPU, once for each kind of sizes")
    torch._dynamo.reset()
    x = torch.randn(64, 96, device=device)
    x = x if view == "contiguous" else torch.randn(96, 64, device=device).t()
    arguments = (x, LENS.to(device), OFFS.to(device))

    def function(*arguments):
        return list(everything(*arguments))

    torch.manual_seed(3)
    expected = tree_leaves(function(*arguments))
    torch.manual_seed(3)
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=compiler)
    found = tree_leaves(compiled(*arguments))
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        if compiler == "aot_eager":  # inductor draws its random numbers otherwise
            cases.assert_same_bits(one, other)


def test_results_take_no_part_in_autograd(device):
    x = torch.randn(64, 96, device=device, requires_grad=True)
    for granularity, options in ((TENSORWISE, {}), (BLOCKWISE, {"axis": 0, "block_size": 32}), (MX, {"axis": 0})):
        q, scale = tq.quantize_fp8(x, E4M3, granularity, **options)
        assert not q.requires_grad and not scale.requires_grad
        assert not tq.dequantize_fp8(q, x.dtype, granularity, scale_inv=scale, **options).requires_grad


# --- the choice of backend ------------------------------------------------------------------------------------------

FUNCTIONS = [
    "".join(parts)
    for parts in itertools.product(("", "grouped_"), ("quantize", "dequantize"), ("_fp8", "_fp4"), ("", "_with_trans"))
    if not (parts[1] == "dequantize" and parts[3])
]


def test_every_function_explains_itself():
    assert set(infos.INFOS) == set(FUNCTIONS)
    for name in FUNCTIONS:
        assert getattr(infos, name) is infos.INFOS[name]
        assert callable(getattr(tq, name)) and inspect.getdoc(getattr(tq, name))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_explain_answers_for_an_example(name, device):
    info = infos.INFOS[name]
    for call in info.example(device).values():
        info.dispatcher.resolve(call)
        assert str(device) in info.dispatcher.describe(call)
        assert set(info.dispatcher.answers(call)) == set(info.dispatcher.backends)
        assert info.dispatcher.make_key(call) == info.dispatcher.make_key(call)
    with simulated_arch("gfx950"):
        call = next(iter(info.example(torch.device("cpu")).values()))
        assert info.dispatcher.default_backend(call).name == "TURBO"


def test_explain_takes_the_arguments_of_the_function():
    calls = infos.quantize_fp8.calls(X, E4M3, ROWWISE, axis=0)
    assert calls["forward"].column and not calls["forward"].row
    calls = infos.quantize_fp8_with_trans.calls(X, E4M3, BLOCKWISE, block_size=32, scaling_recipe=TILE)
    assert set(calls) == {"row", "column"}
    for groups, keywords in (((LENS, OFFS), {}), ((), {"group_lens": LENS, "group_offs": OFFS})):
        calls = infos.grouped_quantize_fp4.calls(X, FP4, MX, *groups, axis=0, **keywords)
        assert calls["forward"].group_offs is not None
    calls = infos.grouped_dequantize_fp4.calls(Q4, X.dtype, MX, axis=1, scale_inv=S4, group_offs=None)
    assert calls["forward"].size == 128


def test_default_backend_on_a_cpu_is_the_reference(device):
    if device.type != "cpu":
        pytest.skip("about a CPU")
    with trace_dispatch() as trace:
        q, scale = tq.quantize_fp4(X, FP4, MX, axis=1)
        tq.dequantize_fp4(q, X.dtype, MX, axis=1, scale_inv=scale)
        tq.quantize_fp8(X, E4M3, BLOCKWISE, axis=0, block_size=32)
    assert [record.backend.name for record in trace.records] == ["TORCH"] * 3
    assert trace.records[0].call == "quantize MX e2m1, row, [1, 64, 96] float32, cpu"
    assert trace.records[1].call == "dequantize MX e2m1, [1, 64, 64] float4_e2m1fn_x2, cpu"
    assert trace.records[2].call == "quantize BLOCKWISE float8_e4m3fn, column, [1, 64, 96] float32, cpu"


def test_fp4_and_fp8_are_chosen_apart():
    GlobalBackendManager.set_quant_backend("CK", precision=PrecisionType.FP4)
    tq.quantize_fp8(X, E4M3, MX, axis=1)
    with pytest.raises(BackendUnavailableError, match="CK .*does not exist"):
        tq.quantize_fp4(X, FP4, MX, axis=1)


def test_a_named_backend_that_cannot_is_an_error(device):
    GlobalBackendManager.set_quant_backend("TURBO")
    if device.type == "cuda":
        pytest.skip("about a CPU")
    with pytest.raises(BackendUnavailableError, match="TURBO"):
        tq.quantize_fp8(X, E4M3, TENSORWISE)


def test_nothing_to_do_asks_no_backend():
    GlobalBackendManager.set_quant_backend("CK")
    assert tq.quantize_fp8(X[:0], E4M3, ROWWISE, axis=1)[0].shape == (0, 96)
    q, scale = tq.quantize_fp4(X[:0], FP4, MX, axis=1)
    assert tq.dequantize_fp4(q, X.dtype, MX, axis=1, scale_inv=scale, size=96).shape == (0, 96)
