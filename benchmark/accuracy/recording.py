# SPDX-License-Identifier: MIT
"""Inputs and results that one platform leaves for another: dumped on the first, replayed on the second.

One file for each case, written by `torch.save`: the inputs, the results and where they come from. A replay takes the
inputs, so that both platforms compute the same, and compares its results with those in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmark.common.machine import Machine

__all__ = ["REPLAY_COLUMNS", "Recording"]

REPLAY_COLUMNS = ["Dumped On", "Max Abs Difference To Dump", "Bits Differ From Dump"]

Tensors = Mapping[str, Tensor]


@dataclass
class Recording:
    """Where cases are dumped to and replayed from; None for neither."""

    machine: Machine
    dump: Path | None = None
    replay: Path | None = None

    def inputs(self, case: str, make: Callable[[], Tensors]) -> dict[str, Tensor]:
        """The inputs of a case on this machine's device: those of the dump, else new ones."""
        found = self._load(case)
        tensors = make() if found is None else found["inputs"]
        return {name: tensor.to(self.machine.device) for name, tensor in tensors.items()}

    def keep(self, case: str, inputs: Tensors, results: Tensors) -> None:
        """Dump a case; the results of other cases in the same file stay."""
        if self.dump is None:
            return
        self.dump.mkdir(parents=True, exist_ok=True)
        where = f"{self.machine.platform}, {self.machine.name}, torch {torch.__version__}"
        content = {"where": where, "inputs": _on_cpu(inputs), "results": _on_cpu(results)}
        torch.save(content, self.dump / f"{case}.pt")

    def compare(self, case: str, name: str, result: Tensor) -> dict[str, object]:
        """The `REPLAY_COLUMNS` of one result; empty without a replay."""
        found = self._load(case)
        if found is None:
            return {}
        other = found["results"].get(name)
        if other is None:
            return {"Dumped On": f"{found['where']} (no such result)"}
        mine = result.detach().cpu()
        bits = torch.uint8
        same = (mine == other) | (mine.isnan() & other.isnan())
        difference = (mine.double() - other.double()).abs()[~same]
        unequal = mine.contiguous().view(bits) != other.contiguous().view(bits)
        return {
            "Dumped On": found["where"],
            "Max Abs Difference To Dump": difference.max().item() if difference.numel() else 0.0,
            "Bits Differ From Dump": int(unequal.view(*mine.shape, mine.element_size()).any(-1).sum()),
        }

    def _load(self, case: str) -> dict | None:  # type: ignore[type-arg]
        if self.replay is None:
            return None
        path = self.replay / f"{case}.pt"
        if not path.is_file():
            raise SystemExit(f"--replay: {path} is missing; the dump was made with other options")
        content: dict = torch.load(path, weights_only=True)  # type: ignore[type-arg]
        return content


def _on_cpu(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
