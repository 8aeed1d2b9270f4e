# SPDX-License-Identifier: MIT
"""Backend TURBO of gemm_fp8 and gemm_fp4: our HIP kernels, by the native library.

The kernels read rows whose K is adjacent, 16 bytes at a time. Operands that are stored otherwise are copied first: a
transpose costs a pass over the operand, little beside the product.
"""

from __future__ import annotations

import torch

from turbo_core import UnsupportedError, device_facts
from turbo_core.calls import empty
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import fp8_code
from turbo_gemm.calls import GemmFp8Call, mx_format, specs
from turbo_gemm.pytorch.kernels.native_operands import (
    BLOCK,
    MAX_ROW_BYTES,
    TILES,
    NativeOutput,
    library,
    native_operand,
    payload_of,
    scale_of,
    why_not_operands,
)

__all__ = ["reset", "run", "why_not", "why_not_device"]

reset = library.reset
why_not_device = library.why_not


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
    reason = why_not_operands(call.a.data, call.b.data, call.granularity, call.block_size, arch)
    if reason is not None:
        return reason
    m, n, k = call.sizes()
    if max(k + BLOCK, 4 * n) > MAX_ROW_BYTES:
        return f"K={k} or N={n} is beyond {MAX_ROW_BYTES} bytes in a row"
    return None


# --- the products -----------------------------------------------------------------------------------------------------


def run(call: GemmFp8Call, *, tile: str = "chosen") -> torch.Tensor:
    """Compute the call.

    tile: what of C a work-group computes, "large" (256x256; BLOCKWISE 256x128), "small" (128x128), or "chosen" by the
    sizes (benchmarks and tests).
    """
    if tile not in TILES:
        raise UnsupportedError(f"tile={tile!r}: accepted are {', '.join(TILES)}")
    a_MK, b_NK = call.rows()
    m, n, k = call.sizes()
    target = NativeOutput(call.out, call.bias, lambda: empty(specs(call), call.a.data.device))
    a, b = payload_of(a_MK.data), payload_of(b_NK.data)
    a_scale, b_scale = (scale_of(x.scale_inv, call.granularity) for x in (a_MK, b_NK))
    index, stream = library.where(a)
    extension = library.extension
    common = dict(
        a=native_operand(a, a_scale, call.granularity, a_MK.tiles),
        b=native_operand(b, b_scale, call.granularity, b_NK.tiles),
        c=target.fields(),
        m=m,
        n=n,
        tile=TILES[tile],
        compute_units=device_facts(a.device).compute_units,
    )
    if call.is_mx():
        status = extension.gemm_mx(
            index,
            stream,
            k=k,
            format_a=extension.MX_FORMATS[mx_format(a_MK.data)],
            format_b=extension.MX_FORMATS[mx_format(b_NK.data)],
            **common,
        )
    else:
        status = extension.gemm_fp8(
            index,
            stream,
            k=a.shape[1],
            dtype_a=fp8_code("a.dtype", a_MK.data.dtype),
            dtype_b=fp8_code("b.dtype", b_NK.data.dtype),
            block=BLOCK if call.granularity is ScalingGranularity.BLOCKWISE else 0,
            **common,
        )
    library.check(status)
    return target.result()
