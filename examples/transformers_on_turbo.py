# SPDX-License-Identifier: MIT
"""Turbo's operators in a model of Hugging Face's transformers: `use_turbo(model)`. Copy this file beside your program.

Attention goes by way of the two interfaces that transformers has for it: `turbo_attention` computes, `turbo_mask` says
what may be seen, in the cheapest form that says it. Norms, gated MLPs and linear layers are exchanged for modules that
hold the same parameters under the same names, so optimisers, state dicts and `save_pretrained` see no difference.
What is not named below, such as the experts of GPT-OSS, stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from turbo_attention import flash_attn_func, flash_attn_varlen_func
from turbo_gemm import Linear
from turbo_norm_act import RMSNorm, SwiGLU

# y = x / sqrt(mean(x²) + eps) * weight: the norms of this formula, and the MLPs that are down(act(gate(x)) * up(x)).
# Others have the names but not the formula: Gemma's norm adds 1 to its weight.
RMS_NORMS = {f"{name}RMSNorm" for name in ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "GptOss")}
GATED_MLPS = {f"{name}MLP" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe")}


def turbo_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    *,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    local_size: int | None = None,
    config: Any = None,
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> Tensor | None:
    """What `turbo_attention` needs to know beyond causality and the layer's window.

    None: nothing more. [batch, keys] bool: the keys that are no padding. [batch, 1, queries, keys] float: a bias that
    says all, causality and window included; for packed batches without cu_seq_lens, static caches and custom patterns.

    Args:
        batch_size, q_length, kv_length: sizes of the full mask.
        q_offset, kv_offset: positions of the first query and key; a static cache gives a tensor.
        attention_mask: [batch, positions] bool, False where there is padding.
        allow_is_causal_skip: False where the pattern is more than causality and a local size.
        local_size: the window, or the chunk of chunked attention.
        config: of the model.
        dtype: of the bias.
        **others: what `transformers.masking_utils.sdpa_mask` takes besides.
    """
    window = local_size is None or (
        local_size == getattr(config, "sliding_window", None)
        and local_size != getattr(config, "attention_chunk_size", None)
    )
    # turbo_attention aligns causality and windows to the last query and key, as transformers does unless keys are spare
    aligned = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
    known = attention_mask is None or attention_mask.shape[-1] >= kv_offset + kv_length
    if allow_is_causal_skip and window and aligned and known:
        if attention_mask is None:
            return None
        real = attention_mask[:, kv_offset : kv_offset + kv_length]
        # reading the values waits for the device once a step; a compiler must not read them
        return real if torch.compiler.is_compiling() or not real.all() else None
    seen = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        **others,
    )
    return None if seen is None else as_bias(seen, dtype)


def as_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``seen`` is True and -inf elsewhere; a query that sees nothing then gives 0."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def turbo_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention of one layer, for `transformers.AttentionInterface`.

    Args:
        module: the layer, which says whether it is causal if ``is_causal`` does not.
        query: [batch, heads, queries, head_dim]; key, value: likewise, with as many or fewer heads.
        attention_mask: of `turbo_mask`, or the caller's own [batch, 1 or heads, queries, keys], bool or a bias.
        dropout, scaling, softcap: as in `turbo_attention.flash_attn_func`.
        sliding_window: how many keys a query sees, its own included.
        s_aux: the sinks of GPT-OSS, one a head.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: a packed batch; the offsets then say what belongs
            together, and no mask is looked at.
        position_bias: a learned bias, added to the mask.
        **others: what models pass and attention does not need, such as position_ids.

    Returns:
        [batch, queries, heads, head_dim], and None for the weights, which are never formed.
    """
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True) and getattr(module.config, "is_causal", True)
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, sliding_window - 1)
    options: dict[str, Any] = {"dropout_p": dropout, "softmax_scale": scaling, "softcap": softcap or 0.0, "sink": s_aux}
    if cu_seq_lens_q is not None:
        tokens = (tensor.flatten(0, 1) for tensor in (q, k, v))
        lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
        out = flash_attn_varlen_func(*tokens, *lengths, causal=is_causal, window_size=window, **options)
        return out.unflatten(0, q.shape[:2]), None
    bias = attention_mask
    if bias is not None and bias.dim() == 4:  # it says all
        is_causal, window = False, (-1, -1)
    elif bias is not None:
        bias = bias[:, None, None]
    if bias is not None and bias.dtype == torch.bool:
        bias = as_bias(bias, q.dtype)
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    return flash_attn_func(q, k, v, causal=is_causal, window_size=window, bias=bias, **options), None


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) with the three layers of ``mlp``."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.swiglu = SwiGLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.swiglu(self.gate_proj(x), self.up_proj(x)))


def rms_norm(norm: nn.Module) -> RMSNorm:
    """`turbo_norm_act.RMSNorm` on the weight of ``norm``."""
    made = RMSNorm(norm.weight.shape[0], eps=norm.variance_epsilon, device="meta")
    made.weight = norm.weight
    return made.train(norm.training)


def use_turbo(
    model: PreTrainedModel,
    linear: Callable[[nn.Linear], nn.Linear] | None = Linear.from_float,
    keep: Iterable[str] = ("lm_head",),
) -> PreTrainedModel:
    """``model`` on Turbo's operators, changed in place and returned; call it before the optimiser is made.

    Args:
        model: a causal language model whose attention goes through `transformers.AttentionInterface`.
        linear: makes the linear layers, such as `Float8Linear.from_float`; None leaves them all.
        keep: names of linear layers that stay as they are.
    """
    AttentionInterface.register("turbo", turbo_attention)
    AttentionMaskInterface.register("turbo", turbo_mask)
    model.set_attn_implementation("turbo")
    kept = set(keep)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            kind = type(child).__name__
            if kind in RMS_NORMS:
                setattr(parent, name, rms_norm(child))
            elif kind in GATED_MLPS and type(child.act_fn).__name__ in ("SiLUActivation", "SiLU"):
                setattr(parent, name, GatedMLP(child).train(child.training))
            elif type(child) is nn.Linear and linear is not None and name not in kept:
                setattr(parent, name, linear(child))
    return model
