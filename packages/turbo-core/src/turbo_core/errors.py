# SPDX-License-Identifier: MIT
"""The two errors with which an operator refuses a call. Both are raised before anything is written."""

from __future__ import annotations

__all__ = ["BackendUnavailableError", "UnsupportedError"]


class UnsupportedError(ValueError):
    """An argument is outside what the operator accepts.

    The message names the argument, what it was, and what is accepted.
    """


class BackendUnavailableError(UnsupportedError):
    """The backend that the user named, or every backend, cannot take the call; the message says why."""
