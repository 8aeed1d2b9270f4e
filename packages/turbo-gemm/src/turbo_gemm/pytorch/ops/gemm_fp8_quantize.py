# SPDX-License-Identifier: MIT
"""How the matrices of gemm_fp8 and gemm_fp4 are quantised, and which payloads meet in which product.

With A = op(a) [M,K], B = op(b) [K,N] and G the gradient of C [M,N]:

    C  = A B       contraction K:  a and b with scales along K
    dA = G B^T     contraction N:  G and b with scales along N
    dB = A^T G     contraction M:  a and G with scales along M

So each matrix is wanted with scales along one of its dimensions, or both. Both come from the same reading of the
matrix, never one from the other. Where an input is stored transposed, so is its gradient: the operands swap places.

| | TENSORWISE | ROWWISE | BLOCKWISE | MX | MXFP4 |
|---|---|---|---|---|---|
| a, along K | one scale | rows | 1 x block | 1 x 32 | 1 x 32 |
| a, along M | the same | columns | block x 1 | 1 x 32 | 1 x 32, RHT |
| b, along K or N | one scale | rows, columns | tiles, the same | 32 x 32 | 32 x 32 |
| G, along N | one scale | rows | 1 x block | 1 x 32 | 1 x 32 (SR) |
| G, along M | the same | columns | block x 1 | 1 x 32 | 1 x 32, RHT (SR) |

RHT is the random Hadamard transform; the two sides of dB share its signs, so it cancels in the product. SR is
stochastic rounding, if the config asks for it. "The same" is one scale for both payloads. In memory every payload lies
along the dimension that its product sums over, so that each product is NT and copies nothing: payloads with float
scales are seen in the shape of the matrix, MX payloads have K last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbo_core.low_precision import (
    MX_BLOCK_SIZE,
    Float4QuantConfig,
    Float8QuantConfig,
    Format,
    ScalingGranularity,
    fp8_dtype,
)
from turbo_core.sharding import amax_over
from turbo_gemm.calls import GemmFp8Call, Operand
from turbo_quant import rng_state
from turbo_quant.developer import (
    FloatOutputs,
    MxDirection,
    MxOutputs,
    QuantizeFloatCall,
    QuantizeMxCall,
    run_quantize_float,
    run_quantize_mx,
)

__all__ = [
    "SIGN_MASK",
    "Divided",
    "Quantised",
    "RowGroups",
    "Scheme",
    "dgrad_call",
    "forward_call",
    "mx_direction",
    "quantize",
    "quantize_batch",
    "wgrad_call",
]

SIGN_MASK = 0xA93C
"""The signs of the Hadamard transform (bit i set: element i is negated); eight of sixteen, without a pattern."""


Quantised = tuple[Operand | None, Operand | None]
"""A matrix with scales along its dimension 0, and along its dimension 1; None where that is not wanted."""

Divided = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Scheme(NamedTuple):
    """A config on a device, and how a and b are stored.

    Attributes:
        trans_a, trans_b: a is [K,M] instead of [M,K]; b is [N,K] instead of [K,N].
        granularity: of the scales.
        block_size: edge of a block for BLOCKWISE, 32 for MX, else 0.
        dtype: of a's and b's payloads with float scales.
        gradient_dtype: of the gradient's.
        format: of a's and b's MX payloads: ``e4m3``, ``e5m2`` or ``e2m1``.
        gradient_format: of the gradient's.
        fp4: MXFP4, with its Hadamard transforms.
        gradient_sr: the gradient is rounded stochastically.
        preshuffle: scales and second operands in the order of AITER's kernels.
        sign_mask: the signs of the Hadamard transforms.
        divided: of which matrices, a, b and the gradient, this rank has a shard: names of the process groups over which
            they are divided.
    """

    trans_a: bool
    trans_b: bool
    granularity: ScalingGranularity
    block_size: int
    dtype: torch.dtype
    gradient_dtype: torch.dtype
    format: str
    gradient_format: str
    fp4: bool = False
    gradient_sr: bool = False
    preshuffle: bool = False
    sign_mask: int = SIGN_MASK
    divided: Divided = ((), (), ())

    @classmethod
    def of(
        cls,
        config: Float8QuantConfig | Float4QuantConfig,
        device: torch.device,
        trans_a: bool,
        trans_b: bool,
        divided: Divided = ((), (), ()),
    ) -> Scheme:
        """The scheme of ``config`` for tensors of ``device``."""
        granularity = config.granularity
        if isinstance(config, Float4QuantConfig):
            none = torch.uint8  # float scales do not occur
            return cls(
                trans_a, trans_b, granularity, MX_BLOCK_SIZE, none, none, "e2m1", "e2m1", True, config.use_gradient_sr,
                config.use_preshuffle, divided=divided
            )  # fmt: skip
        sizes = {ScalingGranularity.BLOCKWISE: config.block_size, ScalingGranularity.MX_BLOCKWISE: MX_BLOCK_SIZE}
        dtype, gradient_dtype = (_payload_dtype(config.format, device, is_forward) for is_forward in (True, False))
        format = "e5m2" if config.format is Format.E5M2 else "e4m3"
        gradient_format = "e4m3" if config.format is Format.E4M3 else "e5m2"
        return cls(
            trans_a, trans_b, granularity, sizes.get(granularity) or 0, dtype, gradient_dtype, format, gradient_format,
            divided=divided
        )  # fmt: skip

    def contraction(self, which: str) -> int:
        """The dimension of ``a`` or ``b``, as stored, that C = A B sums over."""
        return (0 if self.trans_a else 1) if which == "a" else (1 if self.trans_b else 0)


@torch.compiler.assume_constant_result  # a compiler need not read how devices are told apart
def _payload_dtype(format: Format, device: torch.device, is_forward: bool) -> torch.dtype:
    # a meta tensor is of no device yet; its payloads are told by the types that most devices have
    return fp8_dtype(format, "cpu" if device.type == "meta" else device, is_forward=is_forward)


# --- quantising -----------------------------------------------------------------------------------------------------


class RowGroups(NamedTuple):
    """Groups of the rows of a [1,R,C], as the calls of `turbo_quant` take them: see `QuantizeFloatCall` there."""

    offs: torch.Tensor
    offs_padded: torch.Tensor
    lens: torch.Tensor | None = None
    row_idx: torch.Tensor | None = None


def quantize(x: torch.Tensor, scheme: Scheme, which: str, wanted: tuple[bool, bool]) -> Quantised:
    """x, which is ``a``, ``b`` or the ``gradient``, with scales along the dimensions that are ``wanted``.

    A batch of matrices comes back as operands that have a first dimension more.
    """
    tiles = scheme.granularity is ScalingGranularity.BLOCKWISE and which == "b"
    batch = x.dim() == 3
    row, row_scale, column, column_scale = quantize_batch(x if batch else x.unsqueeze(0), scheme, which, wanted)
    return (
        _operand(column, column_scale, tiles, batch) if wanted[0] else None,
        _operand(row, row_scale, tiles, batch) if wanted[1] else None,
    )


def _operand(payload: Any, scale: Any, tiles: bool, batch: bool) -> Operand:
    return (
        Operand(payload, scale, False, tiles) if batch else Operand(payload.squeeze(0), scale.squeeze(0), False, tiles)
    )


def quantize_batch(
    x: torch.Tensor, scheme: Scheme, which: str, wanted: tuple[bool, bool], groups: RowGroups | None = None
) -> FloatOutputs | MxOutputs:
    """x [B,R,C], which is ``a``, ``b`` or the ``gradient``, with scales along R and C where that is ``wanted``.

    What comes back is as `turbo_quant.calls` says, with K major; where the two payloads share scales both have them.
    """
    if scheme.granularity is ScalingGranularity.MX_BLOCKWISE:
        return _quantize_mx(x, scheme, which, wanted, groups)
    dtype = scheme.gradient_dtype if which == "gradient" else scheme.dtype
    tiles = scheme.granularity is ScalingGranularity.BLOCKWISE and which == "b"
    over = scheme.divided[("a", "b", "gradient").index(which)]
    tensorwise = scheme.granularity is ScalingGranularity.TENSORWISE
    amax = amax_over(x, over) if over and tensorwise else None
    row, column = wanted[1], wanted[0]
    call = QuantizeFloatCall(
        x, dtype, scheme.granularity, scheme.block_size, row, column, tiles, amax=amax, k_major=True,
        **_of_groups(groups),
    )  # fmt: skip
    outputs = run_quantize_float(call)
    if tiles or tensorwise:
        outputs = outputs._replace(column_scale_inv=outputs.row_scale_inv)
    return outputs


def _of_groups(groups: RowGroups | None) -> dict[str, Any]:
    if groups is None:
        return {}
    offs, offs_padded, lens, row_idx = groups
    return {"group_offs": offs, "group_offs_padded": offs_padded, "group_lens": lens, "row_idx": row_idx}


def _quantize_mx(
    x: torch.Tensor, scheme: Scheme, which: str, wanted: tuple[bool, bool], groups: RowGroups | None
) -> MxOutputs:
    directions = [mx_direction(scheme, which, dim) if wanted[dim] else None for dim in (0, 1)]
    stochastic = any(direction is not None and direction.stochastic for direction in directions)
    call = QuantizeMxCall(
        x,
        scheme.gradient_format if which == "gradient" else scheme.format,
        directions[1],
        directions[0],
        scheme.sign_mask if scheme.fp4 else 0,
        rng_state(x.device) if stochastic else None,
        **_of_groups(groups),
    )
    outputs: MxOutputs = run_quantize_mx(call)
    return outputs


def mx_direction(scheme: Scheme, which: str, dim: int) -> MxDirection:
    """How a, b or the gradient is quantised with scales along dimension ``dim``."""
    forward = which != "gradient" and dim == scheme.contraction(which)
    wgrad = (which == "a" and not forward) or (which == "gradient" and dim == 0)
    if forward:
        second = which == "b"
    elif wgrad:  # dB = A^T G, or its transpose G^T A
        second = (which == "a") is scheme.trans_b
    else:  # dA = G B^T, or its transpose B G^T
        second = (which == "gradient") is scheme.trans_a
    return MxDirection(
        tile=which == "b",
        rht=scheme.fp4 and wgrad,
        stochastic=scheme.gradient_sr and which == "gradient",
        shuffle_scale=scheme.preshuffle,
        shuffle_out=scheme.preshuffle and second,
    )


# --- the three products ---------------------------------------------------------------------------------------------


def _call(
    x: Operand | None, y: Operand | None, trans_x: bool, trans_y: bool, scheme: Scheme, out_dtype: torch.dtype,
    role: str, bias: torch.Tensor | None = None, out: torch.Tensor | None = None,
) -> GemmFp8Call:  # fmt: skip
    if x is None or y is None:
        raise RuntimeError("a product was asked for whose operands were not quantised")
    if scheme.granularity is ScalingGranularity.MX_BLOCKWISE:
        trans_x, trans_y = False, True
    x, y = Operand(x.data, x.scale_inv, trans_x, x.tiles), Operand(y.data, y.scale_inv, trans_y, y.tiles)
    return GemmFp8Call(x, y, bias, scheme.granularity, scheme.block_size, out_dtype, out, scheme.preshuffle, role)


def forward_call(
    a: Quantised, b: Quantised, scheme: Scheme, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> GemmFp8Call:
    """C = A B (+ bias)."""
    along_k = a[scheme.contraction("a")], b[scheme.contraction("b")]
    return _call(*along_k, scheme.trans_a, scheme.trans_b, scheme, out_dtype, "forward", bias)


def dgrad_call(gradient: Quantised, b: Quantised, scheme: Scheme, out_dtype: torch.dtype) -> GemmFp8Call:
    """dA = G B^T [M,K], or its transpose B G^T [K,M] when A is stored transposed."""
    g_MN, along_n = gradient[1], b[1 - scheme.contraction("b")]
    if scheme.trans_a:
        return _call(along_n, g_MN, scheme.trans_b, True, scheme, out_dtype, "dgrad")
    return _call(g_MN, along_n, False, not scheme.trans_b, scheme, out_dtype, "dgrad")


def wgrad_call(
    gradient: Quantised, a: Quantised, scheme: Scheme, out_dtype: torch.dtype, out: torch.Tensor | None = None
) -> GemmFp8Call:
    """dB = A^T G [K,N], or its transpose G^T A [N,K] when B is stored transposed; added to ``out`` where given."""
    g_MN, along_m = gradient[0], a[1 - scheme.contraction("a")]
    if scheme.trans_b:
        return _call(g_MN, along_m, True, scheme.trans_a, scheme, out_dtype, "wgrad", None, out)
    return _call(along_m, g_MN, not scheme.trans_a, False, scheme, out_dtype, "wgrad", None, out)
