# SPDX-License-Identifier: MIT
"""Launcher of the Triton GEMM: checks, tile choice, descriptors or pointers, launch. No autograd, no dispatch.

Everything that depends on sizes, strides, dtypes and alignment alone is decided once and kept as a `_Plan`; a call that
repeats them pays for a look-up and the launch.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from turbo_core.device import DeviceFacts, device_facts
from turbo_core.errors import UnsupportedError
from turbo_gemm.triton.gemm_kernel import NARROW_BYTES, gemm_kernel
from turbo_gemm.triton.gemm_tiles import Tile, choose_tile, group_rows

__all__ = ["matmul"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_ALIGNMENT = 16  # bytes: base and row stride of a TMA descriptor; Triton's own test for aligned pointers
_MAX_DESCRIPTOR_STRIDE = 2**40  # bytes
_MAX_REGULAR_STRIDE = 2**20  # elements: no block of the table then needs 64-bit offsets
_MAX_PLANS = 4096


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
    facts = device_facts(a.device)
    key = (
        _signature(a), _signature(b), _signature(bias), _signature(out), trans_a, trans_b, out_dtype, accumulate,
        tile, facts.arch, facts.compute_units, facts.xcds
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        plan = _make_plan(a, b, trans_a, trans_b, out_dtype, bias, out, accumulate, tile, facts)
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    if out is None:
        out = torch.empty(plan.shape_c, dtype=plan.dtype_c, device=a.device)
    if plan.programs:
        plan.launch(a, b, out, bias)
    return out


def _signature(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    """What a plan may depend on; the storage's size too, for Triton on AMD compiles another kernel past 2 GiB."""
    if tensor is None:
        return None
    return (
        tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % _ALIGNMENT,
        tensor.untyped_storage().nbytes() >= 2**31
    )  # fmt: skip


