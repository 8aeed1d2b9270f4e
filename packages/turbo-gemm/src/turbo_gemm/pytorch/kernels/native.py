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
from turbo_core.native import NativeLibrary, address, float_code, fp8_code

if TYPE_CHECKING:
    from turbo_gemm.pytorch.kernels.quant_gemm_call import QuantGemmCall

__all__ = ["matmul_fp8", "matmul_mx", "reset", "why_not", "why_not_device"]

BLOCK = 128  # edge of a block with one scale
MAX_ROW_BYTES = 2**23 - 1024  # of an operand or of C, from row to row; kMaxRowBytes in csrc/kernels/gemm.cpp
MX_ARCH = "gfx950"  # the one with scaled matrix instructions

_library = NativeLibrary("turbo_gemm")
reset = _library.reset
why_not_device = _library.why_not

_MX_FORMATS = {"e4m3": 0, "e5m2": 1, "e2m1": 2}  # turbo_gemm_format of turbo_gemm.h
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


# --- operands as the kernels take them --------------------------------------------------------------------------------

_Operand = tuple[int, int, int, int, int, int]  # the members of turbo_gemm_operand


def _stride(tensor: torch.Tensor, dim: int) -> int:
    """Elements from index to index. That of a single one is never used and may be anything."""
    return 0 if tensor.shape[dim] <= 1 else tensor.stride(dim)


def _payload(x: torch.Tensor) -> torch.Tensor:
    """x [rows, bytes] as uint8, adjacent in rows that begin on 16 bytes, zeros after K; x itself if it may."""
    x = x.view(torch.uint8)
    rows, width = x.shape
    fits = _stride(x, 1) in (0, 1) and x.data_ptr() % 16 == 0 and _stride(x, 0) % 16 == 0 and width % 16 == 0
    if fits and (rows <= 1 or width <= x.stride(0) <= MAX_ROW_BYTES):
        return x
    padded = (width + 15) // 16 * 16
    copy = x.new_empty((rows, padded))
    copy[:, :width] = x
    copy[:, width:] = 0  # bits of 0.0 in every format
    return copy


def _row_bytes(payload: torch.Tensor) -> int:
    return payload.shape[1] if payload.shape[0] <= 1 else payload.stride(0)


def _float_operand(payload: torch.Tensor, scale: torch.Tensor, rows: int, kind: ScalingGranularity) -> _Operand:
    """``scale`` has rows along those of the payload: 0-dim, [rows, 1], or [rows or tiles, K blocks]."""
    step, sharing, stride = 0, 1, 0
    if kind is not ScalingGranularity.TENSORWISE:
        stride = _stride(scale, 0)
    if kind is ScalingGranularity.BLOCKWISE:
        step, sharing = _stride(scale, 1), rows
    return payload.data_ptr(), _row_bytes(payload), scale.data_ptr(), stride, step, sharing


# --- C ----------------------------------------------------------------------------------------------------------------


