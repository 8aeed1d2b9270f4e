# SPDX-License-Identifier: MIT
"""The template ops of Turbo. Importing it imports neither torch nor triton before first use."""

from typing import TYPE_CHECKING

from turbo_core.lazy import attach

if TYPE_CHECKING:
    from turbo_template.pytorch.modules.scale_rows import ScaleRows
    from turbo_template.pytorch.ops.scale_rows import scale_rows

__all__ = ["ScaleRows", "scale_rows"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "ScaleRows": "turbo_template.pytorch.modules.scale_rows",
        "scale_rows": "turbo_template.pytorch.ops.scale_rows",
    },
)
