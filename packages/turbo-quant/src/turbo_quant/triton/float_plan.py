# SPDX-License-Identifier: MIT
"""What is launched to quantise to FP8 with float32 scales: outputs and launches, from tensors' metadata alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from turbo_core.device import DeviceFacts
from turbo_core.launch import ALL, Launch, power_of_two
from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max
from turbo_quant.calls import FloatOutputs, QuantizeFloatCall, specs
from turbo_quant.formats import allocate
from turbo_quant.triton.block_kernel import block_kernel
from turbo_quant.triton.dual_kernel import dual_kernel
from turbo_quant.triton.region_kernel import region_kernel
from turbo_quant.triton.tiles import MAX_BLOCK, MAX_COLUMN, Tile, casts_natively, choose, whole_row

__all__ = ["as_bytes", "fp8_constants", "needs_wide", "plan_quantize", "tensor_amax", "unbuffered_for"]

_AMAX_PROGRAMS = 4  # programs a compute unit that look for the maximum of a tensor
_TILES_A_PROGRAM = 4  # of the pass that quantises it: each program reads all partial maxima first

# dtype -> mantissa bits, exponent of the smallest normal value, FNUZ
_FP8 = {
    torch.float8_e4m3fn: (3, -6, False),
    torch.float8_e4m3fnuz: (3, -7, True),
    torch.float8_e5m2: (2, -14, False),
    torch.float8_e5m2fnuz: (2, -15, True),
}


def fp8_constants(dtype: torch.dtype, facts: DeviceFacts) -> dict[str, Any]:
    """The kernels' constants for an FP8 type."""
    mantissa, lowest, fnuz = _FP8[dtype]
    native = casts_natively(facts, str(dtype).removeprefix("torch."))
    return {"MANTISSA": mantissa, "LOWEST": lowest, "FNUZ": fnuz, "NATIVE": native}


def needs_wide(*extents: int) -> bool:
    """Whether offsets within a tile, at most the sum of ``extents``, need 64 bits."""
    return sum(extents) >= 2**31


def unbuffered_for(stride_c: int) -> tuple[str, ...]:
    """`Launch.unbuffered` of a quantisation: all of transposed inputs, none of others.

    Each element of those has a mask of its own, in two SGPRs: with buffer instructions 3 to 14 spilled (triton 3.9).
    """
    return () if stride_c == 1 else ALL


@dataclass(frozen=True)
class _Source:
    """x as the kernels see it: neighbouring dimensions joined where a joined one serves."""

    x: torch.Tensor
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]

    @property
    def by_rows(self) -> bool:
        """Whether neighbours of a row are neighbours in memory."""
        return self.strides[2] == 1

    def sizes(self) -> dict[str, int]:
        return {"R": self.shape[1], "C": self.shape[2]}

    def arguments(self) -> dict[str, int]:
        return dict(zip(("stride_b", "stride_r", "stride_c"), self.strides, strict=True))


def _source(x: torch.Tensor, *, join_rows: bool) -> _Source:
    B, R, C = x.shape
    stride_b, stride_r, stride_c = x.stride()
    if C == 1:  # its stride means nothing
        stride_c = 1
    if join_rows and (B == 1 or R == 1 or stride_b == R * stride_r):
        return _Source(x, (1, B * R, C), (0, stride_b if R == 1 else stride_r, stride_c))
    return _Source(x, (B, R, C), (stride_b, stride_r, stride_c))


def as_bytes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.view(torch.uint8)


