# SPDX-License-Identifier: MIT
"""FP8, FP4 and MX types and the configs of the ops that quantise: the names of `turbo_core.low_precision`.

All are looked up there at each use: the dtypes depend on the current device.
"""

from typing import TYPE_CHECKING, Any

from turbo_core import low_precision as _low_precision

if TYPE_CHECKING:
    from turbo_core.low_precision import *  # noqa: F403

__all__ = list(_low_precision.__all__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(_low_precision, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
