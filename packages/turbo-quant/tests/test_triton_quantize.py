# SPDX-License-Identifier: MIT
"""The Triton kernels below the ops: casts on every value, block sizes and walks that the ops' matrix leaves out.

TORCH, which test_quantize.py holds to the numpy oracle, says what is right, bit for bit.
"""

import math

import pytest
import torch

from turbo_core import arch_facts, device_facts, why_no_triton
from turbo_core.number_formats import fp8_formats
from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall, MxDirection, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.pytorch.kernels import reference
from turbo_quant.pytorch.kernels.grouping import pad_groups
from turbo_testing.cases import load
from turbo_testing.support_table import PLACES

cases = load("turbo-quant")
triton = pytest.importorskip("triton", reason="triton is not installed")
tl = triton.language

from turbo_quant.triton import float_plan, mx_plan, quantize  # noqa: E402
from turbo_quant.triton.dequantize_plan import plan_dequantize_float  # noqa: E402
from turbo_quant.triton.groups import next_group  # noqa: E402
from turbo_quant.triton.rounding import decode, divide, encode, encode_pair, encode_stochastic  # noqa: E402
from turbo_quant.triton.tiles import ANY, MAX_GROUPED, TILES, casts_natively, choose  # noqa: E402

PLAIN = MxDirection()
FORMATS = {
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2fnuz: "fp8e5b16",
}


@pytest.fixture(autouse=True)
def kernels_can_run(device):
    if (reason := why_no_triton(device)) is not None:
        pytest.skip(reason)


def check(call):
    cases.assert_same_bits(quantize.run(call), reference.run(call), what=type(call).__name__)


# --- casts ----------------------------------------------------------------------------------------------------------


