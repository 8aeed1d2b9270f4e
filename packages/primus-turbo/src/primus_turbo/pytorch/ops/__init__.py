# SPDX-License-Identifier: MIT
"""Every op as a function of tensors.

`gemm`, `grouped_gemm` and their quantised kin are the functions here, although modules of the same names hold them.
"""

from typing import NoReturn

from primus_turbo.planned import no_attribute
from primus_turbo.pytorch.ops.activation import geglu, geglu_with_probs, swiglu, swiglu_with_probs
from primus_turbo.pytorch.ops.attention import (
    flash_attn_fp8_func,
    flash_attn_func,
    flash_attn_varlen_func,
    sparse_mla_func,
)
from primus_turbo.pytorch.ops.gemm import gemm
from primus_turbo.pytorch.ops.gemm_fp4 import gemm_fp4
from primus_turbo.pytorch.ops.gemm_fp8 import gemm_fp8
from primus_turbo.pytorch.ops.grouped_gemm import grouped_gemm
from primus_turbo.pytorch.ops.grouped_gemm_fp4 import grouped_gemm_fp4
from primus_turbo.pytorch.ops.grouped_gemm_fp8 import grouped_gemm_fp8
from primus_turbo.pytorch.ops.grouped_mlp import grouped_mlp, grouped_mlp_fp4, grouped_mlp_fp8
from primus_turbo.pytorch.ops.normalization import layernorm, rmsnorm, rmsnorm_residual
from primus_turbo.pytorch.ops.quantization import (
    dequantize_fp4,
    dequantize_fp8,
    grouped_dequantize_fp4,
    grouped_dequantize_fp8,
    grouped_quantize_fp4,
    grouped_quantize_fp4_with_trans,
    grouped_quantize_fp8,
    grouped_quantize_fp8_with_trans,
    hadamard_transform,
    quantize_fp4,
    quantize_fp4_with_trans,
    quantize_fp8,
    quantize_fp8_with_trans,
    random_sign_mask,
    rng_state,
    shuffle_scale,
    shuffle_weight,
    unshuffle_scale,
    unshuffle_weight,
)
from turbo_grouped_gemm import group_offs_from_lens
from turbo_quant import FP8AllToAll

__all__ = [
    "FP8AllToAll",
    "dequantize_fp4",
    "dequantize_fp8",
    "flash_attn_fp8_func",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "geglu",
    "geglu_with_probs",
    "gemm",
    "gemm_fp4",
    "gemm_fp8",
    "group_offs_from_lens",
    "grouped_dequantize_fp4",
    "grouped_dequantize_fp8",
    "grouped_gemm",
    "grouped_gemm_fp4",
    "grouped_gemm_fp8",
    "grouped_mlp",
    "grouped_mlp_fp4",
    "grouped_mlp_fp8",
    "grouped_quantize_fp4",
    "grouped_quantize_fp4_with_trans",
    "grouped_quantize_fp8",
    "grouped_quantize_fp8_with_trans",
    "hadamard_transform",
    "layernorm",
    "quantize_fp4",
    "quantize_fp4_with_trans",
    "quantize_fp8",
    "quantize_fp8_with_trans",
    "random_sign_mask",
    "rmsnorm",
    "rmsnorm_residual",
    "rng_state",
    "shuffle_scale",
    "shuffle_weight",
    "sparse_mla_func",
    "swiglu",
    "swiglu_with_probs",
    "unshuffle_scale",
    "unshuffle_weight",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name)
