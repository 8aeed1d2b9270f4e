# SPDX-License-Identifier: MIT
"""Every op of this wheel with small inputs, for the matrix of what training loops do to them. None has a gradient."""

from __future__ import annotations

from functools import partial

import torch

import turbo_quant as tq
from turbo_core.low_precision import ScalingGranularity, ScalingRecipe
from turbo_testing.training import OpCase, floats

WIDTH = 40
TENSORWISE, ROWWISE = ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE
BLOCKWISE, MX = ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE
E4M3 = torch.float8_e4m3fn

FP8 = {
    "tensorwise": {"granularity": TENSORWISE},
    "rowwise": {"granularity": ROWWISE, "axis": -1},
    "blockwise": {"granularity": BLOCKWISE, "axis": -1, "block_size": 16},
    "tiles": {
        "granularity": BLOCKWISE, "axis": -1, "block_size": 16, "scaling_recipe": ScalingRecipe(use_2d_block=True)
    },
    "mx": {"granularity": MX, "axis": -1},
}  # fmt: skip
FP4 = {
    "mx": {"granularity": MX, "axis": -1},
    "mx rotated": {"granularity": MX, "axis": -2, "sign_mask": 0x35, "scaling_recipe": ScalingRecipe(use_rht=True)},
}
# A number of rows within one block, or within the 128 that MX pads to, is a graph of its own: the compiler specialises
# sizes of one.
FIRST_BLOCK = 1


def _x(rows, dtype, device):
    return {"x": floats(rows, WIDTH, dtype=dtype, device=device)}


def _groups(rows, dtype, device):
    """Three groups, the second one empty, and rows behind the last."""
    ends = torch.tensor([0, rows // 2, rows // 2, rows - rows // 4], dtype=torch.int64, device=device)
    return {**_x(rows, dtype, device), "group_lens": ends.diff(), "group_offs": ends}


def _quantised(quantize, dtype, options, rows, wide, device):
    q, scale = quantize(floats(rows, WIDTH, dtype=wide, device=device), dtype, **options)
    return {"x": q, "scale_inv": scale}


def _case(function, name, label, options, make, dtype=E4M3, **others):
    block = options["granularity"] in (BLOCKWISE, MX)
    run = partial(function, out_dtype=dtype, **options)
    return OpCase(name, run, make, label=label, recompilations=FIRST_BLOCK * block, **others)


def _both(options):
    """The options of a function that makes both copies."""
    return {name: value for name, value in options.items() if name != "axis"}


def _grouped_inverse(rows, dtype, device, *, axis=0):
    groups = _groups(rows, dtype, device)
    options = {"block_size": 16, "axis": axis}
    q, scale, _, padded = tq.grouped_quantize_fp8(
        groups["x"], E4M3, BLOCKWISE, groups["group_lens"], groups["group_offs"], **options
    )
    return {"x": q, "scale_inv": scale, "group_offs": groups["group_offs"], "group_offs_padded": padded}


def _grouped_inverse_fp4(rows, dtype, device):
    groups = _groups(rows, dtype, device)
    q, scale, _, padded = tq.grouped_quantize_fp4(
        groups["x"], torch.uint8, MX, groups["group_lens"], groups["group_offs"], axis=0
    )
    return {"x": q, "scale_inv": scale, "group_offs": groups["group_offs"], "group_offs_padded": padded}


def _bytes(rows, dtype, device, *, height=16, width=32):
    count = rows * height * width
    return (torch.arange(count, dtype=torch.int64, device=device) % 251).to(torch.uint8).view(rows * height, width)


OPS = [
    *(_case(tq.quantize_fp8, "quantize_fp8", label, options, _x) for label, options in FP8.items()),
    *(
        _case(tq.quantize_fp8_with_trans, "quantize_fp8_with_trans", label, _both(FP8[label]), _x)
        for label in ("blockwise", "mx")
    ),
    *(_case(tq.quantize_fp4, "quantize_fp4", label, options, _x, torch.uint8) for label, options in FP4.items()),
    _case(tq.quantize_fp4_with_trans, "quantize_fp4_with_trans", "mx", _both(FP4["mx"]), _x, torch.uint8),
    *(
        _case(
            tq.dequantize_fp8, "dequantize_fp8", label, FP8[label],
            partial(_quantised, tq.quantize_fp8, E4M3, FP8[label]), torch.float32,
        )
        for label in ("rowwise", "mx")
    ),
    _case(
        tq.dequantize_fp4, "dequantize_fp4", "mx", FP4["mx"],
        partial(_quantised, tq.quantize_fp4, torch.uint8, FP4["mx"]), torch.bfloat16,
    ),
    *(
        _case(function, name, "columns", {"granularity": BLOCKWISE, "block_size": 16, **axis}, _groups)
        for function, name, axis in (
            (tq.grouped_quantize_fp8, "grouped_quantize_fp8", {"axis": 0}),
            (tq.grouped_quantize_fp8_with_trans, "grouped_quantize_fp8_with_trans", {}),
        )
    ),
    *(
        _case(function, name, "columns", {"granularity": MX, **axis}, _groups, torch.uint8)
        for function, name, axis in (
            (tq.grouped_quantize_fp4, "grouped_quantize_fp4", {"axis": 0}),
            (tq.grouped_quantize_fp4_with_trans, "grouped_quantize_fp4_with_trans", {}),
        )
    ),
    _case(
        partial(tq.grouped_dequantize_fp8, total_M=6), "grouped_dequantize_fp8", "columns",
        {"granularity": BLOCKWISE, "block_size": 16, "axis": 0}, _grouped_inverse, torch.float32,
    ),
    _case(
        partial(tq.grouped_dequantize_fp4, total_M=6), "grouped_dequantize_fp4", "columns",
        {"granularity": MX, "axis": 0}, _grouped_inverse_fp4, torch.float32,
    ),
    OpCase("hadamard_transform", partial(tq.hadamard_transform, sign_mask=0x35), lambda rows, dtype, device: {
        "x": floats(rows, 32, dtype=dtype, device=device)
    }, without={"opcheck": "plain torch, no registered op"}),
    OpCase("shuffle_scale", tq.shuffle_scale, lambda rows, dtype, device: {"scale": _bytes(rows, dtype, device)},
           recompilations=FIRST_BLOCK),
    OpCase("unshuffle_scale", partial(tq.unshuffle_scale, rows=5, cols=7), lambda rows, dtype, device: {
        "scale": _bytes(rows + 1, dtype, device, height=256)
    }, rows=1),
    OpCase("shuffle_weight", tq.shuffle_weight, lambda rows, dtype, device: {"payload": _bytes(rows, dtype, device)}),
    OpCase("unshuffle_weight", tq.unshuffle_weight, lambda rows, dtype, device: {
        "payload": _bytes(rows, dtype, device)
    }),
]  # fmt: skip

MODULES: list = []

NOT_OPS = {
    "FP8AllToAll": "crosses ranks: test_all_to_all.py",
    "QuantizedTensor": "a tensor, not an op: test_quantized_tensor.py tries every method of torch.Tensor",
    "QuantizedTensorPair": "two of them",
    "check_quantized_tensor": "reads metadata alone",
    "create_quantized_weight": "quantize_fp8_with_trans in the guise of two tensors",
    "random_sign_mask": "draws a number on the host",
    "rng_state": "draws two numbers",
}
