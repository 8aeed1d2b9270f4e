# SPDX-License-Identifier: MIT
"""turbo-sim: runs gfx942 and gfx950 machine code on a CPU.

    import turbo_sim
    with turbo_sim.use("gfx950"):
        ...  # CPU tensors are device tensors: Triton kernels and HIP kernels run as gfx950 machine code

Importing it loads neither torch nor triton, nor the compiled simulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Session", "SimulationError", "library_path", "simulated", "use"]

if TYPE_CHECKING:
    from turbo_sim.errors import SimulationError
    from turbo_sim.hip_library import library_path
    from turbo_sim.session import Session, simulated, use

_HOMES = {
    "Session": "session",
    "simulated": "session",
    "use": "session",
    "SimulationError": "errors",
    "library_path": "hip_library",
}


def __getattr__(name: str) -> Any:
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turbo_sim' has no attribute {name!r}")
    return getattr(importlib.import_module(f"turbo_sim.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
