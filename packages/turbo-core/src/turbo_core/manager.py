# SPDX-License-Identifier: MIT
"""`GlobalBackendManager`: the process's backend settings, in code and from the environment."""

from __future__ import annotations

import threading

from turbo_core.backend import BackendChoice, BackendType, PrecisionType
from turbo_core.environment import FAMILIES, auto_tune_from_environment, choice_from_environment, settings_in_force
from turbo_core.errors import UnsupportedError
from turbo_core.log import logger
from turbo_core.tune_cache import clear_all_caches

__all__ = ["GlobalBackendManager"]


class GlobalBackendManager:
    """Backend settings of this process; all methods are class methods.

    Priority, high to low: a setter, the environment variable, auto-tuning, the op's default. It holds per precision:
    a setter for FP8 leaves the variable in force for the others, and ``set_*_backend(None)`` takes a setter back.
    Setters accept a `BackendType` or its name.
    """

    _lock = threading.RLock()
    _set: dict[tuple[str, PrecisionType], BackendChoice] = {}
    _auto_tune: bool | None = None
    _changes = 0  # how often a setter was called

    # --- setters ---------------------------------------------------------------------------------------------

    @classmethod
    def set_gemm_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of gemm, gemm_fp8 and gemm_fp4; ``precision=None`` means all three buckets."""
        cls._choose("gemm", backend, precision, auto_tune)

    @classmethod
    def set_grouped_gemm_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of the grouped GEMMs."""
        cls._choose("grouped_gemm", backend, precision, auto_tune)

    @classmethod
    def set_attn_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of attention."""
        cls._choose("attn", backend, precision, auto_tune)

    @classmethod
    def set_sparse_attn_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of sparse attention."""
        cls._choose("sparse_attn", backend, precision, auto_tune)

    @classmethod
    def set_moe_dispatch_combine_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of MoE dispatch and combine, which cannot be auto-tuned."""
        cls._choose("moe_dispatch_combine", backend, precision, auto_tune)

    @classmethod
    def set_norm_act_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of the normalisations and activations, which no environment variable governs."""
        cls._choose("norm_act", backend, precision, auto_tune)

    @classmethod
    def set_quant_backend(
        cls, backend: BackendType | str | None = None, precision: PrecisionType | None = None, auto_tune: bool = False
    ) -> None:
        """Choose the backend of quantisation and dequantisation, which no environment variable governs."""
        cls._choose("quant", backend, precision, auto_tune)

    @classmethod
    def set_auto_tune(cls, enabled: bool | None) -> None:
        """Switch auto-tuning of every op on or off; None leaves it to PRIMUS_TURBO_AUTO_TUNE again."""
        if enabled is not None and not isinstance(enabled, bool):
            raise UnsupportedError(f"set_auto_tune: enabled={enabled!r} must be True, False or None")
        cls._auto_tune = enabled
        cls._changes += 1

    # --- getters ---------------------------------------------------------------------------------------------

    @classmethod
    def get_gemm_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for the GEMMs, None when the op's default is."""
        return cls.choice("gemm", precision)

    @classmethod
    def get_grouped_gemm_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for the grouped GEMMs, None when the op's default is."""
        return cls.choice("grouped_gemm", precision)

    @classmethod
    def get_attn_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for attention, None when the op's default is."""
        return cls.choice("attn", precision)

    @classmethod
    def get_sparse_attn_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for sparse attention, None when the op's default is."""
        return cls.choice("sparse_attn", precision)

    @classmethod
    def get_moe_dispatch_combine_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for MoE dispatch and combine, None when the op's default is."""
        return cls.choice("moe_dispatch_combine", precision)

    @classmethod
    def get_norm_act_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for the normalisations and activations, None when the op's default is."""
        return cls.choice("norm_act", precision)

    @classmethod
    def get_quant_backend(cls, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for quantisation and dequantisation, None when the op's default is."""
        return cls.choice("quant", precision)

    @classmethod
    def auto_tune_enabled(cls) -> bool:
        """Whether ops without a named backend are auto-tuned."""
        return auto_tune_from_environment() if cls._auto_tune is None else cls._auto_tune

    # --- used by dispatchers ---------------------------------------------------------------------------------

    @classmethod
    def choice(cls, family: str, precision: PrecisionType) -> BackendChoice | None:
        """The choice in force for a family of ops: the setter's, else the environment's, else None."""
        chosen = cls._set.get((family, precision)) if cls._set else None
        return choice_from_environment(family, precision) if chosen is None else chosen

    @classmethod
    def settings(cls, family: str) -> tuple[object, ...]:
        """Equal as long as nothing was set, in code or in the environment, that decides about the family's backends."""
        return cls._changes, settings_in_force(family)

    @classmethod
    def is_set_in_code(cls, family: str, precision: PrecisionType) -> bool:
        """Whether a setter, not the environment, makes the choice in force."""
        return (family, precision) in cls._set

    @classmethod
    def reset(cls) -> None:
        """Back to the state after import: no setter, no auto-tune override, empty tune caches."""
        with cls._lock:
            cls._set.clear()
            cls._auto_tune = None
            cls._changes += 1
            clear_all_caches()
        logger.forget_once()

    @classmethod
    def _choose(
        cls, family: str, backend: BackendType | str | None, precision: PrecisionType | None, auto_tune: bool
    ) -> None:
        setter = f"set_{family}_backend"
        if precision is not None and not isinstance(precision, PrecisionType):
            raise UnsupportedError(f"{setter}: precision={precision!r} must be a PrecisionType or None")
        if auto_tune and not FAMILIES[family].tunable:
            raise UnsupportedError(f"{setter}: auto_tune=True, but this op cannot be auto-tuned; name a backend")
        parsed = None if backend is None else BackendType.parse(backend, setter)
        choice = BackendChoice(parsed, auto_tune)
        with cls._lock:
            for bucket in PrecisionType if precision is None else (precision,):
                if choice == BackendChoice():
                    cls._set.pop((family, bucket), None)
                else:
                    cls._set[family, bucket] = choice
            cls._changes += 1
