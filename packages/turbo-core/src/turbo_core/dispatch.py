# SPDX-License-Identifier: MIT
"""Choosing who computes a call: `KernelBackend`, `AutoKernelDispatcher`, and the record of what was chosen.

Order: the backend that the user named (an error if it cannot take the call), the auto-tuned winner, the op's default,
then every other backend in a fixed order with ``TORCH`` last (a warning, once, says why).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from turbo_core import tuning
from turbo_core.autocast import autocast_is_on, without_autocast
from turbo_core.backend import NOT_BUILT, BackendChoice, BackendType, PrecisionType
from turbo_core.bounded import BoundedDict
from turbo_core.calls import device_of, key_of
from turbo_core.device import device_facts
from turbo_core.environment import variable_in_force
from turbo_core.errors import BackendUnavailableError
from turbo_core.log import logger
from turbo_core.manager import GlobalBackendManager
from turbo_core.module_backend import ModuleBackend
from turbo_core.prepared import Prepared, first_run, signature
from turbo_core.tune_cache import TuneCache, cache_for
from turbo_core.tuning import deterministic_mode

if TYPE_CHECKING:
    import torch

__all__ = [
    "AutoKernelDispatcher",
    "Decision",
    "DispatchRecord",
    "DispatchTrace",
    "KernelBackend",
    "trace_dispatch",
]


class KernelBackend(ABC):
    """One implementation of an op. A call is one object (a NamedTuple) that holds all arguments."""

    tunable: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def why_not(cls, call: Any) -> str | None:
        """Why this backend cannot take ``call``; None when it can. Reads metadata only, never tensor values."""

    @classmethod
    def can_handle(cls, call: Any) -> bool:
        """Whether `why_not` has no objection."""
        return cls.why_not(call) is None

    @classmethod
    @abstractmethod
    def execute(cls, call: Any) -> Any:
        """Compute the call."""


Backend = type[KernelBackend] | ModuleBackend


class Decision(NamedTuple):
    """Who computes a call, and why."""

    backend: BackendType
    impl: Backend
    reason: str


class _Known(NamedTuple):
    """What was decided of a call: who computes it, and its launches where those can be repeated."""

    impl: Backend
    prepared: Prepared | None


@dataclass(frozen=True)
class DispatchRecord:
    """One decision as `trace_dispatch` saw it; ``role`` tells the parts of an op apart (forward, dgrad, wgrad)."""

    op: str
    role: str
    backend: BackendType
    reason: str
    call: str


@dataclass
class DispatchTrace:
    """What `trace_dispatch` collects."""

    records: list[DispatchRecord] = field(default_factory=list)


_traces: list[DispatchTrace] = []


@contextmanager
def trace_dispatch() -> Iterator[DispatchTrace]:
    """Record every decision taken in this process while the block runs, gradients (on any thread) included."""
    trace = DispatchTrace()
    _traces.append(trace)
    try:
        yield trace
    finally:
        _traces[:] = [other for other in _traces if other is not trace]


class AutoKernelDispatcher(ABC):
    """The backends of one op and the choice among them; never instantiated.

    A subclass sets ``op``, ``family`` (which setting governs it), ``backends``, whose order is the order of fallback,
    and ``defaults`` (by architecture, or by vendor: amd, nvidia, cpu), and says what a call's precision is.

    On a GPU, what was decided of a call is kept for calls like it, until a setting changes: `why_not` may depend on a
    call's tensors but for their contents and addresses, on what is installed, and on deterministic mode.
    """

    op: ClassVar[str]
    family: ClassVar[str]
    backends: ClassVar[Mapping[BackendType, Backend]]
    defaults: ClassVar[Mapping[str, BackendType]] = {}
    cache: ClassVar[TuneCache]
    _known: ClassVar[BoundedDict[Any, _Known]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if list(cls.backends)[-1] is not BackendType.TORCH:
            raise TypeError(f"{cls.__name__}: the last backend must be TORCH, the reference")
        cls.cache = cache_for(cls.op)
        cls._known = BoundedDict()

    # --- what a subclass says of a call ----------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def precision(cls, call: Any) -> PrecisionType:
        """The bucket in which the user's setting for this call stands."""

    @classmethod
    def default_backend(cls, call: Any) -> BackendType:
        """The backend that takes the call when nobody chose one."""
        facts = device_facts(device_of(call))
        return cls.defaults.get(facts.arch) or cls.defaults[facts.vendor]

    @classmethod
    def make_key(cls, call: Any) -> Hashable:
        """Everything that can change which backend wins: shapes, strides, dtypes, device, accumulation, ..."""
        return key_of(call, cls.role(call))

    @classmethod
    def scratch(cls, call: Any) -> Any:
        """``call`` with every tensor that it writes replaced by scratch memory; used while tuning."""
        return call

    @classmethod
    def describe(cls, call: Any) -> str:
        """The call in a few words, for messages."""
        return repr(call)

    @classmethod
    def role(cls, call: Any) -> str:
        """Which part of the op the call is."""
        return "forward"

    # --- the choice ------------------------------------------------------------------------------------------

    @classmethod
    def dispatch(cls, call: Any) -> Any:
        """Choose a backend for ``call`` and compute it, with autocast off: the call's dtypes are decided."""
        device = device_of(call)
        if device is not None and device.type == "cuda" and not _traces:
            return cls._repeated(call, device)
        if device is None or not autocast_is_on():
            return cls._dispatch(call)
        with without_autocast(device):
            return cls._dispatch(call)

    @classmethod
    def _dispatch(cls, call: Any) -> Any:
        decision = cls.resolve(call)
        if _traces:
            record = DispatchRecord(cls.op, cls.role(call), decision.backend, decision.reason, cls.describe(call))
            for trace in _traces:
                trace.records.append(record)
        return decision.impl.execute(call)

    @classmethod
    def _repeated(cls, call: Any, device: torch.device) -> Any:
        """`dispatch` on a GPU, by what is known of calls like this one."""
        parts, tensors = signature(call)
        settings = GlobalBackendManager.settings(cls.family)
        key = (parts, device.index, settings, deterministic_mode())
        known = cls._known.get(key)
        if known is not None and known.prepared is not None:
            return known.prepared.repeat(tensors, device)
        with without_autocast(device):
            if known is not None:
                return known.impl.execute(call)
            impl = cls.resolve(call).impl
            plan = impl.plan if isinstance(impl, ModuleBackend) else None
            planned = None if plan is None else plan(call, device_facts(device))
            if planned is None:
                result, prepared = impl.execute(call), None
            else:
                result, prepared = first_run(planned, tensors, device)
        if not _auto_tunes(GlobalBackendManager.choice(cls.family, cls.precision(call))):
            # winners come and go without a setting's change
            cls._known.keep(key, _Known(impl, prepared))
        return result

    @classmethod
    def resolve(cls, call: Any) -> Decision:
        """Choose a backend for ``call``; raises `BackendUnavailableError` when none may or can take it."""
        precision = cls.precision(call)
        choice = GlobalBackendManager.choice(cls.family, precision)
        if choice is not None and choice.backend is not None:
            return cls._named(choice.backend, precision, call)
        if _auto_tunes(choice):
            tuned = cls._tuned(call)
            if tuned is not None:
                return tuned
        default = cls.default_backend(call)
        impl = cls.backends[default]
        if impl.why_not(call) is None:
            return Decision(default, impl, "default")
        return cls._fallback(default, call)

    @classmethod
    def answers(cls, call: Any) -> dict[BackendType, str | None]:
        """Each backend's `KernelBackend.why_not` for ``call``, in the order of fallback.

        One that the user named and that no op has yet comes first, with what is missing.
        """
        answers: dict[BackendType, str | None] = {}
        choice = GlobalBackendManager.choice(cls.family, cls.precision(call))
        chosen = None if choice is None else choice.backend
        if chosen is not None and chosen in NOT_BUILT:
            answers[chosen] = NOT_BUILT[chosen]
        for backend, impl in cls.backends.items():
            answers[backend] = impl.why_not(call)
        return answers

    @classmethod
    def _named(cls, backend: BackendType, precision: PrecisionType, call: Any) -> Decision:
        in_code = GlobalBackendManager.is_set_in_code(cls.family, precision)
        source = "set in code" if in_code else f"named by {variable_in_force(cls.family)}"
        impl = cls.backends.get(backend)
        if impl is None:
            missing = f": {NOT_BUILT[backend]}" if backend in NOT_BUILT else ""
            raise BackendUnavailableError(
                f"{cls.op}: backend {backend.name} ({source}) does not exist for this op{missing}; "
                f"it has {', '.join(b.name for b in cls.backends)}"
            )
        reason = impl.why_not(call)
        if reason is not None:
            raise BackendUnavailableError(
                f"{cls.op}: backend {backend.name} ({source}) cannot take this call: {reason}. "
                f"Call: {cls.describe(call)}"
            )
        return Decision(backend, impl, source)

    @classmethod
    def _fallback(cls, default: BackendType, call: Any) -> Decision:
        answers = cls.answers(call)
        for backend, reason in answers.items():
            if reason is None:
                why = f"default {default.name} cannot take the call: {answers[default]}"
                logger.warning("%s runs on %s: %s", cls.op, backend.name, why, once=True)
                return Decision(backend, cls.backends[backend], why)
        told = "; ".join(f"{backend.name}: {reason}" for backend, reason in answers.items())
        raise BackendUnavailableError(f"{cls.op}: no backend can take this call. {told}. Call: {cls.describe(call)}")

    # --- auto-tuning -----------------------------------------------------------------------------------------

    @classmethod
    def _tuned(cls, call: Any) -> Decision | None:
        key = cls.make_key(call)
        entry = cls.cache.get(key)
        if entry is not None and not entry.loaded and tuning.deterministic_mode():
            return None  # a winner timed in this process may differ in the next one
        if entry is None:
            entry = tuning.tune(cls, call, key)
            if entry is None:
                return None
        impl = cls.backends.get(entry.backend)
        if impl is None or impl.why_not(call) is not None:
            cls.cache.discard(key)
            return None
        return Decision(entry.backend, impl, entry.reason)


def _auto_tunes(choice: BackendChoice | None) -> bool:
    """Whether a call is auto-tuned that no backend is named for."""
    return GlobalBackendManager.auto_tune_enabled() if choice is None else choice.auto_tune
