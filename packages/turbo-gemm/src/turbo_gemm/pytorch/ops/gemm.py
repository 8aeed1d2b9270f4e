# SPDX-License-Identifier: MIT
"""`gemm`: dense matrix product with both gradients, registered as ``turbo_gemm::gemm``.

Its gradients (`gemm_gradients`) are made of the same op, so that they have gradients in turn.
"""

from __future__ import annotations

import contextlib

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from turbo_core import OpInfo
from turbo_core.autocast import autocast_dtype
from turbo_core.sharding import shardable
from turbo_gemm.calls import GemmCall
from turbo_gemm.pytorch.kernels.gemm_impl import GemmDispatcher
from turbo_gemm.pytorch.ops.gemm_checks import check_gemm, check_main_grad
from turbo_gemm.pytorch.ops.gemm_gradients import dgrad_call, wgrad_call
from turbo_gemm.pytorch.ops.gemm_library import gemm_op
from turbo_gemm.pytorch.ops.gemm_main_grad import GemmIntoMainGrad
from turbo_gemm.pytorch.ops.main_grad import into_main_grad, product_into_main_grad
from turbo_gemm.pytorch.ops.sharding import gemm_rules

__all__ = ["GEMM", "gemm"]

# --- the public function --------------------------------------------------------------------------------------------


@shardable(gemm_rules)
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
    trans_a, trans_b = bool(trans_a), bool(trans_b)
    if fuse_bgrad_accum_pattern is not None:
        check_main_grad(b, fuse_bgrad_accum_pattern)
    dtype = autocast_dtype(a.device)
    a = a if dtype is None else a.to(dtype)
    dtype_b = dtype or b.dtype
    if out_dtype is None:
        out_dtype = torch.promote_types(a.dtype, dtype_b)
    if not into_main_grad("gemm", b, fuse_bgrad_accum_pattern):
        c: torch.Tensor = gemm_op(GemmCall(a, b.to(dtype_b), bias, trans_a, trans_b, out_dtype))
        return c
    product = GemmIntoMainGrad(trans_a, trans_b, out_dtype)
    c = product_into_main_grad(product, a, b.detach().to(dtype_b), b, bias)
    # said here, not in the backward, which a compiler traces as a function without side effects on attributes
    b.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return c


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
    wgrad_dtype = b.dtype if main_grad is None else main_grad.dtype
    cast_to = autocast_dtype(a.device)
    if cast_to is not None:
        a, b = _cast(a, cast_to), _cast(b, cast_to)
        wgrad_dtype = cast_to if main_grad is None else wgrad_dtype
    dtype = torch.promote_types(a.dtype, b.dtype)
    forward = GemmCall(a, b, bias, trans_a, trans_b, out_dtype or dtype)
    m, n, _ = forward.sizes()
    grad_out = a.new_empty((1, 1), dtype=dtype).expand(m, n)  # only its metadata are read
    dgrad = dgrad_call(grad_out, b, trans_a, trans_b, a.dtype)
    wgrad = wgrad_call(grad_out, a, trans_a, trans_b, wgrad_dtype, main_grad)
    return {"forward": forward, "dgrad": dgrad, "wgrad": wgrad}


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x.to(dtype)`` without its values."""
    with contextlib.nullcontext() if isinstance(x, FakeTensor) else FakeTensorMode():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).to(dtype)


def _example(device: torch.device) -> dict[str, GemmCall]:
    x = torch.empty((1, 1), dtype=torch.bfloat16, device=device)
    return _calls(x.expand(4096, 4096), x.expand(4096, 4096), trans_b=True)


GEMM = OpInfo("gemm", GemmDispatcher, _calls, _example)
