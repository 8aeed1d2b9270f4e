# SPDX-License-Identifier: MIT
"""Saving and loading the winners of auto-tuning: JSON, versioned, written atomically.

A file serves only the software it was made with, since another torch, triton or wheel may have another winner.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from turbo_core.backend import BackendType
from turbo_core.errors import UnsupportedError
from turbo_core.installed import versions
from turbo_core.log import logger
from turbo_core.requirements import require_torch
from turbo_core.tune_cache import all_caches, cache_for

__all__ = ["load_tune_cache", "save_tune_cache", "software_versions"]

FORMAT = "turbo-tune-cache"
FORMAT_VERSION = 1
LIBRARIES = ("triton", "pytorch-triton-rocm", "triton-rocm", "amd-aiter")


def software_versions() -> dict[str, str]:
    """Versions that a winner depends on: torch with its HIP or CUDA, triton, AITER, and every Turbo wheel here."""
    found = versions(LIBRARIES)
    try:
        torch = require_torch()
    except ImportError:
        return dict(sorted(found.items()))
    found["torch"] = str(torch.__version__)
    found["hip"] = str(torch.version.hip)
    found["cuda"] = str(torch.version.cuda)
    return dict(sorted(found.items()))


def save_tune_cache(path: str | os.PathLike[str]) -> int:
    """Write the winners known to this process to ``path``; returns how many. Atomic: readers see all or nothing."""
    target = Path(path)
    entries = {op: records for op, cache in all_caches().items() if (records := cache.to_records())}
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "built_with": software_versions(),
        "entries": entries,
    }
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")  # beside it, and of this writer alone
    try:
        with open(temporary, "x", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return sum(len(records) for records in entries.values())


def load_tune_cache(path: str | os.PathLike[str]) -> int:
    """Take the winners in ``path``; returns how many.

    A file that is missing, corrupt, of another format version or made with other software is refused whole: a
    warning says why, the return value is 0, and the job goes on untuned.
    """
    try:
        entries = _checked(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        return _refuse(path, f"cannot be read: {error}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _refuse(path, f"{error}" if isinstance(error, UnsupportedError) else f"is corrupt: {error!r}")
    for op, records in entries.items():
        cache_for(op).add_records(records)
    return sum(len(records) for records in entries.values())


def _checked(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The entries of a document that this process may use; raises on any doubt, before anything is taken."""
    if document["format"] != FORMAT:
        raise UnsupportedError(f"is not an auto-tune cache (format {document['format']!r})")
    if document["version"] != FORMAT_VERSION:
        raise UnsupportedError(f"has format version {document['version']}, this turbo-core reads {FORMAT_VERSION}")
    made, here = document["built_with"], software_versions()
    changed = [
        f"{n} {made.get(n)} -> {here.get(n)}" for n in sorted(made.keys() | here.keys()) if made.get(n) != here.get(n)
    ]
    if changed:
        raise UnsupportedError(f"was made with other software ({', '.join(changed)})")
    entries: dict[str, list[dict[str, Any]]] = document["entries"]
    for records in entries.values():
        for record in records:
            BackendType.parse(record["backend"])
            float(record["milliseconds"])
            list(record["key"])
    return entries


def _refuse(path: str | os.PathLike[str], reason: str) -> int:
    logger.warning("auto-tune cache %s is refused: it %s; going on without it", path, reason)
    return 0
