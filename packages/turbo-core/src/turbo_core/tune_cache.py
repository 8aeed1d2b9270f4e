# SPDX-License-Identifier: MIT
"""`TuneCache`: the winners of auto-tuning, bounded and thread-safe, and their file form."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from turbo_core.backend import BackendType
from turbo_core.log import logger

__all__ = ["TuneCache", "TuneEntry", "all_caches", "cache_for", "clear_all_caches"]


@dataclass(frozen=True)
class TuneEntry:
    """A winner: its backend, its time in milliseconds, and whether it came from a file."""

    backend: BackendType
    milliseconds: float
    loaded: bool = False

    @cached_property
    def reason(self) -> str:
        """Why a call runs on this backend, for messages."""
        return f"auto-tuned winner ({'from file' if self.loaded else f'{self.milliseconds:.3f} ms'})"


def key_text(key: Hashable) -> str:
    """The file form of a key: JSON of its parts, what JSON does not know as text (``torch.bfloat16``)."""
    return json.dumps(key, default=str)


class TuneCache:
    """Least-recently-used map from a call's key to its `TuneEntry`.

    Entries loaded from a file are known by the text of their key, and join the map when a call first asks for them.
    """

    def __init__(self, name: str, capacity: int = 1024) -> None:
        self._name = name
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, TuneEntry] = OrderedDict()
        self._from_file: dict[str, TuneEntry] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> TuneEntry | None:
        entry = self._entries.get(key)
        if entry is not None:
            # what was used last matters only once something has to go
            if len(self._entries) > self._capacity // 2:
                with self._lock:
                    if key in self._entries:
                        self._entries.move_to_end(key)
            return entry
        if not self._from_file:
            return None
        with self._lock:
            entry = self._from_file.pop(key_text(key), None)
        if entry is not None:
            self.put(key, entry)
        return entry

    def put(self, key: Hashable, entry: TuneEntry) -> None:
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            evicted = len(self._entries) > self._capacity
            if evicted:
                self._entries.popitem(last=False)
        if evicted:
            logger.warning(
                "auto-tune cache of %s is full (%d entries): the least recently used winners are dropped and will be "
                "tuned again",
                self._name,
                self._capacity,
                once=True,
            )

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._from_file.clear()

    def __len__(self) -> int:
        return len(self._entries) + len(self._from_file)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._entries or key_text(key) in self._from_file

    def to_records(self) -> list[dict[str, Any]]:
        """Entries as JSON objects, least recently used first."""
        with self._lock:
            known = dict(self._from_file)
            known.update((key_text(key), entry) for key, entry in self._entries.items())
        return [
            {"key": json.loads(text), "backend": entry.backend.name, "milliseconds": entry.milliseconds}
            for text, entry in known.items()
        ]

    def add_records(self, records: list[dict[str, Any]]) -> None:
        """Take the entries of a file; the last ``capacity`` of them when there are more."""
        parsed = {
            json.dumps(record["key"]): TuneEntry(
                BackendType.parse(record["backend"]), float(record["milliseconds"]), loaded=True
            )
            for record in records[-self._capacity :]
        }
        with self._lock:
            self._from_file.update(parsed)


_caches: dict[str, TuneCache] = {}
_caches_lock = threading.Lock()


def cache_for(op: str) -> TuneCache:
    """The process's cache of ``op``, made at first use; winners of a file may be in it before the op is imported."""
    with _caches_lock:
        if op not in _caches:
            _caches[op] = TuneCache(op)
        return _caches[op]


def all_caches() -> dict[str, TuneCache]:
    """Every cache by the name of its op."""
    with _caches_lock:
        return dict(_caches)


def clear_all_caches() -> None:
    """Empty every cache; part of `GlobalBackendManager.reset`."""
    for cache in all_caches().values():
        cache.clear()
