# SPDX-License-Identifier: MIT
"""`Float8Linear` and `Float4Linear`: ``torch.nn.Linear`` on `gemm_fp8` and `gemm_fp4`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.pytorch.ops.gemm_fp4 import gemm_fp4
from turbo_gemm.pytorch.ops.gemm_fp8 import gemm_fp8
from turbo_gemm.pytorch.ops.linear import quant_linear

__all__ = ["Float4Linear", "Float8Linear"]

_Quantised = TypeVar("_Quantised", bound="_QuantLinear")


class _QuantLinear(torch.nn.Linear):
    """What the two have in common."""

    _config_type: ClassVar[type]
    _product: ClassVar[Callable[..., torch.Tensor]]
    config: Any

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, config: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(in_features, out_features, bias, **kwargs)
        self.config = self._checked(config)

    @classmethod
    def _checked(cls, config: Any) -> Any:
        if config is None:
            return cls._config_type()
        if not isinstance(config, cls._config_type):
            accepted = f"a {cls._config_type.__name__} or None is accepted"
            raise UnsupportedError(f"{cls.__name__}: config is a {type(config).__name__}; {accepted}")
        return config

    @classmethod
    def from_float(cls: type[_Quantised], mod: torch.nn.Linear, config: Any = None, inplace: bool = True) -> _Quantised:
        """``mod`` as a layer of this class, on the same parameters.

        Args:
            mod: a ``torch.nn.Linear`` (subclasses that compute something else lose it).
            config: as for the constructor.
            inplace: ``mod`` itself changes its class, hooks and all; else a new layer with copies of its parameters.
        """
        if not isinstance(mod, torch.nn.Linear):
            raise UnsupportedError(f"{cls.__name__}.from_float: mod is a {type(mod).__name__}; a Linear is accepted")
        config = cls._checked(config)
        if inplace:
            mod.__class__ = cls
            mod.config = config
            return mod  # type: ignore[return-value]
        weight = mod.weight
        made = cls(mod.in_features, mod.out_features, mod.bias is not None, config, device="meta", dtype=weight.dtype)
        for name, parameter in mod.named_parameters(recurse=False):
            copy = torch.nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            setattr(made, name, copy)
        return made.train(mod.training)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.config.format.name}, {self.config.granularity.name}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            name = type(self).__name__
            raise UnsupportedError(f"{name}: x has shape {list(x.shape)}; [..., {self.in_features}] is accepted")
        return quant_linear(self._product, x, self.weight, self.bias, {"config": self.config})


class Float8Linear(_QuantLinear):
    """y = x W^T + bias in FP8 or MXFP8. Parameters, initialisation and state dict are those of ``torch.nn.Linear``.

    Args:
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of y.
        bias: whether there is a bias [out_features].
        config: a ``Float8QuantConfig``; default E4M3, TENSORWISE.
        **kwargs: ``device`` and ``dtype`` of the parameters.

    Raises:
        UnsupportedError: the last dimension of x is not ``in_features``, or what `turbo_gemm.gemm_fp8` refuses.
    """

    _config_type = Float8QuantConfig
    _product = staticmethod(gemm_fp8)


class Float4Linear(_QuantLinear):
    """y = x W^T + bias in MXFP4. Parameters, initialisation and state dict are those of ``torch.nn.Linear``.

    Args:
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of y.
        bias: whether there is a bias [out_features].
        config: a ``Float4QuantConfig``.
        **kwargs: ``device`` and ``dtype`` of the parameters.

    Raises:
        UnsupportedError: the last dimension of x is not ``in_features``, or what `turbo_gemm.gemm_fp4` refuses.
    """

    _config_type = Float4QuantConfig
    _product = staticmethod(gemm_fp4)
