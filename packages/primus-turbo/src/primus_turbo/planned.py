# SPDX-License-Identifier: MIT
"""Names that clients of this package import and that no wheel has yet: what to say when one is asked for.

An attribute that is not there yet is an AttributeError, so that ``hasattr`` answers; an import is an ImportError, so
that ``try: from ... import ...`` works. Both name the wheel that is to bring it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

__all__ = ["PLANNED", "no_attribute", "register"]

_OPS, _KERNELS = "primus_turbo.pytorch.ops", "primus_turbo.pytorch.kernels"

PLANNED: Mapping[str, str] = MappingProxyType(
    {
        f"{_OPS}.flash_attn_usp_func": "turbo-attention",
        f"{_OPS}.flash_attn_fp8_usp_func": "turbo-attention",
        f"{_OPS}.flash_attn_varlen_usp_func": "turbo-attention",
        f"{_OPS}.fused_group_topk_routing_with_aux_score": "turbo-moe",
        f"{_OPS}.indices_to_multihot": "turbo-moe",
        f"{_OPS}.moe": "turbo-moe",
        f"{_OPS}.moe_combine": "turbo-moe",
        f"{_OPS}.moe_dispatch": "turbo-moe",
        f"{_OPS}.moe_permute": "turbo-moe",
        f"{_OPS}.moe_unpermute": "turbo-moe",
        f"{_OPS}.token_permute": "turbo-moe",
        f"{_OPS}.token_unpermute": "turbo-moe",
        f"{_OPS}.tokens_per_expert_to_mask": "turbo-moe",
        f"{_KERNELS}.fused_mega_moe": "turbo-moe",
        "primus_turbo.pytorch.deep_ep": "turbo-moe",
        "primus_turbo.pytorch.modules.DeepEPTokenDispatcher": "turbo-moe",
        f"{_OPS}.fused_all_gather_matmul": "turbo-async-tp",
        f"{_OPS}.fused_all_gather_scaled_matmul": "turbo-async-tp",
        f"{_OPS}.fused_matmul_reduce_scatter": "turbo-async-tp",
        "primus_turbo.pytorch._C": "turbo-async-tp",
        "primus_turbo.pytorch.core.pyhip_runtime_wrapper": "turbo-async-tp",
        "primus_turbo.pytorch.core.symm_mem": "turbo-async-tp",
        "primus_turbo.jax": "turbo-grouped-gemm",
    }
)
"""Dotted name of a module, or of an attribute of one -> the wheel that is to bring it, in a later version."""


def _message(name: str, wheel: str) -> str:
    return f"{name} is not there yet: it comes with a later version of {wheel}"


def no_attribute(module: str, name: str) -> AttributeError:
    """The error of a module's ``__getattr__`` for a name that it does not have."""
    dotted = f"{module}.{name}"
    if dotted in PLANNED:
        return AttributeError(_message(dotted, PLANNED[dotted]))
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class _Planned:
    """A finder that stands behind all others, and refuses the names of `PLANNED` and what would lie below them."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> NoReturn | None:
        for planned, wheel in PLANNED.items() if name.startswith("primus_turbo.") else ():
            if name == planned or name.startswith(f"{planned}."):
                raise ImportError(_message(name, wheel), name=name)
        return None


def register() -> None:
    """Let imports of names to come say so."""
    if _Planned not in sys.meta_path:
        sys.meta_path.append(_Planned)
