# SPDX-License-Identifier: MIT
"""What both front ends share; no framework is imported."""

from primus_turbo.common import constants

__all__ = ["constants"]
