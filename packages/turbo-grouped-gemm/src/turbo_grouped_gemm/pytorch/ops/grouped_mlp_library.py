# SPDX-License-Identifier: MIT
"""The steps of a fused expert MLP as registered ops: ``turbo_grouped_gemm::grouped_gated``, ``grouped_dgated``,
``grouped_gate`` and ``grouped_dgate``. Their gradients are those of the whole (`grouped_mlp_autograd`)."""

from __future__ import annotations

from turbo_core.library import OpLibrary
from turbo_grouped_gemm.calls_mlp import (
    DgateCall,
    GateCall,
    GatedDgradCall,
    GatedGemmCall,
    GatedRows,
    GateGradients,
    dgate_specs,
    gate_specs,
    gated_dgrad_specs,
    gated_specs,
)
from turbo_grouped_gemm.pytorch.kernels.grouped_mlp_impl import GateDispatcher, GroupedMlpDispatcher

__all__ = ["grouped_dgate_op", "grouped_dgated_op", "grouped_gate_op", "grouped_gated_op"]

_library = OpLibrary("turbo_grouped_gemm")
_fused, _gates = GroupedMlpDispatcher.run, GateDispatcher.run
grouped_gated_op = _library.op("grouped_gated", GatedGemmCall, _fused, gated_specs, result=GatedRows)
grouped_dgated_op = _library.op("grouped_dgated", GatedDgradCall, _fused, gated_dgrad_specs, result=GateGradients)
grouped_gate_op = _library.op("grouped_gate", GateCall, _gates, gate_specs)
grouped_dgate_op = _library.op("grouped_dgate", DgateCall, _gates, dgate_specs, result=GateGradients)
