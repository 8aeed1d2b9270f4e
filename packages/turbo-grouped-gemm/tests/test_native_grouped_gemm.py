# SPDX-License-Identifier: MIT
"""Numbers of the HIP kernels of grouped products, on a card or in the simulator, against the float64 product.

Payloads and scales of rows that belong to no group are NaN, and so is C before the launch.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("turbo_grouped_gemm.pytorch._C", reason="turbo-grouped-gemm is not built (pip install -e)")

from turbo_core import GlobalBackendManager, UnsupportedError, device_facts  # noqa: E402
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig, ScaleDtype  # noqa: E402
from turbo_grouped_gemm import grouped_gemm_fp4, grouped_gemm_fp8  # noqa: E402
from turbo_grouped_gemm.calls import (  # noqa: E402
    GroupedGemmCall,
    GroupedGemmFp8Call,
    GroupedOperand,
    GroupedWgradCall,
    GroupedWgradFp8Call,
    Groups,
)
from turbo_grouped_gemm.pytorch.kernels import grouped_native, native  # noqa: E402
from turbo_testing.grouped_operands import NAN_BYTE, SCALINGS, padded_offs, random_operand  # noqa: E402
from turbo_testing.metrics import assert_snr  # noqa: E402
from turbo_testing.native_device import native_device  # noqa: E402
from turbo_testing.poison import poisoned_empty  # noqa: E402

pytestmark = pytest.mark.simulated

OUTS = (torch.bfloat16, torch.float16, torch.float32)
KINDS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")]
TILES = ("large", "small")

# lens, offs (None: one after the other), rows
ROWS = {
    "packed": ([30, 0, 41, 7], None, 78),
    "tail": ([0, 130, 3, 0], None, 270),
    "gaps": ([5, 0, 140, 10], [4, 12, 20, 300, 330], 340),
    "all-empty": ([0, 0], None, 33),
    "no-room": ([9, 50], [0, 6, 60], 60),
    "many": ([1, 0, 2] * 44, None, 140),
    "many-gaps": ([1, 0, 2] * 44, [3 * g for g in range(133)], 400),
}
COLUMNS = {"one": [130], "empty": [0, 70, 0], "all-empty": [0, 0], "many": [1, 128, 0, 129, 0, 300]}

scalings = pytest.mark.parametrize("scaling", SCALINGS)
each_tile = pytest.mark.parametrize("tile", TILES)


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def device(request):
    with native_device(request.param) as device:
        reason = native.library.why_not(device)
        assert reason is None, reason
        yield device


def skip_mx(device, scaling):
    if scaling.startswith("mx") and device_facts(device).arch != "gfx950":
        pytest.skip("MX needs scaled matrix instructions")


def set_nan(operand, place, device):
    """NaN in rows, or columns, of the payload, as far as its format has one."""
    operand.data.view(torch.uint8)[place] = 0x80 if device_facts(device).fp8_fnuz else NAN_BYTE


def set_scale_nan(operand, place, scaling):
    """NaN in scales; the one of a tensor stays."""
    if scaling.startswith("mx"):
        operand.scale_inv.view(torch.uint8)[place] = NAN_BYTE
    elif scaling != "tensorwise":
        operand.scale_inv[place] = float("nan")


def check(c, exact, magnitude):
    """Float32 sums of products whose magnitudes add up to ``magnitude``, rounded once to c's dtype."""
    assert c.shape == exact.shape
    facts = torch.finfo(c.dtype)
    exact = torch.where(exact.abs() > facts.max, exact.sign() * float("inf"), exact)
    allowed = (
        1.01 * facts.eps / 2 * exact.abs().clamp(max=facts.max) + facts.smallest_normal * facts.eps + 1e-6 * magnitude
    )
    found = c.cpu().double()
    wrong = ~(((found - exact).abs() <= allowed) | (found == exact))
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()}, the first at {wrong.nonzero()[0].tolist()}"


# --- groups of rows: forward and dgrad ------------------------------------------------------------------------------


class Rows(NamedTuple):
    """A call without bias, and its product in float64 with the sum of magnitudes."""

    call: GroupedGemmFp8Call | GroupedGemmCall
    exact: torch.Tensor
    magnitude: torch.Tensor
    owners: list[slice]


