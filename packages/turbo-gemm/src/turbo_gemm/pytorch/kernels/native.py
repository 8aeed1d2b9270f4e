# SPDX-License-Identifier: MIT
"""Backend TURBO of gemm_fp8 and gemm_fp4: our HIP kernels, by the native library.

The kernels read rows whose K is adjacent, 16 bytes at a time. Operands that are stored otherwise are copied first: a
transpose costs a pass over the operand, little beside the product.
"""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError, device_facts
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import fp8_code
from turbo_gemm.calls import GemmFp8Call, mx_format
from turbo_gemm.pytorch.kernels.native_operands import (
    BLOCK,
    MAX_ROW_BYTES,
    Output,
    float_operand,
    library,
    mx_operand,
    mx_scale,
    payload_of,
)

__all__ = ["reset", "run", "why_not", "why_not_device"]

MX_ARCH = "gfx950"  # the one with scaled matrix instructions

reset = library.reset
why_not_device = library.why_not

_TILES = {"chosen": 0, "large": 1, "small": 2}  # turbo_gemm_tile
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_OCP = (torch.float8_e4m3fn, torch.float8_e5m2)


# --- may it run -------------------------------------------------------------------------------------------------------


def why_not(call: GemmFp8Call) -> str | None:
    """Why the kernels cannot take the call; None when they can."""
    device = call.a.data.device
    reason = why_not_device(device)
    if reason is not None:
        return reason
    if call.preshuffled:
        return "scales and payload are preshuffled for AITER; the plain order is needed"
    arch = device_facts(device).arch
    reason = _why_not_mx(call, arch) if call.is_mx() else _why_not_fp8(call, arch)
    if reason is not None:
        return reason
    m, n, k = call.sizes()
    if max(k + BLOCK, 4 * n) > MAX_ROW_BYTES:
        return f"K={k} or N={n} is beyond {MAX_ROW_BYTES} bytes in a row"
    return None


def _why_not_mx(call: GemmFp8Call, arch: str) -> str | None:
    a, b = call.a.data, call.b.data
    if arch != MX_ARCH:
        return f"the MX kernels use scaled matrix instructions, which {arch} does not have; {MX_ARCH} has them"
    if (a.dtype in _OCP) != (b.dtype in _OCP):
        return f"a is {a.dtype} and b is {b.dtype}; e2m1 goes with e2m1, FP8 with FP8"
    return None


def _why_not_fp8(call: GemmFp8Call, arch: str) -> str | None:
    accepted = _FNUZ if arch == "gfx942" else _OCP
    for name, dtype in (("a", call.a.data.dtype), ("b", call.b.data.dtype)):
        if dtype not in accepted:
            return f"{name} is {dtype}; matrix units of {arch} take {' and '.join(map(str, accepted))}"
    if call.granularity is ScalingGranularity.BLOCKWISE and call.block_size != BLOCK:
        return f"block_size={call.block_size}; blocks of {BLOCK} are accepted"
    return None


# --- the products -----------------------------------------------------------------------------------------------------


def run(call: GemmFp8Call, *, tile: str = "chosen") -> torch.Tensor:
    """Compute the call.

    tile: what of C a work-group computes, "large" (256x256; BLOCKWISE 256x128), "small" (128x128), or "chosen" by the
    sizes (benchmarks and tests).
    """
    if tile not in _TILES:
        raise UnsupportedError(f"tile={tile!r}: accepted are {', '.join(_TILES)}")
    a_MK, b_NK = call.rows()
    m, n, k = call.sizes()
    target = Output(call)
    a, b = payload_of(a_MK.data), payload_of(b_NK.data)
    index, stream = library.where(a)
    extension = library.extension
    units, c = device_facts(a.device).compute_units, target.fields()
    common = dict(c=c, m=m, n=n, tile=_TILES[tile], compute_units=units)
    if call.is_mx():
        a_scale, b_scale = mx_scale(a_MK.scale_inv), mx_scale(b_NK.scale_inv)
        status = extension.gemm_mx(
            index,
            stream,
            a=mx_operand(a, a_scale),
            b=mx_operand(b, b_scale),
            k=k,
            format_a=extension.MX_FORMATS[mx_format(a_MK.data)],
            format_b=extension.MX_FORMATS[mx_format(b_NK.data)],
            **common,
        )
    else:
        status = extension.gemm_fp8(
            index,
            stream,
            a=float_operand(a, a_MK, call.granularity),
            b=float_operand(b, b_NK, call.granularity),
            k=a.shape[1],
            dtype_a=fp8_code("a.dtype", a_MK.data.dtype),
            dtype_b=fp8_code("b.dtype", b_NK.data.dtype),
            block=BLOCK if call.granularity is ScalingGranularity.BLOCKWISE else 0,
            **common,
        )
    library.check(status)
    return target.result()