@triton.jit
def encode_kernel(v_ptr, code_ptr, word_ptr, n, BLOCK: tl.constexpr, MANTISSA: tl.constexpr, LOWEST: tl.constexpr,
                  FNUZ: tl.constexpr, NATIVE: tl.constexpr, LARGEST: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(v_ptr + i, mask=i < n, other=0.0)
    if word_ptr is None:
        code = encode(v, MANTISSA, LOWEST, FNUZ, NATIVE)
    else:
        code = encode_stochastic(v, tl.load(word_ptr + i, mask=i < n, other=0), MANTISSA, LOWEST, LARGEST)
    tl.store(code_ptr + i, code, mask=i < n)


@triton.jit
def encode_pair_kernel(low_ptr, high_ptr, byte_ptr, n, BLOCK: tl.constexpr, HALF: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    low = tl.load(low_ptr + i, mask=i < n, other=0.0)
    high = tl.load(high_ptr + i, mask=i < n, other=0.0)
    if HALF:
        low, high = low.to(tl.float16), high.to(tl.float16)
    tl.store(byte_ptr + i, encode_pair(low, high), mask=i < n)


@triton.jit
def decode_kernel(code_ptr, v_ptr, MANTISSA: tl.constexpr, LOWEST: tl.constexpr, FNUZ: tl.constexpr,
                  NATIVE: tl.constexpr):  # fmt: skip
    i = tl.arange(0, 256)
    tl.store(v_ptr + i, decode(tl.load(code_ptr + i), MANTISSA, LOWEST, FNUZ, NATIVE))


def values(largest, device):
    """All of bf16 and many of float32 that round to values up to ``largest``: also around all middles."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()
    bits = torch.randint(0, 2**31 - 1, (200000,), dtype=torch.int32).view(torch.float32)
    near = torch.randn(200000) * torch.exp2(torch.randint(-20, 10, (200000,)).float())
    v = torch.cat([every, bits, near])
    v = v[v.isfinite()].clamp(-largest, largest)
    middles = v.bfloat16().float()  # with a few more bits below or above
    v = torch.cat([v, *(middles.view(torch.int32).add(d).view(torch.float32) for d in (-1, 1))])
    return torch.cat([v[v.abs() <= largest], -v[v.abs() <= largest]]).to(device)


def block_of(device):
    return 65536 if device.type == "cpu" else 1024  # few, large numpy calls in the interpreter


def start_encode(v, code, words=None, **constants):
    block = block_of(v.device)
    encode_kernel[(triton.cdiv(len(v), block),)](v, code, words, len(v), BLOCK=block, **constants)


def natives(device, name):
    return (False, True) if casts_natively(device_facts(device), name) else (False,)


@pytest.mark.parametrize("dtype", FORMATS, ids=FORMATS.get)
def test_casts_of_fp8(device, dtype):
    name = str(dtype).removeprefix("torch.")
    constants = float_plan.fp8_constants(dtype, device_facts(device))
    codec = fp8_formats()[FORMATS[dtype]]
    v = values(torch.finfo(dtype).max, device)
    expected = torch.from_numpy(codec.encode(v.cpu().numpy())).to(device)
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    for native in natives(device, name):
        constants["NATIVE"] = native
        code = torch.full_like(expected, 0x55)
        start_encode(v, code, LARGEST=0, **constants)
        wrong = (code != expected).nonzero()
        assert not len(wrong), f"{v[wrong[0]]}: {code[wrong[0]]}, expected {expected[wrong[0]]}"
        decoded = torch.empty(256, device=device)
        decode_kernel[(1,)](codes, decoded, **constants)
        cases.assert_same_bits(decoded, torch.from_numpy(codec.values).to(device))


@pytest.mark.parametrize("half", [False, True])
def test_casts_of_e2m1(device, half):
    """Two values a byte; in float16 those that have at most 11 digits."""
    v = values(6.0, device)
    if half:
        v = torch.cat([v.bfloat16().float(), v.half().float()])
        v = v[(v.abs() <= 6)]
    v = v[torch.randperm(len(v), device=device)]
    largest = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=device, dtype=torch.float64)
    distance = (v.double().abs()[:, None] - largest).abs()
    nearest = distance.argmin(1)
    tie = (distance == distance.gather(1, nearest[:, None])).sum(1) == 2
    nearest = torch.where(tie & (nearest % 2 == 1), nearest + 1, nearest)  # argmin gives the lower one
    expected = nearest + 8 * v.signbit()
    high = v.flip(0)
    byte = torch.full((len(v),), 0x55, dtype=torch.uint8, device=device)
    block = block_of(device)
    encode_pair_kernel[(triton.cdiv(len(v), block),)](v, high, byte, len(v), BLOCK=block, HALF=half)
    assert torch.equal(byte.long(), expected + 16 * expected.flip(0))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
def test_stochastic_cast(device, format):
    """Up exactly where u < what is left of |v| / ulp, and never past the largest value."""
    mantissa, _, lowest, largest, _ = mx_plan.MX_FORMATS[format]
    v = values(largest * (1 + 2.0**-4), device).abs()[::16].contiguous()
    word = torch.randint(-(2**31), 2**31, v.shape, device=device).int()
    word[::3] &= 0xFF  # u = 0
    code = torch.full(v.shape, 0x55, dtype=torch.uint8, device=device)
    constants = {"MANTISSA": mantissa, "LOWEST": lowest, "FNUZ": False, "NATIVE": False}
    code_of = {"e4m3": 0x7E, "e5m2": 0x7B, "e2m1": 7}[format]
    unsigned = word.view(torch.uint32)
    start_encode(v, code, unsigned, LARGEST=code_of, **constants)
    exponent = torch.where(v == 0, lowest, (torch.frexp(v).exponent - 1).clamp(min=lowest))
    steps = torch.ldexp(v.double(), mantissa - exponent)
    u = ((word.long() & 0xFFFFFFFF) >> 8).double() * 2.0**-24
    expected = steps.floor() + (u < steps - steps.floor()) + ((exponent - lowest) * 2**mantissa)
    assert torch.equal(code.double(), expected.clamp(max=code_of))


@triton.jit
def divide_kernel(a, b_ptr, found_ptr, expected_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(b_ptr + i)
    tl.store(found_ptr + i, divide(a, b))
    tl.store(expected_ptr + i, tl.div_rn(a, b))


@pytest.mark.parametrize("a", [1.0, 240.0, 448.0, 57344.0])
def test_quick_division(device, a):
    """All digits of the divisor; 1 / b is not for the last. A quotient must be a normal number."""
    if device_facts(device).vendor != "nvidia":
        pytest.skip("only NVIDIA's kernels divide so")
    for exponent in (-120, -126 + 64, -20, 0, 30, 100, 124):
        if not -125 <= math.log2(a) - exponent <= 126:
            continue
        b = torch.arange(2**23, dtype=torch.int32, device=device).add((127 + exponent) << 23).view(torch.float32)
        found, expected = torch.zeros_like(b), torch.ones_like(b)
        divide_kernel[(2**23 // 1024,)](a, b, found, expected, BLOCK=1024)
        wrong = (found != expected).nonzero().flatten().tolist()
        assert not wrong or (a == 1 and wrong == [2**23 - 1])


# --- shapes that the ops' matrix leaves out -------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("block", [1, 3, 32, 100, 200, 256, 600])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_block_sizes(device, poisoned_allocations, block, layout):
    shape = (2, 70, 330) if block > 16 or device.type == "cuda" else (2, 13, 37)  # a small block has its own program
    x = cases.draw("nan", shape, torch.bfloat16, device)
    if layout == "transposed":
        x = x.transpose(1, 2)
    elif layout == "sliced":
        x = x[:, ::3, 5:]
    for row, column, tile in ((True, True, False), (False, True, False), (True, False, True)):
        check(QuantizeFloatCall(x, torch.float8_e5m2, cases.BLOCKWISE, block, row, column, tile))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", [(1, 700, 130), (1, 1, 17000), (3, 130, 700)], ids=str)
def test_walks(device, poisoned_allocations, shape):
    """Rows, columns and tensors longer than a program holds, in several programs."""
    x = cases.draw("spike", shape, torch.bfloat16, device)
    for view in (x, x.transpose(1, 2)):
        for options in ((cases.TENSORWISE, 0, True, False), (cases.ROWWISE, 0, True, True)):
            check(QuantizeFloatCall(view, torch.float8_e4m3fnuz, *options))


@pytest.mark.parametrize("options", [(cases.TENSORWISE, 0), (cases.ROWWISE, 0), (cases.BLOCKWISE, 64),
                                     (cases.BLOCKWISE, 32, True), (cases.BLOCKWISE, 100), (cases.BLOCKWISE, 24, True)],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", [(2, 144, 160), (1, 16, 280), (1, 640, 17)], ids=str)
def test_k_major(device, poisoned_allocations, options, shape):
    """Rows, columns and neither adjacent in memory; whole words and single bytes; lines of several chunks."""
    x = cases.draw("nan", shape, torch.bfloat16, device)
    turned, strided = x.transpose(1, 2).contiguous().transpose(1, 2), cases.strided(x.transpose(1, 2))
    for view, wanted in ((x, ((True, True), (True, False))), (turned, ((False, True),)), (strided, ((True, True),))):
        for row, column in wanted:
            call = QuantizeFloatCall(view, torch.float8_e5m2, *options[:2], row, column, *options[2:], k_major=True)
            check(call)


def test_a_tensor_that_is_expanded_is_not_dense(device):
    x = torch.randn(1, 1, 64, device=device).expand(1, 9, 64)
    check(QuantizeFloatCall(x, torch.float8_e4m3fn, cases.TENSORWISE, 0, True, False))


@pytest.mark.covering
@pytest.mark.parametrize("lens", [(1,) * 9, (0, 7, 130, 0, 100), (300,)], ids=str)
@pytest.mark.parametrize("block", [48, 200])
def test_groups(device, poisoned_allocations, lens, block):
    x = cases.draw("random", (1, 300, 150), torch.bfloat16, device)
    tensor = torch.tensor(lens, device=device)
    offs = torch.cat([tensor.new_zeros(1), tensor.cumsum(0)])
    padded = pad_groups(tensor, block)[1]
    check(QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, block, True, True, False, offs,
                                              padded))  # fmt: skip
    padded = pad_groups(tensor, 128)[1]
    rng = torch.tensor([-5, 2**40 + 3], device=device)
    for row, column in (
        (PLAIN, MxDirection(rht=True, stochastic=True)),
        (MxDirection(tile=True), MxDirection(tile=True)),
        (MxDirection(shuffle_scale=True), MxDirection(rht=True)),
    ):
        check(QuantizeMxCall(x, "e2m1", row, column, 0x8001, rng, offs, padded))


@triton.jit
def next_group_kernel(out_ptr, offs_ptr, lens_ptr, n_groups, rows, GROUPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.store(out_ptr + row, next_group(row, offs_ptr, lens_ptr, n_groups, rows, GROUPS))


def test_next_group(device):
    """What is cleared between groups ends where the next begins, be it at once."""
    lens, offs = torch.tensor([2, 3, 0, 1], device=device), torch.tensor([1, 3, 7, 8, 9], device=device)
    out = torch.full((12,), -1, device=device)
    next_group_kernel[(12,)](out, offs, lens, 4, 12, GROUPS=4)
    assert out.tolist() == [1, 1, 3, 3, 8, 8, 8, 8, 8, 9, 10, 11]


@pytest.mark.parametrize("axis, block, R, C", [(2, 1, 70, 330), (2, 100, 70, 330), (1, 128, 70, 330), (0, 32, 70, 330),
                                               (0, 600, 70, 330), (1, 128, 160, 256), (0, 128, 160, 512)])  # fmt: skip
def test_dequantize_float(device, poisoned_allocations, axis, block, R, C):
    q = torch.randint(0, 256, (2, R, C), dtype=torch.uint8, device=device).view(torch.float8_e5m2)
    rows, columns = -(-R // block), -(-C // block)
    shape = {2: (2, R, columns), 1: (2, rows, C), 0: (2, rows, columns)}[axis]
    scale = torch.randn(shape, device=device)
    for view in (scale, scale.transpose(1, 2).contiguous().transpose(1, 2)):
        for dtype in cases.DTYPES:
            check(DequantizeFloatCall(q, view, cases.BLOCKWISE, block, axis, dtype))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
@pytest.mark.parametrize("transpose, rht", [(False, False), (True, True)])
def test_dequantize_mx(device, poisoned_allocations, format, transpose, rht):
    width = 256 // (2 if format == "e2m1" else 1)
    q = torch.randint(0, 256, (2, width, 70), dtype=torch.uint8, device=device).transpose(1, 2)
    if format == "e4m3":
        q = torch.where(q % 128 == 127, 1, q)  # no NaN: rotated, its sign would be anyone's
    scale = torch.randint(0, 256, (2, 70, 8), dtype=torch.uint8, device=device)
    if rht or format == "e5m2":
        scale = scale.clamp(60, 180)  # no infinity minus infinity
        q = torch.where(q % 128 > 0x7B, 1, q) if format == "e5m2" else q
    for dtype in cases.DTYPES:
        check(DequantizeMxCall(q, scale, format, 200, transpose, rht, 0x1234, dtype))


# --- plans ----------------------------------------------------------------------------------------------------------


def test_tables():
    for kind, place, rows in ((kind, *item) for kind, table in TILES.items() for item in table.items()):
        assert all(tile.columns & (tile.columns - 1) == 0 for tile in rows)
        assert rows[-1].multiple_of == 1 and (rows[-1].up_to == ANY or kind == "row"), (kind, place)
        assert not kind.startswith("mx") or all(128 % tile.columns == 0 and tile.rows % 32 == 0 for tile in rows)
    assert choose("square", arch_facts("gfx942"), multiple=100).num_warps == 16


@pytest.mark.parametrize("size", [32, 100, 128, 512])
@pytest.mark.parametrize("R", [96, 128, 160, 176, 192, 384, 416])
def test_tiles_without_masks_are_full(device, size, R):
    """A dequantisation without masks writes as many elements as there are: more would be other tensors' memory."""
    without = 0
    for facts in (arch_facts("gfx942"), arch_facts("gfx950"), PLACES["NVIDIA"], device_facts(device)):
        for C in (R, 256, 512, 768):
            q = torch.empty((3, R, C), dtype=torch.float8_e4m3fn, device="meta")
            for axis, shape in ((2, (R, -(-C // size))), (1, (-(-R // size), C)), (0, (-(-R // size), -(-C // size)))):
                scale = torch.empty((3, *shape), device="meta")
                _, (launch,) = plan_dequantize_float(
                    DequantizeFloatCall(q, scale, cases.BLOCKWISE, size, axis, torch.bfloat16), facts
                )
                constants = launch.constants
                if not constants["MASKED"]:
                    without += 1
                    assert launch.grid[0] * constants["BLOCK_R"] * constants["BLOCK_C"] == q.numel(), (facts, C, axis)
    assert without or size == 100


def test_one_read_of_x(device):
    """Both copies of blocks and of MX come from one launch; a tensor's, and those of whole lines, from two."""
    x = torch.empty((1, 4096, 4096), dtype=torch.bfloat16, device="meta")
    for facts in (arch_facts("gfx942"), arch_facts("gfx950"), device_facts(device)):
        calls = {
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, 128, True, True): 1,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, 128, True, False, True): 1,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.ROWWISE, 0, True, False): 1,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.TENSORWISE, 0, True, False): 2,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.TENSORWISE, 0, True, True, k_major=True): 2,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.ROWWISE, 0, True, True, k_major=True): 2,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, 128, True, True, k_major=True): 1,
            QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, 128, True, True, True, k_major=True): 1,
        }
        for call, launches in calls.items():
            assert len(float_plan.plan_quantize(call, facts)[1]) == launches
        assert len(mx_plan.plan_quantize(QuantizeMxCall(x, "e2m1", PLAIN, PLAIN), facts)[1]) == 1


