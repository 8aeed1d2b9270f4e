# SPDX-License-Identifier: MIT
"""What a stage of K costs a GEMM's main loop in the simulator's cost model: the difference of a long and a short K."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from turbo_core.device import simulated_arch_name

__all__ = ["STAGE_BYTES", "Stage", "stage_of"]

STAGES = 8, 24
STAGE_BYTES = {"gfx942": 64, "gfx950": 128}


class Stage(NamedTuple):
    """Cycles of one stage of one work-group: of matrix and vector units a SIMD, of LDS and memory path a unit.

    ``matrix`` and ``issue`` are the model's simd_cycles: matrix instructions with the vector ones that cannot run
    beside them, and vector instructions with what matrix instructions hold of their issue.
    """

    mfma: float
    valu: float
    matrix: float
    issue: float
    lds: float
    lds_conflicts: float
    vmem: float

    @property
    def mfma_share(self) -> float:
        """The part of a SIMD's time that its matrix unit can be busy."""
        return self.mfma / max(self.matrix, self.issue)


def stage_of(arch: str, run: Callable[[int], object], k_of_stage: int, work_groups: int = 1) -> Stage:
    """``run(k)`` multiplies one tile, in a launch of ``work_groups``."""
    turbo_sim = pytest.importorskip("turbo_sim", reason="the cost model is the simulator's: needs turbo-sim")
    if torch.cuda.is_available() or simulated_arch_name() is not None:
        pytest.skip("counts launches of its own simulated device")
    counts = []
    with turbo_sim.use(arch, costs=True, triton=False) as session:
        for stages in STAGES:
            session.profiles()
            run(stages * k_of_stage)
            (profile,) = session.profiles()
            assert profile["work_groups"] == work_groups
            counts.append(profile)
    short, long = counts

    more = STAGES[1] - STAGES[0]

    def each(kind: str) -> dict[str, float]:
        return {unit: (long[kind][unit] - short[kind][unit]) / more for unit in long[kind]}

    cycles, simd = each("unit_cycles"), each("simd_cycles")
    conflicts = (long["lds_conflict_cycles"] - short["lds_conflict_cycles"]) / more
    of_simd = cycles["mfma"], cycles["valu"], simd["matrix"], simd["issue"]
    return Stage(*(x / 4 for x in of_simd), cycles["lds"], conflicts, cycles["vmem"])
