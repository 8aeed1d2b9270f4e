# SPDX-License-Identifier: MIT
"""torch.autocast and our ops: it decides dtypes where a call comes in, and is off inside.

Autocast is a state of the thread. Left on, it rounds the operands of every matrix product that an op makes of torch's
functions, in its forward and in a backward that runs inside the context, whatever dtype the op had chosen for it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from turbo_core.requirements import require_torch

if TYPE_CHECKING:
    import torch

__all__ = ["autocast_dtype", "autocast_is_on", "without_autocast"]

_OFF: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype to which autocast casts the operands of a product on this type of device.

    None where autocast is off, and on a device that has none, such as meta.
    """
    import torch  # by its name: torch.compile traces this function, and would not follow a search for the module

    kind = device.type  # `torch.amp.is_autocast_available` cannot be traced before torch 2.13
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def autocast_is_on() -> bool:
    """Whether autocast is on for any type of device, in one look."""
    return bool(require_torch()._C._is_any_autocast_enabled())


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A block in which autocast is off for this type of device."""
    if autocast_dtype(device) is None:
        return _OFF
    off: contextlib.AbstractContextManager[Any] = require_torch().autocast(device.type, enabled=False)
    return off
