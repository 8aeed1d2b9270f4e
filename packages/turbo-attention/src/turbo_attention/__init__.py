# SPDX-License-Identifier: MIT
"""The attention ops of Turbo. Importing it imports no torch until a name is used."""

from turbo_core.lazy import attach

__all__: list[str] = []

# public name -> module that defines it
__getattr__, __dir__ = attach(__name__, {})
