# SPDX-License-Identifier: MIT
"""Launcher of the Triton GEMM: checks, tile choice, descriptors or pointers, launch. No autograd, no dispatch."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor
from turbo_core.device import DeviceFacts, device_facts
from turbo_core.errors import UnsupportedError

from turbo_gemm.triton.gemm_kernel import NARROW_BYTES, gemm_kernel
from turbo_gemm.triton.gemm_tiles import Tile, choose_tile

__all__ = ["matmul"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_DESCRIPTOR_ALIGNMENT = 16  # bytes: base and strides of a TMA descriptor
_MAX_DESCRIPTOR_STRIDE = 2**40  # bytes


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """C[M, N] = op(A) op(B) (+ bias[N]) (+ out), accumulated in float32 and rounded once to C's dtype.

    a: [M, K], or [K, M] with trans_a. b: [K, N], or [N, K] with trans_b. fp16, bf16 or fp32, any strides; two
    different dtypes are multiplied as float32. out_dtype: C's dtype, default out's, else the promoted dtype.
    bias: [N]. out: [M, N] of any strides to write into; with accumulate=True the product is added to it.
    tile: a row to use in place of the model's choice (benchmarks and tests).
    K = 0 gives bias or zeros (out unchanged when accumulating). Bit-identical from run to run.
    """
    M, K = (a.shape[1], a.shape[0]) if a.dim() == 2 and trans_a else a.shape if a.dim() == 2 else (-1, -1)
    K_b, N = (b.shape[1], b.shape[0]) if b.dim() == 2 and trans_b else b.shape if b.dim() == 2 else (-1, -1)
    if out_dtype is None:
        out_dtype = out.dtype if out is not None else torch.promote_types(a.dtype, b.dtype)
    _check(a, b, M, N, K, K_b, out_dtype, bias, out, accumulate)
    if out is None:
        out = torch.empty((M, N), dtype=out_dtype, device=a.device)
    if M == 0 or N == 0:
        return out

    strides_a = (a.stride(1), a.stride(0)) if trans_a else a.stride()
    strides_b = (b.stride(1), b.stride(0)) if trans_b else b.stride()
    facts = device_facts(a.device)
    # float32 operands, and a pair of dtypes converted to it, take the float32 rows
    operand_bytes = 2 if a.dtype == b.dtype and a.dtype.itemsize == 2 else 4
    stored_a = stored_b = None
    if K > 0 and _has_descriptors(facts, tile):
        stored_a = _stored_layout(a, (M, K), strides_a)
        stored_b = _stored_layout(b, (K, N), strides_b)
    if tile is None:
        loads = "descriptor" if stored_a is not None and stored_b is not None else "pointer"
        tile = choose_tile(
            M, N, K, facts, operand_bytes, loads=loads, out_bytes=out_dtype.itemsize, accumulate=accumulate
        )
    _launch(a, b, out, bias, (M, N, K), strides_a, strides_b, stored_a, stored_b, accumulate, tile, facts)
    return out


def _check(
    a: torch.Tensor,
    b: torch.Tensor,
    M: int,
    N: int,
    K: int,
    K_b: int,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 2:
            raise UnsupportedError(f"gemm: {name}.dim()={tensor.dim()}: 2 is accepted by backend TRITON")
    for name, dtype in (("a.dtype", a.dtype), ("b.dtype", b.dtype), ("out_dtype", out_dtype)):
        if dtype not in DTYPES:
            raise UnsupportedError(
                f"gemm: {name}={dtype}: float16, bfloat16 and float32 are accepted by backend TRITON"
            )
    if K != K_b:
        raise UnsupportedError(
            f"gemm: op(a) is {M}x{K} and op(b) is {K_b}x{N}: the inner sizes must be equal "
            f"(a.shape={tuple(a.shape)}, b.shape={tuple(b.shape)})"
        )
    if a.device != b.device:
        raise UnsupportedError(f"gemm: a is on {a.device} and b on {b.device}: one device is accepted")
    if bias is not None and (bias.shape != (N,) or bias.dtype not in DTYPES or bias.device != a.device):
        raise UnsupportedError(
            f"gemm: bias is {tuple(bias.shape)} {bias.dtype} on {bias.device}: shape ({N},), one of float16, bfloat16, "
            f"float32, on {a.device} is accepted"
        )
    if out is None:
        if accumulate:
            raise UnsupportedError("gemm: accumulate=True with out=None: give the tensor to add to")
        return
    if out.shape != (M, N) or out.dtype != out_dtype or out.device != a.device:
        raise UnsupportedError(
            f"gemm: out is {tuple(out.shape)} {out.dtype} on {out.device}: ({M}, {N}) {out_dtype} on {a.device} is needed"
        )
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise UnsupportedError(
            f"gemm: out.stride()={out.stride()}: an expanded out has elements that share memory; give one that has not"
        )


def _has_descriptors(facts: DeviceFacts, tile: Tile | None) -> bool:
    """Whether descriptors are worth building: the target's loads go through TMA, or the caller's tile asks for them."""
    if tile is not None:
        return tile.loads == "descriptor"
    return facts.arch == "sm_90"


def _stored_layout(
    tensor: torch.Tensor, shape: tuple[int, int], strides: tuple[int, int]
) -> tuple[bool, int] | None:
    """How a descriptor sees the matrix: (transposed, stride of the stored rows), or None when it cannot.

    A descriptor needs one unit-stride dimension, and base and row stride aligned to 16 bytes. A stride of
    a dimension of size 1 is never used, so such a dimension fits whatever its stride.
    """
    item = tensor.element_size()
    if tensor.data_ptr() % _DESCRIPTOR_ALIGNMENT:
        return None
    for transposed, (row, col) in ((False, (0, 1)), (True, (1, 0))):
        if strides[col] != 1 and shape[col] != 1:
            continue
        stride = strides[row]
        if shape[row] == 1:
            stride = -(-shape[col] * item // _DESCRIPTOR_ALIGNMENT) * _DESCRIPTOR_ALIGNMENT // item
        if stride > 0 and stride * item % _DESCRIPTOR_ALIGNMENT == 0 and stride * item < _MAX_DESCRIPTOR_STRIDE:
            return transposed, stride
    return None


def _descriptor(
    tensor: torch.Tensor, shape: tuple[int, int], stored: tuple[bool, int], rows: int, cols: int
) -> TensorDescriptor:
    transposed, stride = stored
    if transposed:
        return TensorDescriptor(tensor, [shape[1], shape[0]], [stride, 1], [cols, rows])
    return TensorDescriptor(tensor, [shape[0], shape[1]], [stride, 1], [rows, cols])


def _wide(tensor: torch.Tensor, strides: tuple[int, int], rows: int, cols: int) -> bool:
    """Whether one block spans so much memory that offsets inside it need 64 bits (the kernel assumes less if not)."""
    item = tensor.element_size()
    limit = NARROW_BYTES.value
    return strides[0] > limit // (rows * item) or strides[1] > limit // (cols * item)


def _launch(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    sizes: tuple[int, int, int],
    strides_a: tuple[int, int],
    strides_b: tuple[int, int],
    stored_a: tuple[bool, int] | None,
    stored_b: tuple[bool, int] | None,
    accumulate: bool,
    tile: Tile,
    facts: DeviceFacts,
) -> None:
    M, N, K = sizes
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    strides_c = out.stride()
    stored_c = None
    arg_a: Any = a
    arg_b: Any = b
    arg_c: Any = out
    a_t = b_t = False
    desc_ab = tile.loads == "descriptor"
    if desc_ab:
        if stored_a is None or stored_b is None:
            raise UnsupportedError(f"gemm: tile {tile.name} loads through descriptors, which a or b does not fit")
        stored_c = _stored_layout(out, (M, N), strides_c)
        if stored_c is not None and stored_c[0]:
            stored_c = None  # a transposed out is stored through pointers
        a_t, b_t = stored_a[0], stored_b[0]
        arg_a = _descriptor(a, (M, K), stored_a, block_m, block_k)
        arg_b = _descriptor(b, (K, N), stored_b, block_k, block_n)
        strides_a = strides_b = (1, 1)  # unused: a constant, so that they cause no further compilations
    desc_c = stored_c is not None
    if stored_c is not None:
        arg_c = _descriptor(out, (M, N), stored_c, block_m, block_n // tile.subtile)
        strides_c = (1, 1)
    wide = (
        _wide(a, strides_a, block_m, block_k)
        or _wide(b, strides_b, block_k, block_n)
        or _wide(out, strides_c, block_m, block_n)
    )
    programs = min(-(-M // block_m) * -(-N // block_n), facts.compute_units)
    with _on_device(a.device):
        gemm_kernel[(programs,)](
            arg_a, arg_b, arg_c, bias, M, N, K, *strides_a, *strides_b, *strides_c,
            bias.stride(0) if bias is not None else 1,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=tile.group_m, XCDS=facts.xcds,
            A_T=a_t, B_T=b_t, DESC_AB=desc_ab, DESC_C=desc_c, UPCAST=a.dtype != b.dtype, ACCUMULATE=accumulate,
            MASK_MN=not (desc_ab and desc_c) and (M % block_m != 0 or N % block_n != 0),
            MASK_K=not desc_ab and K % block_k != 0, WIDE=wide, FLATTEN=tile.flatten, SUBTILE=tile.subtile,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
            enable_fp_fusion=True,  # on every target: a fused multiply-add rounds once, and so is never less exact
            **dict(tile.options),
        )  # fmt: skip


def _on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors'."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
