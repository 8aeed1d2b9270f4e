# SPDX-License-Identifier: MIT
"""What bench_grouped_gemm_turbo.py measures of FP8 and FP4: the op with its quantisation and gradients; the products
of operands quantised beforehand, next to torch's scaled grouped matmul where that has them (scales of rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.ops.training.grouped_sides import Groups, Inputs, Parts
from benchmark.ops.training.quant_gemm import QuantGemm, quantise
from turbo_core.low_precision import BLOCK_SIZE, Float4QuantConfig, ScalingGranularity
from turbo_grouped_gemm import grouped_gemm_fp4, grouped_gemm_fp8
from turbo_grouped_gemm.calls import GroupedGemmFp8Call, GroupedOperand, GroupedWgradFp8Call
from turbo_grouped_gemm.calls import Groups as CallGroups
from turbo_grouped_gemm.pytorch.kernels.grouped_gemm_fp8_impl import GroupedGemmFp8Dispatcher

__all__ = ["QuantGroupedGemm"]


@dataclass(frozen=True)
class QuantGroupedGemm:
    """One kind of quantised grouped GEMM.

    Attributes:
        kind: its granularity, config and promised SNR, which are those of the dense one.
        schedule: see `grouped_gemm`.
    """

    kind: QuantGemm
    schedule: str = "static"

    def forward(self, x: Tensor, w: Tensor, groups: Groups) -> Tensor:
        """y [R,N] by the op."""
        config = self.kind.config
        if isinstance(config, Float4QuantConfig):
            return grouped_gemm_fp4(x, w, groups.lens, trans_b=True, config=config, schedule=self.schedule)
        return grouped_gemm_fp8(x, w, groups.lens, trans_b=True, config=config, schedule=self.schedule)

    def product_parts(self, sets: list[Inputs]) -> Parts:
        """The products of operands quantised beforehand; none for MX, whose op pads by itself."""
        if self.kind.granularity.startswith("mx"):
            return {}
        how, schedule = (self._granularity(), BLOCK_SIZE if self._is_blockwise() else 0), self.schedule
        forwards, wgrads = [], []
        for inputs in sets:
            (a, b), (x, y) = self._forward_operands(inputs), self._wgrad_operands(inputs)
            rows, dtype = CallGroups(inputs.groups.lens, None), inputs.x.dtype
            count = inputs.x.shape[0]
            forwards.append(GroupedGemmFp8Call(a, b, None, rows, *how, dtype, None, None, count, schedule=schedule))
            offs = F.pad(_padded_ends(inputs.groups), (1, 0))
            wgrads.append(GroupedWgradFp8Call(x, y, offs, *how, dtype, schedule=schedule))
        return {
            "Gemm": lambda number: GroupedGemmFp8Dispatcher.run(forwards[number % len(sets)]),
            "Wgrad Gemm": lambda number: GroupedGemmFp8Dispatcher.run(wgrads[number % len(sets)]),
        }

    def peer_product_parts(self, sets: list[Inputs]) -> Parts:
        """The same by torch's scaled grouped matmul, which has scales of rows."""
        if self.kind.granularity != "rowwise":
            return {}
        forwards, wgrads = [], []
        for inputs in sets:
            (a, b), (x, y), groups = self._forward_operands(inputs), self._wgrad_operands(inputs), inputs.groups
            scales = a.scale_inv.view(-1), b.scale_inv.squeeze(2)
            forwards.append((a.data, b.data.transpose(1, 2), *scales, groups.ends))
            scales = x.scale_inv.reshape(-1), y.scale_inv.reshape(-1)
            wgrads.append((x.data, y.data.t(), *scales, _padded_ends(groups).to(torch.int32)))
        dtype = sets[0].x.dtype
        return {
            "Gemm": lambda number: self._scaled_grouped_mm(*forwards[number % len(sets)], dtype),
            "Wgrad Gemm": lambda number: self._scaled_grouped_mm(*wgrads[number % len(sets)], dtype),
        }

    def _forward_operands(self, inputs: Inputs) -> tuple[GroupedOperand, GroupedOperand]:
        """a from x, b from w, their scales along K."""
        x, w = inputs.x.detach(), inputs.w.detach()
        G, N, K = w.shape
        a = _operand(x, self.kind.granularity)
        if self._is_blockwise():
            payloads, scales = zip(*(quantise(matrix, "tiles") for matrix in w))
            return a, GroupedOperand(torch.stack(payloads), torch.stack(scales))
        b = _operand(w.view(G * N, K), self.kind.granularity)
        return a, GroupedOperand(b.data.view(G, N, K), b.scale_inv.view(G, N, 1) if b.scale_inv.dim() else b.scale_inv)

    def _wgrad_operands(self, inputs: Inputs) -> tuple[GroupedOperand, GroupedOperand]:
        """x from dy and y from x, their scales along the rows of each group."""
        bounds = inputs.groups.bounds
        return self._along_rows(inputs.dy, bounds), self._along_rows(inputs.x.detach(), bounds)

    def _granularity(self) -> ScalingGranularity:
        return ScalingGranularity(self.kind.granularity)

    def _is_blockwise(self) -> bool:
        return self.kind.granularity == "blockwise"

    def _along_rows(self, matrix: Tensor, bounds: list[tuple[int, int]]) -> GroupedOperand:
        """matrix [R,C] as [C,P], quantised along the rows of each group, which is filled up to whole blocks."""
        parts = [matrix[start:end].t() for start, end in bounds]
        fill = [-part.shape[1] % BLOCK_SIZE for part in parts]
        if self.kind.granularity != "rowwise":
            padded = torch.cat([F.pad(part, (0, rest)) for part, rest in zip(parts, fill)], 1)
            return _operand(padded, self.kind.granularity)
        quantised = [quantise(part.contiguous(), "rowwise") for part in parts]
        payload = torch.cat([F.pad(q.view(torch.uint8), (0, rest)) for (q, _), rest in zip(quantised, fill)], 1)
        scale_inv = torch.stack([scale.view(-1) for _, scale in quantised])
        return GroupedOperand(payload.view(quantised[0][0].dtype), scale_inv)

    def _scaled_grouped_mm(
        self, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, ends: Tensor, dtype: torch.dtype
    ) -> Tensor:
        c: Tensor = torch._scaled_grouped_mm(
            a, b, a_scale, b_scale, offs=ends, out_dtype=dtype, use_fast_accum=self.kind.fast_accum
        )
        return c


def _padded_ends(groups: Groups) -> Tensor:
    """The column behind each group, [G] int64, when each is filled up to whole blocks."""
    return (-(-groups.lens // BLOCK_SIZE) * BLOCK_SIZE).cumsum(0)


def _operand(x: Tensor, granularity: str) -> GroupedOperand:
    """x [rows,K] with scales along K."""
    return GroupedOperand(*quantise(x.contiguous(), granularity))