def test_why_not(device):
    x, offs = torch.empty(1, 4, 4, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, MAX_GROUPED, True, True, False, offs, offs)
    assert quantize.why_not(call) is None
    assert "block_size=1025" in quantize.why_not(call._replace(block_size=MAX_GROUPED + 1))
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, 128, True, True, k_major=True)
    assert quantize.why_not(call) is None and quantize.why_not(call._replace(block_size=100)) is None


# --- GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 2**18 + 3, 8192 + 16), (1, 37, 2**26 + 5)], ids=str)
@pytest.mark.parametrize("granularity, block", [(cases.TENSORWISE, 0), (cases.BLOCKWISE, 128)], ids=str)
def test_more_than_2_31_elements_k_major(device, shape, granularity, block):
    x = torch.randn(shape, dtype=torch.bfloat16, device=device)
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, granularity, block, True, True, k_major=True)
    found, plain = quantize.run(call), quantize.run(call._replace(column=False, k_major=False))
    assert torch.equal(found.row.view(torch.uint8), plain.row.view(torch.uint8))
    if granularity is cases.TENSORWISE:
        for one, other in zip(
            found.row.view(torch.uint8).split(2**12, 1), found.column.view(torch.uint8).split(2**12, 1)
        ):
            assert torch.equal(one, other)
        return
    assert torch.equal(found.row_scale_inv, plain.row_scale_inv)
    few = torch.tensor([0, shape[2] // 2, shape[2] - 1], device=device)
    expected = reference.quantize_float(call._replace(x=x[:, :, few].contiguous(), row=False, k_major=False))
    cases.assert_same_bits(found.column[:, :, few], expected.column)
    cases.assert_same_bits(found.column_scale_inv[:, :, few], expected.column_scale_inv)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 2**18 + 3, 8192 + 16), (1, 37, 2**26 + 5)], ids=str)
