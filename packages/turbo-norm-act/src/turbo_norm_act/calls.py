# SPDX-License-Identifier: MIT
"""The calls of the wheel's two ops, norms and gated activations: what they take and what they give.

Shapes are written here alone. torch is not imported. Before a backend gets a call, the tensors whose last stride is to
be 1 have been copied where they had another, and a row_mask of bools is one of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from turbo_core.calls import Spec, outputs

if TYPE_CHECKING:
    import torch

__all__ = [
    "GluBackward",
    "GluCall",
    "GluForward",
    "GluGradients",
    "NormBackward",
    "NormCall",
    "NormForward",
    "NormGradients",
    "NormResult",
    "glu_gradient_specs",
    "glu_specs",
    "halves",
    "norm_gradient_specs",
    "norm_specs",
    "zeros",
]

# --- norms ------------------------------------------------------------------------------------------------------------


class NormForward(NamedTuple):
    """y of x [rows, D], or of s = x + residual.

    Attributes:
        x, residual: [rows, D], last stride 1; bfloat16, float16 or float32, both of one dtype.
        gamma, beta: [D], contiguous, of any of the three dtypes; None: no weight, nothing added.
        eps: added to the mean square, or to the variance.
        zero_centered: the weight is 1 + gamma.
        center: LayerNorm; else RMSNorm, which has no beta.
    """

    x: torch.Tensor
    residual: torch.Tensor | None
    gamma: torch.Tensor | None
    beta: torch.Tensor | None
    eps: float
    zero_centered: bool
    center: bool

    @property
    def data(self) -> torch.Tensor:
        return self.x


class NormResult(NamedTuple):
    """y like x, contiguous; with a residual s likewise; mean (of LayerNorm) and rstd float32 [rows]."""

    y: torch.Tensor
    s: torch.Tensor | None
    mean: torch.Tensor | None
    rstd: torch.Tensor


class NormBackward(NamedTuple):
    """The gradients of a norm of s [rows, D] that are wanted.

    Attributes:
        s: what was normalised, as x above.
        dy: the gradient of y, as s.
        ds: what reaches s on its other path, as s; or None.
        gamma: as above.
        mean, rstd: float32 [rows], contiguous; LayerNorm has a mean.
        eps, zero_centered: as above; second derivatives read eps.
        dx, dgamma: whether they are wanted.
        dbeta: the dtype of beta; None: dbeta is not wanted.
    """

    s: torch.Tensor
    dy: torch.Tensor
    ds: torch.Tensor | None
    gamma: torch.Tensor | None
    mean: torch.Tensor | None
    rstd: torch.Tensor
    eps: float
    zero_centered: bool
    dx: bool
    dgamma: bool
    dbeta: torch.dtype | None

    @property
    def data(self) -> torch.Tensor:
        return self.s

    @property
    def center(self) -> bool:
        return self.mean is not None


class NormGradients(NamedTuple):
    """What was wanted of dx (the gradient of x, and of residual) like s, dgamma and dbeta [D] in their dtypes."""

    dx: torch.Tensor | None
    dgamma: torch.Tensor | None
    dbeta: torch.Tensor | None


NormCall = NormForward | NormBackward


def norm_specs(call: NormForward) -> NormResult:
    """The result of ``call`` with a `Spec` in place of each tensor."""
    import torch

    data, statistic = Spec(call.x.shape, call.x.dtype), Spec(call.x.shape[:1], torch.float32)
    residual, center = call.residual is not None, call.center
    return NormResult._make((data, data if residual else None, statistic if center else None, statistic))


def norm_gradient_specs(call: NormBackward) -> NormGradients:
    """Likewise."""
    dx = Spec(call.s.shape, call.s.dtype) if call.dx else None
    dtypes = call.gamma.dtype if call.dgamma and call.gamma is not None else None, call.dbeta
    return NormGradients._make((dx, *[None if dtype is None else Spec(call.s.shape[1:], dtype) for dtype in dtypes]))


# --- gated activations ------------------------------------------------------------------------------------------------


class GluForward(NamedTuple):
    """act(gate) up probs [T, H], in x's dtype and contiguous; zeros in masked rows.

    Attributes:
        x: gate and up packed [T, 2H], or the gate [T, H]; last stride 1; bfloat16, float16 or float32.
        up: as the gate, in its dtype; None: it is packed.
        probs: [T], contiguous, of any of the three dtypes; or None.
        row_mask: [T], integer, contiguous: 0 is a masked row; or None.
        activation: silu, gelu, gelu_tanh or clamped.
        limit: the gate is at most this, up from -limit to limit; inf: as they are.
        alpha: read by ``clamped`` alone.
        interleaved: gate and up are the even and the odd columns of a packed x; else its halves.
    """

    x: torch.Tensor
    up: torch.Tensor | None
    probs: torch.Tensor | None
    row_mask: torch.Tensor | None
    activation: str
    limit: float
    alpha: float
    interleaved: bool

    @property
    def width(self) -> int:
        return self.x.shape[1] // 2 if self.up is None else self.x.shape[1]


class GluBackward(NamedTuple):
    """The gradients of a gated activation that are wanted.

    Attributes:
        x, up, probs, row_mask, activation, limit, alpha, interleaved: as above.
        dout: the gradient of the result, like it; last stride 1.
        dx, dup, dprobs: whether they are wanted.
    """

    x: torch.Tensor
    up: torch.Tensor | None
    probs: torch.Tensor | None
    row_mask: torch.Tensor | None
    activation: str
    limit: float
    alpha: float
    interleaved: bool
    dout: torch.Tensor
    dx: bool
    dup: bool
    dprobs: bool

    @property
    def width(self) -> int:
        return self.dout.shape[1]


class GluGradients(NamedTuple):
    """What was wanted of dx (packed as x is), dup and dprobs, contiguous, in their dtypes."""

    dx: torch.Tensor | None
    dup: torch.Tensor | None
    dprobs: torch.Tensor | None


GluCall = GluForward | GluBackward


def glu_specs(call: GluForward) -> Spec:
    """What the result of ``call`` looks like."""
    return Spec((call.x.shape[0], call.width), call.x.dtype)


def glu_gradient_specs(call: GluBackward) -> GluGradients:
    """The result of ``call`` with a `Spec` in place of each tensor."""
    tensors = (call.x, call.dx), (call.up, call.dup), (call.probs, call.dprobs)
    return GluGradients._make([Spec(x.shape, x.dtype) if wanted and x is not None else None for x, wanted in tensors])


def halves(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up of a packed x [T, 2H], as views."""
    if interleaved:
        return x[:, 0::2], x[:, 1::2]
    H = x.shape[1] // 2
    return x[:, :H], x[:, H:]


# --- results ----------------------------------------------------------------------------------------------------------


def zeros(specs: Any, device: torch.device) -> Any:
    """Likewise, of zeros."""
    tensors = outputs(specs, device)
    for tensor in tensors:
        if tensor is not None:
            tensor.zero_()
    return tensors
