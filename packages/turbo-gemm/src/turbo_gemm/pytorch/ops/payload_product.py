# SPDX-License-Identifier: MIT
"""`multiply_payloads`: a product of operands that are quantised already, as payloads and scales."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import BLOCK_SIZE, MX_BLOCK_SIZE, MX_PADDING, ScalingGranularity, is_fp8_dtype
from turbo_gemm.calls import GemmFp8Call, Operand, mx_format
from turbo_gemm.pytorch.ops.gemm_checks import DTYPES
from turbo_gemm.pytorch.ops.gemm_fp8_autograd import multiply
from turbo_quant.developer import fp4_dtype, scale_dtype

__all__ = ["multiply_payloads"]

_OP = "multiply_payloads"
_MX_PAYLOADS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, fp4_dtype())
_SHUFFLED_ROWS, _SHUFFLED_COLUMNS = 256, 8  # preshuffled scales are padded to these


def _what(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}"
    return repr(value)


def _check_payload(name: str, payload: Any, granularity: ScalingGranularity, device: Any) -> None:
    mx = granularity is ScalingGranularity.MX_BLOCKWISE
    matrix = isinstance(payload, torch.Tensor) and payload.dim() == 2 and device in (None, payload.device)
    if not matrix or not (payload.dtype in _MX_PAYLOADS if mx else is_fp8_dtype(payload.dtype)):
        types = ", ".join(dict.fromkeys(map(str, _MX_PAYLOADS))) if mx else "an FP8 type"
        where = "" if device is None else f" on {device}"
        raise UnsupportedError(f"{_OP}: {name} is {_what(payload)}; a matrix{where} of {types} is accepted")


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _operand(
    name: str,
    payload: torch.Tensor,
    scale: Any,
    granularity: ScalingGranularity,
    along: int,
    trans: bool,
    block: int,
    preshuffled: bool,
) -> Operand:
    """Payload and scales as the GEMM reads them; ``along`` is the dimension that is summed over."""
    rows, columns = payload.shape
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    if granularity is ScalingGranularity.TENSORWISE:
        shapes = [[], [1]]
    elif granularity is ScalingGranularity.ROWWISE:
        shapes = [[1 if dim == along else size for dim, size in enumerate(payload.shape)]]
    elif granularity is ScalingGranularity.BLOCKWISE:
        of_rows = [_blocks(size, block) if dim == along else size for dim, size in enumerate(payload.shape)]
        shapes = [of_rows, [_blocks(size, block) for size in payload.shape]]
    else:
        values = columns * (2 if mx_format(payload) == "e2m1" else 1)
        if values % MX_PADDING:
            raise UnsupportedError(f"{_OP}: {name} has {values} values a row; a multiple of {MX_PADDING} is accepted")
        blocks, dtypes = values // MX_BLOCK_SIZE, (scale_dtype(), torch.uint8)
        shapes = [[rows, blocks]]
        if preshuffled:
            shapes = [
                [-(-rows // _SHUFFLED_ROWS) * _SHUFFLED_ROWS, -(-blocks // _SHUFFLED_COLUMNS) * _SHUFFLED_COLUMNS]
            ]
    fits = isinstance(scale, torch.Tensor) and list(scale.shape) in shapes and scale.device == payload.device
    if not fits or scale.dtype not in dtypes:
        accepted = f"{' or '.join(map(str, shapes))} in {' or '.join(map(str, dict.fromkeys(dtypes)))}"
        raise UnsupportedError(f"{_OP}: {name}_scale_inv is {_what(scale)}; {accepted} on {payload.device} is accepted")
    if granularity is ScalingGranularity.TENSORWISE:
        scale = scale.reshape(())
    elif granularity is ScalingGranularity.MX_BLOCKWISE:
        scale = scale.view(scale_dtype())
    tiles = granularity is ScalingGranularity.BLOCKWISE and list(scale.shape) != shapes[0]
    return Operand(payload.detach(), scale.detach(), trans, tiles)


def multiply_payloads(
    a: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b: torch.Tensor,
    b_scale_inv: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    granularity: ScalingGranularity,
    *,
    block_size: int = BLOCK_SIZE,
    preshuffled: bool = False,
) -> torch.Tensor:
    """C = op(a a_scale_inv) op(b b_scale_inv), sums in float32; a constant to autograd.

    Args:
        a: FP8 [M,K], or [K,M] with ``trans_a``. MX: [M,Kp], of e2m1 [M,Kp/2], K padded to 128.
        b: FP8 [K,N], or [N,K] with ``trans_b``. MX: [N,Kp], of e2m1 [N,Kp/2], with ``trans_b``.
        a_scale_inv, b_scale_inv: what values are multiplied by. TENSORWISE: of one element. ROWWISE: the payload's
            shape with 1 in the place of K. BLOCKWISE: with ceil(K/block_size) there, or of tiles with both sizes so
            divided. MX: E8M0 or uint8 [M,Kp/32], [N,Kp/32].
        out_dtype: bfloat16, float16 or float32.
        block_size: BLOCKWISE: the edge of a block.
        preshuffled: MXFP4 whose scales, and the payload of b, are in the order of AITER's kernels.

    Returns:
        C [M,N], contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend that the user named cannot take the call.
    """
    if not isinstance(granularity, ScalingGranularity):
        raise UnsupportedError(f"{_OP}: granularity={granularity!r}; a ScalingGranularity is accepted")
    if out_dtype not in DTYPES:
        accepted = ", ".join(map(str, DTYPES))
        raise UnsupportedError(f"{_OP}: out_dtype={out_dtype}; accepted are {accepted}")
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise UnsupportedError(f"{_OP}: block_size={block_size!r}; a positive number is accepted")
    _check_payload("a", a, granularity, None)
    _check_payload("b", b, granularity, a.device)
    mx = granularity is ScalingGranularity.MX_BLOCKWISE
    if mx and (trans_a or not trans_b):
        raise UnsupportedError(
            f"{_OP}: trans_a={trans_a}, trans_b={trans_b} with MX_BLOCKWISE; False and True are accepted"
        )
    fp4 = mx and mx_format(a) == "e2m1"
    if mx and fp4 is not (mx_format(b) == "e2m1"):
        raise UnsupportedError(f"{_OP}: a is {a.dtype} and b is {b.dtype}; both or none in e2m1 are accepted")
    if preshuffled and not fp4:
        raise UnsupportedError(f"{_OP}: preshuffled=True with a in {a.dtype}; operands in e2m1 are accepted")
    along_a, along_b = 0 if trans_a else 1, 1 if trans_b else 0
    if a.shape[along_a] != b.shape[along_b]:
        raise UnsupportedError(
            f"{_OP}: K is {a.shape[along_a]} by a (shape {list(a.shape)}, trans_a={trans_a}) and {b.shape[along_b]} by "
            f"b (shape {list(b.shape)}, trans_b={trans_b}); they must be equal"
        )
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    x = _operand("a", a, a_scale_inv, granularity, along_a, trans_a, block_size, preshuffled)
    y = _operand("b", b, b_scale_inv, granularity, along_b, trans_b, block_size, preshuffled)
    blocks = {ScalingGranularity.BLOCKWISE: block_size, ScalingGranularity.MX_BLOCKWISE: MX_BLOCK_SIZE}
    call = GemmFp8Call(x, y, None, granularity, blocks.get(granularity, 0), out_dtype, preshuffled=preshuffled)
    return multiply(call, fp4)
