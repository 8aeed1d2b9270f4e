# SPDX-License-Identifier: MIT
"""What one quantisation or dequantisation asks of a backend, and what it gives back.

The ops turn any input into these; TORCH, TRITON and TURBO answer them with the same bits. Shape suffixes: B batch,
R rows, C columns of the source; Cp, Rp are C, R rounded up to 128, filled with zeros.

Float scales (TENSORWISE, ROWWISE, BLOCKWISE), all arithmetic in float32, each step rounded once:

    amax      = max |x| over the block
    scale     = fp8_max / max(amax, floor)        floor = fp8_max * 2^-125, whose scale and scale_inv are normal numbers
    scale_inv = 1 / scale
    q         = round_to_fp8(clamp(x * scale, -fp8_max, fp8_max))         to nearest even

MX (blocks of 32 along the contraction, E8M0 scales), after OCP Microscaling Formats v1.0:

    bits      = float32 bits of amax + (1 << (22 - m))       m mantissa bits: 3 e4m3, 2 e5m2, 1 e2m1 (half an ulp)
    byte      = clamp((bits >> 23) - E_max, 0, 254)          E_max 8 e4m3, 15 e5m2, 2 e2m1
    q         = round_to_format(x * 2^(127 - byte))          to nearest even, saturating at the largest value

A block that holds NaN or an infinity has a NaN scale (scale_inv NaN, byte 255) and a payload of zeros, so all of it,
and nothing else, is NaN once dequantised. A block of zeros has payload zero and a finite, positive scale (byte 0).
With a rotation, what counts is the block as rotated. Where a value rounds to zero its sign stays (the FNUZ types have
no negative zero); -0 that the rotation makes of padding inside a group or a row stays too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbo_core.calls import Spec
from turbo_core.low_precision import MX_BLOCK_SIZE, MX_PADDING, ScalingGranularity

if TYPE_CHECKING:
    import torch

__all__ = [
    "SHUFFLED_SCALE_COLUMNS",
    "SHUFFLED_SCALE_ROWS",
    "DequantizeFloatCall",
    "DequantizeMxCall",
    "FloatOutputs",
    "MxDirection",
    "MxOutputs",
    "PadGroupsCall",
    "PaddedGroups",
    "QuantizeFloatCall",
    "QuantizeMxCall",
    "ShuffleScaleCall",
    "ShuffleWeightCall",
    "UnshuffleScaleCall",
    "ceil_div",
    "padded_rows",
    "round_up",
    "specs",
]

SHUFFLED_SCALE_ROWS, SHUFFLED_SCALE_COLUMNS = 256, 8  # padding of scales in the preshuffled order


def ceil_div(n: int, d: int) -> int:
    """n / d, rounded up."""
    return (n + d - 1) // d


def round_up(n: int, multiple: int) -> int:
    """The next multiple."""
    return ceil_div(n, multiple) * multiple


def padded_rows(rows: int, groups: int) -> int:
    """The most rows that ``rows`` of ``groups`` come to, each group's rounded up to 128; a multiple of 128."""
    return round_up(rows + groups * (MX_PADDING - 1), MX_PADDING)


class PaddedGroups(NamedTuple):
    """Where groups begin; int64 on the device, ascending.

    Attributes:
        offs: [G+1], in the rows.
        offs_padded: [G+1], where each group's rows are rounded up to a multiple; the last is where all end.
    """

    offs: torch.Tensor
    offs_padded: torch.Tensor


class PadGroupsCall(NamedTuple):
    """Where groups of rows begin, and where with each group's rows rounded up: `PaddedGroups`.

    Attributes:
        lens: [G], int64 or int32.
        offs: [G+1], likewise, ascending; None: the groups lie one after the other from row 0.
        rows: what the groups say beyond them is cut off; a group ends where the next begins at the latest.
        multiple: to which the rows of each group are rounded up.
    """

    lens: torch.Tensor
    offs: torch.Tensor | None
    rows: int
    multiple: int


# --- float scales -----------------------------------------------------------------------------------------------------


