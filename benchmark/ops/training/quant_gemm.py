# SPDX-License-Identifier: MIT
"""What bench_gemm_turbo.py measures of FP8 and FP4: the product alone, and the op with its quantisation and gradients.

The peer in torch is what one would write there: quantisation by `torch.compile`, `torch._scaled_mm` for the products,
and copies of the operands that it wants in another layout. It has no such product for MX on the GPUs without scaled
matrix instructions, so none is timed there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turbo_core.low_precision import (
    BLOCK_SIZE,
    Float4QuantConfig,
    Float8QuantConfig,
    Format,
    ScaleDtype,
    ScalingGranularity,
    ScalingRecipe,
    fp8_dtype,
    fp8_max,
)
from turbo_gemm import gemm_fp4, gemm_fp8
from turbo_gemm.calls import GemmFp8Call, Operand
from turbo_gemm.pytorch.kernels.gemm_fp8_impl import GemmFp8Dispatcher
from turbo_quant import quantize_fp8

GRANULARITIES = ("tensorwise", "rowwise", "blockwise", "mxfp8", "mxfp4")
SNR = {"mxfp4": 10.0}  # dB against float64; 25 for all in FP8


@dataclass(frozen=True)
class QuantGemm:
    """One kind of quantised GEMM: y = x w^T.

    Attributes:
        granularity: one of `GRANULARITIES`.
        fast_accum: whether torch's product may sum in the 14 bits of Hopper's matrix units.
    """

    granularity: str
    fast_accum: bool = False

    @property
    def snr(self) -> float:
        return SNR.get(self.granularity, 25.0)

    @property
    def config(self) -> Float8QuantConfig | Float4QuantConfig:
        """Of the op, E4M3 in FP8."""
        if self.granularity == "mxfp4":
            return Float4QuantConfig()
        if self.granularity == "mxfp8":
            return Float8QuantConfig(
                Format.E4M3, ScalingGranularity.MX_BLOCKWISE, scale_dtype=ScaleDtype.E8M0, block_size=32
            )
        granularity = ScalingGranularity(self.granularity)
        blocks = BLOCK_SIZE if granularity is ScalingGranularity.BLOCKWISE else None
        return Float8QuantConfig(Format.E4M3, granularity, block_size=blocks)

    def op(self, x: Tensor, w: Tensor) -> Tensor:
        """The op of turbo-gemm."""
        config = self.config
        if isinstance(config, Float4QuantConfig):
            return gemm_fp4(x, w, trans_b=True, config=config)
        return gemm_fp8(x, w, trans_b=True, config=config)

    def has_peer(self, device: torch.device) -> bool:
        """Whether torch has such a product there."""
        return device.type == "cuda" and not self.granularity.startswith("mx")

    def peer_takes(self, x: Tensor, w: Tensor) -> bool:
        """Whether it takes these: whole blocks, or multiples of 16."""
        multiple = BLOCK_SIZE if self.granularity == "blockwise" else 16
        return self.has_peer(x.device) and all(size % multiple == 0 for size in (*x.shape, *w.shape))

    def peer(self, x: Tensor, w: Tensor) -> Tensor:
        """The same in torch."""
        y: Tensor = _TorchLinear.apply(x, w, self)  # type: ignore[no-untyped-call]
        return y

    def products(self, x: Tensor, w: Tensor) -> dict[str, Callable[[], Tensor]]:
        """The product of operands quantised beforehand: ours, then torch's; nothing for MX, whose op pads by itself."""
        if self.granularity.startswith("mx"):
            return {}
        granularity = ScalingGranularity(self.granularity)
        blockwise = granularity is ScalingGranularity.BLOCKWISE
        qx, sx = quantise(x.detach(), self.granularity)
        if blockwise:
            sx = sx.t().contiguous().t()  # the order of memory that both products read
        qw, sw = quantise(w.detach(), "tiles" if blockwise else self.granularity)
        a, b = Operand(qx, sx), Operand(qw, sw, True, blockwise)
        call = GemmFp8Call(a, b, None, granularity, BLOCK_SIZE if blockwise else 0, x.dtype)
        found: dict[str, Callable[[], Tensor]] = {"": lambda: GemmFp8Dispatcher.run(call)}
        if self.peer_takes(x, w):
            found["Torch "] = lambda: self.scaled_mm(qx, sx, qw, sw, x.dtype)
        return found

    def scaled_mm(self, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
        """a [M, K] times b [N, K]^T, both contiguous, scales as `quantise` makes them."""
        if self.granularity == "blockwise":
            return _blockwise_mm(a, a_scale, b, b_scale, dtype)
        product: Tensor = torch._scaled_mm(
            a, b.t(), scale_a=a_scale, scale_b=b_scale.t(), out_dtype=dtype, use_fast_accum=self.fast_accum
        )
        return product


def _blockwise_mm(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """1 x 128 blocks of a with 128 x 128 tiles, or 1 x 128 blocks, of b."""
    from torch.nn.functional import ScalingType, scaled_mm

    a_scale = a_scale.t().contiguous().t()  # the order of memory that cuBLASLt wants
    if b_scale.shape[0] != b.shape[0]:
        tiles: Tensor = torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale.t(), out_dtype=dtype)
        return tiles
    blocks = ScalingType.BlockWise1x128
    return scaled_mm(a, b.t(), a_scale, blocks, b_scale.t().contiguous().t(), blocks, output_dtype=dtype)


def quantise(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Payload and multipliers of x [rows, K] along K, by turbo-quant: inputs of a product, not timed."""
    dtype = fp8_dtype(Format.E4M3, x.device)
    granularity = ScalingGranularity.BLOCKWISE if kind == "tiles" else ScalingGranularity(kind)
    options: dict[str, Any] = {} if granularity is ScalingGranularity.TENSORWISE else {"axis": 1}
    if kind == "tiles":
        options = {"scaling_recipe": ScalingRecipe(use_2d_block=True)}
    if granularity is ScalingGranularity.BLOCKWISE:
        options["block_size"] = BLOCK_SIZE
    return quantize_fp8(x, dtype, granularity, **options)


def _torch_quantise(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The same in torch; x may be a transposed view, the payload is contiguous."""
    dtype = fp8_dtype(Format.E4M3, x.device)
    rows, K = x.shape
    wide = x.float()
    if kind == "tensorwise":
        blocks = wide.view(1, rows, 1, K) if x.is_contiguous() else wide.reshape(1, rows, 1, K)
    elif kind == "rowwise":
        blocks = wide.reshape(rows, 1, 1, K)
    else:
        edge = BLOCK_SIZE if kind == "tiles" else 1
        blocks = wide.reshape(rows // edge, edge, K // BLOCK_SIZE, BLOCK_SIZE)
    amax = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-12)
    scale = fp8_max(dtype) / amax
    payload = (blocks * scale).clamp(-fp8_max(dtype), fp8_max(dtype)).reshape(rows, K).to(dtype)
    scale_inv = scale.reciprocal()[:, 0, :, 0]
    return payload.contiguous(), scale_inv.reshape(()) if kind == "tensorwise" else scale_inv


@functools.cache
def compiled_quantise() -> Callable[[Tensor, str], tuple[Tensor, Tensor]]:
    """Compiled for each shape and layout: past torch's limit of compilations it would fall back to eager."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1024
    return torch.compile(_torch_quantise, dynamic=False)


class _TorchLinear(torch.autograd.Function):
    """y = x w^T with all three products in FP8: each operand is quantised along the contraction of its product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, kind: QuantGemm) -> Tensor:
        x, w = x.detach(), w.detach()
        ctx.save_for_backward(x, w)
        ctx.kind = kind
        weights = "tiles" if kind.granularity == "blockwise" else kind.granularity
        quantise = compiled_quantise()
        return kind.scaled_mm(*quantise(x, kind.granularity), *quantise(w, weights), x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        kind, quantise = ctx.kind, compiled_quantise()
        weights = "tiles" if kind.granularity == "blockwise" else kind.granularity
        dx = kind.scaled_mm(*quantise(dy, kind.granularity), *quantise(w.t(), weights), x.dtype)
        dw = kind.scaled_mm(*quantise(dy.t(), kind.granularity), *quantise(x.t(), kind.granularity), x.dtype)
        return dx, dw, None
