# SPDX-License-Identifier: MIT
"""The wheel's kernels for ``python -m turbo_core audit``: HIP code objects, and Triton launches as they are planned.

What is compiled is what the launchers plan for these calls on the target, so a new row of a tile table needs nothing
here but a shape that reaches it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import turbo_quant
from turbo_core.device import arch_facts
from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

    from turbo_core.audit import CodeObject, TritonKernel
    from turbo_core.launch import Launch

__all__ = ["kernels", "launches"]

# [B,R,C]: whole tiles, and rests everywhere; the third's rows are too long for registers
SHAPES = ((1, 4096, 4096), (2, 1025, 1023), (1, 64, 65536))
GROUPED_SHAPES = SHAPES[:2]  # of groups with gaps, or of named rows
MORE_SHAPES = ((1, 4096, 7168), (1, 16384, 16384), (2, 100, 129), (1, 33, 8191), (4, 1, 1000), (1, 5000, 1))


def kernels(arch: str, full: bool) -> Iterator[TritonKernel | CodeObject]:
    """All kernels of the wheel for ``arch``; without ``full`` a part that compiles quickly."""
    from turbo_core.audit import TritonKernel, code_objects
    from turbo_core.launch import ALWAYS

    yield from code_objects(turbo_quant, arch)
    for name, launch in launches(arch, full):
        signature = launch.signature()
        yield TritonKernel(
            name,
            arch,
            launch.kernel,
            dict(signature.types),
            dict(signature.constants),
            dict(signature.attributes),
            {**ALWAYS, **launch.options},
        )


def launches(arch: str, full: bool) -> Iterator[tuple[str, Launch]]:
    """Each distinct kernel once, under a name that says for what it is."""
    torch = require_torch()
    seen = set()
    dtypes = (torch.bfloat16, torch.float32) if full else (torch.bfloat16,)
    for dtype, shape in itertools.product(dtypes, (*SHAPES, *MORE_SHAPES) if full else SHAPES):
        for transposed in (False, True) if full else (shape[1] % 2 == 1,):
            cases = _cases(arch, shape, dtype, transposed, full)
            if shape in GROUPED_SHAPES:
                cases = itertools.chain(cases, _group_cases(arch, shape, dtype, transposed, full))
            for case, launch in cases:
                key = (launch.kernel.fn.__name__, str(launch.signature()), str(launch.options))
                if key not in seen:
                    seen.add(key)
                    layout = "x".join(map(str, shape)) + ("T" if transposed else "")
                    yield (
                        f"{launch.kernel.fn.__name__} {case} {layout} {'fp32' if dtype.itemsize == 4 else 'bf16'}",
                        launch,
                    )


def _group_cases(
    arch: str, shape: tuple[int, int, int], dtype: torch.dtype, transposed: bool, full: bool
) -> Iterator[tuple[str, Launch]]:
    from turbo_core.low_precision import ScalingGranularity as Scaling
    from turbo_quant.calls import MxDirection, PadGroupsCall, QuantizeFloatCall, QuantizeMxCall
    from turbo_quant.triton import float_plan, mx_plan
    from turbo_quant.triton.padding_kernel import plan_pad_groups

    torch = require_torch()
    facts = arch_facts(arch)
    _, R, C = shape
    x = _meta(dtype, 1, C, R).transpose(1, 2) if transposed else _meta(dtype, 1, R, C)
    offs, lens, index = _meta(torch.int64, 9), _meta(torch.int32, 8), _meta(torch.int64, 2 * R)
    gaps = {"group_offs": offs, "group_offs_padded": offs, "group_lens": lens}
    named = {"group_offs": offs, "group_offs_padded": offs, "row_idx": index}
    own = torch.float8_e4m3fnuz if facts.fp8_fnuz else torch.float8_e4m3fn
    other = torch.float8_e4m3fn if facts.fp8_fnuz else torch.float8_e4m3fnuz
    for given in (None, offs):
        yield "groups", plan_pad_groups(PadGroupsCall(lens, given, R, 128))[1][0]
    several = [(own, "gaps", gaps)]
    if full or transposed:
        several.append((own, "named", named))
    if full:
        several.append((other, "gaps", gaps))
    for granularity, block in ((Scaling.TENSORWISE, 0), (Scaling.ROWWISE, 0), (Scaling.BLOCKWISE, 128)):
        for out, kind, groups in several:
            for row, column in ((True, True), (True, False), (False, True)) if full else ((True, True),):
                call = QuantizeFloatCall(x, out, granularity, block, row, column, k_major=True, **groups)
                for launch in float_plan.plan_quantize(call, facts)[1]:
                    yield f"{granularity.name.lower()} groups K-major {kind} {str(out)[13:]}", launch
    plain, rotated, tile = MxDirection(), MxDirection(rht=True, stochastic=True), MxDirection(tile=True)
    cases: dict[str, tuple[str, MxDirection, dict[str, torch.Tensor]]] = {
        "gaps": ("e4m3", plain, gaps),
        "gaps rotated": ("e2m1", rotated, gaps),
        "gaps tile": ("e4m3", tile, gaps),
        "named": ("e2m1", plain, named),
    }
    for kind, (format, direction, groups) in cases.items():
        mx = QuantizeMxCall(x, format, direction, direction, 7, _meta(torch.int64, 2), **groups)
        for launch in mx_plan.plan_quantize(mx, facts)[1]:
            yield f"MX {format} groups {kind}", launch


def _meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return require_torch().empty(shape, dtype=dtype, device="meta")


def _cases(
    arch: str, shape: tuple[int, int, int], dtype: torch.dtype, transposed: bool, full: bool
) -> Iterator[tuple[str, Launch]]:
    from turbo_core.low_precision import ScalingGranularity as Scaling
    from turbo_quant.calls import DequantizeFloatCall, DequantizeMxCall, MxDirection, QuantizeFloatCall, QuantizeMxCall
    from turbo_quant.triton import float_plan, mx_plan
    from turbo_quant.triton.dequantize_plan import plan_dequantize_float, plan_dequantize_mx

    torch = require_torch()
    facts = arch_facts(arch)
    B, R, C = shape
    x = _meta(dtype, B, C, R).transpose(1, 2) if transposed else _meta(dtype, *shape)
    offs = _meta(torch.int64, 9)
    own = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz] if facts.fp8_fnuz else [torch.float8_e4m3fn, torch.float8_e5m2]
    other = torch.float8_e4m3fn if facts.fp8_fnuz else torch.float8_e4m3fnuz
    rests = R % 2 == 1  # in the short form what is rarer, and takes more registers, has the shape with rests alone
    for out in (*own, other) if full else (own[0], other) if rests else own[:1]:
        name = str(out).removeprefix("torch.float8_")
        calls: dict[str, tuple[Any, ...]] = {
            "tensorwise": (Scaling.TENSORWISE, 0, True, False),
            "tensorwise piece": (Scaling.TENSORWISE, 0, True, False, False, None, None, _meta(torch.float32)),
            "rowwise": (Scaling.ROWWISE, 0, True, True),
            "blockwise dual": (Scaling.BLOCKWISE, 128, True, True),
            "blockwise row": (Scaling.BLOCKWISE, 128, True, False),
            "blockwise column": (Scaling.BLOCKWISE, 128, False, True),
            "blockwise 256 dual": (Scaling.BLOCKWISE, 256, True, True),
            "blockwise 100 dual": (Scaling.BLOCKWISE, 100, True, True),
            "tile": (Scaling.BLOCKWISE, 128, True, False, True),
            "tile 512": (Scaling.BLOCKWISE, 512, True, False, True),
        }
        for case, (granularity, block, tile) in {
            "tensorwise": (Scaling.TENSORWISE, 0, False),
            "rowwise": (Scaling.ROWWISE, 0, False),
            "blockwise": (Scaling.BLOCKWISE, 128, False),
            "blockwise 32": (Scaling.BLOCKWISE, 32, False),
            "tile": (Scaling.BLOCKWISE, 128, True),
        }.items():
            calls[f"{case} K-major"] = (granularity, block, True, True, tile, None, None, None, True)
        if full:
            calls["rowwise K-major column"] = (Scaling.ROWWISE, 0, False, True, False, None, None, None, True)
            calls["blockwise K-major row"] = (Scaling.BLOCKWISE, 128, True, False, False, None, None, None, True)
            calls["tile K-major column"] = (Scaling.BLOCKWISE, 128, False, True, True, None, None, None, True)
        if B == 1:
            calls["blockwise groups"] = (Scaling.BLOCKWISE, 128, True, True, False, offs, offs)
        for case, options in calls.items():
            for launch in float_plan.plan_quantize(QuantizeFloatCall(x, out, *options), facts)[1]:
                yield f"{case} {name}", launch
        q = _meta(out, B, C, R).transpose(1, 2) if transposed else _meta(out, *shape)
        scale = _meta(torch.float32, B, R, -(-C // 128))
        call = DequantizeFloatCall(q, scale, Scaling.BLOCKWISE, 128, 2, dtype)
        yield f"blockwise row {name}", plan_dequantize_float(call, facts)[1][0]
        call = DequantizeFloatCall(q, _meta(torch.float32), Scaling.TENSORWISE, 0, 2, dtype)
        yield f"tensorwise {name}", plan_dequantize_float(call, facts)[1][0]
    plain, rotated = MxDirection(), MxDirection(rht=True, stochastic=True)
    directions = {
        "row": (plain, None),
        "column": (None, plain),
        "dual": (plain, plain),
        "tile dual": (MxDirection(tile=True), MxDirection(tile=True)),
        "rotated dual": (rotated, rotated),
        "shuffled dual": (MxDirection(shuffle_scale=True, shuffle_out=True),) * 2,
    }
    width = C + -C % 128
    for format in ("e4m3", "e5m2", "e2m1") if full else ("e2m1",) if rests else ("e4m3",):
        for case, (row, column) in directions.items():
            for groups in (None, offs) if B == 1 and column else (None,):
                mx = QuantizeMxCall(x, format, row, column, 7, _meta(torch.int64, 2), groups, groups)
                for launch in mx_plan.plan_quantize(mx, facts)[1]:
                    yield f"MX {format} {case}{'' if groups is None else ' groups'}", launch
        payload = _meta(torch.uint8, B, R, width // (2 if format == "e2m1" else 1))
        for transpose, rht in ((False, False), (True, True)):
            back = DequantizeMxCall(payload, _meta(torch.uint8, B, R, width // 32), format, C, transpose, rht, 7, dtype)
            yield f"MX {format} {'transposed' if transpose else 'row'}", plan_dequantize_mx(back, facts)[1][0]
