# SPDX-License-Identifier: MIT
"""Where the sources that all native builds share are: device headers, host run time, CMake module.

A wheel with native code has a copy of them in its sdist. A third party's build finds them here:

    execute_process(COMMAND python -c "from turbo_core.native import csrc_common_dir; print(csrc_common_dir())" ...)
    include(${folder}/cmake/TurboKernels.cmake)
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["csrc_common_dir"]


def csrc_common_dir() -> Path:
    """The folder with ``cmake/TurboKernels.cmake``, ``include/turbo`` and ``host/turbo``."""
    here = Path(__file__).resolve()
    candidates = [here.parent / "csrc_common"]  # an installed wheel
    if len(here.parents) > 4:
        candidates.append(here.parents[4] / "csrc-common")  # an editable install: the repository's own folder
    for folder in candidates:
        if (folder / "cmake" / "TurboKernels.cmake").is_file():
            return folder
    raise FileNotFoundError(
        f"turbo-core's shared native sources are missing; looked at {', '.join(str(folder) for folder in candidates)}"
    )