def _region(
    source: _Source,
    out: torch.Tensor | None,
    scale: torch.Tensor | None,
    kind: str,
    extent: tuple[int, int],
    tile: Tile,
    programs: int,
    common: dict[str, Any],
    scalars: dict[str, float],
    *,
    whole: bool = False,
    amax: torch.Tensor | None = None,
) -> list[Launch]:
    """Regions of ``extent`` that are walked: one launch if ``programs`` for each suffice as 1, else two.

    out: None: only the maxima, one launch.
    whole: the region is the tensor, all batches.
    amax: of the region, where it is known: then only the launch that quantises.
    """
    B, R, C = source.shape
    block_r, block_c = tile.rows, tile.columns
    height, width = extent
    regions_r, regions_c = -(-R // height), -(-C // width)
    regions = regions_r * regions_c * (1 if whole else B)
    tiles = -(-min(height, R) // block_r) * -(-min(width, C) // block_c) * (B if whole else 1)
    chunks = max(1, min(tiles, -(-programs // regions)))
    lanes = {"one": 1, "row": block_r, "column": block_c}[kind]
    partial = None
    apply = chunks == 1 and out is not None
    if not apply and amax is None:
        partial = torch.empty((regions, chunks, lanes), dtype=torch.int32, device=source.x.device)
    arguments = {
        "x_ptr": source.x,
        "out_ptr": as_bytes(out),
        "scale_ptr": scale,
        "partial_ptr": partial,
        **source.sizes(),
        "regions_r": regions_r,
        "regions_c": regions_c,
        "height": height,
        "width": width,
        "batches": B if whole else 1,
        **source.arguments(),
        "chunks": chunks,
        "amax_chunks": chunks,
        **scalars,
    }
    second = -(-tiles // _TILES_A_PROGRAM) if whole else chunks
    constants = {
        "KIND": kind,
        "AMAX": True,
        "APPLY": apply,
        "BLOCK_R": block_r,
        "BLOCK_C": block_c,
        "CHUNKS": power_of_two(chunks),
        "MASK_R": R % block_r != 0 or (regions_r > 1 and height % block_r != 0),
        "MASK_C": C % block_c != 0 or (regions_c > 1 and width % block_c != 0),
        "WIDE": needs_wide(block_r * max(source.strides[1], C), block_c * source.strides[2]),
        **common,
    }
    options = tile.launch_options()
    unbuffered = unbuffered_for(source.strides[2])
    if amax is not None:
        arguments |= {"partial_ptr": amax.view(torch.int32), "chunks": second, "amax_chunks": 1}
        constants |= {"AMAX": False, "APPLY": True, "CHUNKS": 1}
        return [Launch(region_kernel, (regions * second, 1, 1), arguments, constants, options, unbuffered)]
    launches = [Launch(region_kernel, (regions * chunks, 1, 1), arguments, constants, options, unbuffered)]
    if not apply and out is not None:
        launches.append(
            Launch(
                region_kernel,
                (regions * second, 1, 1),
                {**arguments, "chunks": second},
                {**constants, "AMAX": False, "APPLY": True},
                options,
                unbuffered,
            )
        )
    return launches


def _blocks(
    source: _Source,
    kind: str,
    out: torch.Tensor,
    scale: torch.Tensor,
    size: int,
    tile: Tile,
    common: dict[str, Any],
    scalars: dict[str, float],
) -> Launch:
    """One copy, whole blocks of ``size`` in registers. kind: row, column, or tile for those of size x size."""
    B, R, C = source.shape
    by_row, by_column = kind in ("row", "tile"), kind in ("column", "tile")
    P = power_of_two(size)
    block_c = max(P, tile.columns) if by_row else tile.columns
    block_r = tile.rows or max(1, min(tile.elements // block_c, power_of_two(R)))
    block_c = min(block_c, max(P if by_row else 1, power_of_two(C)))
    if by_column:
        block_r = min(max(P, block_r), max(P, power_of_two(R)))
    step_r = block_r // P * size if by_column else block_r
    step_c = block_c // P * size if by_row else block_c
    tiles_r, tiles_c = -(-R // step_r), -(-C // step_c)
    return Launch(
        block_kernel,
        (B * tiles_r * tiles_c, 1, 1),
        {
            "x_ptr": source.x,
            "out_ptr": as_bytes(out),
            "scale_ptr": scale,
            **source.sizes(),
            "tiles_r": tiles_r,
            "tiles_c": tiles_c,
            "blocks_r": -(-R // size),
            "blocks_c": -(-C // size),
            "size": size,
            **source.arguments(),
            **scalars,
        },
        {
            "ROW": kind == "row",
            "COLUMN": kind == "column",
            "TILE": kind == "tile",
            "P": P,
            "EXACT": size == P,
            "BLOCK_R": block_r,
            "BLOCK_C": block_c,
            "MASK_R": R % step_r != 0 or step_r != block_r,
            "MASK_C": C % step_c != 0 or step_c != block_c,
            "WIDE": needs_wide(block_r * max(source.strides[1], C), block_c * source.strides[2]),
            **common,
        },
        tile.launch_options(),
        unbuffered_for(source.strides[2]),
    )


def _dual(
    source: _Source,
    outputs: FloatOutputs,
    size: int,
    facts: DeviceFacts,
    common: dict[str, Any],
    scalars: dict[str, float],
    groups: tuple[torch.Tensor, torch.Tensor] | None,
) -> Launch:
    """Both copies of blocks of ``size``; of groups also the column copy alone."""
    B, R, C = source.shape
    row = outputs.row is not None
    P = power_of_two(size)
    n_groups = 0 if groups is None else groups[0].numel() - 1
    rows_out = R + n_groups * size
    multiple = math.gcd(C, size)  # a mask of rows is one for all of a lane's elements, unless they lie along a column
    if not source.by_rows:
        multiple = math.gcd(multiple, R) if groups is None else 1
    tile = choose("dual", facts, multiple=multiple)
    block_c = max(P, tile.columns) if row else tile.columns
    step_c = block_c // P * size if row else block_c
    tiles_r, tiles_c = -(-rows_out // size), -(-C // step_c)
    rows = min(tile.rows, P)
    return Launch(
        dual_kernel,
        (B * tiles_r * tiles_c, 1, 1),
        {
            "x_ptr": source.x,
            "row_ptr": as_bytes(outputs.row),
            "row_scale_ptr": outputs.row_scale_inv,
            "col_ptr": as_bytes(outputs.column),
            "col_scale_ptr": outputs.column_scale_inv,
            "offs_ptr": None if groups is None else groups[0],
            "padded_ptr": None if groups is None else groups[1],
            **source.sizes(),
            "tiles_r": tiles_r,
            "tiles_c": tiles_c,
            "blocks_c": -(-C // size),
            "rows_out": rows_out,
            "size": size,
            **source.arguments(),
            "n_groups": n_groups,
            **scalars,
        },
        {
            "ROW": row,
            "GROUPS": 0 if groups is None else power_of_two(n_groups),
            "P": P,
            "EXACT": size == P,
            "S": rows,
            "BLOCK_C": block_c,
            "MASKED": groups is not None or R % size != 0 or C % step_c != 0 or size != P,
            "WIDE": needs_wide(rows * max(source.strides[1], C), block_c * source.strides[2]),
            "QUICK": facts.vendor == "nvidia" and source.x.dtype != torch.float32,
            **common,
        },
        tile.launch_options(),
        unbuffered_for(source.strides[2]),
    )


def _tensor(
    x: torch.Tensor,
    out: torch.Tensor | None,
    scale: torch.Tensor | None,
    call: QuantizeFloatCall,
    facts: DeviceFacts,
) -> list[Launch]:
    """TENSORWISE of x, as a line where it is dense."""
    _, R, C = x.shape
    source = _source(x, join_rows=True)
    kind = "walk"
    if source.shape[0] == 1 and source.by_rows and (source.shape[1] == 1 or source.strides[1] == C):
        source, kind = _Source(x, (1, 1, x.numel()), (0, 0, 1)), "flat"
    tile, extent = choose(kind, facts, multiple=math.gcd(R, C)), (source.shape[1], source.shape[2])
    programs = facts.compute_units * _AMAX_PROGRAMS
    common, scalars = fp8_constants(call.out_dtype, facts), _scalars(call)
    return _region(source, out, scale, "one", extent, tile, programs, common, scalars, whole=True, amax=call.amax)


def tensor_amax(x: torch.Tensor, call: QuantizeFloatCall, facts: DeviceFacts) -> Launch:
    """The launch that writes ``chunks`` maxima of x to ``partial_ptr``."""
    (launch,) = _tensor(x, None, None, call, facts)
    return launch


def _scalars(call: QuantizeFloatCall) -> dict[str, float]:
    return {"largest": fp8_max(call.out_dtype), "floor": fp8_amax_floor(call.out_dtype)}


def plan_quantize(call: QuantizeFloatCall, facts: DeviceFacts) -> tuple[FloatOutputs, list[Launch]]:
    """Outputs of a call, not yet written, and the launches that write them, in order."""
    if call.k_major:
        from turbo_quant.triton.kmajor_plan import plan_kmajor

        return plan_kmajor(call, facts)
    x, size = call.x, call.block_size
    _, R, C = x.shape
    common = fp8_constants(call.out_dtype, facts)
    blockwise = call.granularity is ScalingGranularity.BLOCKWISE
    scalars = _scalars(call)

    outputs = FloatOutputs(*allocate(specs(call), x.device))  # type: ignore[arg-type]
    row, row_scale, column, column_scale = outputs
    if call.granularity is ScalingGranularity.TENSORWISE:
        return outputs, _tensor(x, row, row_scale, call, facts)

    length_r, length_c = (size, size) if blockwise else (R, C)
    groups = None
    if call.group_offs is not None and call.group_offs_padded is not None:
        groups = (call.group_offs, call.group_offs_padded)
    multiple = math.gcd(C, R if x.stride(2) != 1 else C, size)
    square = choose("square", facts, multiple=multiple)
    walk = choose("walk", facts, multiple=multiple)
    programs = facts.compute_units * _AMAX_PROGRAMS
    exact = power_of_two(size) == size  # others leave places of a tile empty: two launches then
    apart = _source(x, join_rows=False)
    if call.tile and row is not None and row_scale is not None:
        if power_of_two(size) <= MAX_BLOCK:
            return outputs, [_blocks(apart, "tile", row, row_scale, size, square, common, scalars)]
        launches = _region(apart, row, row_scale, "one", (size, size), walk, programs, common, scalars)
        return outputs, launches
    if call.row and call.column and blockwise and power_of_two(size) <= MAX_BLOCK and (exact or groups is not None):
        return outputs, [_dual(apart, outputs, size, facts, common, scalars, groups)]
    launches = []
    if row is not None and row_scale is not None:
        joined = _source(x, join_rows=True)
        length = min(length_c, C)
        if joined.by_rows and length <= whole_row(facts):
            tile = choose("row", facts, length)
            launches.append(_blocks(joined, "row", row, row_scale, length, tile, common, scalars))
        elif power_of_two(length) <= MAX_BLOCK:
            launches.append(_blocks(joined, "row", row, row_scale, length, square, common, scalars))
        else:
            tile = choose("flat", facts) if joined.by_rows else walk
            extent = (tile.rows, length_c)
            launches += _region(joined, row, row_scale, "row", extent, tile, programs, common, scalars)
    if column is not None and column_scale is not None:
        length = min(length_r, R)
        P = power_of_two(length)
        if groups is not None:
            part = FloatOutputs(None, None, column, column_scale)
            launches.append(_dual(apart, part, size, facts, common, scalars, groups))
        elif P <= MAX_COLUMN:
            tile = square
            if square.rows < P:
                tile = replace(square, rows=P, columns=max(1, square.rows * square.columns // P))
            launches.append(_blocks(apart, "column", column, column_scale, length, tile, common, scalars))
        else:
            extent = (length_r, walk.columns)
            launches += _region(apart, column, column_scale, "column", extent, walk, programs, common, scalars)
    return outputs, launches
