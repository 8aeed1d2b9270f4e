# SPDX-License-Identifier: MIT
"""Backend HIPBLASLT of the fused expert MLP's steps: torch's grouped product, then the gate by itself."""

from __future__ import annotations

from typing import Any

from turbo_grouped_gemm.calls_mlp import (
    DgateCall,
    GateCall,
    GatedDgradCall,
    GatedGemmCall,
    GatedRows,
    inner_dgrad,
    inner_gemm,
)
from turbo_grouped_gemm.pytorch.kernels import grouped_gemm_blas, grouped_mlp_impl

__all__ = ["run", "why_not"]

Call = GatedGemmCall | GatedDgradCall


def why_not(call: Call) -> str | None:
    """Why torch's product cannot take the call; None when it can."""
    return grouped_gemm_blas.why_not(inner_gemm(call) if isinstance(call, GatedGemmCall) else inner_dgrad(call))


def run(call: Call) -> Any:
    """Compute the call; the gradient of out is rounded between the two."""
    gates = grouped_mlp_impl.GateDispatcher
    if isinstance(call, GatedGemmCall):
        pre = grouped_gemm_blas.run(inner_gemm(call))
        out = gates.run(GateCall(pre, call.probs, call.groups, call.gate))
        return GatedRows(out, pre if call.keeps else None)
    dout = grouped_gemm_blas.run(inner_dgrad(call))
    return gates.run(DgateCall(dout, call.pre, call.probs, call.groups, call.gate, call.out, call.dprobs))
