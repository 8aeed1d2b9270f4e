# SPDX-License-Identifier: MIT
"""``torch.nn`` modules; they call ops."""

from turbo_template.pytorch.modules.scale_rows import ScaleRows

__all__ = ["ScaleRows"]
