# SPDX-License-Identifier: MIT
"""The gates of gated activations, for kernels that apply them to tiles in registers.

    out = act(gate) up

    silu       act(g) = g sigmoid(g)
    gelu       act(g) = g (1 + erf(g / sqrt 2)) / 2
    gelu_tanh  act(g) = g (1 + tanh(z)) / 2 = g sigmoid(2 z),    z = sqrt(2 / pi) (g + 0.044715 g^3)
    clamped    act(g) = g sigmoid(alpha g),      and 1 + up in the place of up

With a limit (not None), min(gate, limit) and clamp(up, -limit, limit) stand in the places of gate and up; a clamp
passes the gradient on its edges and stops it outside, as torch.clamp does. `clamped` with limit 7 and alpha 1.702 is
the gate of GPT-OSS. NaN propagates.

Source: SwiGLU and GEGLU, Shazeer 2020 (arXiv 2002.05202); GELU, Hendrycks and Gimpel 2016 (arXiv 1606.08415).
"""

import triton
import triton.language as tl

__all__ = ["activate", "sigmoid"]


@triton.jit
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activate(gate, up, limit, alpha, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """act(gate), its derivative, the second factor and its derivative (what is not used costs nothing); float32."""
    up_slope = tl.full(up.shape, 1.0, tl.float32)
    gate_slope = up_slope
    if limit is not None:
        gate_slope = tl.where(gate <= limit, 1.0, 0.0)
        up_slope = tl.where((up <= limit) & (up >= -limit), 1.0, 0.0)
        gate = tl.where(gate > limit, limit, gate)  # comparisons let NaN through
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    if ACTIVATION == "silu":
        rise = sigmoid(gate)
        act = gate * rise
        slope = rise * (1.0 + gate * (1.0 - rise))
    elif ACTIVATION == "gelu":
        cdf = 0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)
        act = gate * cdf
        slope = cdf + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    elif ACTIVATION == "gelu_tanh":
        square = gate * gate
        rise = sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * square))
        act = gate * rise
        slope = rise + act * (1.0 - rise) * 1.5957691216057308 * (1.0 + 0.134145 * square)
    else:
        tl.static_assert(ACTIVATION == "clamped")
        up = 1.0 + up
        rise = sigmoid(alpha * gate)
        act = gate * rise
        slope = rise * (1.0 + alpha * gate * (1.0 - rise))
    if limit is not None:
        slope = gate_slope * slope
    return act, slope, up, up_slope
