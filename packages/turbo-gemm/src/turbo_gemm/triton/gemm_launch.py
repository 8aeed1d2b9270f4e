# SPDX-License-Identifier: MIT
"""What the launchers of all GEMMs share: checks of C, descriptors or pointers, and a launch that is decided once.

Everything that depends on sizes, strides, dtypes and alignment alone is kept as a `Plan`; a call that repeats them
pays for a look-up and the launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from turbo_core.errors import UnsupportedError
from turbo_core.launch import ALWAYS, Launch, on_device, without_buffers
from turbo_core.prepared import ALIGNMENT, filled_descriptor
from turbo_gemm.triton.gemm_kernel import NARROW_BYTES

__all__ = [
    "MAX_REGULAR_STRIDE",
    "OUT_DTYPES",
    "Plan",
    "check_c",
    "descriptor",
    "is_regular",
    "is_wide",
    "stored_layout",
]

OUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_REGULAR_STRIDE = 2**20  # elements: no block of a table then needs 64-bit offsets
_MAX_DESCRIPTOR_STRIDE = 2**40  # bytes


@dataclass
class Plan:
    """One launch, decided: what is left is to fill in the tensors.

    Attributes:
        kernel: the ``@triton.jit`` function; its arguments are tensors, then scalars, then constants.
        programs: size of the grid; 0 when C has no elements.
        descriptors: one for each of the first tensors; None where the tensor is passed as it is.
        scalars: in the kernel's order.
        constants: in the kernel's order, for a compiled kernel takes them by position.
        options: launch options.
        unbuffered: as of `turbo_core.launch.Launch`; all of the GEMMs' tensors, for with buffer instructions
            their largest tiles spilled up to 92 of 256 registers (triton 3.9).
    """

    kernel: Any
    programs: int = 0
    descriptors: tuple[dict[str, Any] | None, ...] = ()
    scalars: tuple[int, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    unbuffered: tuple[str, ...] = ()
    compiled: Any = None

    def launch(self, *tensors: torch.Tensor | None) -> None:
        """Start it on the current stream of the tensors' device."""
        device = tensors[0].device  # type: ignore[union-attr]
        count = len(self.descriptors)
        first = [
            tensor if fields is None else filled_descriptor(TensorDescriptor, fields, tensor)
            for fields, tensor in zip(self.descriptors, tensors[:count], strict=True)
        ]
        with on_device(device):
            if self.compiled is not None:
                self.compiled[(self.programs, 1, 1)](*first, *tensors[count:], *self.scalars, *self.constants.values())
                return
            given = dict(zip(self.kernel.arg_names, (*first, *tensors[count:], *self.scalars), strict=False))
            given = without_buffers(given, self.unbuffered, device)
            compiled = self.kernel[(self.programs,)](**given, **self.constants, **self.options, **ALWAYS)
        if device.type == "cuda":
            # The plan's key holds all that Triton specialises on, so its own search for the kernel can be skipped
            # from here on. Not on a CPU: the interpreter returns none, and a simulator may be switched on and off.
            self.compiled = compiled

    def as_launch(self, *tensors: torch.Tensor | None) -> Launch:
        """The same as a value, for the audit; tensors may be on the meta device, and go through pointers."""
        arguments = dict(zip(self.kernel.arg_names, (*tensors, *self.scalars), strict=False))
        return Launch(self.kernel, (self.programs,), arguments, self.constants, self.options, self.unbuffered)


def check_c(
    op: str,
    M: int,
    N: int,
    out_dtype: torch.dtype,
    device: torch.device,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
    accumulate: bool,
) -> None:
    """Refuse an out_dtype, a bias or an out that does not fit C[M, N]."""
    if out_dtype not in OUT_DTYPES:
        raise UnsupportedError(
            f"{op}: out_dtype={out_dtype}: float16, bfloat16 and float32 are accepted by backend TRITON"
        )
    if bias is not None and (bias.shape != (N,) or bias.dtype not in OUT_DTYPES or bias.device != device):
        raise UnsupportedError(
            f"{op}: bias is {tuple(bias.shape)} {bias.dtype} on {bias.device}: shape ({N},), one of float16, bfloat16, "
            f"float32, on {device} is accepted"
        )
    if out is None:
        if accumulate:
            raise UnsupportedError(f"{op}: accumulate=True with out=None: give the tensor to add to")
        return
    if out.shape != (M, N) or out.dtype != out_dtype or out.device != device:
        raise UnsupportedError(
            f"{op}: out is {tuple(out.shape)} {out.dtype} on {out.device}: ({M}, {N}) {out_dtype} on {device} is needed"
        )
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise UnsupportedError(
            f"{op}: out.stride()={out.stride()}: an expanded out has elements that share memory; give one that has not"
        )


def stored_layout(shape: tuple[int, int], strides: tuple[int, int], item: int, address: int) -> tuple[bool, int] | None:
    """How a descriptor sees the matrix: (transposed, stride of the stored rows), or None when it cannot.

    A descriptor needs one unit-stride dimension, and base and row stride aligned to 16 bytes. The stride of
    a dimension of size 1 is never used, so such a dimension fits whatever its stride.
    """
    if address % ALIGNMENT:
        return None
    for transposed, (row, col) in ((False, (0, 1)), (True, (1, 0))):
        if strides[col] != 1 and shape[col] != 1:
            continue
        stride = strides[row]
        if shape[row] == 1:
            stride = -(-shape[col] * item // ALIGNMENT) * ALIGNMENT // item
        if stride > 0 and stride * item % ALIGNMENT == 0 and stride * item < _MAX_DESCRIPTOR_STRIDE:
            return transposed, stride
    return None


def descriptor(shape: tuple[int, int], stored: tuple[bool, int], rows: int, cols: int) -> dict[str, Any]:
    """A descriptor's fields but the tensor."""
    transposed, stride = stored
    given = ("base", "shape", "strides", "block_shape")
    defaults = {name: f.default for name, f in TensorDescriptor.__dataclass_fields__.items() if name not in given}
    if transposed:
        return dict(shape=[shape[1], shape[0]], strides=[stride, 1], block_shape=[cols, rows], **defaults)
    return dict(shape=[shape[0], shape[1]], strides=[stride, 1], block_shape=[rows, cols], **defaults)


def is_regular(out: torch.Tensor | None, bias: torch.Tensor | None, strides_c: tuple[int, int]) -> bool:
    """Whether C and bias are as rows of a table that are not for "any" launch need them: aligned, unit stride."""
    if any(tensor is not None and tensor.data_ptr() % ALIGNMENT for tensor in (out, bias)):
        return False
    aligned = strides_c[1] == 1 and strides_c[0] % ALIGNMENT == 0 and strides_c[0] <= MAX_REGULAR_STRIDE
    return aligned and (bias is None or bias.stride(0) == 1)


def is_wide(item: int, strides: tuple[int, int], rows: int, cols: int) -> bool:
    """Whether one block spans so much memory that offsets inside it need 64 bits (the kernel assumes less if not)."""
    limit = NARROW_BYTES.value
    return strides[0] > limit // (rows * item) or strides[1] > limit // (cols * item)
