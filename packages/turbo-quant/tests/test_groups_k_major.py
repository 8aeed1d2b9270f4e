# SPDX-License-Identifier: MIT
"""Groups of rows in K-major order, bit for bit: TORCH against the numpy oracle, every other backend against TORCH."""

import numpy
import pytest
import torch

from turbo_core import why_no_triton
from turbo_core.launch import start
from turbo_quant.calls import PadGroupsCall, QuantizeFloatCall, QuantizeMxCall
from turbo_quant.developer import padded_groups
from turbo_quant.pytorch.kernels import grouping, reference
from turbo_quant.pytorch.kernels.quantize_impl import quantize_float, quantize_mx
from turbo_testing import quant_oracle as oracle
from turbo_testing.cases import load

cases = load("turbo-quant")
TENSORWISE, ROWWISE, BLOCKWISE = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE
GRANULARITIES = {"tensorwise": (TENSORWISE, 0), "rowwise": (ROWWISE, 0), "block128": (BLOCKWISE, 128),
                 "block32": (BLOCKWISE, 32)}  # fmt: skip
COPIES = {"both": (True, True), "row": (True, False), "column": (False, True)}


def name(value):
    return getattr(value, "name", None) or str(value).removeprefix("torch.").replace(" ", "")


def rows_of(case):
    """The rows of the groups' array that each group has, as the group's values say."""
    rows = case.rows if case.idx is None else len(case.idx)
    offs = numpy.cumsum([0, *case.lens]) if case.offs is None else case.offs
    offs = [min(max(offset, 0), rows) for offset in offs]
    return [range(begin, min(begin + n, end)) for begin, n, end in zip(offs, case.lens, offs[1:])]


def problem(case, columns, device, dtype=torch.bfloat16, index=torch.int64):
    """x [1,R,C], NaN in rows that belong to no group or are not named, and the keywords of a call."""
    sources = [[row if case.idx is None else case.idx[row] for row in rows] for rows in rows_of(case)]
    x = cases.draw("random", (1, case.rows, columns), dtype, device)
    named = {row for rows in sources for row in rows if 0 <= row < case.rows}
    x[:, [row for row in range(case.rows) if row not in named]] = torch.nan
    lens = torch.tensor(case.lens, dtype=index, device=device)
    offs = None if case.offs is None else torch.tensor(case.offs, dtype=index, device=device)
    idx = None if case.idx is None else torch.tensor(case.idx, dtype=index, device=device)
    groups = padded_groups(lens, offs, case.rows if idx is None else len(case.idx))
    keywords = {"group_offs": groups.offs, "group_offs_padded": groups.offs_padded, "row_idx": idx}
    return x, sources, {**keywords, "group_lens": None if offs is None else lens}


