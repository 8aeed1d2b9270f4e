# SPDX-License-Identifier: MIT
"""Tensors of one grouped product of quantised operands, what it must equal, and the check of both."""

from __future__ import annotations

import math

import torch

import turbo_grouped_gemm as tgg
import turbo_quant
from turbo_core.low_precision import Float4QuantConfig
from turbo_gemm.pytorch.ops.gemm_fp8_quantize import SIGN_MASK
from turbo_testing.metrics import assert_close, assert_snr
from turbo_testing.quantised import gate
from turbo_testing.quantised_groups import grouped_product


def multiply(a, b, lens, config, **options):
    """grouped_gemm_fp8 or grouped_gemm_fp4, by the config."""
    function = tgg.grouped_gemm_fp4 if isinstance(config, Float4QuantConfig) else tgg.grouped_gemm_fp8
    return function(a, b, lens, config=config, **options)


def rotate(x, axis):
    """The rotation of dB's operands of MXFP4 along ``axis``, in float32; zeros fill the last blocks."""
    along_last = x.float().movedim(axis, -1)
    padded = torch.nn.functional.pad(along_last, (0, -along_last.shape[-1] % 128))
    return turbo_quant.hadamard_transform(padded, SIGN_MASK).movedim(-1, axis)


class Problem:
    """a, b and bias as leaves, and a gradient of C; what belongs to no group is NaN everywhere.

    ``room``: rows of no group behind each group; ``gather``: a row of a for each row of the groups, the last the first
    again; ``scatter``: rows of C in another order, some of none.
    """

    def __init__(
        self, lens, tail, n, k, dtype=torch.bfloat16, device="cpu", trans_b=True, room=0, gather=False, scatter=False
    ):
        starts = [sum(lens[:g]) + g * room for g in range(len(lens) + 1)]
        rows = starts[-1] + tail
        self.sources = [list(range(start, start + count)) for start, count in zip(starts, lens)]
        self.targets, out_rows = self.sources, rows
        dtype_of_groups = torch.int32 if room else torch.int64
        self.lens = torch.tensor(lens, dtype=dtype_of_groups, device=device)
        self.options = {
            "trans_b": trans_b,
            "group_offs": torch.tensor(starts, dtype=dtype_of_groups, device=device) if room else None,
        }
        inside = [row for group in self.sources for row in group]
        if gather:
            order = torch.randperm(rows).tolist()
            if inside:
                order[inside[-1]] = order[inside[0]]
            self.sources = [[order[row] for row in group] for group in self.sources]
            self.options["a_idx"] = self._index(order, inside, -(2**31))
        if scatter:
            out_rows = rows + 3
            order = torch.randperm(out_rows)[:rows].tolist()
            self.targets = [[order[row] for row in group] for group in self.targets]
            self.options |= {"out_idx": self._index(order, inside, 2**31 - 1), "out_rows": out_rows}
        scale = max(k, 1) ** -0.25
        self.a = (torch.randn(rows, k, device=device) * scale).to(dtype)
        self.grad_out = (torch.randn(out_rows, n, device=device) / max(n, *lens, 1) ** 0.5).to(dtype)
        self.unused, self.unwritten = (self._others(size, groups) for size, groups in (
            (rows, self.sources), (out_rows, self.targets)
        ))  # fmt: skip
        self.a[self.unused] = math.nan
        self.grad_out[self.unwritten] = math.nan
        self.a.requires_grad_()
        shape = (len(lens), n, k) if trans_b else (len(lens), k, n)
        self.b = (torch.randn(shape, device=device) * scale).to(dtype).requires_grad_()
        self.bias = torch.randn(len(lens), n, device=device).to(dtype).requires_grad_()

    def _index(self, order, inside, elsewhere):
        inside = set(inside)
        values = [value if row in inside else elsewhere for row, value in enumerate(order)]
        return torch.tensor(values, dtype=torch.int32, device=self.lens.device)

    def _others(self, size, groups):
        others = torch.ones(size, dtype=torch.bool, device=self.lens.device)
        others[[row for group in groups for row in group]] = False
        return others

    def leaves(self):
        return self.a, self.b, self.bias

    def run(self, config, **options):
        return multiply(self.a, self.b, self.lens, config, bias=self.bias, **self.options, **options)

    def step(self, config, **options):
        """C and its gradients."""
        out = self.run(config, **options)
        return out, *torch.autograd.grad(out, self.leaves(), self.grad_out.to(out.dtype))

    def expected(self, config):
        """The float64 results of the operands as quantised by ``config``; None: as they are."""
        return grouped_product(
            self.a, self.b, self.bias, self.grad_out, self.sources, self.targets, self.options["trans_b"], config,
            rotate if isinstance(config, Float4QuantConfig) else None,
        )  # fmt: skip

    def bias_of_rows(self):
        """What the bias adds to C, float64."""
        added = torch.zeros(self.grad_out.shape, dtype=torch.float64, device=self.lens.device)
        for g, rows in enumerate(self.targets):
            added[rows] = self.bias[g].detach().double()
        return added

    def check(self, config, snr=True, exact=True, **options):
        """Everything about one step."""
        results = self.step(config, **options)
        out = results[0]
        assert out.is_contiguous()
        ideal, close = self.expected(None), self.expected(config)
        for what, got, leaf, want, near in zip(
            ("out", "dA", "dB", "dbias"), results, (out, *self.leaves()), ideal, close
        ):
            assert (got.dtype, got.shape) == (leaf.dtype, want.shape), what
            if exact:
                assert_close(got, near, what=f"{what} of the dequantised operands")
            if snr:
                assert_snr(got.double(), want, gate(config), what=what)
        assert not out[self.unwritten].count_nonzero(), "rows of no group are exact zeros"
        assert not results[1][self.unused].count_nonzero(), "and so are their gradients"
        for g in (self.lens == 0).nonzero().flatten().tolist():
            assert not results[2][g].count_nonzero(), "the gradient of a group without rows is exactly zero"
