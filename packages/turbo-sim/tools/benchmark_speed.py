# SPDX-License-Identifier: MIT
"""Speed of the simulator: wave-instructions a second of processor time on one core, a Triton GEMM, checks off and on.

python packages/turbo-sim/tools/benchmark_speed.py [--size 512] [--repeat 5]
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from pathlib import Path

import torch

from turbo_sim._native import level, module

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import triton_sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="M = N = K, a multiple of 128")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    n = options.size
    a, b, c = torch.randn(n, n).bfloat16(), torch.randn(n, n).bfloat16(), torch.zeros(n, n).bfloat16()
    print(f"Triton bf16 GEMM {n}x{n}x{n}, tile 128x128x64, one core, build {level}; best of {options.repeat}")
    print(f"{'arch':8}{'checks':8}{'instructions':>14}{'M/s':>8}  worst error")
    for arch in ("gfx942", "gfx950"):
        case = next(c for c in triton_sample.cases(arch) if c.name.startswith("gemm128") and c.aligned)
        hsaco, meta = triton_sample.compile_case(case, arch)
        code = module.CodeObject.load(hsaco, arch)
        kernarg = struct.pack("<3Q7i", a.data_ptr(), b.data_ptr(), c.data_ptr(), n, n, n, n, 1, n, 1).ljust(128, b"\0")
        memory = [(t.data_ptr(), 2 * n * n, name) for t, name in ((a, "a"), (b, "b"), (c, "c"))]
        for checks in (False, True):
            best, count = float("inf"), 0
            for _ in range(options.repeat):
                start = time.process_time()
                report = module.launch(
                    code,
                    meta["name"],
                    (n // 128, n // 128, 1),
                    (64 * meta["warps"], 1, 1),
                    kernarg,
                    shared=meta["shared"],
                    memory=memory,
                    threads=1,
                    checks=checks,
                )
                best, count = min(best, time.process_time() - start), report.instructions
            want = a.double() @ b.double()
            error = float((c.double() - want).abs().max() / want.abs().max())
            print(f"{arch:8}{'on' if checks else 'off':8}{count:14}{count / best / 1e6:8.2f}  {error:.1e}")


if __name__ == "__main__":
    main()
