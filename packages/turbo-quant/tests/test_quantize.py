# SPDX-License-Identifier: MIT
"""The quantise calls, bit for bit: TORCH against the numpy oracle, every other backend against TORCH."""

import pytest
import torch

from turbo_core.low_precision import ScalingGranularity
from turbo_quant.calls import MxOutputs, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.pytorch.kernels import reference
from turbo_quant.pytorch.kernels.grouping import pad_groups
from turbo_quant.pytorch.kernels.quantize_impl import quantize_float, quantize_mx
from turbo_testing import quant_oracle as oracle
from turbo_testing.cases import load

cases = load("turbo-quant")
GPU = torch.cuda.is_available()
SHAPES = cases.SHAPES_GPU if GPU else cases.SHAPES_CPU
RNG = (0x0123456789ABCDEF, -7)


# --- the oracle's answers -------------------------------------------------------------------------------------------


def expected_float(call):
    """row, row_scale_inv, column, column_scale_inv as numpy arrays."""
    x, dtype = call.x.float().cpu().numpy(), str(call.out_dtype).removeprefix("torch.")
    B, R, C = x.shape
    size = call.block_size
    if call.granularity is ScalingGranularity.TENSORWISE:
        q, scale_inv = oracle.quantize_float(x.reshape(1, 1, -1), dtype, (1, x.size))
        return q if call.row else None, scale_inv, q if call.column else None, None
    row = column = (None, None)
    if call.tile:
        q, scale_inv = oracle.quantize_float(x, dtype, (size, size))
        return q if call.row else None, scale_inv, q if call.column else None, None
    if call.row:
        row = oracle.quantize_float(x, dtype, (1, size or C))
    if call.column:
        column = oracle.quantize_float(x, dtype, (size or R, 1))
    return *row, *column


def expected_mx(call):
    """Likewise, without shuffles."""
    x = call.x.float().cpu().numpy()
    both = []
    for direction, y, column in ((call.row, x, False), (call.column, x.transpose(0, 2, 1), True)):
        if direction is None:
            both += [None, None]
            continue
        u = None
        if direction.stochastic:
            shape = (*y.shape[:2], y.shape[2] + -y.shape[2] % 128)
            u = oracle.uniforms(shape, RNG, column)
        mask = call.sign_mask if direction.rht else None
        both += oracle.quantize_mx(y, call.format, tile=direction.tile, sign_mask=mask, u=u)
    return tuple(both)


# --- tests ----------------------------------------------------------------------------------------------------------


def name(value):
    return getattr(value, "name", None) or str(value).removeprefix("torch.").replace(" ", "")


def check_float(backend, call):
    found = cases.run(quantize_float, call)
    expected = expected_float(call) if backend == "TORCH" else reference.quantize_float(call)
    cases.assert_same_bits(found, expected)
    check_memory(call, found)


def check_memory(call, found):
    """Payloads and scales lie in memory as the call says."""
    turned = {"column"} if call.k_major else set()
    if call.k_major and call.granularity is ScalingGranularity.BLOCKWISE and not call.tile:
        turned.add("row_scale_inv")
    for name, output in found._asdict().items():
        assert output is None or (output.transpose(1, 2) if name in turned else output).is_contiguous(), name


@pytest.mark.parametrize("case, shape, out_dtype, kind, dtype",
                         cases.every(cases.FLOAT_CASES, SHAPES, cases.FP8_DTYPES), ids=name)  # fmt: skip
def test_float_scales(backend, device, poisoned, case, shape, out_dtype, kind, dtype):
    x = cases.draw(kind, shape, dtype, device)
    check_float(backend, QuantizeFloatCall(x, out_dtype, *case[1:]))


@pytest.mark.parametrize("case", cases.FLOAT_CASES, ids=name)
@pytest.mark.parametrize("kind", cases.SPECIAL)
def test_float_scales_of_special_data(backend, device, case, kind):
    for dtype in cases.DTYPES:
        x = cases.draw(kind, (1, 45, 150), dtype, device)
        for out_dtype in cases.FP8_DTYPES if backend == "TORCH" else cases.FP8_DTYPES[:2]:
            check_float(backend, QuantizeFloatCall(x, out_dtype, *case[1:]))


