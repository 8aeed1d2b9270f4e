# SPDX-License-Identifier: MIT
"""Backend choice, low-precision types and quantised tensors."""

from typing import NoReturn

from primus_turbo.planned import no_attribute
from primus_turbo.pytorch.core import backend, low_precision, quantized_tensor
from primus_turbo.pytorch.core.quantized_tensor import QuantizedTensor, QuantizedTensorPair

__all__ = ["QuantizedTensor", "QuantizedTensorPair", "backend", "low_precision", "quantized_tensor"]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name)
