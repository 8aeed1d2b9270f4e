# SPDX-License-Identifier: MIT
"""`QuantizedTensor`: a payload, its scales and how they came about, in the guise of the tensor that was quantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import ScalingGranularity, ScalingRecipe, is_fp8_dtype
from turbo_quant.formats import scale_dtype
from turbo_quant.pytorch.kernels.grouping import pad_groups
from turbo_quant.pytorch.ops import dequantize as _dequantize
from turbo_quant.pytorch.ops import grouped as _grouped
from turbo_quant.pytorch.ops import quantize as _quantize
from turbo_quant.pytorch.quantized_memory import MemoryOfParts, guard_memory

__all__ = ["Parts", "QuantizedTensor"]

_PADDED = (ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE)


class Parts(NamedTuple):
    """What a view of a quantised tensor changes; ``stride`` is what it tells the world, None: contiguous."""

    qdata: torch.Tensor
    scale_inv: torch.Tensor
    shape: tuple[int, ...]
    axis: int | None
    stride: tuple[int, ...] | None = None


class QuantizedTensor(MemoryOfParts, torch.Tensor):
    """A quantised tensor; shape, dtype and device are those of the tensor that was quantised.

    Args:
        data, scale_inv: payload and scales as the quantise functions give them for ``quantized_axis``.
        shape, orig_dtype: of the tensor that was quantised.
        dest_dtype: of the payload.
        granularity, block_size, scaling_recipe, sign_mask: those of the quantisation.
        quantized_axis: the dimension along which elements share a scale; None for TENSORWISE. Kept counted from the
            end: MX payloads are stored transposed for -2.
        orig_group_lens, orig_group_offs, group_lens, group_offs, is_grouped_tensor: groups of rows (of the last but
            one dimension, when quantised): as they came, and as padded in a copy along -2.
        stride: what the tensor says its strides are; None: contiguous. The payload has its own.

    Views that keep the blocks together (`t`, `transpose`, `view`) re-label payload and scales and round nothing; where
    the maths does not allow one, they raise. `clone`, `detach`, `to`, `copy_`, `empty_like`, `pin_memory`,
    `share_memory_`, `torch.save` and
    `torch.compile` work. Anything else needs `dequantize`.
    """

    qdata: torch.Tensor
    scale_inv: torch.Tensor
    granularity: ScalingGranularity
    block_size: int | None
    scaling_recipe: ScalingRecipe | None
    quantized_axis: int | None
    sign_mask: int
    is_grouped_tensor: bool
    orig_group_lens: torch.Tensor | None
    orig_group_offs: torch.Tensor | None
    group_lens: torch.Tensor | None
    group_offs: torch.Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls: type[QuantizedTensor],
        data: torch.Tensor,
        scale_inv: torch.Tensor,
        *,
        shape: Sequence[int],
        orig_dtype: torch.dtype,
        dest_dtype: torch.dtype,
        granularity: ScalingGranularity,
        orig_group_lens: torch.Tensor | None = None,
        orig_group_offs: torch.Tensor | None = None,
        group_lens: torch.Tensor | None = None,
        group_offs: torch.Tensor | None = None,
        is_grouped_tensor: bool = False,
        block_size: int | None = None,
        scaling_recipe: ScalingRecipe | None = None,
        quantized_axis: int | None = None,
        sign_mask: int = 0,
        stride: Sequence[int] | None = None,
        requires_grad: bool = False,
    ) -> QuantizedTensor:
        self: QuantizedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            tuple(shape),
            strides=None if stride is None else tuple(stride),
            dtype=orig_dtype,
            device=data.device,
            requires_grad=requires_grad,
        )
        guard_memory(self)
        self.qdata, self.scale_inv = data, scale_inv
        self._dest_dtype = dest_dtype
        self.granularity, self.block_size, self.scaling_recipe = granularity, block_size, scaling_recipe
        rank = len(shape)
        self.quantized_axis = None if quantized_axis is None else quantized_axis % rank - rank
        self.sign_mask, self.is_grouped_tensor = sign_mask, is_grouped_tensor
        self.orig_group_lens, self.orig_group_offs = orig_group_lens, orig_group_offs
        self.group_lens, self.group_offs = group_lens, group_offs
        return self

    # --- making and unmaking ------------------------------------------------------------------------------------

    @classmethod
    def quantize(
        cls,
        hp_tensor: torch.Tensor,
        dest_dtype: torch.dtype,
        granularity: ScalingGranularity,
        *,
        axis: int | None = None,
        group_lens: torch.Tensor | None = None,
        block_size: int | None = None,
        scaling_recipe: ScalingRecipe | None = None,
        sign_mask: int = 0,
    ) -> QuantizedTensor:
        """Quantise ``hp_tensor`` [M,N] or [B,M,N] (bfloat16, float16 or float32).

        Args:
            axis: needed unless TENSORWISE.
            group_lens: [G], groups of rows of a 2-D tensor. TENSORWISE and ROWWISE record them; BLOCKWISE and
                MX_BLOCKWISE also pad each group in a copy along the rows (axis -2).
            others: as for `quantize_fp8` and `quantize_fp4`.

        Returns:
            A leaf that requires grad where ``hp_tensor`` does: products add its gradient to its own ``grad``, in the
            original dtype. Rounding has no derivative, so nothing reaches ``hp_tensor``.

        Raises:
            UnsupportedError: as the quantise functions.
        """
        op = "QuantizedTensor.quantize"
        if not isinstance(hp_tensor, torch.Tensor) or hp_tensor.dim() not in (2, 3):
            raise UnsupportedError(
                f"{op}: hp_tensor is {_quantize.checks.what(hp_tensor)}; 2 or 3 dimensions are accepted"
            )
        if axis is None and granularity is not ScalingGranularity.TENSORWISE:
            raise UnsupportedError(f"{op}: axis=None; {granularity} needs an axis")
        tensorwise = granularity is ScalingGranularity.TENSORWISE
        bits = 8 if isinstance(dest_dtype, torch.dtype) and is_fp8_dtype(dest_dtype) else 4
        keywords: dict[str, Any] = {"block_size": block_size, "axis": axis, "scaling_recipe": scaling_recipe}
        described: dict[str, Any] = {
            "shape": tuple(hp_tensor.shape),
            "orig_dtype": hp_tensor.dtype,
            "dest_dtype": dest_dtype,
            "granularity": granularity,
            "block_size": block_size,
            "scaling_recipe": scaling_recipe,
            "quantized_axis": None if tensorwise else axis,
            "sign_mask": sign_mask,
            "requires_grad": hp_tensor.requires_grad,
        }
        if granularity is ScalingGranularity.MX_BLOCKWISE:
            keywords["sign_mask"] = sign_mask
        if group_lens is None:
            q, scale = _quantize.quantize_one(op, bits, hp_tensor, dest_dtype, granularity, **keywords)
            return cls(q, scale, **described)
        _quantize.checks.check_offs(op, "group_lens", group_lens, hp_tensor.device)
        _, offs = pad_groups(group_lens, 1)
        _quantize.checks.check_groups(op, hp_tensor, group_lens, offs)
        described |= {"is_grouped_tensor": True, "orig_group_lens": group_lens, "orig_group_offs": offs}
        if granularity in _PADDED:
            q, scale, lens, offs = _grouped.quantize_one(
                op, bits, hp_tensor, dest_dtype, granularity, group_lens, offs, **keywords
            )
        else:
            q, scale = _quantize.quantize_one(op, bits, hp_tensor, dest_dtype, granularity, **keywords)
            lens = group_lens
        return cls(q, scale, group_lens=lens, group_offs=offs, **described)

    def dequantize(self) -> torch.Tensor:  # type: ignore[override]
        """The tensor in its original dtype and shape, without padding; contiguous. Not differentiable."""
        op, bits = "QuantizedTensor.dequantize", 8 if is_fp8_dtype(self._dest_dtype) else 4
        keywords: dict[str, Any] = {
            "scale_inv": self.scale_inv,
            "block_size": self.block_size,
            "axis": self.quantized_axis,
            "scaling_recipe": self.scaling_recipe,
        }
        if self.granularity is ScalingGranularity.MX_BLOCKWISE:
            keywords["sign_mask"] = self.sign_mask
        arguments = (op, bits, self.qdata, self.dtype, self.granularity)
        if self.padded_by_groups:
            offs = (self.orig_group_offs, self.group_offs, self.shape[0])
            return _grouped.dequantize_one(*arguments, *offs, **keywords)
        if self.granularity is ScalingGranularity.MX_BLOCKWISE and self.quantized_axis is not None:
            keywords["size"] = self.shape[self.quantized_axis]
        return _dequantize.run(_dequantize.plan_dequantize(*arguments, of_source=True, **keywords), self.qdata)

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def real_dtype(self) -> torch.dtype:
        """The dtype of the payload; `dtype` is that of the tensor that was quantised."""
        return self._dest_dtype

    @property
    def padded_by_groups(self) -> bool:
        """Whether each group of rows is padded in the payload."""
        return self.is_grouped_tensor and self.granularity in _PADDED and self.quantized_axis == -2

    def parts(self) -> Parts:
        """What a view changes."""
        return Parts(self.qdata, self.scale_inv, tuple(self.shape), self.quantized_axis, self.stride())

    def with_parts(self, parts: Parts, orig_dtype: torch.dtype | None = None) -> QuantizedTensor:
        """The same kind of tensor over other parts."""
        tensors = {name: getattr(self, name) for name in _GROUP_TENSORS}
        return type(self)(
            parts.qdata,
            parts.scale_inv,
            shape=parts.shape,
            orig_dtype=orig_dtype or self.dtype,
            quantized_axis=parts.axis,
            stride=parts.stride,
            **tensors,
            **self._constants(),
        )

    def map_tensors(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        of_groups: Callable[[torch.Tensor], torch.Tensor],
        orig_dtype: torch.dtype,
    ) -> QuantizedTensor:
        """``function`` on the payload and the scales, ``of_groups`` on the groups."""
        changed = self.with_parts(
            Parts(function(self.qdata), function(self.scale_inv), tuple(self.shape), self.quantized_axis), orig_dtype
        )
        for name in _GROUP_TENSORS:
            tensor = getattr(self, name)
            setattr(changed, name, None if tensor is None else of_groups(tensor))
        return changed

    def _constants(self) -> dict[str, Any]:
        return {
            "dest_dtype": self._dest_dtype,
            "granularity": self.granularity,
            "block_size": self.block_size,
            "scaling_recipe": self.scaling_recipe,
            "sign_mask": self.sign_mask,
            "is_grouped_tensor": self.is_grouped_tensor,
        }

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        what = f"QuantizedTensor(shape={list(self.shape)}, dtype={self.dtype}, real_dtype={self.real_dtype}"
        what += f", {self.granularity.name}, axis={self.quantized_axis}, device={self.device}"
        return what + (", requires_grad=True)" if self.requires_grad else ")")

    # --- torch.compile, torch.save, ATen ---------------------------------------------------------------------------

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        names = ["qdata", "scale_inv", *(name for name in _GROUP_TENSORS if getattr(self, name) is not None)]
        return names, {**self._constants(), "orig_dtype": self.dtype, "quantized_axis": self.quantized_axis}

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], meta: dict[str, Any], outer_size: Any, outer_stride: Any
    ) -> QuantizedTensor:
        groups = {name: inner.get(name) for name in _GROUP_TENSORS}
        return QuantizedTensor(
            inner["qdata"], inner["scale_inv"], shape=outer_size, stride=outer_stride, **groups, **meta
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        names, meta = self.__tensor_flatten__()
        # 8-bit types as bytes: pickle itself, unlike torch.save, cannot load them (torch 2.13)
        tensors = {name: getattr(self, name) for name in names}
        tensors = {name: t.view(torch.uint8) if t.dtype.itemsize == 1 else t for name, t in tensors.items()}
        recipe = meta.pop("scaling_recipe")
        plain = {
            **meta,
            "granularity": self.granularity.value,
            "scaling_recipe": None if recipe is None else tuple(recipe),
            "requires_grad": self.requires_grad,
        }
        return rebuild, (tensors, tuple(self.shape), plain)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from turbo_quant.pytorch.quantized_dispatch import dispatch

        return dispatch(func, args, kwargs or {})


_GROUP_TENSORS = ("orig_group_lens", "orig_group_offs", "group_lens", "group_offs")


def rebuild(tensors: dict[str, torch.Tensor], shape: tuple[int, ...], plain: dict[str, Any]) -> QuantizedTensor:
    """Unpickles a `QuantizedTensor`; only plain values, so that torch.load may stay with ``weights_only``."""
    recipe = plain.pop("scaling_recipe")
    scale_inv = tensors.pop("scale_inv")
    return QuantizedTensor(
        tensors.pop("qdata").view(plain["dest_dtype"]),
        scale_inv.view(scale_dtype()) if scale_inv.dtype.itemsize == 1 else scale_inv,
        shape=shape,
        **tensors,
        **{
            **plain,
            "granularity": ScalingGranularity(plain["granularity"]),
            "scaling_recipe": None if recipe is None else ScalingRecipe(*recipe),
        },
    )


torch.serialization.add_safe_globals([rebuild])
