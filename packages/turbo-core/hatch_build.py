# SPDX-License-Identifier: MIT
"""Puts the repository's csrc-common into the wheel and the sdist, as turbo_core/csrc_common.

A hook, and not a line in pyproject.toml, because the folder is outside this one: a wheel that is built from an sdist
finds the copy that the sdist has inside the package, and an editable install needs none.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CsrcCommonHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root).resolve()
        shared = root.parent.parent / "csrc-common"
        if version == "editable" or not (shared / "cmake" / "TurboKernels.cmake").is_file():
            return
        prefix = "src/turbo_core" if self.target_name == "sdist" else "turbo_core"
        for path in sorted(shared.rglob("*")):
            relative = path.relative_to(shared)
            if path.is_file() and relative.parts[0] != "tests" and "__pycache__" not in relative.parts:
                build_data["force_include"][str(path)] = f"{prefix}/csrc_common/{relative.as_posix()}"
