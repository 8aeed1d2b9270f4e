# SPDX-License-Identifier: MIT
"""The one logger of all Turbo wheels: to stderr, level from PRIMUS_TURBO_LOG_LEVEL (default WARNING)."""

from __future__ import annotations

import logging
import os
import sys
import threading

from turbo_core.errors import UnsupportedError

__all__ = ["TurboLogger", "logger"]

LEVEL_VARIABLE = "PRIMUS_TURBO_LOG_LEVEL"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _this_rank() -> int:
    """This process's rank in torch.distributed, 0 outside a distributed job. Never imports torch."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())


class _StderrHandler(logging.Handler):
    """Writes to what ``sys.stderr`` is at the time of the message, so that redirection works."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # as every handler of logging: a message that cannot be written stops nobody
            self.handleError(record)


class TurboLogger:
    """``debug/info/warning/error(message, *args, once=False, rank=None)``.

    ``once=True`` prints a message (after ``%`` formatting) a single time in this process. ``rank=r`` prints it on
    that rank of the job only. The handler is made at the first message, so importing this module changes nothing.
    """

    def __init__(self, name: str = "primus_turbo") -> None:
        self._name = name
        self._logger: logging.Logger | None = None
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def _ready(self) -> logging.Logger:
        with self._lock:
            if self._logger is None:
                made = logging.getLogger(self._name)
                made.propagate = False
                if not made.handlers:
                    handler = _StderrHandler()
                    handler.setFormatter(logging.Formatter("[%(name)s] %(levelname)s: %(message)s"))
                    made.addHandler(handler)
                made.setLevel(self._level_from_environment())
                self._logger = made
            return self._logger

    @staticmethod
    def _level_from_environment() -> str:
        raw = os.environ.get(LEVEL_VARIABLE, "")
        word = raw.strip().upper() or "WARNING"
        if word not in _LEVELS:
            raise UnsupportedError(f"{LEVEL_VARIABLE}={raw!r}: accepted levels are {', '.join(_LEVELS)}")
        return word

    def log(self, level: int, message: str, *args: object, once: bool = False, rank: int | None = None) -> None:
        if rank is not None and rank != _this_rank():
            return
        target = self._ready()
        if not target.isEnabledFor(level):
            return
        if once:
            text = message % args if args else message
            with self._lock:
                if text in self._seen:
                    return
                self._seen.add(text)
        target.log(level, message, *args)

    def debug(self, message: str, *args: object, once: bool = False, rank: int | None = None) -> None:
        self.log(logging.DEBUG, message, *args, once=once, rank=rank)

    def info(self, message: str, *args: object, once: bool = False, rank: int | None = None) -> None:
        self.log(logging.INFO, message, *args, once=once, rank=rank)

    def warning(self, message: str, *args: object, once: bool = False, rank: int | None = None) -> None:
        self.log(logging.WARNING, message, *args, once=once, rank=rank)

    def error(self, message: str, *args: object, once: bool = False, rank: int | None = None) -> None:
        self.log(logging.ERROR, message, *args, once=once, rank=rank)

    def set_level(self, level: str | int) -> None:
        """Set the level in code; it holds over the environment variable."""
        self._ready().setLevel(level.upper() if isinstance(level, str) else level)

    def forget_once(self) -> None:
        """Let every ``once=True`` message be printed again."""
        with self._lock:
            self._seen.clear()


logger = TurboLogger()
