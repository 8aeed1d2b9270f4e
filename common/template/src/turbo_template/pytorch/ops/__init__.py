# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""

from turbo_template.pytorch.ops.scale_rows import scale_rows

__all__ = ["scale_rows"]
