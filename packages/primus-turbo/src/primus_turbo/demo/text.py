# SPDX-License-Identifier: MIT
"""The demo's text: the sources of the Python standard library on this machine, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["read_text", "windows"]

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


def read_text(folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """The bytes of the sources for training and, of every twentieth file, for validation: two uint8 tensors."""
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    files = sorted(path for path in folder.rglob("*.py") if not LEFT_OUT & set(path.relative_to(folder).parts))
    if len(files) < 20:
        raise FileNotFoundError(
            f"{folder} holds {len(files)} Python sources; the text that the model reads is that of a standard library"
        )
    shares = [path for number, path in enumerate(files) if number % 20], files[::20]
    texts = (bytearray(b"".join(path.read_bytes() for path in share)) for share in shares)
    train, held_out = (torch.frombuffer(text, dtype=torch.uint8) for text in texts)
    print(f"text: {len(files)} files of {folder}, {len(train) / 1e6:.1f} MB, and {len(held_out) / 1e6:.2f} MB held out")
    return train, held_out


def windows(text: Tensor, starts: Tensor, context: int, device: torch.device) -> Tensor:
    """``context`` bytes and their successors from each start on: int64 [len(starts), context + 1]."""
    return text[starts[:, None] + torch.arange(context + 1)].long().to(device)
