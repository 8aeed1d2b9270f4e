# SPDX-License-Identifier: MIT
"""Groups of rows: tight row copies, column copies padded group by group, and back."""

import itertools

import pytest
import torch

import turbo_quant as tq
from turbo_core import GlobalBackendManager
from turbo_quant.formats import fp4_dtype
from turbo_testing.cases import load
from turbo_testing.metrics import compute_snr

cases = load("turbo-quant")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TENSORWISE, ROWWISE, BLOCKWISE, MX = cases.TENSORWISE, cases.ROWWISE, cases.BLOCKWISE, cases.MX_BLOCKWISE
RECIPES = cases.RECIPES


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("rows, lens", cases.GROUPS, ids=str)
@pytest.mark.parametrize("kind", ["blockwise", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_grouped(backend, device, poisoned, rows, lens, kind, index):
    x = torch.randn(rows, 100, device=device)
    x[sum(lens) :] = torch.nan
    group_lens = torch.tensor(lens, dtype=index, device=device)
    offs = torch.tensor([0, *itertools.accumulate(lens)], dtype=index, device=device)
    granularity, block = (BLOCKWISE, 64) if kind == "blockwise" else (MX, None)
    fp4 = kind == "mxfp4"
    dtype = fp4_dtype() if fp4 else E4M3
    dual = tq.grouped_quantize_fp4_with_trans if fp4 else tq.grouped_quantize_fp8_with_trans
    single = tq.grouped_quantize_fp4 if fp4 else tq.grouped_quantize_fp8
    eight = cases.run(dual, x, dtype, granularity, group_lens, offs, block_size=block)
    q_row, s_row, q_col, s_col, lens_row, offs_row, lens_col, offs_col = eight
    assert lens_row is group_lens and offs_row is offs
    multiple = block or 128
    assert lens_col.tolist() == [-(-n // multiple) * multiple for n in lens]
    assert offs_col.tolist() == [0, *itertools.accumulate(lens_col.tolist())]
    row = cases.run(single, x, dtype, granularity, group_lens, offs, block_size=block, axis=1)
    column = cases.run(single, x, dtype, granularity, group_lens, offs, block_size=block, axis=0)
    cases.assert_same_bits((*row[:2], *column[:2]), eight[:4])
    cases.assert_same_bits(column[2:], (lens_col, offs_col))

    options = {"block_size": block, "total_M": rows}
    if fp4:

        def back(q, s, axis, **more):
            return cases.run(tq.grouped_dequantize_fp4, q, torch.float32, MX, axis=axis, scale_inv=s, group_offs=offs,
                       group_offs_padded=offs_col, **options, **more)  # fmt: skip
    else:

        def back(q, s, axis, **more):
            return cases.run(tq.grouped_dequantize_fp8, q, torch.float32, granularity, offs, offs_col, axis=axis,
                       scale_inv=s, **options, **more)  # fmt: skip

    total = sum(lens)
    y = back(q_col, s_col, 0)
    assert y.shape == x.shape and not y[total:].any()
    assert total == 0 or compute_snr(x[:total], y[:total]) > cases.gate(dtype)
    y = back(q_row, s_row, 1, **({} if block else {"size": 100}))
    assert y.shape == x.shape and (total == 0 or compute_snr(x[:total], y[:total]) > cases.gate(dtype))


def off_by_one(block):
    """Lengths of groups one row short of, at, and one past the edges of blocks and of their halves."""
    return [
        (block - 1, block + 1, 1),
        (block, 1, block + 1),
        (2 * block - 1, 0, 2),
        (block // 2 + 1, block // 2 - 1, 3),
    ]


@pytest.mark.covering(each="backend")
@pytest.mark.parametrize("kind", ["blockwise 128", "blockwise 64", "blockwise 16", "mxfp8", "mxfp4"])
def test_no_block_sees_rows_of_the_next_group(backend, device, poisoned, kind):
    """Each group a thousand times larger than the one before: a row too many in amax shows."""
    name, block = (*kind.split(), None)[:2]
    block = block and int(block)
    dtype = fp4_dtype() if name == "mxfp4" else E4M3
    dual = tq.grouped_quantize_fp4_with_trans if name == "mxfp4" else tq.grouped_quantize_fp8_with_trans
    one, _ = cases.functions(dtype)
    granularity = BLOCKWISE if block else MX
    multiple = block or 128
    for lens in off_by_one(block or 32):
        rows = sum(lens) + 2
        group_of_row = torch.repeat_interleave(torch.arange(len(lens) + 1), torch.tensor([*lens, 2]))
        x = torch.randn(rows, 40, device=device) * (1000.0 ** group_of_row.to(device))[:, None]
        group_lens = torch.tensor(lens, device=device)
        offs = torch.tensor([0, *itertools.accumulate(lens)], device=device)
        eight = cases.run(dual, x, dtype, granularity, group_lens, offs, block_size=block)
        _, _, q, s, *_, offs_col = eight
        GlobalBackendManager.set_quant_backend("TORCH")  # says what each is by itself
        for group, (begin, n) in enumerate(zip(offs.tolist(), lens)):
            first, length = int(offs_col[group]), -(-n // multiple) * multiple
            if n == 0:
                continue
            own, own_s = one(x[begin : begin + n], dtype, granularity, block_size=block, axis=0)
            if block:
                found, scale = q[first : first + n], s[first // block : (first + length) // block]
            else:
                packed = 2 if name == "mxfp4" else 1
                found = q[:, first // packed : (first + length) // packed]
                scale = s[:, first // 32 : (first + length) // 32]
            cases.assert_same_bits((found, scale), (own, own_s), f"group {group} of {lens}")
        GlobalBackendManager.set_quant_backend(backend)


def test_grouped_without_rows(device):
    lens = torch.zeros(3, dtype=torch.int64, device=device)
    offs = torch.zeros(4, dtype=torch.int64, device=device)
    x = torch.randn(0, 64, device=device)
    for granularity, block in ((BLOCKWISE, 32), (MX, None)):
        eight = tq.grouped_quantize_fp8_with_trans(x, E4M3, granularity, lens, offs, block_size=block)
        assert not cases.as_bytes(eight[2]).any() and not cases.as_bytes(eight[3]).any()
        y = tq.grouped_dequantize_fp8(eight[2], torch.float32, granularity, offs, eight[7], block_size=block, axis=0,
                                      scale_inv=eight[3])  # fmt: skip
        assert y.shape == (0, 64)