def test_more_than_2_31_elements(device, shape):
    """Rows before, at and past the wrap are what they are alone."""
    x = torch.randn(shape, dtype=torch.bfloat16, device=device)
    _, R, C = shape
    picked = torch.tensor([0, 2**31 // C, R - 1], device=device)
    few = x[:, picked]
    for options in ((cases.ROWWISE, 0, True, False), (cases.BLOCKWISE, 128, True, False)):
        call = QuantizeFloatCall(x, torch.float8_e4m3fn, *options)
        found, expected = quantize.run(call), reference.quantize_float(call._replace(x=few))
        cases.assert_same_bits(found.row[:, picked], expected.row)
        cases.assert_same_bits(found.row_scale_inv[:, picked], expected.row_scale_inv)
        q = DequantizeFloatCall(found.row, found.row_scale_inv, *options[:2], 2, torch.bfloat16)
        back = quantize.run(q)[:, picked]
        small = q._replace(q=expected.row, scale_inv=expected.row_scale_inv)
        cases.assert_same_bits(back, reference.dequantize_float(small))
        del found, back
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, cases.TENSORWISE, 0, True, False)
    x[0, -1, -1] = 1000.0
    found = quantize.run(call)
    assert found.row_scale_inv.item() == pytest.approx(1000 / 448, rel=1e-5) and found.row[0, -1, -1].item() == 448
    x[0, -1, -1] = 1.0
    del found
    found = quantize.run(QuantizeMxCall(x, "e4m3", PLAIN, PLAIN))
    expected = reference.quantize_mx(QuantizeMxCall(x[:, picked], "e4m3", PLAIN, None))
    cases.assert_same_bits(found.row[:, picked], expected.row)
    cases.assert_same_bits(found.row_scale[:, picked], expected.row_scale)
    column = torch.tensor([0, C // 2, C - 1], device=device)
    expected = reference.quantize_mx(QuantizeMxCall(x[:, :, column].contiguous(), "e4m3", None, PLAIN))
    cases.assert_same_bits(found.column[:, column], expected.column)
    cases.assert_same_bits(found.column_scale[:, column], expected.column_scale)
    del found, expected, x
    torch.cuda.empty_cache()  # for the workers beside this one


@pytest.mark.gpu
def test_graph_replays_draw_again(device):
    """A captured stochastic rounding reads seed and offset anew at each replay."""
    x = torch.randn(1, 256, 512, device=device, dtype=torch.bfloat16)
    rng = torch.tensor([1, 2], device=device)
    call = QuantizeMxCall(x, "e2m1", MxDirection(stochastic=True), MxDirection(stochastic=True, rht=True), 5, rng)
    quantize.run(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantize.run(call)
    seen = []
    for seed in (3, 4):
        rng.copy_(torch.tensor([seed, -seed]))
        x.normal_()
        for output in found:
            output.view(torch.uint8).fill_(0x55)
        graph.replay()
        cases.assert_same_bits(found, reference.quantize_mx(call))
        seen.append(found.row.view(torch.uint8).clone())
    assert not torch.equal(*seen)
