# SPDX-License-Identifier: MIT
"""A folder of what compilers made, by content: the same source, flags and compiler are compiled once. Plain Python.

The source counts as the compiler sees it, preprocessed: every header that it includes, and nothing else. So the builds
of a checkout, of an sdist and of a wheel share what is in the folder, wherever they lie.

An entry is one file, named by its key: a digest of the rest, the compiler's messages, the object. It is written beside
and renamed, so builds at the same time see it whole or not at all. The entries that were not used for longest leave
when the folder grows past its limit.

As a program it prints one digest of the files that are named, such as a compiler and a linker.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SCHEMA = 1  # raise it when entries of another version must not be used
LIMIT = 512 * 1024 * 1024  # bytes; a build of all wheels is 20 MB
OLD_TEMPORARY = 3600  # seconds after which a half-written file is one of a build that was killed

# Debug information holds paths, other files are written beside the object, or what is read is not in the source.
NOT_CACHED = ("-g", "-save-temps", "--save-temps", "-ftime-trace", "-fprofile", "-march=native", "-mtune=native")
NOT_CACHED += ("-mlink-builtin-bitcode", "-fplugin", "@")


@dataclass(frozen=True)
class Entry:
    """An object file and what the compiler said."""

    data: bytes
    messages: str


def may_be_cached(flags: Iterable[str]) -> bool:
    """Whether the flags leave nothing behind but the object, which the preprocessed source and they determine."""
    return not any(flag.startswith(NOT_CACHED) and flag != "-g0" for flag in flags)


def without_folders(flags: Iterable[str]) -> list[str]:
    """The flags that say more than where headers lie."""
    kept, rest = [], iter(flags)
    for flag in rest:
        if flag in ("-I", "-isystem", "-iquote", "-idirafter"):
            next(rest, None)
        elif not flag.startswith(("-I", "-isystem", "-iquote", "-idirafter")):
            kept.append(flag)
    return kept


def key_of(preprocessed: bytes, *facts: str) -> str:
    """The name of an entry. `facts` are whatever else decides: flags, architecture, compiler."""
    head = json.dumps([SCHEMA, *facts]).encode()
    return hashlib.sha256(head + b"\0" + preprocessed).hexdigest()


class CompileCache:
    """The entries in one folder, which is made when the first one is stored."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit

    def get(self, key: str) -> Entry | None:
        """The entry, None where there is none. A damaged one is removed, and said."""
        path = self.folder / key
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, rest = content[:32], content[32:]
        if len(rest) < 4 or hashlib.sha256(rest).digest() != digest:
            print(f"{path} is damaged: compiling again", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        (size,) = struct.unpack_from("<I", rest)
        return Entry(rest[4 + size :], rest[4 : 4 + size].decode())

    def put(self, key: str, entry: Entry) -> None:
        """Stores the entry. A folder that cannot be written to is no reason to fail."""
        messages = entry.messages.encode()
        rest = struct.pack("<I", len(messages)) + messages + entry.data
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".new-", dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(rest).digest() + rest)
            os.replace(name, self.folder / key)
        except OSError as error:
            print(f"not stored in {self.folder}: {error.strerror}", file=sys.stderr, flush=True)
            return
        self._trim()

    def _trim(self) -> None:
        now, files = time.time(), []
        with contextlib.suppress(OSError):
            for path in os.scandir(self.folder):
                with contextlib.suppress(OSError):  # another build may have removed it
                    status = path.stat()
                    if path.name.startswith(".new-"):
                        if now - status.st_mtime > OLD_TEMPORARY:
                            os.unlink(path.path)
                    else:
                        files.append((status.st_mtime_ns, status.st_size, path.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size


def digest_of(paths: Iterable[str]) -> str:
    """Of what lies in the files, wherever they lie."""
    files = {os.path.realpath(path) for path in paths}
    digests = sorted(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


if __name__ == "__main__":
    print(digest_of(sys.argv[1:]))