def products(groups, wide_a, wide_b):
    """What `Rows` has of the values, and a mask of the rows of groups."""
    lens, offs, R = groups
    starts = [sum(lens[:g]) for g in range(len(lens))] if offs is None else offs[:-1]
    rooms = [R] * len(lens) if offs is None else offs[1:]
    owners = [slice(start, min(start + size, room)) for start, size, room in zip(starts, lens, rooms)]
    exact, magnitude = torch.zeros(2, R, wide_b.shape[1], dtype=torch.float64)
    mine = torch.zeros(R, dtype=torch.bool)
    for g, rows in enumerate(owners):
        exact[rows] = wide_a[rows] @ wide_b[g].T
        magnitude[rows] = wide_a[rows].abs() @ wide_b[g].abs().T
        mine[rows] = True
    return exact, magnitude, owners, mine


def groups_on(device, groups, index=torch.int64):
    return Groups(*(None if x is None else torch.tensor(x, dtype=index, device=device) for x in groups[:2]))


def rows_problem(device, scaling, groups, N, K, kinds=("e4m3", "e4m3"), out_dtype=torch.float32, index=torch.int64):
    lens, _, R = groups
    if scaling.startswith("mx"):
        K = -(-K // 128) * 128
    a, wide_a = random_operand((R, K), scaling, kinds[0], device)
    b, wide_b = random_operand((len(lens), N, K), scaling, kinds[1], device, tiles=scaling == "blockwise")
    *expected, mine = products(groups, wide_a, wide_b)
    set_nan(a, ~mine, device)
    set_scale_nan(a, ~mine, scaling)
    where, (granularity, block_size) = groups_on(device, groups, index), SCALINGS[scaling]
    call = GroupedGemmFp8Call(a, b, None, where, granularity, block_size, out_dtype, None, None, R)
    return Rows(call, *expected)


def halves_problem(device, dtype, groups, N, K, out_dtype=torch.float32, trans_b=True):
    """b is adjacent along K however it is passed."""
    lens, _, R = groups
    a, b = torch.randn(R, K).to(dtype), torch.randn(len(lens), N, K).to(dtype)
    *expected, mine = products(groups, a.double(), b.double())
    a[~mine] = float("nan")
    b = b.to(device) if trans_b else b.to(device).mT
    call = GroupedGemmCall(a.to(device), b, None, groups_on(device, groups), trans_b, out_dtype, None, None, R)
    return Rows(call, *expected)


def rows_of_none(p):
    belongs = torch.zeros(p.exact.shape[0], dtype=torch.bool)
    for rows in p.owners:
        belongs[rows] = True
    return ~belongs


def run(call, tile="chosen"):
    assert grouped_native.why_not(call) is None
    with poisoned_empty():
        return grouped_native.run(call, tile=tile)


@pytest.mark.covering
@each_tile
@scalings
@pytest.mark.parametrize("groups", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("N, K", [(72, 144), (65, 400), (1, 16), (260, 128)])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_rows(device, groups, N, K, scaling, kinds, out_dtype, index, tile):
    skip_mx(device, scaling)
    p = rows_problem(device, scaling, groups, N, K, kinds, out_dtype, index)
    c = run(p.call, tile)
    check(c, p.exact, p.magnitude)
    assert not c.cpu()[rows_of_none(p)].view(torch.uint8).any(), "rows of no group are zeros, to the bit"


@pytest.mark.covering
@each_tile
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("groups", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("N, K", [(72, 136), (65, 400), (1, 8), (260, 64)])
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, *OUTS], ids=str)
def test_rows_of_16_bits(device, dtype, groups, N, K, out_dtype, trans_b, bias_dtype, tile):
    p = halves_problem(device, dtype, groups, N, K, out_dtype, trans_b)
    exact = p.exact.clone()
    call = p.call
    if bias_dtype is not None:
        bias = torch.randn(len(groups[0]), N).to(bias_dtype)
        for g, rows in enumerate(p.owners):
            exact[rows] += bias[g].double()
        call = call._replace(bias=bias.to(device))
    c = run(call, tile)
    check(c, exact, p.magnitude + 4)
    assert not c.cpu()[rows_of_none(p)].view(torch.uint8).any(), "rows of no group are zeros, to the bit"


@scalings
@pytest.mark.parametrize("bias_dtype", OUTS, ids=str)
@pytest.mark.parametrize("N", [64, 65])
def test_bias_reaches_rows_of_groups_alone(device, scaling, bias_dtype, N):
    skip_mx(device, scaling)
    p = rows_problem(device, scaling, ROWS["gaps"], N, 128, out_dtype=torch.bfloat16)
    bias = torch.randn(4, N).to(bias_dtype)
    exact = p.exact.clone()
    for g, rows in enumerate(p.owners):
        exact[rows] += bias[g].double()
    c = run(p.call._replace(bias=bias.to(device)))
    check(c, exact, p.magnitude + 4)
    assert not c[320:].any() and not c[:4].any()


@each_tile
@scalings
def test_tiles_beyond_those_at_a_time(device, scaling, tile):
    """Work-groups go on to their next tiles, here all of them one after the other, with the same bits."""
    skip_mx(device, scaling)
    p = rows_problem(device, scaling, ([300, 1, 0, 270], [0, 310, 320, 320, 700], 700), 270, 128)
    c = run(p.call._replace(num_cu=1), tile)
    check(c, p.exact, p.magnitude)
    for call in (p.call, p.call._replace(schedule="work_steal"), p.call._replace(schedule="work_steal", num_cu=1)):
        assert torch.equal(c, run(call, tile))


@pytest.mark.parametrize(
    "lens, offs, owners",
    [
        ([50, 60, 70], None, [(0, 50), (50, 100), (100, 100)]),
        ([-3, 2**40, 5], None, [(0, 0), (0, 100), (100, 100)]),
        ([200, 5, 2**62], [-(2**40), 20, 90, 2**50], [(0, 20), (20, 25), (90, 100)]),
        ([30, 30, 30], [60, 10, 80, 5], [(60, 60), (60, 80), (80, 80)]),
    ],
)
def test_what_points_outside_is_cut_off(device, lens, offs, owners):
    p = rows_problem(device, "rowwise", ([0, 0, 0], None, 100), 40, 64)
    a, wide_a = random_operand((100, 64), "rowwise", "e4m3", device)
    _, wide_b = p.call.b, p.call.b.data.cpu().double() * p.call.b.scale_inv.cpu().double()
    exact, magnitude = torch.zeros(2, 100, 40, dtype=torch.float64)
    for g, (first, last) in enumerate(owners):
        exact[first:last] = wide_a[first:last] @ wide_b[g].T
        magnitude[first:last] = wide_a[first:last].abs() @ wide_b[g].abs().T
    groups = groups_on(device, (lens, offs))
    check(run(p.call._replace(a=a, groups=groups)), exact, magnitude)


# --- groups of columns: wgrad ---------------------------------------------------------------------------------------


class Columns(NamedTuple):
    call: GroupedWgradFp8Call
    exact: torch.Tensor
    magnitude: torch.Tensor


def columns_problem(device, scaling, lens, X, Y, kinds=("e4m3", "e4m3"), out_dtype=torch.float32):
    """Padding of groups is zeros; what follows the last group is NaN."""
    offs, G = padded_offs(lens), len(lens)
    P = offs[-1] + 128
    granularity, block_size = SCALINGS[scaling]
    operands, values = [], []
    for rows, kind in ((X, kinds[0]), (Y, kinds[1])):
        operand, wide = random_operand((rows, P), scaling, kind, device, groups=G)
        payload, wide = operand.data.view(torch.uint8), wide.expand(G, rows, P).clone()
        packed = P // payload.shape[1]
        if scaling == "rowwise":
            wide *= operand.scale_inv.cpu().double()[:, :, None]
        for g, size in enumerate(lens):
            begin = offs[g] + -(-size // packed) * packed
            payload[:, begin // packed : offs[g + 1] // packed] = 0
            wide[:, :, begin : offs[g + 1]] = 0
        set_nan(operand, (slice(None), slice(offs[-1] // packed, None)), device)
        if scaling != "rowwise":
            step = 128 if scaling == "blockwise" else 32
            set_scale_nan(operand, (slice(None), slice(offs[-1] // step, None)), scaling)
        operands.append(operand)
        values.append(wide)
    exact, magnitude = torch.zeros(2, G, X, Y, dtype=torch.float64)
    for g in range(G):
        x, y = (wide[g, :, offs[g] : offs[g + 1]] for wide in values)
        exact[g], magnitude[g] = x @ y.T, x.abs() @ y.abs().T
    call = GroupedWgradFp8Call(*operands, torch.tensor(offs, device=device), granularity, block_size, out_dtype)
    return Columns(call, exact, magnitude)


@pytest.mark.covering
@each_tile
@scalings
@pytest.mark.parametrize("lens", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("X, Y", [(1, 33), (130, 72), (65, 264)])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_columns(device, lens, X, Y, scaling, kinds, out_dtype, tile):
    skip_mx(device, scaling)
    p = columns_problem(device, scaling, lens, X, Y, kinds, out_dtype)
    c = run(p.call, tile)
    check(c, p.exact, p.magnitude)
    for g, size in enumerate(lens):
        assert size or not c.cpu()[g].contiguous().view(torch.uint8).any()


@scalings
@pytest.mark.parametrize("layout", ["contiguous", "rows apart", "columns apart"])
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_columns_added_to_out(device, scaling, layout, out_dtype):
    """An empty group's part keeps its bits, and nothing beside ``out`` is written."""
    skip_mx(device, scaling)
    lens, X, Y = [0, 70, 129], 33, 40
    p = columns_problem(device, scaling, lens, X, Y, out_dtype=out_dtype)
    wide = torch.full((3, X + 5, 2 * Y), float("nan"), dtype=out_dtype, device=device)
    out = {"contiguous": torch.empty(3, X, Y, dtype=out_dtype, device=device), "rows apart": wide[:, :X, 3 : Y + 3],
           "columns apart": wide[:, :X, ::2]}[layout]  # fmt: skip
    before = torch.randn(3, X, Y).to(out_dtype)
    before[:, 0, 0] = -0.0
    out.copy_(before)
    found = run(p.call._replace(out=out))
    assert found is out
    check(found, p.exact + before.double(), p.magnitude + before.double().abs())
    assert torch.equal(found[0].cpu().contiguous().view(torch.uint8), before[0].view(torch.uint8))
    if layout != "contiguous":
        out.fill_(float("nan"))
        assert wide.isnan().all(), "wrote beside out"


@scalings
def test_columns_on_few_units(device, scaling):
    skip_mx(device, scaling)
    p = columns_problem(device, scaling, [1, 0, 128], 140, 130)
    c = run(p.call._replace(num_cu=1))
    check(c, p.exact, p.magnitude)
    for call in (p.call, p.call._replace(schedule="work_steal"), p.call._replace(schedule="work_steal", num_cu=1)):
        assert torch.equal(c, run(call))


@pytest.mark.parametrize("offs", [[-500, 128, 2**40, 2**40], [0, 384, 128, 256], [-(2**40), -1, -128, 2**62]])
def test_wild_offsets_of_columns_reach_nothing_outside(device, offs):
    p = columns_problem(device, "rowwise", [128, 128, 128], 20, 24)
    x, y = (GroupedOperand(o.data[:, :384].contiguous(), o.scale_inv) for o in p.call[:2])
    c = run(p.call._replace(x=x, y=y, offs=torch.tensor(offs, device=device)))
    begin, end = (torch.tensor(part).clamp(0, 384) // 128 * 128 for part in (offs[:-1], offs[1:]))
    for g in range(3):
        columns = slice(int(begin[g]), int(max(begin[g], end[g])))
        wide = [o.data.cpu().double()[:, columns] * o.scale_inv[g].cpu().double()[:, None] for o in (x, y)]
        check(c[g], wide[0] @ wide[1].T, wide[0].abs() @ wide[1].abs().T)


# --- the ops --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["blockwise", "mxfp8", "mxfp4"])
def test_it_serves_the_ops(config):
    """On gfx950, forward and all gradients of a training step, unasked where the kernels are ahead."""
    granularity, block_size = SCALINGS[config]
    scale = ScaleDtype.E8M0 if config.startswith("mx") else ScaleDtype.FP32
    quant = Float4QuantConfig if config == "mxfp4" else Float8QuantConfig
    options = dict(granularity=granularity, block_size=block_size, scale_dtype=scale)
    op = grouped_gemm_fp4 if config == "mxfp4" else grouped_gemm_fp8
    served = []

    def serve(call):
        served.append(type(call).__name__)
        return original(call)

    original = grouped_native.run
    a, b = torch.randn(200, 256).bfloat16(), (torch.randn(3, 160, 256) / 16).bfloat16()
    lens = torch.tensor([70, 0, 100])
    GlobalBackendManager.set_quant_backend("TORCH")
    with native_device("gfx950") as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_native, "run", serve)
        x, w = a.to(device).requires_grad_(), b.to(device).requires_grad_()
        y = op(x, w, lens.to(device), config=quant(**options))
        y.backward(torch.ones_like(y))
    wgrad = [] if config == "blockwise" else ["GroupedWgradFp8Call"]
    assert sorted(served) == ["GroupedGemmFp8Call", "GroupedGemmFp8Call", *wgrad]
    y, dx, dw = (t.detach().cpu().double() for t in (y, x.grad, w.grad))
    least = 10 if config == "mxfp4" else 25
    for g, rows in enumerate((slice(0, 70), slice(70, 70), slice(70, 170))):
        if rows.stop > rows.start:
            wide_a, wide_b = a[rows].double(), b[g].double()
            assert_snr(y[rows], wide_a @ wide_b.T, least, "y")
            assert_snr(dx[rows], wide_b.sum(0).expand(len(wide_a), -1), least, "dx")
            assert_snr(dw[g], wide_a.sum(0).expand(160, -1), least, "dw")
    assert not y[170:].any() and not dx[170:].any() and not dw[1].any()


# --- layouts, refusals ----------------------------------------------------------------------------------------------


@scalings
def test_layouts_that_are_copied(device, scaling):
    """Payloads and scales whose contraction is not adjacent, or whose rows begin anywhere."""
    skip_mx(device, scaling)

    def transposed(x):
        if x.dim() < 2:
            return x
        whole = x.view(torch.uint8) if x.element_size() == 1 else x
        return whole.mT.contiguous().mT.view(x.dtype)

    def odd(x):
        if x.element_size() > 1:
            return x
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 3, dtype=torch.uint8, device=device)
        wide[..., : x.shape[-1]] = x.view(torch.uint8)
        return wide.view(x.dtype)[..., : x.shape[-1]]

    rows = rows_problem(device, scaling, ROWS["gaps"], 40, 144)
    columns = columns_problem(device, scaling, [0, 70, 129], 33, 40)
    for change in (transposed, odd):
        a, b = (GroupedOperand(*map(change, operand)) for operand in rows.call[:2])
        check(run(rows.call._replace(a=a, b=b)), rows.exact, rows.magnitude)
        x, y = (GroupedOperand(*map(change, operand)) for operand in columns.call[:2])
        check(run(columns.call._replace(x=x, y=y)), columns.exact, columns.magnitude)


def test_equal_inputs_give_equal_bits(device):
    p = rows_problem(device, "blockwise", ROWS["gaps"], 270, 400, out_dtype=torch.bfloat16)
    assert torch.equal(run(p.call), run(p.call))


def test_why_not(device):
    rows = rows_problem(device, "rowwise", ROWS["packed"], 40, 64).call
    columns = columns_problem(device, "rowwise", [128], 8, 8).call
    index = torch.arange(78, device=device)
    assert "a_idx or out_idx" in grouped_native.why_not(rows._replace(a_idx=index))
    assert "a_idx or out_idx" in grouped_native.why_not(rows._replace(out_idx=index))
    other = torch.float8_e4m3fn if device_facts(device).fp8_fnuz else torch.float8_e4m3fnuz
    y = columns.y._replace(data=columns.y.data.view(torch.uint8).view(other))
    assert f"y is {other}; matrix units of" in grouped_native.why_not(columns._replace(y=y))
    blocks = rows_problem(device, "blockwise", ROWS["packed"], 40, 64).call
    assert "block_size=64; blocks of 128" in grouped_native.why_not(blocks._replace(block_size=64))
    long = rows._replace(a=rows.a._replace(data=rows.a.data[:1, :1].expand(78, 2**23)))
    assert "rows of 8388736 bytes; at most" in grouped_native.why_not(long)
    halves = halves_problem(device, torch.bfloat16, ROWS["packed"], 40, 64).call
    assert "a is torch.float16 and b is torch.bfloat16" in grouped_native.why_not(halves._replace(a=halves.a.half()))
    for wrong in (halves._replace(b=halves.b.mT.contiguous().mT), halves._replace(b=halves.b[..., 4:60])):
        assert "b does not have its contraction last, in rows that" in grouped_native.why_not(wrong)
    assert "rows of a overlap" in grouped_native.why_not(halves._replace(a=halves.a[:1].expand(78, 64)))
    wgrad = GroupedWgradCall(halves.a, halves.a, halves.groups, torch.float32, None, None)
    assert "which is over the rows of x and y" in grouped_native.why_not(wgrad)
    with pytest.raises(UnsupportedError, match="tile='huge'"):
        grouped_native.run(rows, tile="huge")
    if device_facts(device).arch == "gfx942":
        mx = rows_problem(device, "mxfp8", ROWS["packed"], 40, 128).call
        assert "which gfx942 does not have" in grouped_native.why_not(mx)
