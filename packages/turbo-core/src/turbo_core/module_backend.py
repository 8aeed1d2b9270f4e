# SPDX-License-Identifier: MIT
"""A backend that is a module: ``why_not(call)`` and ``run(call)``, or ``plan(call, facts)`` in place of ``run``.

``plan`` gives the call's result, empty, and the launches that write it (`turbo_core.launch`): one object is what the
audit compiles and what a call starts, and a call that repeats is started from what was kept of it. A module may have
both: ``plan`` is None then for a call that is more than launches, and ``run`` computes that.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from turbo_core.calls import device_of
from turbo_core.device import device_facts
from turbo_core.launch import start

if TYPE_CHECKING:
    import torch

__all__ = ["ModuleBackend"]


class ModuleBackend:
    """A row in the table of an op's backends.

    Args:
        path: the module, imported when it is first needed.
        requires: device -> what is missing for the module to be imported or used there; None: nothing. An example is
            `turbo_core.why_no_triton`.
        tunable: whether auto-tuning may time it.
    """

    def __init__(
        self, path: str, requires: Callable[[torch.device], str | None] | None = None, *, tunable: bool = True
    ) -> None:
        self.path, self.tunable = path, tunable
        self._requires = requires

    @functools.cached_property
    def module(self) -> ModuleType:
        """The module itself."""
        return importlib.import_module(self.path)

    @functools.cached_property
    def plan(self) -> Callable[..., Any] | None:
        """Its ``plan``; None where it has a ``run`` alone."""
        return getattr(self.module, "plan", None)

    def why_not(self, call: Any) -> str | None:
        """Why it cannot take ``call``; None when it can."""
        if self._requires is not None:
            device = device_of(call)
            reason = None if device is None else self._requires(device)
            if reason is not None:
                return reason
        answer: str | None = self.module.why_not(call)
        return answer

    def can_handle(self, call: Any) -> bool:
        """Whether `why_not` has no objection."""
        return self.why_not(call) is None

    def execute(self, call: Any) -> Any:
        """Compute the call."""
        planned = None if self.plan is None else self.plan(call, device_facts(device_of(call)))
        return self.module.run(call) if planned is None else start(*planned)

    def __repr__(self) -> str:
        return f"ModuleBackend({self.path!r})"
