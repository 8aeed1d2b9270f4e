# SPDX-License-Identifier: MIT
"""A dictionary that does not grow for ever, for what is kept of calls: shapes may vary without end."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["BoundedDict"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value]):
    """At most ``limit`` values: one more, and the others are forgotten first."""

    def __init__(self, limit: int = 4096) -> None:
        super().__init__()
        self.limit = limit

    def keep(self, key: Key, value: Value) -> Value:
        """Store ``value`` and return it."""
        if len(self) >= self.limit:
            self.clear()
        self[key] = value
        return value
