# SPDX-License-Identifier: MIT
"""`Float8Linear` and `Float4Linear`: ``torch.nn.Linear`` on `gemm_fp8` and `gemm_fp4`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import Float4QuantConfig, Float8QuantConfig
from turbo_gemm.pytorch.modules.conversion import TurboLinear, converted
from turbo_gemm.pytorch.ops.gemm_fp4 import gemm_fp4
from turbo_gemm.pytorch.ops.gemm_fp8 import gemm_fp8
from turbo_gemm.pytorch.ops.linear import linear_fp8

__all__ = ["Float4Linear", "Float8Linear"]

_Quantised = TypeVar("_Quantised", bound="_QuantLinear")


class _QuantLinear(TurboLinear):
    """What the two have in common."""

    _config_type: ClassVar[type]
    _product: ClassVar[Callable[..., torch.Tensor]]
    config: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        config: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        fuse_wgrad_accumulation: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.config = self._checked(config)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation

    @classmethod
    def _checked(cls, config: Any) -> Any:
        if config is None:
            return cls._config_type()
        if not isinstance(config, cls._config_type):
            accepted = f"a {cls._config_type.__name__} or None is accepted"
            raise UnsupportedError(f"{cls.__name__}: config is a {type(config).__name__}; {accepted}")
        return config

    @classmethod
    def from_float(
        cls: type[_Quantised],
        mod: torch.nn.Linear,
        config: Any = None,
        inplace: bool = True,
        *,
        fuse_wgrad_accumulation: bool = False,
    ) -> _Quantised:
        """``mod`` as a layer of this class.

        Args:
            mod: a ``torch.nn.Linear``, or another layer of ours.
            config: as for the constructor.
            inplace: ``mod`` itself changes its class and keeps everything else; otherwise a deep copy of it does, with
                copies of its parameters, their attributes and hooks.
            fuse_wgrad_accumulation: as for the constructor.

        Raises:
            UnsupportedError: mod is another class or a subclass, or its weight is not its own: parametrized, pruned,
                not initialised, or wrapped by ``fully_shard``. mod is as it was.
        """
        config = cls._checked(config)
        return converted(cls, mod, inplace, config=config, fuse_wgrad_accumulation=fuse_wgrad_accumulation)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.config.format.name}, {self.config.granularity.name}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        return linear_fp8(self._product, x, self.weight, self.bias, self._options(config=self.config))


class Float8Linear(_QuantLinear):
    """y = x W^T + bias in FP8 or MXFP8. Parameters, initialisation and state dict are those of ``torch.nn.Linear``.

    Args:
        in_features: size of the last dimension of x.
        out_features: size of the last dimension of y.
        bias: whether there is a bias [out_features].
        config: a ``Float8QuantConfig``; default E4M3, TENSORWISE.
        device: where the parameters live.
        dtype: of the parameters.
        fuse_wgrad_accumulation: the gradient of the weight is added to ``weight.main_grad`` by its GEMM; the weight
            needs ``main_grad`` and ``grad_added_to_main_grad`` wherever it gets a gradient.

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
        device: where the parameters live.
        dtype: of the parameters.
        fuse_wgrad_accumulation: the gradient of the weight is added to ``weight.main_grad`` by its GEMM; the weight
            needs ``main_grad`` and ``grad_added_to_main_grad`` wherever it gets a gradient.

    Raises:
        UnsupportedError: the last dimension of x is not ``in_features``, or what `turbo_gemm.gemm_fp4` refuses.
    """

    _config_type = Float4QuantConfig
    _product = staticmethod(gemm_fp4)
