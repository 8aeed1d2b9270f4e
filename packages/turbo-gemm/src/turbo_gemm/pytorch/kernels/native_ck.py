# SPDX-License-Identifier: MIT
"""Backend CK of gemm_fp8: code objects of composable kernel, in wheels that were built with TURBO_BUILD_CK=1."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

import turbo_gemm
from turbo_core import device_facts
from turbo_core.calls import empty
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.calls import GemmFp8Call, specs
from turbo_gemm.pytorch.kernels.native_operands import BLOCK, library, payload_of, row_bytes

__all__ = ["run", "why_not"]

COLUMNS = 8  # of C, that a store holds


def _e4m3(arch: str) -> torch.dtype:
    return torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn


@functools.cache
def _built() -> bool:
    """Whether the wheel has code objects of composable kernel, of any architecture."""
    return any(any(Path(folder, "lib").glob("ck_*.hsaco")) for folder in turbo_gemm.__path__)


def why_not(call: GemmFp8Call) -> str | None:
    """Why the composable kernels cannot take the call; None when they can."""
    if not _built():
        return "this build of turbo-gemm has no composable kernels (they are built with TURBO_BUILD_CK=1)"
    a, b = call.a.data, call.b.data
    reason = library.why_not(a.device)
    if reason is not None:
        return reason
    index, _ = library.where(a)
    if library.extension.check_ck(index) != library.extension.OK:
        text: str = library.extension.last_error()
        return text
    arch = device_facts(a.device).arch
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype != _e4m3(arch):
            return f"{name} is {tensor.dtype}; the instances for {arch} are of {_e4m3(arch)}"
    if call.is_mx():
        return "there are instances for scales of the tensor, of rows and of blocks, not for MX"
    blockwise = call.granularity is ScalingGranularity.BLOCKWISE
    if blockwise and (call.block_size != BLOCK or call.a.tiles or not call.b.tiles):
        return f"blocks: the instance is for {BLOCK}, a in blocks of a row and b in tiles"
    if call.out_dtype != torch.bfloat16:
        return f"out_dtype is {call.out_dtype}; the instances write torch.bfloat16"
    if call.bias is not None or call.out is not None:
        return "the instances have neither bias nor accumulation"
    n = call.sizes()[1]
    return f"N={n}; a multiple of {COLUMNS} is needed" if n % COLUMNS else None


def run(call: GemmFp8Call) -> torch.Tensor:
    """Compute the call."""
    a_MK, b_NK = call.rows()
    m, n, _ = call.sizes()
    a_scale, b_scale = a_MK.scale_inv, b_NK.scale_inv
    if call.granularity is ScalingGranularity.TENSORWISE:
        a_scale, b_scale = a_scale.expand(m), b_scale.expand(n)  # the kernel multiplies by one for each row
    a_scale, b_scale = a_scale.contiguous(), b_scale.contiguous()
    c = empty(specs(call), a_scale.device)
    a, b = payload_of(a_MK.data), payload_of(b_NK.data)
    index, stream = library.where(a)
    status = library.extension.gemm_ck(
        index,
        stream,
        a={"data": a.data_ptr(), "stride": row_bytes(a), "scale": a_scale.data_ptr()},
        b={"data": b.data_ptr(), "stride": row_bytes(b), "scale": b_scale.data_ptr()},
        c=c.data_ptr(),
        m=m,
        n=n,
        k=a.shape[1],
        block=BLOCK if call.granularity is ScalingGranularity.BLOCKWISE else 0,
    )
    library.check(status)
    return c
