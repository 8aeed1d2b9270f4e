# SPDX-License-Identifier: MIT
"""What the GEMMs accept. Every refusal names the argument, what it was and what is accepted."""

from __future__ import annotations

from typing import Any

import torch

from turbo_core import UnsupportedError

__all__ = ["DTYPES", "check_gemm", "check_main_grad", "check_matrix"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ACCEPTED = ", ".join(map(str, DTYPES))


def _shape(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)


def check_matrix(op: str, name: str, tensor: Any) -> None:
    """``tensor`` is a matrix of one of the accepted dtypes."""
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(f"{op}: {name} is a {type(tensor).__name__}; a 2-D tensor is accepted")
    if tensor.dim() != 2:
        raise UnsupportedError(f"{op}: {name} has shape {_shape(tensor)}; 2 dimensions are accepted")
    if tensor.dtype not in DTYPES:
        raise UnsupportedError(f"{op}: {name}.dtype={tensor.dtype}; accepted are {_ACCEPTED}")


def check_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    bias: torch.Tensor | None,
    op: str = "gemm",
) -> None:
    """The arguments fit together."""
    check_matrix(op, "a", a)
    check_matrix(op, "b", b)
    if a.device != b.device:
        raise UnsupportedError(f"{op}: a is on {a.device} and b is on {b.device}; they must be on one device")
    k_a, k_b = a.shape[0 if trans_a else 1], b.shape[1 if trans_b else 0]
    if k_a != k_b:
        raise UnsupportedError(
            f"{op}: K is {k_a} by a (shape {_shape(a)}, trans_a={trans_a}) and {k_b} by b (shape {_shape(b)}, "
            f"trans_b={trans_b}); they must be equal"
        )
    if out_dtype is not None and out_dtype not in DTYPES:
        raise UnsupportedError(f"{op}: out_dtype={out_dtype}; accepted are {_ACCEPTED} and None")
    if bias is not None:
        n = b.shape[0 if trans_b else 1]
        if not isinstance(bias, torch.Tensor) or bias.shape != (n,) or bias.dtype not in DTYPES:
            what = f"shape {_shape(bias)}, {bias.dtype}" if isinstance(bias, torch.Tensor) else repr(bias)
            raise UnsupportedError(f"{op}: bias is {what}; a tensor of shape [{n}] in one of {_ACCEPTED} is accepted")
        if bias.device != a.device:
            raise UnsupportedError(f"{op}: bias is on {bias.device} and a is on {a.device}; one device is needed")


def check_main_grad(b: torch.Tensor, pattern: str, op: str = "gemm") -> None:
    """``b`` has what the fused accumulation needs."""
    if pattern != "megatron":
        raise UnsupportedError(f"{op}: fuse_bgrad_accum_pattern={pattern!r}; accepted are None and 'megatron'")
    main_grad = getattr(b, "main_grad", None)
    if not isinstance(main_grad, torch.Tensor) or not hasattr(b, "grad_added_to_main_grad"):
        raise UnsupportedError(
            f"{op}: fuse_bgrad_accum_pattern='megatron' needs b.main_grad (a tensor) and b.grad_added_to_main_grad"
        )
    if main_grad.shape != b.shape or main_grad.device != b.device or main_grad.dtype not in DTYPES:
        raise UnsupportedError(
            f"{op}: b.main_grad has shape {_shape(main_grad)}, {main_grad.dtype}, {main_grad.device}; b's shape "
            f"{_shape(b)} and device {b.device} and one of {_ACCEPTED} are accepted"
        )
    if _is_reduced_by_ddp(b):
        raise UnsupportedError(
            f"{op}: fuse_bgrad_accum_pattern='megatron' for a parameter of DistributedDataParallel, which averages "
            ".grad over the ranks and not .main_grad; None is accepted, or a parameter that it ignores"
        )


def _is_reduced_by_ddp(b: torch.Tensor) -> bool:
    """Whether b is a parameter of the DistributedDataParallel whose forward runs now."""
    ddp = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if ddp is None:
        return False
    return any(p is b and name not in ddp.parameters_to_ignore for name, p in ddp.module.named_parameters())