@pytest.mark.parametrize("case", cases.FLOAT_CASES, ids=name)
def test_float_scales_of_strided_data(backend, device, case):
    x = cases.strided(cases.draw("random", (2, 70, 130), torch.bfloat16, device))
    check_float(backend, QuantizeFloatCall(x, torch.float8_e4m3fn, *case[1:]))
    expanded = torch.randn(1, 70, 1, device=device).expand(2, 70, 130)
    check_float(backend, QuantizeFloatCall(expanded, torch.float8_e5m2, *case[1:]))


def mx_call(x, format, case):
    rng = None
    if any(direction is not None and direction.stochastic for direction in (case.row, case.column)):
        rng = torch.tensor(RNG, device=x.device)
    return QuantizeMxCall(x, format, case.row, case.column, case.sign_mask, rng)


def check_mx(backend, call):
    found = cases.run(quantize_mx, call)
    if backend != "TORCH":
        cases.assert_same_bits(found, reference.quantize_mx(call))
    elif not any(direction is not None and direction.shuffle_scale for direction in (call.row, call.column)):
        cases.assert_same_bits(found, expected_mx(call))
    else:
        check_shuffled(found, call)
    assert all(output is None or output.is_contiguous() for output in found)


def check_shuffled(found, call):
    """Byte by byte where the index formula puts it."""
    plain = [direction and direction._replace(shuffle_scale=False) for direction in (call.row, call.column)]
    expected = MxOutputs(*expected_mx(call._replace(row=plain[0], column=plain[1])))
    for payload, scale, q, s in (found[:2] + expected[:2], found[2:] + expected[2:]):
        cases.assert_same_bits(payload, q)
        B, rows, cols = s.shape
        Rp, Cp = rows + -rows % 256, cols + -cols % 8
        assert scale.shape == (B, Rp, Cp)
        flat = scale.view(torch.uint8).reshape(B, -1).cpu()
        row, col = torch.meshgrid(torch.arange(Rp), torch.arange(Cp), indexing="ij")
        index = (row // 32) * (Cp // 8) * 256 + (col // 8) * 256 + (col % 4) * 64 + (row % 16) * 4
        index += ((col % 8) // 4) * 2 + (row % 32) // 16
        padded = torch.zeros(B, Rp, Cp, dtype=torch.uint8)
        padded[:, :rows, :cols] = torch.from_numpy(s)
        assert torch.equal(flat[:, index.flatten()].view(B, Rp, Cp), padded)


@pytest.mark.parametrize("case, shape, format, kind, dtype",
                         cases.every(cases.MX_CASES, SHAPES, cases.MX_FORMATS), ids=name)  # fmt: skip
def test_mx(backend, device, poisoned, case, shape, format, kind, dtype):
    if backend == "TORCH" and "stochastic" in case.name and shape[1] * shape[2] > 20000:
        pytest.skip("the oracle's Philox is Python's integers: slow")
    check_mx(backend, mx_call(cases.draw(kind, shape, dtype, device), format, case))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
@pytest.mark.parametrize("kind", cases.SPECIAL)
def test_mx_of_special_data(backend, device, format, kind):
    for dtype in cases.DTYPES:
        x = cases.draw(kind, (1, 45, 150), dtype, device)
        for case in cases.MX_CASES[2:7]:
            check_mx(backend, mx_call(x, format, case))


@pytest.mark.parametrize("case", cases.MX_CASES, ids=name)
def test_mx_of_strided_data(backend, device, case):
    x = cases.strided(cases.draw("random", (2, 48, 70), torch.bfloat16, device))
    check_mx(backend, mx_call(x, "e2m1", case))
    check_mx(backend, mx_call(torch.randn(1, 40, 1, device=device).expand(2, 40, 70), "e4m3", case))


@pytest.mark.parametrize("format", cases.MX_FORMATS)
def test_mx_shuffled_payload(backend, device, format):
    direction = cases.MX_CASES[0].row._replace(shuffle_out=True, shuffle_scale=True)
    x = cases.draw("random", (2, 48, 160), torch.bfloat16, device)
    call = QuantizeMxCall(x, format, direction, direction)
    found = cases.run(quantize_mx, call)
    if backend != "TORCH":
        cases.assert_same_bits(found, reference.quantize_mx(call))
        return
    plain = reference.quantize_mx(call._replace(row=cases.MX_CASES[0].row, column=cases.MX_CASES[0].row))
    for payload, q in ((found.row, plain.row), (found.column, plain.column)):
        a, e = cases.as_bytes(payload)[..., 0], cases.as_bytes(q)[..., 0]
        B, rows, width = e.shape
        for row in range(rows):
            for byte in range(0, width, 16):  # 16 rows x 32 bytes a tile, two halves of 16 x 16 bytes
                tile = (row // 16) * (width // 32) + byte // 32
                start = tile * 512 + (byte % 32 // 16) * 256 + row % 16 * 16
                assert torch.equal(a.reshape(B, -1)[:, start : start + 16], e[:, row, byte : byte + 16])


# --- groups ---------------------------------------------------------------------------------------------------------


def grouped(rows, lens, width, multiple, device):
    x = cases.draw("random", (1, rows, width), torch.bfloat16, device)
    x[:, sum(lens) :] = torch.nan
    lens = torch.tensor(lens, device=device)
    offs = torch.cat([lens.new_zeros(1), lens.cumsum(0)])
    return x, offs, pad_groups(lens, multiple)[1]


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("rows, lens", cases.GROUPS, ids=str)
@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("row", [False, True])
def test_float_groups(backend, device, poisoned, rows, lens, block, row):
    """Each group as if it were alone; zeros past the last; NaN in rows of no group is not seen."""
    x, offs, padded = grouped(rows, lens, 100, block, device)
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, cases.BLOCKWISE, block, row, True, False, offs, padded)
    found = cases.run(quantize_float, call)
    cases.assert_same_bits(found, reference.quantize_float(call))
    bound = rows + len(lens) * block
    assert found.column.shape == (1, bound, 100) and found.column_scale_inv.shape == (1, -(-bound // block), 100)
    q, scale = cases.as_bytes(found.column)[0, ..., 0].clone(), found.column_scale_inv[0].cpu().clone()
    for i, n in enumerate(lens):
        start, begin = int(padded[i]), int(offs[i])
        if n:
            rows_of_group = x[:, begin : begin + n].float().cpu().numpy()
            codes, inverse = oracle.quantize_float(rows_of_group, "float8_e4m3fn", (block, 1))
            assert torch.equal(q[start : start + n], torch.from_numpy(codes[0]))
            blocks = slice(start // block, int(padded[i + 1]) // block)
            assert torch.equal(scale[blocks], torch.from_numpy(inverse[0]))
            q[start : start + n], scale[blocks] = 0, 0
    assert not q.any() and not scale.any()


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("rows, lens", cases.GROUPS, ids=str)
@pytest.mark.parametrize("format", cases.MX_FORMATS)
@pytest.mark.parametrize("case", [cases.MX_CASES[1], cases.MX_CASES[5], cases.MX_CASES[3]], ids=name)
def test_mx_groups(backend, device, poisoned, rows, lens, format, case):
    x, offs, padded = grouped(rows, lens, 40, 128, device)
    call = QuantizeMxCall(x, format, case.row, case.column, case.sign_mask, None, offs, padded)
    found = cases.run(quantize_mx, call)
    cases.assert_same_bits(found, reference.quantize_mx(call))
    bound = -(-(rows + len(lens) * 127) // 128) * 128
    per_byte = 2 if format == "e2m1" else 1
    assert found.column.shape == (1, 40, bound // per_byte) and found.column_scale.shape == (1, 40, bound // 32)
    q, scale = cases.as_bytes(found.column)[0, ..., 0].clone(), cases.as_bytes(found.column_scale)[0, ..., 0].clone()
    for i, n in enumerate(lens):
        start, end, begin = int(padded[i]), int(padded[i + 1]), int(offs[i])
        if n:
            y = x[:, begin : begin + n].float().cpu().numpy().transpose(0, 2, 1)
            mask = case.sign_mask if case.column.rht else None
            codes, bytes_ = oracle.quantize_mx(y, format, tile=case.column.tile, sign_mask=mask)
            payload, blocks = slice(start // per_byte, end // per_byte), slice(start // 32, end // 32)
            assert torch.equal(q[:, payload], torch.from_numpy(codes[0]))
            assert torch.equal(scale[:, blocks], torch.from_numpy(bytes_[0]))
            q[:, payload], scale[:, blocks] = 0, 0
    assert not q.any() and not scale.any()


@pytest.mark.deterministic
def test_repeats_are_equal(backend, device):
    x = cases.draw("random", (1, 300, 520), torch.bfloat16, device)
    for case in (cases.MX_CASES[5], cases.MX_CASES[8]):
        call = mx_call(x, "e2m1", case)
        cases.assert_same_bits(cases.run(quantize_mx, call), cases.run(quantize_mx, call))
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, cases.TENSORWISE, 0, True, False)
    cases.assert_same_bits(cases.run(quantize_float, call), cases.run(quantize_float, call))