@dataclass
class _Plan:
    """One launch, decided: what is left is to fill in the tensors."""

    shape_c: tuple[int, int]
    dtype_c: torch.dtype
    programs: int = 0  # 0: C has no elements
    scalars: tuple[int, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    desc_a: dict[str, Any] | None = None
    desc_b: dict[str, Any] | None = None
    desc_c: dict[str, Any] | None = None
    compiled: Any = None

    def launch(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None) -> None:
        arguments = (
            a if self.desc_a is None else _fill(self.desc_a, a),
            b if self.desc_b is None else _fill(self.desc_b, b),
            c if self.desc_c is None else _fill(self.desc_c, c),
            bias,
            *self.scalars,
        )
        with _on_device(a.device):
            if self.compiled is not None:
                self.compiled[(self.programs, 1, 1)](*arguments, *self.constants.values())
                return
            compiled = gemm_kernel[(self.programs,)](*arguments, **self.constants, **self.options)
        if a.device.type == "cuda":
            # The plan's key holds all that Triton specialises on, so its own search for the kernel can be skipped
            # from here on. Not on a CPU: the interpreter returns none, and a simulator may be switched on and off.
            self.compiled = compiled


_plans: dict[tuple[Any, ...], _Plan] = {}


def _make_plan(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
    tile: Tile | None,
    facts: DeviceFacts,
) -> _Plan:
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 2:
            raise UnsupportedError(f"gemm: {name}.dim()={tensor.dim()}: 2 is accepted by backend TRITON")
    M, K = (a.shape[1], a.shape[0]) if trans_a else (a.shape[0], a.shape[1])
    K_b, N = (b.shape[1], b.shape[0]) if trans_b else (b.shape[0], b.shape[1])
    if out_dtype is None:
        out_dtype = out.dtype if out is not None else torch.promote_types(a.dtype, b.dtype)
    _check(a, b, M, N, K, K_b, out_dtype, bias, out, accumulate)
    if M == 0 or N == 0:
        return _Plan((M, N), out_dtype)

    strides_a = (a.stride(1), a.stride(0)) if trans_a else (a.stride(0), a.stride(1))
    strides_b = (b.stride(1), b.stride(0)) if trans_b else (b.stride(0), b.stride(1))
    strides_c = (out.stride(0), out.stride(1)) if out is not None else (N, 1)
    # float32 operands, and a pair of dtypes converted to it, take the float32 rows
    operand_bytes = 2 if a.dtype == b.dtype and a.element_size() == 2 else 4
    stored_a = stored_b = stored_c = None
    if K > 0 and (facts.arch == "sm_90" if tile is None else tile.loads == "descriptor"):
        stored_a = _stored_layout((M, K), strides_a, a.element_size(), a.data_ptr())
        stored_b = _stored_layout((K, N), strides_b, b.element_size(), b.data_ptr())
    if tile is None:
        loads = "descriptor" if stored_a is not None and stored_b is not None else "pointer"
        regular = _regular(a, b, out, bias, strides_a, strides_b, strides_c)
        tile = choose_tile(M, N, K, facts, operand_bytes, loads=loads, out_bytes=out_dtype.itemsize, regular=regular)

    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    plan = _Plan((M, N), out_dtype)
    desc_ab = tile.loads == "descriptor"
    if desc_ab:
        if stored_a is None or stored_b is None:
            raise UnsupportedError(f"gemm: tile {tile.name} loads through descriptors, which a or b does not fit")
        plan.desc_a = _descriptor((M, K), stored_a, block_m, block_k)
        plan.desc_b = _descriptor((K, N), stored_b, block_k, block_n)
        strides_a = strides_b = (1, 1)  # unused: a constant, so that they cause no further compilations
        # C goes through pointers when the old C is read (no room for a second buffer) or its rows are not unit-stride.
        stored_c = _stored_layout((M, N), strides_c, out_dtype.itemsize, out.data_ptr() if out is not None else 0)
        if not accumulate and stored_c is not None and not stored_c[0]:
            plan.desc_c = _descriptor((M, N), stored_c, block_m, block_n // tile.subtile)
            strides_c = (1, 1)
    wide = (
        _wide(a.element_size(), strides_a, block_m, block_k)
        or _wide(b.element_size(), strides_b, block_k, block_n)
        or _wide(out_dtype.itemsize, strides_c, block_m, block_n)
    )
    plan.programs = min(-(-M // block_m) * -(-N // block_n), facts.compute_units * tile.per_unit)
    plan.scalars = (M, N, K, *strides_a, *strides_b, *strides_c, bias.stride(0) if bias is not None else 1)
    plan.constants = dict(  # in the kernel's own order: a compiled kernel takes them by position
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_rows(tile, facts), XCDS=facts.xcds,
        A_T=stored_a is not None and desc_ab and stored_a[0], B_T=stored_b is not None and desc_ab and stored_b[0],
        DESC_AB=desc_ab, DESC_C=plan.desc_c is not None, UPCAST=a.dtype != b.dtype, ACCUMULATE=accumulate,
        MASK_MN=plan.desc_c is None and (M % block_m != 0 or N % block_n != 0),
        MASK_K=not desc_ab and K % block_k != 0, WIDE=wide, FLATTEN=tile.flatten, SUBTILE=tile.subtile,
    )  # fmt: skip
    plan.options = dict(
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,  # on every target: a fused multiply-add rounds once, and so is never less exact
        **dict(tile.options),
    )
    return plan


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
    for name, dtype in (("a.dtype", a.dtype), ("b.dtype", b.dtype), ("out_dtype", out_dtype)):
        if dtype not in DTYPES:
            raise UnsupportedError(
                f"gemm: {name}={dtype}: float16, bfloat16 and float32 are accepted by backend TRITON"
            )
    if K_b != K:
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
            f"gemm: out is {tuple(out.shape)} {out.dtype} on {out.device}: "
            f"({M}, {N}) {out_dtype} on {a.device} is needed"
        )
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise UnsupportedError(
            f"gemm: out.stride()={out.stride()}: an expanded out has elements that share memory; give one that has not"
        )


def _stored_layout(
    shape: tuple[int, int], strides: tuple[int, int], item: int, address: int
) -> tuple[bool, int] | None:
    """How a descriptor sees the matrix: (transposed, stride of the stored rows), or None when it cannot.

    A descriptor needs one unit-stride dimension, and base and row stride aligned to 16 bytes. The stride of
    a dimension of size 1 is never used, so such a dimension fits whatever its stride.
    """
    if address % _ALIGNMENT:
        return None
    for transposed, (row, col) in ((False, (0, 1)), (True, (1, 0))):
        if strides[col] != 1 and shape[col] != 1:
            continue
        stride = strides[row]
        if shape[row] == 1:
            stride = -(-shape[col] * item // _ALIGNMENT) * _ALIGNMENT // item
        if stride > 0 and stride * item % _ALIGNMENT == 0 and stride * item < _MAX_DESCRIPTOR_STRIDE:
            return transposed, stride
    return None


def _regular(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    bias: torch.Tensor | None,
    strides_a: tuple[int, int],
    strides_b: tuple[int, int],
    strides_c: tuple[int, int],
) -> bool:
    """Whether rows of the table that need "regular" launches may take this one (see Tile.needs)."""
    if any(tensor is not None and tensor.data_ptr() % _ALIGNMENT for tensor in (a, b, out, bias)):
        return False
    for strides in (strides_a, strides_b, strides_c):
        if min(strides) != 1 or max(strides) % _ALIGNMENT or max(strides) > _MAX_REGULAR_STRIDE:
            return False
    if strides_c[1] != 1 or (bias is not None and bias.stride(0) != 1):
        return False
    return strides_a[1] == 1 or strides_b[1] == 1  # not both transposed


def _descriptor(shape: tuple[int, int], stored: tuple[bool, int], rows: int, cols: int) -> dict[str, Any]:
    """A descriptor's fields but the tensor."""
    transposed, stride = stored
    given = ("base", "shape", "strides", "block_shape")
    defaults = {name: f.default for name, f in TensorDescriptor.__dataclass_fields__.items() if name not in given}
    if transposed:
        return dict(shape=[shape[1], shape[0]], strides=[stride, 1], block_shape=[cols, rows], **defaults)
    return dict(shape=[shape[0], shape[1]], strides=[stride, 1], block_shape=[rows, cols], **defaults)


def _fill(fields: dict[str, Any], tensor: torch.Tensor) -> TensorDescriptor:
    """The descriptor for this tensor, without the constructor's checks (4 microseconds): `_stored_layout` made them."""
    descriptor: TensorDescriptor = object.__new__(TensorDescriptor)
    descriptor.__dict__.update(fields, base=tensor)
    return descriptor


def _wide(item: int, strides: tuple[int, int], rows: int, cols: int) -> bool:
    """Whether one block spans so much memory that offsets inside it need 64 bits (the kernel assumes less if not)."""
    limit = NARROW_BYTES.value
    return strides[0] > limit // (rows * item) or strides[1] > limit // (cols * item)


def _on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensors'."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
