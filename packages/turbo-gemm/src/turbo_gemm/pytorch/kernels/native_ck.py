# SPDX-License-Identifier: MIT
"""FP8 GEMM by composable kernel: code objects that a wheel has when it was built with TURBO_BUILD_CK=1.

Shape suffixes: M rows of C, N columns of C, K contraction.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import turbo_gemm
from turbo_core import UnsupportedError, device_facts
from turbo_core.low_precision import ScalingGranularity
from turbo_gemm.pytorch.kernels.native_operands import BLOCK, check_scale, library, payload_of, row_bytes

if TYPE_CHECKING:
    from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall

__all__ = ["matmul_ck", "why_not_ck"]

COLUMNS = 8  # of C, that a store holds


def _e4m3(arch: str) -> torch.dtype:
    return torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn


@functools.cache
def _built() -> bool:
    """Whether the wheel has code objects of composable kernel, of any architecture."""
    return any(any(Path(folder, "lib").glob("ck_*.hsaco")) for folder in turbo_gemm.__path__)


def why_not_ck(call: QuantGemmCall) -> str | None:
    """Why the composable kernels cannot take the call; None when they can."""
    if not _built():
        return "this build of turbo-gemm has no composable kernels (they are built with TURBO_BUILD_CK=1)"
    reason = library.why_not(call.a.device)
    if reason is not None:
        return reason
    index, _ = library.where(call.a)
    if library.extension.check_ck(index) != library.extension.OK:
        text: str = library.extension.last_error()
        return text
    arch = device_facts(call.a.device).arch
    for name, tensor in (("a", call.a), ("b", call.b)):
        if tensor.dtype != _e4m3(arch):
            return f"{name} is {tensor.dtype}; the instances for {arch} are of {_e4m3(arch)}"
    if call.is_mx():
        return "there are instances for scales of the tensor, of rows and of blocks, not for MX"
    blockwise = call.granularity is ScalingGranularity.BLOCKWISE
    if blockwise and (call.block_size != BLOCK or call.a_tiles or not call.b_tiles):
        return f"blocks: the instance is for {BLOCK}, a in pieces of a row and b in tiles"
    if call.out_dtype != torch.bfloat16:
        return f"out_dtype is {call.out_dtype}; the instances write torch.bfloat16"
    if call.bias is not None or call.out is not None:
        return "the instances have neither bias nor accumulation"
    n = call.sizes()[1]
    return f"N={n}; a multiple of {COLUMNS} is needed" if n % COLUMNS else None


def matmul_ck(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    *,
    trans_a: bool,
    trans_b: bool,
    granularity: ScalingGranularity,
    block_size: int,
    a_tiles: bool = False,
    b_tiles: bool = False,
    out_dtype: torch.dtype = torch.bfloat16,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """C[M,N] bf16 = dequantised op(a) op(b), of float32 sums rounded once; arguments of `native.matmul_fp8`.

    e4m3 in the device's encoding, N a multiple of 8. BLOCKWISE: blocks of 128, a in pieces of a row, b in tiles.
    """
    if bias is not None or out is not None or accumulate or out_dtype != torch.bfloat16:
        raise UnsupportedError(f"out_dtype={out_dtype}: composable kernels write a new bfloat16 C, without bias")
    blockwise = granularity is ScalingGranularity.BLOCKWISE
    if blockwise and (block_size != BLOCK or a_tiles or not b_tiles):
        raise UnsupportedError(f"block_size={block_size}: blocks of {BLOCK}, a in pieces and b in tiles, are accepted")
    arch = device_facts(a.device).arch
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype != _e4m3(arch):
            raise UnsupportedError(f"{name}.dtype={tensor.dtype}: {_e4m3(arch)} is accepted on {arch}")
    a_MK, b_NK = (a.t() if trans_a else a), (b if trans_b else b.t())
    (m, k), (n, k_of_b) = a_MK.shape, b_NK.shape
    if k_of_b != k:
        raise UnsupportedError(f"a has K={k}, b has K={k_of_b}; they must be the same")
    a_scale, b_scale = a_scale_inv, b_scale_inv
    if granularity is not ScalingGranularity.TENSORWISE:
        a_scale, b_scale = (a_scale.t() if trans_a else a_scale), (b_scale if trans_b else b_scale.t())
    check_scale("a_scale_inv", a_scale, m, k, granularity, False)
    check_scale("b_scale_inv", b_scale, n, k, granularity, b_tiles)
    if granularity is ScalingGranularity.TENSORWISE:
        a_scale, b_scale = a_scale.expand(m), b_scale.expand(n)  # the kernel multiplies by one for each row
    a_scale, b_scale = a_scale.contiguous(), b_scale.contiguous()
    c = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)
    a_data, b_data = payload_of(a_MK), payload_of(b_NK)
    index, stream = library.where(a)
    status = library.extension.gemm_ck(
        index,
        stream,
        a={"data": a_data.data_ptr(), "stride": row_bytes(a_data), "scale": a_scale.data_ptr()},
        b={"data": b_data.data_ptr(), "stride": row_bytes(b_data), "scale": b_scale.data_ptr()},
        c=c.data_ptr(),
        m=m,
        n=n,
        k=a_data.shape[1],
        block=BLOCK if blockwise else 0,
    )
    library.check(status)
    return c
