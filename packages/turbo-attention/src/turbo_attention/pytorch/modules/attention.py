# SPDX-License-Identifier: MIT
"""`TurboAttention`: attention as a module, dense or of variable lengths."""

from __future__ import annotations

from typing import Any

import torch

from turbo_attention.pytorch.ops.attention import flash_attn_func, flash_attn_varlen_func
from turbo_attention.pytorch.ops.attention_fp8 import check_config, flash_attn_fp8_func
from turbo_core import UnsupportedError
from turbo_core.low_precision import Float8QuantConfig

__all__ = ["TurboAttention"]


class TurboAttention(torch.nn.Module):
    """`flash_attn_func` with its options fixed; `flash_attn_varlen_func` where cu_seqlens are given.

    With ``fp8_config`` it is `flash_attn_fp8_func`, which has no form for cu_seqlens.

    Args:
        dropout_p: applied in training mode only.
        softmax_scale, causal, window_size, alibi_slopes, deterministic, return_lse, return_attn_probs, softcap: as for
            `flash_attn_func`.
        fp8_config: None, or as for `flash_attn_fp8_func`.
        ulysses_group, ring_group: None is accepted; context parallelism comes with a later version.
        sink: a parameter [Hq] that joins the softmax's denominator, or None.
    """

    def __init__(
        self,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_lse: bool = False,
        return_attn_probs: bool = False,
        fp8_config: Float8QuantConfig | None = None,
        ulysses_group: Any = None,
        ring_group: Any = None,
        *,
        sink: torch.nn.Parameter | None = None,
        softcap: float = 0.0,
    ) -> None:
        super().__init__()
        if sink is not None and not isinstance(sink, torch.nn.Parameter):
            raise UnsupportedError(
                f"TurboAttention: sink is a {type(sink).__name__}; a torch.nn.Parameter or None is accepted"
            )
        for name, group in (("ulysses_group", ulysses_group), ("ring_group", ring_group)):
            if group is not None:
                raise UnsupportedError(
                    f"TurboAttention: {name} is a {type(group).__name__}; None is accepted: context parallelism comes "
                    "with a later version"
                )
        check_config("TurboAttention", fp8_config)
        self.fp8_config = fp8_config
        self.dropout_p = dropout_p
        self.options: dict[str, Any] = dict(
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            deterministic=deterministic,
            return_lse=return_lse,
            return_attn_probs=return_attn_probs,
            softcap=softcap,
        )
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.register_parameter("sink", sink)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """q [B,Sq,Hq,D], k, v [B,Sk,Hkv,.]; or [total,H,D] each with cu_seqlens and max_seqlen of both."""
        options = {**self.options, "dropout_p": self.dropout_p if self.training else 0.0}
        options.update(bias=bias, alibi_slopes=self.alibi_slopes, sink=self.sink)
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        if all(value is None for value in lengths):
            if self.fp8_config is not None:
                return flash_attn_fp8_func(q, k, v, fp8_config=self.fp8_config, **options)
            return flash_attn_func(q, k, v, **options)
        if self.fp8_config is not None:
            raise UnsupportedError(
                "TurboAttention: cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k with fp8_config; "
                "FP8 attention takes dense batches, None is accepted"
            )
        if any(value is None for value in lengths):
            raise UnsupportedError(
                "TurboAttention: cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k go together; "
                "all or none are accepted"
            )
        return flash_attn_varlen_func(q, k, v, *lengths, **options)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        shown = {"dropout_p": self.dropout_p, **self.options}
        if self.fp8_config is not None:
            shown["fp8_config"] = self.fp8_config
        return ", ".join(f"{name}={value}" for name, value in shown.items())
