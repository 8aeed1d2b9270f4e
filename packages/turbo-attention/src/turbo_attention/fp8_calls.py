# SPDX-License-Identifier: MIT
"""What FP8 attention gives back, and what its backward asks; its forward asks a `ForwardCall` of a dense batch.

q, k and v become E4M3 payloads with one scale_inv for FP8_ROWS rows of a head, and

    s_ij = softmax_scale * scale_q scale_k q_i . k_j

of calls.py. p_ij is rounded to FP8 as p_ij * fp8_max. The backward takes q, k and v dequantised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from turbo_attention.calls import (
    AttentionGradients,
    BackwardCall,
    ForwardCall,
    backward_specs,
    forward_specs,
    weights_spec,
)
from turbo_attention.layout import rows_like
from turbo_core.calls import Spec

if TYPE_CHECKING:
    import torch

__all__ = [
    "FP8_ROWS",
    "Fp8Backward",
    "Fp8Payloads",
    "Fp8Result",
    "Fp8Scales",
    "fp8_backward_specs",
    "fp8_forward_specs",
    "fp8_weights_spec",
]

FP8_ROWS = 64


class Fp8Scales(NamedTuple):
    """scale_inv of q, k and v: float32 [B,heads,ceil(S/FP8_ROWS)], contiguous."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class Fp8Result(NamedTuple):
    """An `AttentionResult`, and the payloads and scales that it was made of: in the shape and the order of dimensions
    of q, k and v; as for `Fp8Scales`."""

    out: torch.Tensor
    lse: torch.Tensor
    lse_low: torch.Tensor
    q8: torch.Tensor
    k8: torch.Tensor
    v8: torch.Tensor
    scale_q: torch.Tensor
    scale_k: torch.Tensor
    scale_v: torch.Tensor

    def payloads(self, call: ForwardCall) -> Fp8Payloads:
        """``call`` with them in place of q, k and v."""
        scales = Fp8Scales(self.scale_q, self.scale_k, self.scale_v)
        return Fp8Payloads(call._replace(q=self.q8, k=self.k8, v=self.v8), scales)


class Fp8Payloads(NamedTuple):
    """A forward of payloads: ``forward`` with q, k, v of one FP8 type, and their scales."""

    forward: ForwardCall
    scales: Fp8Scales


class Fp8Backward(NamedTuple):
    """The gradients of a forward of payloads, in out's dtype; the other fields are those of `BackwardCall`."""

    forward: ForwardCall
    scales: Fp8Scales
    out: torch.Tensor
    lse: torch.Tensor
    lse_low: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor | None
    want_dbias: bool


def fp8_forward_specs(call: ForwardCall, dtype: torch.dtype | None = None) -> Fp8Result:
    """The `Spec` of each part of the result; ``dtype``: of the payloads, in place of the device's."""
    dtype = _e4m3(call.q.device) if dtype is None else dtype
    rows = call.q, call.k, call.v
    payloads = (rows_like(x, x.shape[3], dtype) for x in rows)
    return Fp8Result._make((*forward_specs(call), *payloads, *map(_scale_spec, rows)))


def fp8_backward_specs(call: Fp8Backward) -> AttentionGradients:
    """The `Spec` of each gradient, None where there is none."""
    specs: Any = backward_specs(BackwardCall(call.forward, *call[2:]))
    dq, dk, dv = (spec._replace(dtype=call.out.dtype) for spec in specs[:3])
    return AttentionGradients._make((dq, dk, dv, *specs[3:]))


def fp8_weights_spec(call: Fp8Payloads) -> Spec:
    """The `Spec` of the weights p."""
    return weights_spec(call.forward)


def _scale_spec(x: torch.Tensor) -> Spec:
    import torch

    return Spec((x.shape[0], x.shape[2], -(-x.shape[1] // FP8_ROWS)), torch.float32)


def _e4m3(device: torch.device) -> torch.dtype:
    """The device's own; tensors on meta, and fake ones of a device that is not here, stand for this machine."""
    import torch

    from turbo_core.low_precision import Format, fp8_dtype

    here = device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())
    return fp8_dtype(Format.E4M3, device if here else None)