def expected(call, sources):
    """row, row_scale_inv, column, column_scale_inv as numpy arrays, of the rows that each group has."""
    dtype, size = str(call.out_dtype).removeprefix("torch."), call.block_size
    x = call.x[0].float().cpu().numpy()
    R, C = x.shape
    P = call.column_rows()
    padded, counts, ends, first = numpy.zeros((P, C), numpy.float32), numpy.zeros(R, bool), [], 0
    for rows in sources:
        for i, row in enumerate(rows):
            if 0 <= row < R:
                padded[first + i], counts[row] = x[row], True
        ends.append((first, first + len(rows)))
        first += -(-len(rows) // 128) * 128
    if call.row_idx is None or call.granularity is TENSORWISE:
        x = numpy.where(counts[:, None], x, 0)
    if call.granularity is TENSORWISE:
        q, scale_inv = oracle.quantize_float(numpy.concatenate((x, padded)).reshape(1, 1, -1), dtype, (1, (R + P) * C))
        q = q.reshape(-1, C)
        return q[:R] if call.row else None, scale_inv, q[R:] if call.column else None, None
    row = oracle.quantize_float(x[None], dtype, (1, size or C)) if call.row else (None, None)
    if not call.column:
        return *row, None, None
    if size:
        q, scale_inv = oracle.quantize_float(padded[None], dtype, (size, 1))
        scale_inv[:, first // size :] = 0
        return *row, q, scale_inv
    q, scale_inv = numpy.zeros((P, C), numpy.uint8), numpy.zeros((len(sources), C), numpy.float32)
    for group, (begin, end) in enumerate(ends):
        alone = padded[None, begin:end] if end > begin else numpy.zeros((1, 1, C), numpy.float32)
        codes, inverse = oracle.quantize_float(alone, dtype, (alone.shape[1], 1))
        q[begin:end], scale_inv[group] = codes[0, : end - begin], inverse[0, 0]
    return *row, q, scale_inv


def check_memory(call, found):
    """Payloads and scales lie in memory as the call says, and have its shapes."""
    assert found.column is None or found.column.transpose(1, 2).is_contiguous()
    assert found.row is None or found.row.is_contiguous()
    assert found.column_scale_inv is None or found.column_scale_inv.is_contiguous()
    if call.row and call.block_size:
        assert found.row_scale_inv.transpose(1, 2).is_contiguous()
    if call.column:
        groups, rows = call.group_offs.shape[0] - 1, call.x.shape[1] if call.row_idx is None else len(call.row_idx)
        P, C = -(-(rows + groups * 127) // 128) * 128, call.x.shape[2]
        scales = {TENSORWISE: None, ROWWISE: (1, groups, C)}.get(call.granularity, (1, P // (call.block_size or 1), C))
        assert found.column.shape == (1, P, C)
        assert scales is None or found.column_scale_inv.shape == scales


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("case", cases.K_MAJOR_GROUPS, ids=name)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("columns", [1, 100, 160])
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=name)
def test_groups(backend, device, poisoned, case, granularity, copies, columns, index):
    x, sources, groups = problem(case, columns, device, index=index)
    options = *GRANULARITIES[granularity], *COPIES[copies]
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, *options, k_major=True, **groups)
    found = cases.run(quantize_float, call)
    cases.assert_same_bits(found, expected(call, sources) if backend == "TORCH" else reference.quantize_float(call))
    check_memory(call, found)


@pytest.mark.covering(strength=1, each="backend")
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", cases.SPECIAL)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=name)
@pytest.mark.parametrize("out_dtype", cases.FP8_DTYPES, ids=name)
def test_groups_of_special_data(backend, device, poisoned, granularity, kind, dtype, out_dtype):
    """What is in the rows of groups: infinities and NaN spoil their blocks alone; rows of no group hold NaN."""
    case = cases.GroupCase("special", 60, (20, 0, 9), (3, 30, 31, 45))
    x, sources, groups = problem(case, 40, device, dtype)
    counted = [row for rows in sources for row in rows]
    x[:, counted] = cases.draw(kind, (1, len(counted), 40), dtype, device)
    call = QuantizeFloatCall(x, out_dtype, *GRANULARITIES[granularity], True, True, k_major=True, **groups)
    found = cases.run(quantize_float, call)
    cases.assert_same_bits(found, expected(call, sources) if backend == "TORCH" else reference.quantize_float(call))


@pytest.mark.covering(strength=1, each="backend")
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_groups_of_strided_data(backend, device, poisoned, granularity, layout):
    case = cases.GroupCase("strided", 150, (20, 0, 101), (3, 30, 31, 145))
    x, sources, groups = problem(case, 40, device)
    if layout == "transposed":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == "sliced":
        x = x.repeat_interleave(2, 2)[:, :, 1::2]
    else:
        x = x[:, :, :1].expand(1, 150, 40)
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, *GRANULARITIES[granularity], True, True, k_major=True, **groups)
    found = cases.run(quantize_float, call)
    cases.assert_same_bits(found, expected(call, sources) if backend == "TORCH" else reference.quantize_float(call))


def test_an_amax_that_is_given(backend, device, poisoned):
    """TENSORWISE by the amax of a whole of which the groups are a piece."""
    case = cases.K_MAJOR_GROUPS[0]
    x, _, groups = problem(case, 33, device)
    amax = torch.tensor(1000.0, device=device)
    call = QuantizeFloatCall(x, torch.float8_e4m3fn, TENSORWISE, 0, True, True, k_major=True, amax=amax, **groups)
    found = cases.run(quantize_float, call)
    assert found.row_scale_inv.item() == pytest.approx(1000 / 448)
    cases.assert_same_bits(found, reference.quantize_float(call))
    assert found.row.float().abs().amax() == (x.nan_to_num().abs().amax() * 0.448).to(torch.float8_e4m3fn).float()


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("case", cases.K_MAJOR_GROUPS, ids=name)
@pytest.mark.parametrize("format", cases.MX_FORMATS)
@pytest.mark.parametrize("mx", [*cases.MX_CASES[:2], cases.MX_CASES[5], cases.MX_CASES[3]], ids=name)
def test_mx_groups(backend, device, poisoned, case, format, mx):
    """The column copy is that of the padded groups, zeros past the last; the row copy is that of x.

    Where groups may have gaps, rows of none are zeros in it.
    """
    x, sources, groups = problem(case, 40, device)
    call = QuantizeMxCall(x, format, mx.row, mx.column, mx.sign_mask, None, **groups)
    found = cases.run(quantize_mx, call)
    if backend != "TORCH":
        cases.assert_same_bits(found, reference.quantize_mx(call))
        return
    source = x[0].float().cpu().numpy()
    padded = numpy.zeros((call.column_rows(), 40), numpy.float32)
    counts, first = numpy.zeros((case.rows, 1), bool), 0
    for rows in sources:
        for i, row in enumerate(rows):
            if 0 <= row < case.rows:
                padded[first + i], counts[row] = source[row], True
        first += -(-len(rows) // 128) * 128
    if mx.column is not None:
        mask = mx.sign_mask if mx.column.rht else None
        y = numpy.ascontiguousarray(padded.T)[None]
        codes, scales = oracle.quantize_mx(y, format, tile=mx.column.tile, sign_mask=mask)
        codes[..., first // (2 if format == "e2m1" else 1) :] = 0
        cases.assert_same_bits((found.column, found.column_scale), (codes, scales))
    if mx.row is not None:
        if call.group_lens is not None and case.idx is None:
            source = numpy.where(counts, source, 0)
        row = oracle.quantize_mx(source[None], format, tile=mx.row.tile, sign_mask=None)
        cases.assert_same_bits((found.row, found.row_scale), row)


def test_padded_groups(device):
    """Offs of lens, of groups with gaps, and of what points outside of the rows."""
    for case in cases.K_MAJOR_GROUPS:
        _, sources, groups = problem(case, 1, device)
        lens = [-(-len(rows) // 128) * 128 for rows in sources]
        assert groups["group_offs_padded"].tolist() == numpy.cumsum([0, *lens]).tolist(), case.name
    lens, offs = torch.tensor([9, 9, 9], dtype=torch.int32), torch.tensor([-1, 5, 2, 9], dtype=torch.int32)
    groups = padded_groups(lens.to(device), offs.to(device), 8, 4)
    assert groups.offs.tolist() == [0, 5, 5, 8] and groups.offs_padded.tolist() == [0, 8, 8, 12]
    assert groups.offs.dtype is groups.offs_padded.dtype is torch.int64


def test_padded_groups_in_one_launch(device):
    if (reason := why_no_triton(device)) is not None:
        pytest.skip(reason)
    from turbo_quant.triton.padding_kernel import plan_pad_groups

    calls = [PadGroupsCall(torch.tensor([9, -1, 9, 9]), torch.tensor([-1, 5, 2, 9, 7]), 8, 4)]
    for case in cases.K_MAJOR_GROUPS:
        for index in (torch.int64, torch.int32) if case.lens else ():
            offs = None if case.offs is None else torch.tensor(case.offs, dtype=index)
            rows = case.rows if case.idx is None else len(case.idx)
            calls.append(PadGroupsCall(torch.tensor(case.lens, dtype=index), offs, rows, 128))
    for call in calls:
        call = call._replace(lens=call.lens.to(device), offs=None if call.offs is None else call.offs.to(device))
        found = start(*plan_pad_groups(call))
        cases.assert_same_bits(found, grouping.padded_groups(*call), str(call))


@pytest.mark.parametrize("options", GRANULARITIES.values(), ids=name)
@pytest.mark.parametrize("kind", ["offs", "gaps", "named"])
def test_no_number_of_rows_is_compiled_in(options, kind):
    """The launches for any number of rows are the same kernels, specialised alike."""
    pytest.importorskip("triton", reason="triton is not installed")
    from turbo_core import arch_facts
    from turbo_quant.triton import float_plan, mx_plan

    def kernels(rows):
        x = torch.empty((1, rows, 320), dtype=torch.bfloat16, device="meta")
        offs = torch.empty((9,), dtype=torch.int64, device="meta")
        lens = torch.empty((8,), dtype=torch.int64, device="meta") if kind == "gaps" else None
        idx = torch.empty((2 * rows + 1,), dtype=torch.int32, device="meta") if kind == "named" else None
        groups = {"group_offs": offs, "group_offs_padded": offs, "group_lens": lens, "row_idx": idx}
        call = QuantizeFloatCall(x, torch.float8_e4m3fn, *options, True, True, k_major=True, **groups)
        mx = QuantizeMxCall(x, "e2m1", cases.MX_CASES[0].row, cases.MX_CASES[1].column, **groups)
        facts = arch_facts("gfx950")
        launches = float_plan.plan_quantize(call, facts)[1] + mx_plan.plan_quantize(mx, facts)[1]
        return [(launch.kernel.fn.__name__, launch.signature(), dict(launch.options)) for launch in launches]

    few = kernels(1)
    for rows in (16, 31, 128, 4096, 40001):
        assert kernels(rows) == few, rows


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("options", [*GRANULARITIES.values(), (BLOCKWISE, 128, True)], ids=name)
@pytest.mark.parametrize("shape", [(3, 160, 96), (2, 33, 100)], ids=name)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_batch_of_matrices(backend, device, poisoned, options, shape, transposed):
    """Both copies of the matrices of groups are those of each by itself, but for a tensor's one scale."""
    weights = cases.draw("random", shape, torch.bfloat16, device)
    if transposed:
        weights = weights.transpose(1, 2).contiguous().transpose(1, 2)
    granularity, size, *tile = options
    amax = weights.float().abs().amax() if granularity is TENSORWISE else None
    call = QuantizeFloatCall(weights, torch.float8_e4m3fn, granularity, size, True, True, *tile, k_major=True)
    found = cases.run(quantize_float, call)
    for i in range(shape[0]):
        alone = reference.quantize_float(call._replace(x=weights[i : i + 1], amax=amax))
        for field, one, all_of_them in zip(found._fields, alone, found):
            if one is not None and one.dim():
                cases.assert_same_bits(all_of_them[i : i + 1], one, field)
            else:
                cases.assert_same_bits(all_of_them, one, field)
