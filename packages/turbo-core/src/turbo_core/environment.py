# SPDX-License-Identifier: MIT
"""The grammar of the PRIMUS_TURBO_*_BACKEND variables.

A value is one word for every precision (``triton``, ``autotune``) or a comma list of ``precision:word`` pairs
(``fp8:CK,other:TRITON``), in any case, spaces ignored. Precisions: fp4, fp8, bf16, fp16, fp32 (the last three are one
bucket) and ``other`` for every precision not named. An empty value is as good as none.

A variable is read at every call, so a change takes effect at once; the parsed form of a value is kept.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from turbo_core.backend import BackendChoice, BackendType, PrecisionType
from turbo_core.errors import UnsupportedError
from turbo_core.log import logger

__all__ = [
    "AUTO_TUNE_VARIABLE",
    "CHECK_INDICES_VARIABLE",
    "FAMILIES",
    "Family",
    "auto_tune_from_environment",
    "check_indices_from_environment",
    "choice_from_environment",
    "settings_in_force",
    "variable_in_force",
]

AUTO_TUNE_VARIABLE = "PRIMUS_TURBO_AUTO_TUNE"
CHECK_INDICES_VARIABLE = "PRIMUS_TURBO_CHECK_INDICES"


@dataclass(frozen=True)
class Family:
    """Ops that share one setting: the variables that hold it (first name, then aliases) and if it may be tuned.

    Without variables, the setting can be made in code alone.
    """

    variables: tuple[str, ...]
    tunable: bool = True


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gemm": Family(("PRIMUS_TURBO_GEMM_BACKEND",)),
        "grouped_gemm": Family(("PRIMUS_TURBO_GROUPED_GEMM_BACKEND",)),
        "attn": Family(("PRIMUS_TURBO_ATTENTION_BACKEND", "PRIMUS_TURBO_ATTN_BACKEND")),
        "sparse_attn": Family(("PRIMUS_TURBO_SPARSE_ATTN_BACKEND",)),
        # each rank would time a different exchange, and a wrong pick would hang the job
        "moe_dispatch_combine": Family(("PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND",), tunable=False),
        "norm_act": Family(()),
        "quant": Family(()),
    }
)

_GOVERNING = {name: (*family.variables, AUTO_TUNE_VARIABLE) for name, family in FAMILIES.items()}

_WORDS = {
    "fp4": PrecisionType.FP4,
    "fp8": PrecisionType.FP8,
    "bf16": PrecisionType.BF16_FP16_FP32,
    "fp16": PrecisionType.BF16_FP16_FP32,
    "fp32": PrecisionType.BF16_FP16_FP32,
}


# os.environ.get takes half a microsecond for a variable that is not set, and every call of every op asks for two: look
# straight into the dictionary behind os.environ where it is (CPython on POSIX: bytes to bytes).
_raw_environment: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None


def _variable(name: str) -> str | None:
    if _raw_environment is None:
        return os.environ.get(name)
    raw = _raw_environment.get(_as_bytes(name))
    return None if raw is None else os.fsdecode(raw)


@functools.cache
def _as_bytes(name: str) -> bytes:
    return os.fsencode(name)


def _parse_choice(word: str, where: str, tunable: bool) -> BackendChoice:
    if word.upper() == "AUTOTUNE":
        if not tunable:
            raise UnsupportedError(f"{where}: this op cannot be auto-tuned; name a backend")
        return BackendChoice(auto_tune=True)
    return BackendChoice(BackendType.parse(word, where))


@functools.lru_cache(maxsize=256)
def _parse(variable: str, raw: str, tunable: bool) -> Mapping[PrecisionType, BackendChoice]:
    where = f"{variable}={raw!r}"
    text = "".join(raw.split())
    if ":" not in text and "," not in text:
        choice = _parse_choice(text, where, tunable)
        return dict.fromkeys(PrecisionType, choice)

    named: dict[PrecisionType, BackendChoice] = {}
    other: BackendChoice | None = None
    for item in filter(None, text.split(",")):
        word, _, value = item.partition(":")
        if not value or ":" in value:
            raise UnsupportedError(f"{where}: item {item!r} must be precision:backend, like fp8:TRITON")
        choice = _parse_choice(value, where, tunable)
        if word.lower() == "other":
            if other not in (None, choice):
                raise UnsupportedError(f"{where}: 'other' is given twice with different backends")
            other = choice
            continue
        if word.lower() not in _WORDS:
            raise UnsupportedError(f"{where}: {word!r} is not a precision; accepted are {', '.join(_WORDS)}, other")
        precision = _WORDS[word.lower()]
        if named.get(precision, choice) != choice:
            raise UnsupportedError(f"{where}: two different backends for {precision.name} (bf16, fp16, fp32 are one)")
        named[precision] = choice
    if other is not None:
        return {precision: named.get(precision, other) for precision in PrecisionType}
    missing = [precision.name for precision in PrecisionType if precision not in named]
    if missing:
        logger.warning(
            "%s names no backend for %s: the op's default is used there", where, ", ".join(missing), once=True
        )
    return named


def choice_from_environment(family: str, precision: PrecisionType) -> BackendChoice | None:
    """The choice that the family's variables make for ``precision``, None when they make none."""
    settings = FAMILIES[family]
    found: str | None = None
    choice: BackendChoice | None = None
    for variable in settings.variables:
        raw = _variable(variable)
        if raw is None or not raw.strip():
            continue
        parsed = _parse(variable, raw, settings.tunable).get(precision)
        if found is not None and parsed != choice:
            raise UnsupportedError(f"{found} and its alias {variable} disagree: {os.environ[found]!r}, {raw!r}")
        found, choice = variable, parsed
    return choice


def settings_in_force(family: str) -> tuple[str | None, ...]:
    """What the variables say that choose backends of the family, unread: equal answers make equal choices."""
    return tuple([_variable(name) for name in _GOVERNING[family]])


def variable_in_force(family: str) -> str:
    """The variable that makes the family's choice: the first that is set, its name or an alias.

    Only where `choice_from_environment` found one; several that are set agree.
    """
    first, *aliases = FAMILIES[family].variables
    for variable in aliases and (first, *aliases):
        raw = _variable(variable)
        if raw is not None and raw.strip():
            return variable
    return first


def _flag(variable: str) -> bool:
    """Whether ``variable`` is 1; 0, empty and unset mean no, anything else is an error."""
    raw = _variable(variable)
    if raw is None or raw in ("", "0"):
        return False
    if raw == "1":
        return True
    raise UnsupportedError(f"{variable}={raw!r}: accepted are 0 and 1")


def auto_tune_from_environment() -> bool:
    """Whether PRIMUS_TURBO_AUTO_TUNE is 1; 0, empty and unset mean no, anything else is an error."""
    return _flag(AUTO_TUNE_VARIABLE)


def check_indices_from_environment() -> bool:
    """Whether PRIMUS_TURBO_CHECK_INDICES is 1: ops that take indices read their values and refuse wrong ones."""
    return _flag(CHECK_INDICES_VARIABLE)
