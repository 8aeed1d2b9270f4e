# SPDX-License-Identifier: MIT
"""The native library (HIP kernels) on torch tensors: quantised operands in, C out, no autograd, no choice of backend.

The kernels read rows whose K is adjacent, 16 bytes at a time. Operands that are stored otherwise are copied first: a
transpose costs a pass over the operand, little beside the product.

Shape suffixes: M rows of C, N columns of C, K contraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from turbo_core import UnsupportedError, device_facts
from turbo_core.low_precision import ScalingGranularity
from turbo_core.native import fp8_code
from turbo_gemm.pytorch.kernels.native_ck import matmul_ck, why_not_ck
from turbo_gemm.pytorch.kernels.native_operands import (
    BLOCK,
    MAX_ROW_BYTES,
    Output,
    check_scale,
    float_operand,
    library,
    operand,
    payload_of,
    row_bytes,
    stride_of,
)

if TYPE_CHECKING:
    from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall

__all__ = ["matmul_ck", "matmul_fp8", "matmul_mx", "reset", "why_not", "why_not_ck", "why_not_device"]

MX_ARCH = "gfx950"  # the one with scaled matrix instructions

reset = library.reset
why_not_device = library.why_not

_TILES = {"chosen": 0, "large": 1, "small": 2}  # turbo_gemm_tile
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_OCP = (torch.float8_e4m3fn, torch.float8_e5m2)


# --- may it run -------------------------------------------------------------------------------------------------------


def why_not(call: QuantGemmCall) -> str | None:
    """Why the kernels cannot take the call; None when they can."""
    reason = why_not_device(call.a.device)
    if reason is not None:
        return reason
    if call.preshuffled:
        return "scales and payload are preshuffled for AITER; the plain order is needed"
    arch = device_facts(call.a.device).arch
    reason = _why_not_mx(call, arch) if call.is_mx() else _why_not_fp8(call, arch)
    if reason is not None:
        return reason
    m, n, k = call.sizes()
    if max(k + BLOCK, 4 * n) > MAX_ROW_BYTES:
        return f"K={k} or N={n} is beyond {MAX_ROW_BYTES} bytes in a row"
    return None


def _why_not_mx(call: QuantGemmCall, arch: str) -> str | None:
    if arch != MX_ARCH:
        return f"the MX kernels use scaled matrix instructions, which {arch} does not have; {MX_ARCH} has them"
    if (call.a.dtype in _OCP) != (call.b.dtype in _OCP):
        return f"a is {call.a.dtype} and b is {call.b.dtype}; e2m1 goes with e2m1, FP8 with FP8"
    return None


def _why_not_fp8(call: QuantGemmCall, arch: str) -> str | None:
    taken = _FNUZ if arch == "gfx942" else _OCP
    for name, tensor in (("a", call.a), ("b", call.b)):
        if tensor.dtype not in taken:
            return f"{name} is {tensor.dtype}; matrix units of {arch} take {' and '.join(map(str, taken))}"
    if call.granularity is ScalingGranularity.BLOCKWISE and call.block_size != BLOCK:
        return f"block_size={call.block_size}; blocks of {BLOCK} are accepted"
    return None


def _tile(name: str) -> int:
    if name not in _TILES:
        raise UnsupportedError(f"tile={name!r}: accepted are {', '.join(_TILES)}")
    return _TILES[name]


# --- the products -----------------------------------------------------------------------------------------------------


def matmul_fp8(
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
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
    tile: str = "chosen",
) -> torch.Tensor:
    """C[M,N] = dequantised op(a) op(b) (+ bias[N]) (+ out where ``accumulate``), of float32 sums rounded once.

    a [M,K] ([K,M] with ``trans_a``) and b [K,N] ([N,K] with ``trans_b``): FP8 in the device's encoding, any strides.
    float32 scales multiply: TENSORWISE 0-dim; ROWWISE [M,1] and [1,N], BLOCKWISE [M,ceil(K/128)] and [ceil(K/128),N],
    each transposed with its operand; with ``a_tiles`` (``b_tiles``) one for 128 rows (columns), too. ``tile``: what
    of C a work-group computes, "large" (256x256; BLOCKWISE 256x128), "small" (128x128), or "chosen" by the sizes.
    """
    blockwise = granularity is ScalingGranularity.BLOCKWISE
    if blockwise and block_size != BLOCK:
        raise UnsupportedError(f"block_size={block_size}; blocks of {BLOCK} are accepted")
    a_MK, b_NK = (a.t() if trans_a else a), (b if trans_b else b.t())
    (m, k), (n, k_of_b) = a_MK.shape, b_NK.shape
    if k_of_b != k:
        raise UnsupportedError(f"a has K={k}, b has K={k_of_b}; they must be the same")
    a_scale, b_scale = a_scale_inv, b_scale_inv
    if granularity is not ScalingGranularity.TENSORWISE:
        a_scale, b_scale = (a_scale.t() if trans_a else a_scale), (b_scale if trans_b else b_scale.t())
    for name, scale, rows, tiles in (("a", a_scale, m, a_tiles), ("b", b_scale, n, b_tiles)):
        check_scale(f"{name}_scale_inv", scale, rows, k, granularity, tiles)
    target = Output(m, n, a, out_dtype, bias, out, accumulate)
    a_data, b_data = payload_of(a_MK), payload_of(b_NK)
    index, stream = library.where(a)
    status = library.extension.gemm_fp8(
        index,
        stream,
        a=float_operand(a_data, a_scale, BLOCK if a_tiles else 1, granularity),
        b=float_operand(b_data, b_scale, BLOCK if b_tiles else 1, granularity),
        c=target.fields(),
        m=m,
        n=n,
        k=a_data.shape[1],
        dtype_a=fp8_code("a.dtype", a.dtype),
        dtype_b=fp8_code("b.dtype", b.dtype),
        block=BLOCK if blockwise else 0,
        tile=_tile(tile),
        compute_units=device_facts(a.device).compute_units,
    )
    library.check(status)
    return target.result()


def matmul_mx(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    format_a: str,
    format_b: str,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
    tile: str = "chosen",
) -> torch.Tensor:
    """C[M,N] = dequantised a b^T (+ bias[N]) (+ out where ``accumulate``), of float32 sums rounded once.

    a [M,Kp], b [N,Kp]: ``e4m3`` or ``e5m2`` (OCP) in any pair; or [M,Kp/2], [N,Kp/2] bytes of two ``e2m1``, the first
    in the low nibble. Kp is a multiple of 128. Scales E8M0 [M,Kp/32], [N,Kp/32]; byte 255 makes its block NaN.
    ``tile`` as for `matmul_fp8`.
    """
    formats = library.extension.MX_FORMATS
    for name, value in (("format_a", format_a), ("format_b", format_b)):
        if value not in formats:
            raise UnsupportedError(f"{name}={value!r}: accepted are {', '.join(formats)}")
    m, n = a.shape[0], b.shape[0]
    k = a.shape[1] * (2 if format_a == "e2m1" else 1)
    if b.shape[1] * (2 if format_b == "e2m1" else 1) != k:
        raise UnsupportedError(f"a is {tuple(a.shape)} of {format_a}, b is {tuple(b.shape)} of {format_b}: K differs")
    for name, scale, rows in (("a_scale", a_scale, m), ("b_scale", b_scale, n)):
        if scale.shape != (rows, k // 32) or scale.element_size() != 1:
            raise UnsupportedError(f"{name} is {tuple(scale.shape)} {scale.dtype}; {(rows, k // 32)} bytes are needed")
    target = Output(m, n, a, out_dtype, bias, out, accumulate)
    a_data, b_data, a_bytes, b_bytes = payload_of(a), payload_of(b), _mx_scale(a_scale), _mx_scale(b_scale)
    index, stream = library.where(a)
    status = library.extension.gemm_mx(
        index,
        stream,
        a=operand(a_data, a_bytes, row_bytes(a_bytes)),
        b=operand(b_data, b_bytes, row_bytes(b_bytes)),
        c=target.fields(),
        m=m,
        n=n,
        k=k,
        format_a=formats[format_a],
        format_b=formats[format_b],
        tile=_tile(tile),
        compute_units=device_facts(a.device).compute_units,
    )
    library.check(status)
    return target.result()


def _mx_scale(scale: torch.Tensor) -> torch.Tensor:
    """Scales as bytes, adjacent in rows that begin on 4 bytes."""
    scale = scale.view(torch.uint8)
    fits = stride_of(scale, 1) in (0, 1) and scale.data_ptr() % 4 == 0 and stride_of(scale, 0) % 4 == 0
    if fits and (scale.shape[0] <= 1 or scale.shape[1] <= scale.stride(0) <= MAX_ROW_BYTES):
        return scale
    return scale.clone(memory_format=torch.contiguous_format)