class QuantizeFloatCall(NamedTuple):
    """Quantise ``x`` with float32 scales; payloads have the shape of x and are contiguous, but see ``k_major``.

    Attributes:
        x: [B,R,C], any strides; bf16, fp16 or fp32.
        out_dtype: one of torch's four FP8 types.
        granularity: TENSORWISE (scale 0-dim; only ``row`` unless k_major), ROWWISE or BLOCKWISE.
        block_size: edge of a block for BLOCKWISE, else 0. Blocks at the end may be shorter.
        row: wanted: one scale per row (ROWWISE [B,R,1]) or per 1 x block piece of a row ([B,R,ceil(C/block)]).
        column: wanted: one scale per column (ROWWISE [B,1,C]) or per block x 1 piece ([B,ceil(R/block),C]).
        tile: BLOCKWISE with block x block tiles ([B,ceil(R/block),ceil(C/block)]); only ``row`` unless k_major.
        group_offs: int64 [G+1] on x's device or None. B is 1; rows belong to groups. Without k_major BLOCKWISE, and the
            column copy is then padded: group g begins at row offs_padded[g], each group's rows rounded up to
            block_size, its payload is [1, R + G*block_size, C] (rows past the last group are zeros, as are the scales
            there), its scales [1, ceil((R + G*block_size)/block_size), C]. With k_major: see below.
        group_offs_padded: int64 [G+1], given with group_offs: computed by the op on the device, see `PaddedGroups`.
        amax: float32, 0-dim, on x's device: the amax of a whole of which x is a piece, at least x's own. TENSORWISE.
        k_major: payloads and scales in memory as a matrix product reads them that contracts over what shares a scale.
            The column payload is stored transposed (a [B,C,R] array seen as [B,R,C]), also TENSORWISE and of tiles,
            where row and column are two orders of the same codes, with one scale, ``row_scale_inv``, whether ``row``
            is wanted or not. BLOCKWISE ``row_scale_inv`` that is not of tiles is a [B,ceil(C/block),R] array seen as
            [B,R,ceil(C/block)]. Without groups.
    """

    x: torch.Tensor
    out_dtype: torch.dtype
    granularity: ScalingGranularity
    block_size: int
    row: bool
    column: bool
    tile: bool = False
    group_offs: torch.Tensor | None = None
    group_offs_padded: torch.Tensor | None = None
    amax: torch.Tensor | None = None
    k_major: bool = False
    group_lens: torch.Tensor | None = None
    row_idx: torch.Tensor | None = None

    def has_one_scale(self) -> bool:
        """Whether row and column payload share their scales: of a tensor, of tiles."""
        return self.tile or self.granularity is ScalingGranularity.TENSORWISE

    def column_rows(self) -> int:
        """Rows of the column payload, the padding of groups included."""
        if self.group_offs is not None and not self.k_major:
            return self.x.shape[1] + (self.group_offs.shape[0] - 1) * self.block_size
        return _column_rows(self)


def _column_rows(call: QuantizeFloatCall | QuantizeMxCall) -> int:
    if call.group_offs is None:
        return call.x.shape[1]
    rows = call.x.shape[1] if call.row_idx is None else call.row_idx.shape[0]
    return padded_rows(rows, call.group_offs.shape[0] - 1)


class FloatOutputs(NamedTuple):
    """Payloads and float32 scale_inv of the directions wanted, None for the other.

    row [B,R,C], row_scale_inv, column [B,R,C] ([B,rows of padded groups,C]), column_scale_inv: see `QuantizeFloatCall`.
    """

    row: torch.Tensor | None
    row_scale_inv: torch.Tensor | None
    column: torch.Tensor | None
    column_scale_inv: torch.Tensor | None


def _float_specs(call: QuantizeFloatCall) -> FloatOutputs:
    import torch

    B, R, C = call.x.shape
    block, rows, wide, stride = call.block_size, call.column_rows(), torch.float32, None
    row_scale: tuple[int, ...] = (B, R, 1)
    column_scale = B, 1, C
    if call.granularity is ScalingGranularity.TENSORWISE:
        row_scale = ()
    elif call.tile:
        row_scale = B, ceil_div(R, block), ceil_div(C, block)
    elif block:
        row_scale, column_scale = (B, R, ceil_div(C, block)), (B, ceil_div(rows, block), C)
        stride = (R * row_scale[2], 1, R) if call.k_major else None
    elif call.group_offs is not None:
        column_scale = B, call.group_offs.shape[0] - 1, C
    one = call.has_one_scale()
    return FloatOutputs(  # type: ignore[arg-type]
        Spec((B, R, C), call.out_dtype) if call.row else None,
        Spec(row_scale, wide, stride) if call.row or one else None,
        Spec((B, rows, C), call.out_dtype, (rows * C, 1, rows) if call.k_major else None) if call.column else None,
        Spec(column_scale, wide) if call.column and not one else None,
    )


