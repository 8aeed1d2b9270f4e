# SPDX-License-Identifier: MIT
"""What the ops accept. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError
from turbo_core.library import under_transforms
from turbo_core.low_precision import MX_BLOCK_SIZE, ScalingGranularity, ScalingRecipe
from turbo_core.sharding import refuse_sharded
from turbo_quant.formats import fp4_dtype

__all__ = [
    "DTYPES",
    "check_axis",
    "check_block_size",
    "check_granularity",
    "check_groups",
    "check_input",
    "check_offs",
    "check_out_dtype",
    "check_payload_dtype",
    "check_rank",
    "check_recipe",
    "check_rng",
    "check_sign_mask",
    "check_underived",
    "what",
]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ACCEPTED = ", ".join(map(str, DTYPES))
_FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_INDEX_DTYPES = (torch.int64, torch.int32)


def what(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}, {value.dtype}, on {value.device}"
    return repr(value)


def _is_derived(x: torch.Tensor) -> bool:
    """Whether a transform of torch.func, or forward mode, asks for a derivative with respect to x."""
    functorch = torch._C._functorch
    if torch.autograd.forward_ad._current_level >= 0 and torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        return True
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_gradtrackingtensor(x) and x.requires_grad:
            return True
        x = functorch.get_unwrapped(x)
    return False


def check_underived(op: str, **tensors: Any) -> None:
    """Rounding has no derivative: `backward` says so itself, torch.func and forward mode would take it for zero."""
    if torch.compiler.is_compiling():
        return
    if not under_transforms():
        return
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and x.is_floating_point() and _is_derived(x):
            raise UnsupportedError(
                f"{op}: a derivative with respect to {name} is asked for, and there is none; where it is to count as "
                f"a constant, pass {name}.detach()"
            )


def check_granularity(op: str, granularity: Any, accepted: tuple[ScalingGranularity, ...]) -> None:
    if granularity not in accepted:
        names = ", ".join(kind.name for kind in accepted)
        raise UnsupportedError(f"{op}: granularity={granularity!r}; accepted are {names}")


def check_input(op: str, x: Any, granularity: ScalingGranularity) -> None:
    """x of a quantise function."""
    if not isinstance(x, torch.Tensor) or x.dtype not in DTYPES:
        raise UnsupportedError(f"{op}: x is {what(x)}; a tensor in one of {_ACCEPTED} is accepted")
    check_rank(op, "x", x, granularity)
    check_underived(op, x=x)


def check_rank(op: str, name: str, x: torch.Tensor, granularity: ScalingGranularity) -> None:
    refuse_sharded(op, "its local tensor (to_local) is accepted", **{name: x})
    if granularity in (ScalingGranularity.BLOCKWISE, ScalingGranularity.MX_BLOCKWISE):
        if x.dim() not in (2, 3):
            raise UnsupportedError(f"{op}: {name} is {what(x)}; {granularity.name} takes 2 or 3 dimensions")
    elif granularity is ScalingGranularity.ROWWISE and x.dim() == 0:
        raise UnsupportedError(f"{op}: {name} is {what(x)}; ROWWISE takes at least 1 dimension")


def check_out_dtype(op: str, out_dtype: Any) -> None:
    """The result of a dequantise function."""
    if out_dtype not in DTYPES:
        raise UnsupportedError(f"{op}: out_dtype={out_dtype}; accepted are {_ACCEPTED}")


def check_payload_dtype(op: str, name: str, dtype: Any, granularity: ScalingGranularity, bits: int) -> None:
    """A storage dtype against the function (8 or 4 bits) and the granularity."""
    if bits == 4:
        accepted = tuple(dict.fromkeys((fp4_dtype(), torch.uint8)))
    elif granularity is ScalingGranularity.MX_BLOCKWISE:
        accepted = (torch.float8_e4m3fn, torch.float8_e5m2)
    else:
        accepted = _FP8_DTYPES
    if dtype not in accepted:
        raise UnsupportedError(f"{op}: {name}={dtype}; accepted are {', '.join(map(str, accepted))}")


def check_block_size(op: str, granularity: ScalingGranularity, block_size: Any) -> int:
    """The block size that the call takes: 0 for TENSORWISE and ROWWISE."""
    if granularity is ScalingGranularity.BLOCKWISE:
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise UnsupportedError(f"{op}: block_size={block_size!r}; BLOCKWISE takes a positive number")
        return block_size
    accepted = (None, MX_BLOCK_SIZE) if granularity is ScalingGranularity.MX_BLOCKWISE else (None, 0)
    if block_size not in accepted:
        raise UnsupportedError(f"{op}: block_size={block_size!r}; {granularity.name} takes {accepted[1]} or None")
    return 0


def check_axis(op: str, axis: Any, rank: int, accepted: tuple[int, ...], required: bool = True) -> int | None:
    """``axis`` counted from the front; only those in ``accepted`` (also so counted)."""
    if axis is None and not required:
        return None
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank or axis % rank not in accepted:
        names = ", ".join(f"{i} ({i - rank})" for i in accepted)
        raise UnsupportedError(f"{op}: axis={axis!r}; accepted for {rank} dimensions are {names}")
    return axis % rank


def check_recipe(op: str, name: str, recipe: Any, granularity: ScalingGranularity) -> ScalingRecipe:
    """The recipe, with only options that the granularity has."""
    if recipe is None:
        return ScalingRecipe()
    if not isinstance(recipe, ScalingRecipe):
        raise UnsupportedError(f"{op}: {name}={recipe!r}; None or a ScalingRecipe is accepted")
    if granularity is ScalingGranularity.MX_BLOCKWISE:
        if recipe.use_2d_block and recipe.use_rht:
            raise UnsupportedError(f"{op}: {name} has use_2d_block and use_rht; one of the two is accepted")
        return recipe
    known = {"use_2d_block"} if granularity is ScalingGranularity.BLOCKWISE else set()
    extra = [option for option, value in recipe._asdict().items() if value and option not in known]
    if extra:
        raise UnsupportedError(f"{op}: {name} has {', '.join(extra)}, which {granularity.name} does not have")
    return recipe


def check_sign_mask(op: str, sign_mask: Any) -> None:
    if isinstance(sign_mask, bool) or not isinstance(sign_mask, int) or not 0 <= sign_mask < 1 << 16:
        raise UnsupportedError(f"{op}: sign_mask={sign_mask!r}; 16 bits (0 to 65535) are accepted")


def check_rng(op: str, rng: Any, device: torch.device) -> None:
    if rng is None:
        return
    if not isinstance(rng, torch.Tensor) or rng.shape != (2,) or rng.dtype != torch.int64 or rng.device != device:
        raise UnsupportedError(
            f"{op}: rng is {what(rng)}; None or an int64 tensor of shape [2] on {device} is accepted"
        )


def check_offs(op: str, name: str, value: Any, device: torch.device) -> None:
    """A vector of lens or offs."""
    valid = isinstance(value, torch.Tensor) and value.dim() == 1 and value.shape[0] > 0
    if not valid or value.dtype not in _INDEX_DTYPES or value.device != device:
        raise UnsupportedError(
            f"{op}: {name} is {what(value)}; a vector of int64 or int32 with at least 1 element on {device} is accepted"
        )


def check_groups(op: str, x: torch.Tensor, group_lens: Any, group_offs: Any) -> None:
    if x.dim() != 2:
        raise UnsupportedError(f"{op}: x is {what(x)}; with groups 2 dimensions are accepted")
    check_offs(op, "group_lens", group_lens, x.device)
    check_offs(op, "group_offs", group_offs, x.device)
    groups = group_lens.shape[0]
    if group_offs.shape[0] != groups + 1:
        raise UnsupportedError(
            f"{op}: group_lens has {groups} elements and group_offs {group_offs.shape[0]}; G and G + 1 are accepted"
        )
