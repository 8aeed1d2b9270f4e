# SPDX-License-Identifier: MIT
"""The ops as `torch.nn.Module`s."""

from typing import NoReturn

from primus_turbo.planned import no_attribute
from primus_turbo.pytorch.modules.grouped_linear import GroupedLinear
from primus_turbo.pytorch.modules.linear import Linear
from primus_turbo.pytorch.modules.linear_fp4 import Float4Linear
from primus_turbo.pytorch.modules.linear_fp8 import Float8Linear
from turbo_attention import TurboAttention
from turbo_grouped_gemm import GroupedMLP
from turbo_norm_act import GeGLU, LayerNorm, RMSNorm, SwiGLU

__all__ = [
    "Float4Linear",
    "Float8Linear",
    "GeGLU",
    "GroupedLinear",
    "GroupedMLP",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "SwiGLU",
    "TurboAttention",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name)