class DequantizeFloatCall(NamedTuple):
    """x = q * scale_inv in float32, rounded once to ``out_dtype``; the result is contiguous.

    Attributes:
        q: [B,R,C], any strides, one of the four FP8 types.
        scale_inv: float32, of the shape that `QuantizeFloatCall` gives for one of row, column and tile.
        block_size: 0 for TENSORWISE and ROWWISE.
        out_dtype: bf16, fp16 or fp32.
    """

    q: torch.Tensor
    scale_inv: torch.Tensor
    granularity: ScalingGranularity
    block_size: int
    axis: int  # 2: row scales, 1: column scales, 0: tiles
    out_dtype: torch.dtype


# --- MX ---------------------------------------------------------------------------------------------------------------


class MxDirection(NamedTuple):
    """How one copy is made.

    Attributes:
        tile: one exponent per 32 x 32 tile (repeated for each of its 32 rows in the scale array), else per 1 x 32.
        rht: before quantising, each 16 consecutive elements along the contraction are multiplied by their sign in
            ``sign_mask`` (bit i set: element i is negated) and by the 16-point Hadamard matrix (Sylvester order) / 4.
            Butterflies of stride 1, 2, 4, 8 in float32, (a, b) -> (a + b, a - b), then * 0.25. Not with ``tile``.
        stochastic: stochastic rounding of the payload from ``rng`` (below), else to nearest even.
        shuffle_scale: scales in the order that AITER's preshuffled kernels read (see turbo_quant shuffle_scale).
        shuffle_out: payload likewise (see shuffle_weight).
    """

    tile: bool = False
    rht: bool = False
    stochastic: bool = False
    shuffle_scale: bool = False
    shuffle_out: bool = False


class QuantizeMxCall(NamedTuple):
    """Quantise ``x`` to MXFP8 or MXFP4 along its rows, its columns, or both in one pass over x.

    The row copy is [B,R,Cp] with scales [B,R,Cp/32]; the column copy is transposed, [B,C,Rp] with [B,C,Rp/32]. e2m1
    payloads hold two values a byte, the first in the low nibble, so their last dimension is half.

    Stochastic rounding of v = x * 2^(127 - byte): with ulp the spacing of the format at |v| (that of the subnormals
    below the smallest normal) and t = |v| / ulp, the magnitude is ulp * (floor(t) + (u < t - floor(t))), saturating.
    u = (word >> 8) * 2^-24, word number i % 4 of Philox4x32-10 with key = (low, high half of seed) and counter =
    (low, high half of i // 4, low half of offset, high half of offset xor (1 << 31 for the column copy)), i the index
    of the element in its copy as an array [B,R,Cp] or [B,C,Rp] without shuffles (64 bits).

    Attributes:
        x: [B,R,C], any strides; bf16, fp16 or fp32.
        format: ``e4m3``, ``e5m2`` (OCP on every device: MX is a storage format) or ``e2m1``.
        row, column: how each copy is made; None where it is not wanted.
        sign_mask: 16 bits, for ``rht``.
        rng: int64 [2] on x's device: seed and offset; None without stochastic rounding.
        group_offs: int64 [G+1] on x's device or None; B is 1. Groups alone do not change row copies. In the column copy
            group g's columns begin at group_offs_padded[g], each group rounded up to 128: [1, C, ceil128(R + G*127)];
            past the last group payload bytes and scale bytes are 0 (also where a rotation would give -0). Blocks and
            16-element Hadamard pieces begin at each group's start.
        group_offs_padded: int64 [G+1], given with group_offs: computed by the op on the device, see `PaddedGroups`.
        group_lens, row_idx: as in `QuantizeFloatCall`. With group_lens and without row_idx, a row of x that belongs to
            no group counts as one of zeros in the row copy.
    """

    x: torch.Tensor
    format: str
    row: MxDirection | None
    column: MxDirection | None
    sign_mask: int = 0
    rng: torch.Tensor | None = None
    group_offs: torch.Tensor | None = None
    group_offs_padded: torch.Tensor | None = None
    group_lens: torch.Tensor | None = None
    row_idx: torch.Tensor | None = None

    def column_rows(self) -> int:
        """Elements of a line of the column copy, the padding of groups included; that of the last 128 is not."""
        return _column_rows(self)


class MxOutputs(NamedTuple):
    """Payloads (float8_e4m3fn, float8_e5m2, float4_e2m1fn_x2) and scales (float8_e8m0fnu), None where not wanted.

    A torch without the FP4 or the E8M0 type gets uint8 tensors of the same bits.
    """

    row: torch.Tensor | None
    row_scale: torch.Tensor | None
    column: torch.Tensor | None
    column_scale: torch.Tensor | None


