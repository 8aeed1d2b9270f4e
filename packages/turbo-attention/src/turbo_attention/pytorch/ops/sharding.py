# SPDX-License-Identifier: MIT
"""How a device mesh may divide attention: by sequences of the batch, by heads, or by queries.

Heads of q and of k, v are divided alike, so their numbers must be multiples of the ranks; the one key head of
multi-query attention stays whole. Queries are divided only where all of them see all keys: windows and causality count
from the end of the sequence. k, v and what else stays whole then gets a gradient that is a sum over the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turbo_attention.fp8_calls import FP8_ROWS
from turbo_core import UnsupportedError
from turbo_core.sharding import WHOLE, Rule, Shapes, Split

__all__ = ["dense_rules", "fp8_rules", "ragged_rules", "sparse_mla_rules"]


def _refuse_dropout(op: str, dropout_p: Any) -> None:
    if dropout_p:
        raise UnsupportedError(
            f"{op}: dropout_p={dropout_p!r} of DTensors, whose ranks would drop different weights; 0 is accepted, or "
            "local tensors"
        )


def _outputs(arguments: Mapping[str, Any], out: Split, lse: int, probs: int) -> tuple[Split, ...]:
    """What the function returns: out, and as asked lse and the weights, of which those dimensions are divided."""
    found = [out]
    if arguments["return_lse"]:
        found.append(Split(lse, out.size))
    if arguments["return_attn_probs"]:
        found.append(Split(probs, out.size))
    return tuple(found)


def _broadcast(inputs: dict[str, int], name: str, shape: Sequence[int] | None, from_end: int, size: int) -> None:
    """Divides dimension -from_end of an argument, unless it is broadcast along it."""
    if shape is not None and len(shape) >= from_end and shape[-from_end] == size and size != 1:
        inputs[name] = len(shape) - from_end


def _heads(shapes: Shapes, dim: int, parts: int) -> dict[str, int] | None:
    """q, k and v divided by heads, which are dimension ``dim``; None where they cannot be."""
    query_heads, key_heads = shapes["q"][dim], shapes["k"][dim]
    if query_heads % parts or (key_heads % parts and key_heads != 1):
        return None
    return {"q": dim} if key_heads == 1 else {"q": dim, "k": dim, "v": dim}


def dense_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of flash_attn_func."""
    return _dense_rules("flash_attn_func", shapes, arguments, parts)


def _dense_rules(op: str, shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    _refuse_dropout(op, arguments["dropout_p"])
    if any(len(shapes.get(name, ())) != 4 for name in "qkv"):
        return [WHOLE]
    batch, seqlen, heads, _ = shapes["q"]
    bias, slopes = shapes.get("bias"), shapes.get("alibi_slopes")
    by_batch = {"q": 0, "k": 0, "v": 0}
    _broadcast(by_batch, "bias", bias, 4, batch)
    if slopes is not None and len(slopes) == 2:
        by_batch["alibi_slopes"] = 0
    rules = [WHOLE, Rule(by_batch, _outputs(arguments, Split(0, batch), 0, 0))]
    by_heads = _heads(shapes, 2, parts)
    if by_heads is not None:
        by_heads["sink"] = 0
        _broadcast(by_heads, "bias", bias, 3, heads)
        _broadcast(by_heads, "alibi_slopes", slopes, 1, heads)
        rules.append(Rule(by_heads, _outputs(arguments, Split(2, heads), 1, 1)))
    if not arguments["causal"] and list(arguments["window_size"]) == [-1, -1] and slopes is None:
        by_queries = {"q": 1}
        _broadcast(by_queries, "bias", bias, 2, seqlen)
        rules.append(Rule(by_queries, _outputs(arguments, Split(1, seqlen), 2, 2)))
    return rules


def fp8_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of flash_attn_fp8_func: queries are divided between blocks that share a scale."""
    rules = _dense_rules("flash_attn_fp8_func", shapes, arguments, parts)
    return [rule for rule in rules if rule.inputs.get("q") != 1 or shapes["q"][1] % (FP8_ROWS * parts) == 0]


def ragged_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of flash_attn_varlen_func: by heads."""
    _refuse_dropout("flash_attn_varlen_func", arguments["dropout_p"])
    if any(len(shapes.get(name, ())) != 3 for name in "qkv"):
        return [WHOLE]
    by_heads = _heads(shapes, 1, parts)
    if by_heads is None:
        return [WHOLE]
    heads = shapes["q"][1]
    by_heads["sink"] = 0
    _broadcast(by_heads, "alibi_slopes", shapes.get("alibi_slopes"), 1, heads)
    return [WHOLE, Rule(by_heads, _outputs(arguments, Split(1, heads), 0, 1))]


def sparse_mla_rules(shapes: Shapes, arguments: Mapping[str, Any], parts: int) -> list[Rule]:
    """The rules of sparse_mla_func: by tokens, or by heads, which share the latent rows."""
    q = shapes.get("q", ())
    if len(q) != 3:
        return [WHOLE]
    rules = [WHOLE, Rule({"q": 0, "topk_indices": 0}, (Split(0, q[0]),) * 2)]
    if q[1] % parts == 0:
        rules.append(Rule({"q": 1, "attn_sink": 0}, (Split(1, q[1]),) * 2))
    return rules
