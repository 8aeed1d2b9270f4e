# SPDX-License-Identifier: MIT
"""`gemm`: dense matrix product with both gradients, registered as ``turbo_gemm::gemm``.

Gradients, for C = op(A) op(B) + bias, in the storage layout of each input:

    op(A)-grad = dC op(B)^T        op(B)-grad = op(A)^T dC        bias-grad = sum over rows of dC

Where the gradient of a transposed input is wanted, both sides are transposed and the operands swap places, so each
gradient is one GEMM with no copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turbo_core import OpInfo
from turbo_gemm.pytorch.kernels.gemm_impl import GemmCall, GemmDispatcher, run
from turbo_gemm.pytorch.ops.gemm_checks import check_gemm, check_main_grad

__all__ = ["GEMM", "gemm"]

# a, b, bias (none in a gradient), trans_a, trans_b
_Operands = tuple[torch.Tensor, torch.Tensor, None, bool, bool]

# --- registration ---------------------------------------------------------------------------------------------------

_library = torch.library.Library("turbo_gemm", "DEF")
_library.define(
    "gemm(Tensor a, Tensor b, Tensor? bias, bool trans_a, bool trans_b, ScalarType out_dtype, str role) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    "gemm_accumulate(Tensor(a!) out, Tensor a, Tensor b, bool trans_a, bool trans_b) -> ()",
    tags=torch.Tag.pt2_compliant_tag,
)


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    return run(GemmCall(a, b, bias, trans_a, trans_b, out_dtype, None, role))


def _gemm_fake(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype,
    role: str,
) -> torch.Tensor:
    return a.new_empty((a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]), dtype=out_dtype)


def _gemm_accumulate(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> None:
    run(GemmCall(a, b, None, trans_a, trans_b, out.dtype, out, "wgrad"))


def _gemm_accumulate_fake(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, bias, ctx.trans_a, ctx.trans_b, _, _ = inputs
    ctx.save_for_backward(a, b)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
    def grad_of_b(*operands: Any) -> torch.Tensor:
        return torch.ops.turbo_gemm.gemm(*operands, ctx.saved_tensors[1].dtype, "wgrad")

    return *_gradients(ctx, grad_out, grad_of_b), None, None, None, None


_library.impl("gemm", _gemm, "CompositeExplicitAutograd")
_library.impl("gemm_accumulate", _gemm_accumulate, "CompositeExplicitAutograd")
torch.library.register_fake("turbo_gemm::gemm", _gemm_fake, lib=_library)
torch.library.register_fake("turbo_gemm::gemm_accumulate", _gemm_accumulate_fake, lib=_library)
torch.library.register_autograd("turbo_gemm::gemm", _backward, setup_context=_setup_context, lib=_library)

# --- gradients ------------------------------------------------------------------------------------------------------


def _dgrad_operands(grad_out: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> _Operands:
    """Operands of dA: dC op(B)^T [M,K], or its transpose op(B) dC^T [K,M] when A is stored transposed."""
    return (b, grad_out, None, trans_b, True) if trans_a else (grad_out, b, None, False, not trans_b)


def _wgrad_operands(grad_out: torch.Tensor, a: torch.Tensor, trans_a: bool, trans_b: bool) -> _Operands:
    """Operands of dB: op(A)^T dC [K,N], or its transpose dC^T op(A) [N,K] when B is stored transposed."""
    return (grad_out, a, None, True, trans_a) if trans_b else (a, grad_out, None, not trans_a, False)


def _gradients(ctx: Any, grad_out: torch.Tensor, grad_of_b: Callable[..., torch.Tensor]) -> tuple[Any, Any, Any]:
    """dA, dB (by ``grad_of_b``, from the operands of its GEMM) and dbias, each None if nobody wants it.

    A float32 C from 16-bit operands has 16-bit gradient GEMMs, like any other: dC is cast to the operands' type.
    """
    a, b = ctx.saved_tensors
    grad_a = grad_b = grad_bias = None
    operand = grad_out.to(torch.promote_types(a.dtype, b.dtype))
    if ctx.needs_input_grad[0]:
        grad_a = torch.ops.turbo_gemm.gemm(*_dgrad_operands(operand, b, ctx.trans_a, ctx.trans_b), a.dtype, "dgrad")
    if ctx.needs_input_grad[1]:
        grad_b = grad_of_b(*_wgrad_operands(operand, a, ctx.trans_a, ctx.trans_b))
    if ctx.needs_input_grad[2]:
        grad_bias = grad_out.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return grad_a, grad_b, grad_bias


class _GemmIntoMainGrad(torch.autograd.Function):
    """gemm whose gradient of the weight is added to ``weight.main_grad`` by the GEMM itself.

    The weight is an attribute of ctx: saved tensors are checked for writes since the forward, and ``main_grad`` is
    written by other micro-batches in between.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        trans_a: bool,
        trans_b: bool,
        out_dtype: torch.dtype,
        weight_dtype: torch.dtype,
    ) -> torch.Tensor:
        b = weight.to(weight_dtype)
        ctx.save_for_backward(a, b)
        ctx.weight = weight
        ctx.trans_a, ctx.trans_b = trans_a, trans_b
        ctx.bias_dtype = None if bias is None else bias.dtype
        return torch.ops.turbo_gemm.gemm(a, b, bias, trans_a, trans_b, out_dtype, "forward")

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        weight = ctx.weight

        def grad_of_b(x: torch.Tensor, y: torch.Tensor, _: None, trans_x: bool, trans_y: bool) -> torch.Tensor:
            torch.ops.turbo_gemm.gemm_accumulate(weight.main_grad, x, y, trans_x, trans_y)
            # hooks on the parameter run only if it gets a gradient; zeros, so that who adds it up adds nothing
            return torch.zeros_like(weight)

        return *_gradients(ctx, grad_out, grad_of_b), None, None, None, None