class _Output:
    """C as the kernels take it: rows with adjacent columns. Another layout of ``out`` goes through a copy."""

    def __init__(
        self,
        m: int,
        n: int,
        a: torch.Tensor,
        out_dtype: torch.dtype,
        bias: torch.Tensor | None,
        out: torch.Tensor | None,
        accumulate: bool,
    ) -> None:
        if accumulate and out is None:
            raise UnsupportedError("accumulate needs out")
        if out is not None and (out.shape != (m, n) or out.device != a.device or out.dtype != out_dtype):
            raise UnsupportedError(
                f"out is {tuple(out.shape)} {out.dtype} on {out.device}; {(m, n)} {out_dtype} on {a.device} is needed"
            )
        if bias is not None and (bias.shape != (n,) or bias.device != a.device):
            raise UnsupportedError(f"bias is {tuple(bias.shape)} on {bias.device}; ({n},) on {a.device} is needed")
        self.out = out
        self.bias = None if bias is None else bias.contiguous()
        self.accumulate = accumulate
        if out is None:
            self.c = torch.empty((m, n), dtype=out_dtype, device=a.device)
        elif _stride(out, 1) in (0, 1) and (m <= 1 or n <= out.stride(0) <= MAX_ROW_BYTES // 4):
            self.c = out
        else:
            self.c = out.contiguous() if accumulate else torch.empty_like(out, memory_format=torch.contiguous_format)

    def arguments(self) -> tuple[int, int, int, int, int, bool]:
        """The members of turbo_gemm_output."""
        bias_code = 0 if self.bias is None else float_code("bias.dtype", self.bias.dtype)
        stride = self.c.shape[1] if self.c.shape[0] <= 1 else self.c.stride(0)
        code = float_code("out_dtype", self.c.dtype)
        return self.c.data_ptr(), stride, address(self.bias), code, bias_code, self.accumulate

    def result(self) -> torch.Tensor:
        if self.out is None or self.out is self.c:
            return self.c
        return self.out.copy_(self.c)


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
        _check_scale(f"{name}_scale_inv", scale, rows, k, granularity, tiles)
    target = _Output(m, n, a, out_dtype, bias, out, accumulate)
    a_data, b_data = _payload(a_MK), _payload(b_NK)
    index, stream = _library.where(a)
    status = _library.extension.gemm_fp8(
        _float_operand(a_data, a_scale, BLOCK if a_tiles else 1, granularity),
        _float_operand(b_data, b_scale, BLOCK if b_tiles else 1, granularity),
        target.arguments(),
        m,
        n,
        a_data.shape[1],
        fp8_code("a.dtype", a.dtype),
        fp8_code("b.dtype", b.dtype),
        BLOCK if blockwise else 0,
        _tile(tile),
        index,
        stream,
    )
    _library.check(status)
    return target.result()


def _check_scale(
    name: str, scale: torch.Tensor, rows: int, k: int, granularity: ScalingGranularity, tiles: bool
) -> None:
    expected: tuple[int, ...]
    if granularity is ScalingGranularity.TENSORWISE:
        expected = ()
    elif granularity is ScalingGranularity.ROWWISE:
        expected = (rows, 1)
    elif granularity is ScalingGranularity.BLOCKWISE:
        expected = (-(-rows // BLOCK) if tiles else rows, -(-k // BLOCK))
    else:
        raise UnsupportedError(f"granularity={granularity}; TENSORWISE, ROWWISE and BLOCKWISE are accepted")
    if scale.shape != expected or scale.dtype != torch.float32:
        raise UnsupportedError(
            f"{name} is {tuple(scale.shape)} {scale.dtype}; {expected} torch.float32 is needed "
            "(rows of the product first)"
        )


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
    for name, value in (("format_a", format_a), ("format_b", format_b)):
        if value not in _MX_FORMATS:
            raise UnsupportedError(f"{name}={value!r}: accepted are {', '.join(_MX_FORMATS)}")
    m, n = a.shape[0], b.shape[0]
    k = a.shape[1] * (2 if format_a == "e2m1" else 1)
    if b.shape[1] * (2 if format_b == "e2m1" else 1) != k:
        raise UnsupportedError(f"a is {tuple(a.shape)} of {format_a}, b is {tuple(b.shape)} of {format_b}: K differs")
    for name, scale, rows in (("a_scale", a_scale, m), ("b_scale", b_scale, n)):
        if scale.shape != (rows, k // 32) or scale.element_size() != 1:
            raise UnsupportedError(f"{name} is {tuple(scale.shape)} {scale.dtype}; {(rows, k // 32)} bytes are needed")
    target = _Output(m, n, a, out_dtype, bias, out, accumulate)
    a_data, b_data, a_bytes, b_bytes = _payload(a), _payload(b), _mx_scale(a_scale), _mx_scale(b_scale)
    index, stream = _library.where(a)
    status = _library.extension.gemm_mx(
        (a_data.data_ptr(), _row_bytes(a_data), a_bytes.data_ptr(), _row_bytes(a_bytes), 0, 1),
        (b_data.data_ptr(), _row_bytes(b_data), b_bytes.data_ptr(), _row_bytes(b_bytes), 0, 1),
        target.arguments(),
        m,
        n,
        k,
        _MX_FORMATS[format_a],
        _MX_FORMATS[format_b],
        _tile(tile),
        index,
        stream,
    )
    _library.check(status)
    return target.result()


def _mx_scale(scale: torch.Tensor) -> torch.Tensor:
    """Scales as bytes, adjacent in rows that begin on 4 bytes."""
    scale = scale.view(torch.uint8)
    fits = _stride(scale, 1) in (0, 1) and scale.data_ptr() % 4 == 0 and _stride(scale, 0) % 4 == 0
    if fits and (scale.shape[0] <= 1 or scale.shape[1] <= scale.stride(0) <= MAX_ROW_BYTES):
        return scale
    return scale.clone(memory_format=torch.contiguous_format)
