# SPDX-License-Identifier: MIT
"""Grouped products of quantised operands as registered ops, and differentiable in the tensors as they were before."""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbo_core.library import OpLibrary
from turbo_gemm.developer import Gradients, Product, Rules, Scheme, differentiable_product
from turbo_grouped_gemm.calls import (
    GroupedGemmFp8Call,
    GroupedOperand,
    GroupedWgradFp8Call,
    Groups,
    gemm_specs,
    wgrad_specs,
)
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import GroupedGemmFp4Dispatcher, GroupedGemmFp8Dispatcher
from turbo_grouped_gemm.pytorch.ops.grouped_gemm_fp8_quantize import (
    How,
    Layout,
    dgrad_call,
    forward_call,
    quantize_rows,
    wgrad_call,
)
from turbo_grouped_gemm.pytorch.ops.grouped_gradients import sum_of_slots
from turbo_grouped_gemm.pytorch.ops.grouped_library import bias_gradient

__all__ = ["Settings", "multiply", "multiply_rows", "quantised_grouped_product"]

# The registered ops have no gradient of their own: it is taken with respect to the tensors before quantisation.
_library = OpLibrary("turbo_grouped_gemm")
_run8, _run4 = GroupedGemmFp8Dispatcher.run, GroupedGemmFp4Dispatcher.run
_fp8 = _library.op("grouped_gemm_fp8", GroupedGemmFp8Call, _run8, gemm_specs)
_fp4 = _library.op("grouped_gemm_fp4", GroupedGemmFp8Call, _run4, gemm_specs)
_wgrad8 = _library.op("grouped_wgrad_fp8", GroupedWgradFp8Call, _run8, wgrad_specs, omits=("out",))
_wgrad4 = _library.op("grouped_wgrad_fp4", GroupedWgradFp8Call, _run4, wgrad_specs, omits=("out",))
_into8 = _library.op("grouped_wgrad_fp8_accumulate", GroupedWgradFp8Call, _run8, None, writes="out")
_into4 = _library.op("grouped_wgrad_fp4_accumulate", GroupedWgradFp8Call, _run4, None, writes="out")


def multiply_rows(call: GroupedGemmFp8Call, fp4: bool) -> torch.Tensor:
    """C of the call, through the registered op."""
    c: torch.Tensor = (_fp4 if fp4 else _fp8)(call)
    return c


def multiply(call: GroupedWgradFp8Call, fp4: bool) -> torch.Tensor | None:
    """Likewise; None where it is added to ``out``."""
    if call.out is not None:
        (_into4 if fp4 else _into8)(call)
        return None
    c: torch.Tensor = (_wgrad4 if fp4 else _wgrad8)(call)
    return c


class Settings(NamedTuple):
    """What the gradients of a call read besides tensors. No sizes: a compiler knows those of a batch by tensors."""

    scheme: Scheme
    how: How


def quantised_grouped_product(
    op: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    quantised_a: tuple[GroupedOperand | None, GroupedOperand | None],
    quantised_b: tuple[GroupedOperand | None, GroupedOperand | None],
    layout: Layout,
    settings: Settings,
    out_dtype: torch.dtype,
    out_rows: int,
    weight: torch.Tensor | None,
) -> torch.Tensor:
    """C of the quantised operands; a and b are not read, they are what gradients belong to.

    Args:
        quantised_a: with scales along the rows of groups, and along K.
        quantised_b: with scales along N, and along K.
        weight: of which b is a view, where the gradient of b is to be added to ``weight.main_grad``.
    """
    forward = forward_call(quantised_a[1], quantised_b[1], settings.scheme, layout, out_dtype, out_rows, settings.how)
    operands = (quantised_a[0], quantised_b[0])
    kept = tuple(tensor for x in operands for tensor in ((None, None) if x is None else x))
    # where rows are gathered, no other tensor that the gradients read has as many rows as a
    like_a = None if layout.a_idx is None else torch.empty((a.shape[0], 0), device=a.device)
    kept = (*kept, like_a, *layout.groups, layout.offs, layout.offs_padded, layout.a_idx, layout.out_idx)
    return differentiable_product(a, b, bias, Product(op, forward, kept, settings, _RULES, weight))


def _layout(kept: tuple[torch.Tensor | None, ...]) -> Layout:
    lens, given_offs, offs, offs_padded, a_idx, out_idx = kept[5:]
    return Layout(Groups(lens, given_offs), offs, offs_padded, a_idx, out_idx)  # type: ignore[arg-type]


def _multiply(forward: GroupedGemmFp8Call, bias: torch.Tensor | None, settings: Settings) -> torch.Tensor:
    return multiply_rows(forward._replace(bias=bias), settings.scheme.fp4)


def _gradients(
    kept: tuple[torch.Tensor | None, ...],
    settings: Settings,
    grad_out: torch.Tensor,
    needs: tuple[bool, bool],
    dtypes: tuple[torch.dtype, torch.dtype],
    out: torch.Tensor | None,
) -> Gradients:
    (need_a, need_b), (scheme, how), layout = needs, settings, _layout(kept)
    along_rows, along_n = quantize_rows(grad_out, scheme, "gradient", layout, (need_b, need_a))
    a, a_scale, b, b_scale, like_a = kept[:5]
    grad_a = grad_b = None
    if need_a and b is not None and b_scale is not None:
        rows = layout.out_idx if layout.a_idx is None else layout.a_idx
        count = (grad_out if rows is None else rows).shape[0]
        call = dgrad_call(along_n, GroupedOperand(b, b_scale), scheme, layout, dtypes[0], count, how)
        slots = multiply_rows(call, scheme.fp4)
        a_rows = count if like_a is None else like_a.shape[0]
        grad_a = sum_of_slots(slots, layout.groups, layout.a_idx, a_rows, dtypes[0])
    if need_b and a is not None and a_scale is not None:
        dtype = dtypes[1] if out is None else out.dtype
        grad_b = multiply(
            wgrad_call(along_rows, GroupedOperand(a, a_scale), scheme, layout, dtype, out, how), scheme.fp4
        )
    return grad_a, grad_b


def _bias_gradient(
    kept: tuple[torch.Tensor | None, ...], settings: Settings, grad_out: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    layout = _layout(kept)
    return bias_gradient(grad_out, layout.groups, layout.out_idx, dtype, settings.how.schedule)


_RULES = Rules(_multiply, _gradients, _bias_gradient)