# --- the public function --------------------------------------------------------------------------------------------


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """C = op(a) op(b) + bias, differentiable in a, b and bias.

    Sums are in float32 and rounded once. All strides and zero sizes are accepted; K = 0 gives zeros (plus bias). Under
    ``torch.autocast`` a and b are cast to its dtype first. Gradients have the dtypes of their inputs; a float32
    gradient of C meets 16-bit operands in their dtype.

    Args:
        a: [M,K], or [K,M] with ``trans_a``; bfloat16, float16 or float32.
        b: [K,N], or [N,K] with ``trans_b``; likewise, and not necessarily the dtype of a.
        trans_a: a is stored transposed.
        trans_b: b is stored transposed (the layout of ``torch.nn.Linear.weight``).
        out_dtype: dtype of C; default ``torch.promote_types(a.dtype, b.dtype)``.
        fuse_bgrad_accum_pattern: ``"megatron"`` adds the gradient of b to ``b.main_grad`` inside its GEMM; autograd
            gets zeros for b. b needs ``main_grad`` and ``grad_added_to_main_grad``, which is set in the forward.
        bias: [N], added before rounding.

    Returns:
        C [M,N], contiguous.

    Raises:
        UnsupportedError: an argument is outside the above; nothing has been computed.
        BackendUnavailableError: the backend named in code or by PRIMUS_TURBO_GEMM_BACKEND cannot take the call.

    Bit-equal from run to run on one backend and device. ``turbo_core.explain("gemm", ...)`` tells which backend runs.
    """
    check_gemm(a, b, trans_a, trans_b, out_dtype, bias)
    if fuse_bgrad_accum_pattern is not None:
        check_main_grad(b, fuse_bgrad_accum_pattern)
    dtype_a, dtype_b = a.dtype, b.dtype
    if torch.is_autocast_enabled(a.device.type):
        dtype_a = dtype_b = torch.get_autocast_dtype(a.device.type)
        a = a.to(dtype_a)
    if out_dtype is None:
        out_dtype = torch.promote_types(dtype_a, dtype_b)
    if fuse_bgrad_accum_pattern is not None:
        # said here, not in the backward, which a compiler traces as a function without side effects on attributes
        if b.requires_grad and torch.is_grad_enabled():
            b.grad_added_to_main_grad = True
        return _GemmIntoMainGrad.apply(a, b, bias, trans_a, trans_b, out_dtype, dtype_b)
    return torch.ops.turbo_gemm.gemm(a, b.to(dtype_b), bias, trans_a, trans_b, out_dtype, "forward")


# --- for turbo_core.explain and the doctor --------------------------------------------------------------------------


def _calls(
    a: torch.Tensor,
    b: torch.Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: torch.dtype | None = None,
    fuse_bgrad_accum_pattern: str | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> dict[str, GemmCall]:
    """The three GEMMs that `gemm` with these arguments and its backward come to."""
    check_gemm(a, b, trans_a, trans_b, out_dtype, bias)
    main_grad = None
    if fuse_bgrad_accum_pattern is not None:
        check_main_grad(b, fuse_bgrad_accum_pattern)
        main_grad = b.main_grad
    dtype = torch.promote_types(a.dtype, b.dtype)
    forward = GemmCall(a, b, bias, trans_a, trans_b, out_dtype or dtype)
    m, n, _ = forward.sizes()
    grad_out = a.new_empty((1, 1), dtype=dtype).expand(m, n)  # only its metadata are read
    dgrad = GemmCall(*_dgrad_operands(grad_out, b, trans_a, trans_b), a.dtype, None, "dgrad")
    wgrad_dtype = b.dtype if main_grad is None else main_grad.dtype
    wgrad = GemmCall(*_wgrad_operands(grad_out, a, trans_a, trans_b), wgrad_dtype, main_grad, "wgrad")
    return {"forward": forward, "dgrad": dgrad, "wgrad": wgrad}


def _example(device: torch.device) -> dict[str, GemmCall]:
    x = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
    return _calls(x.expand(4096, 4096), x.expand(4096, 4096), trans_b=True)


GEMM = OpInfo("gemm", GemmDispatcher, _calls, _example)