def _mx_specs(call: QuantizeMxCall) -> MxOutputs:
    B, R, C = call.x.shape
    row = _mx_pair(call.row, call.format, B, R, C)
    column = _mx_pair(call.column, call.format, B, C, call.column_rows())
    return MxOutputs(*row, *column)  # type: ignore[arg-type]


def _mx_pair(direction: MxDirection | None, format: str, B: int, L: int, K: int) -> tuple[Spec | None, Spec | None]:
    from turbo_quant.formats import MX_FORMATS, payload_dtype, scale_dtype

    if direction is None:
        return None, None
    Kp = round_up(K, MX_PADDING)
    rows, columns = L, Kp // MX_BLOCK_SIZE
    if direction.shuffle_scale:
        rows, columns = round_up(rows, SHUFFLED_SCALE_ROWS), round_up(columns, SHUFFLED_SCALE_COLUMNS)
    payload = Spec((B, L, Kp // MX_FORMATS[format].per_byte), payload_dtype(format))
    return payload, Spec((B, rows, columns), scale_dtype())


class DequantizeMxCall(NamedTuple):
    """x = q * 2^(byte - 127), rounded once to ``out_dtype``; the result is contiguous.

    With ``rht`` the rotation is undone (Hadamard, then the signs). No shuffles: the op undoes those first.

    Attributes:
        q: [B,L,Kp] (or Kp/2 bytes of e2m1), any strides: blocks of 32 lie along the last dimension.
        scale: [B,L,Kp/32], bytes.
        format: ``e4m3``, ``e5m2`` or ``e2m1``.
        size: how many of the Kp values of a row are wanted, the rest is padding.
        transpose: the result is [B,size,L] (the source of a column copy) instead of [B,L,size].
    """

    q: torch.Tensor
    scale: torch.Tensor
    format: str
    size: int
    transpose: bool
    rht: bool
    sign_mask: int
    out_dtype: torch.dtype


# --- orders of bytes --------------------------------------------------------------------------------------------------


class ShuffleScaleCall(NamedTuple):
    """Scales [..,rows,columns] of one byte in the preshuffled order: [..,rows up to 256,columns up to 8]."""

    scale: torch.Tensor


class UnshuffleScaleCall(NamedTuple):
    """The inverse, cut to [..,rows,columns]."""

    scale: torch.Tensor
    rows: int
    columns: int


class ShuffleWeightCall(NamedTuple):
    """A payload [..,rows,bytes] in the preshuffled order, or back from it; the shape stays."""

    payload: torch.Tensor


def _int64() -> torch.dtype:
    import torch

    return torch.int64


# --- what comes back --------------------------------------------------------------------------------------------------

Call = (
    QuantizeFloatCall
    | QuantizeMxCall
    | DequantizeFloatCall
    | DequantizeMxCall
    | ShuffleScaleCall
    | UnshuffleScaleCall
    | ShuffleWeightCall
    | PadGroupsCall
)


def specs(call: Call) -> FloatOutputs | MxOutputs | PaddedGroups | Spec:
    """What answers ``call``: a `turbo_core.calls.Spec` in place of each tensor."""
    if isinstance(call, QuantizeFloatCall):
        return _float_specs(call)
    if isinstance(call, QuantizeMxCall):
        return _mx_specs(call)
    if isinstance(call, PadGroupsCall):
        begins = Spec((call.lens.shape[0] + 1,), _int64())
        return PaddedGroups(begins, begins)  # type: ignore[arg-type]
    if isinstance(call, DequantizeFloatCall):
        return Spec(tuple(call.q.shape), call.out_dtype)
    if isinstance(call, DequantizeMxCall):
        B, L, _ = call.q.shape
        return Spec((B, call.size, L) if call.transpose else (B, L, call.size), call.out_dtype)
    if isinstance(call, ShuffleWeightCall):
        return Spec(tuple(call.payload.shape), call.payload.dtype)
    *leading, rows, columns = call.scale.shape
    if isinstance(call, UnshuffleScaleCall):
        return Spec((*leading, call.rows, call.columns), call.scale.dtype)
    rows, columns = round_up(rows, SHUFFLED_SCALE_ROWS), round_up(columns, SHUFFLED_SCALE_COLUMNS)
    return Spec((*leading, rows, columns), call.scale.dtype)
