# SPDX-License-Identifier: MIT
"""Quantisation as ``torch.ops.primus_turbo_cpp_extension``, for code that calls raw ops.

    quantize_fp8_tensorwise(input, dest_dtype, scale_opt=None) -> (q, scale_inv)
    quantize_mxfp4_dual(input, dest_dtype, padding, six flags of both copies, four of shuffles) -> both copies

They are made of `turbo_quant`'s ops, so fake tensors and compilers see through them; constants to autograd, as those
are.
"""

from __future__ import annotations

import functools

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import MX_PADDING, ScalingGranularity, ScalingRecipe, fp8_max, is_fp8_dtype
from turbo_quant import quantize_fp4_with_trans, quantize_fp8

__all__ = ["register"]

_NAMESPACE = "primus_turbo_cpp_extension"
_Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _tensorwise(
    x: torch.Tensor,
    dest_dtype: torch.dtype,
    scale_opt: torch.Tensor | None = None,
    padding_align_k: int = 1,
    padding_align_n: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(clamp(x * scale), 1 / scale) with scale ``scale_opt`` (float32, one element), else fp8_max / amax."""
    op = "quantize_fp8_tensorwise"
    if (padding_align_k, padding_align_n) != (1, 1):
        given = f"{padding_align_k} and {padding_align_n}"
        raise UnsupportedError(f"{op}: the payload is to be padded to {given}; 1 and 1 are accepted")
    if scale_opt is None:
        return quantize_fp8(x, dest_dtype, ScalingGranularity.TENSORWISE)
    if not is_fp8_dtype(dest_dtype):
        raise UnsupportedError(f"{op}: dest_dtype={dest_dtype}; an FP8 type is accepted")
    if scale_opt.numel() != 1 or scale_opt.dtype != torch.float32:
        what = f"of shape {list(scale_opt.shape)}, {scale_opt.dtype}"
        raise UnsupportedError(f"{op}: scale_opt is {what}; one float32 element is accepted")
    largest, scale = fp8_max(dest_dtype), scale_opt.detach().reshape(())
    return (x.detach().float() * scale).clamp(-largest, largest).to(dest_dtype), scale.reciprocal()


def _mxfp4_dual(
    x: torch.Tensor,
    dest_dtype: torch.dtype,
    padding_align_size: int,
    rowwise_use_2d_block: bool,
    rowwise_use_sr: bool,
    rowwise_use_rht: bool,
    colwise_use_2d_block: bool,
    colwise_use_sr: bool,
    colwise_use_rht: bool,
    shuffle_rowwise_scale: bool = False,
    shuffle_rowwise: bool = False,
    shuffle_colwise_scale: bool = False,
    shuffle_colwise: bool = False,
) -> _Four:
    """`turbo_quant.quantize_fp4_with_trans` with the recipes of both copies as flags; the rotation has no signs."""
    if padding_align_size != MX_PADDING:
        raise UnsupportedError(
            f"quantize_mxfp4_dual: padding_align_size={padding_align_size}; {MX_PADDING} is accepted"
        )
    row = (rowwise_use_2d_block, rowwise_use_sr, rowwise_use_rht, shuffle_rowwise_scale, shuffle_rowwise)
    column = (colwise_use_2d_block, colwise_use_sr, colwise_use_rht, shuffle_colwise_scale, shuffle_colwise)
    return quantize_fp4_with_trans(
        x,
        dest_dtype,
        ScalingGranularity.MX_BLOCKWISE,
        scaling_recipe=ScalingRecipe(*row),
        scaling_recipe_for_trans=ScalingRecipe(*column),
    )


_OPS = {
    "quantize_fp8_tensorwise(Tensor input, ScalarType dest_dtype, Tensor? scale_opt=None, int padding_align_k=1, "
    "int padding_align_n=1) -> (Tensor, Tensor)": _tensorwise,
    "quantize_mxfp4_dual(Tensor input, ScalarType dest_dtype, int padding_align_size, bool rowwise_use_2d_block, "
    "bool rowwise_use_sr, bool rowwise_use_rht, bool colwise_use_2d_block, bool colwise_use_sr, bool colwise_use_rht, "
    "bool shuffle_rowwise_scale=False, bool shuffle_rowwise=False, bool shuffle_colwise_scale=False, "
    "bool shuffle_colwise=False) -> (Tensor, Tensor, Tensor, Tensor)": _mxfp4_dual,
}


@functools.cache  # the library holds the registrations
def register() -> torch.library.Library:
    """Make the ops known to torch, once."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    for schema, function in _OPS.items():
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
    return library
