# SPDX-License-Identifier: MIT
"""Accuracy of the GEMMs and their gradients against float64, on random or recorded inputs.

    python benchmark/accuracy/eval_gemm_accuracy.py --shape 4096,4096,4096 --dump recorded -o first.csv
    python benchmark/accuracy/eval_gemm_accuracy.py --shape 4096,4096,4096 --replay recorded -o second.csv

The second line, on another platform, takes the inputs of the first and also says how far the two platforms differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.accuracy.figures import FIGURES, figures  # noqa: E402
from benchmark.accuracy.recording import REPLAY_COLUMNS, Recording  # noqa: E402
from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.results import format_table, write_csv  # noqa: E402
from turbo_core import GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_gemm import gemm, gemm_fp4, gemm_fp8  # noqa: E402
from turbo_testing import references  # noqa: E402
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, gate  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DISTRIBUTIONS = ("normal", "uniform", "outliers")
OPS = ["gemm", *FP8_CONFIGS, *FP4_CONFIGS]
DEFAULT_OPS = "gemm,tensorwise-e4m3,rowwise-e4m3,blockwise-e4m3,mx-e4m3,mxfp4"
DEFAULT_SHAPE, SMOKE_SHAPE = "2048,2048,2048", "96,64,160"
OUTLIER_SHARE, OUTLIER_FACTOR = 1e-3, 100.0
COLUMNS = ["Platform", "GPU", "Op", "Backend", "M", "N", "K", "Dtype", "Inputs", "Part", "Check"]
COLUMNS += FIGURES + REPLAY_COLUMNS
SHOWN = ["Op", "Backend", "Part", "Check", "Relative Error", "SNR (dB)", "Cosine", "Max ULP"]


def draw(distribution: str, *sizes: int, generator: torch.Generator) -> Tensor:
    """Float32 numbers on the CPU, the same on every platform."""
    if distribution == "uniform":
        return torch.rand(sizes, generator=generator) * 2 - 1
    numbers = torch.randn(sizes, generator=generator)
    if distribution == "outliers":
        large = torch.rand(sizes, generator=generator) < OUTLIER_SHARE
        numbers = torch.where(large, numbers * OUTLIER_FACTOR, numbers)
    return numbers


def product(op: str, x: Tensor, w: Tensor) -> Tensor:
    """y = x w^T by the op, or by gemm_fp8 or gemm_fp4 under the config of that name."""
    if op == "gemm":
        return gemm(x, w, trans_b=True)
    if op in FP4_CONFIGS:
        return gemm_fp4(x, w, trans_b=True, config=FP4_CONFIGS[op])
    return gemm_fp8(x, w, trans_b=True, config=FP8_CONFIGS[op])


def verdict(op: str, distribution: str, row: dict[str, float]) -> str:
    """FAIL for NaN or infinity out of place, and for less than the promised SNR where one is promised."""
    promised = None if op == "gemm" or distribution == "outliers" else gate({**FP8_CONFIGS, **FP4_CONFIGS}[op])
    good = not row["Wrong Specials"] and (promised is None or row["SNR (dB)"] > promised)
    return "PASS" if good else "FAIL"


def evaluate(op: str, shape: tuple[int, int, int], args: argparse.Namespace, recording: Recording) -> list[dict]:
    """A row for y, dx and dw each."""
    m, n, k = shape
    dtype, machine = DTYPES[args.dtype], recording.machine
    generator = torch.Generator().manual_seed(args.seed)

    def make() -> dict[str, Tensor]:
        sizes = {"x": (m, k), "w": (n, k), "dy": (m, n)}
        return {name: draw(args.inputs, *pair, generator=generator).to(dtype) for name, pair in sizes.items()}

    case = f"{op}_{m}x{n}x{k}_{args.dtype}"
    inputs = recording.inputs(case, make)
    x, w, dy = inputs["x"].requires_grad_(), inputs["w"].requires_grad_(), inputs["dy"]
    with trace_dispatch() as trace:
        y = product(op, x, w)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
    results = {"y": y.detach(), "dx": dx, "dw": dw}
    recording.keep(case, inputs, results)
    x, w = x.detach(), w.detach()
    exact = {"y": references.gemm(x, w, trans_b=True)}
    exact["dx"], exact["dw"] = references.gemm_backward(x, w, dy, trans_b=True)
    backends = [record.backend.name for record in trace.records if record.op.startswith("gemm")]
    rows = []
    for (part, result), backend in zip(results.items(), backends):
        row = figures(result, exact[part])
        rows.append(
            {
                "Platform": machine.platform,
                "GPU": machine.name,
                "Op": op,
                "Backend": backend,
                **dict(zip("MNK", shape)),
                "Dtype": args.dtype,
                "Inputs": args.inputs,
                "Part": part,
                "Check": verdict(op, args.inputs, row),
                **row,
                **recording.compare(case, part, result),
            }
        )
    return rows


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--ops", default=DEFAULT_OPS, help=f"comma list of {', '.join(OPS)}; default {DEFAULT_OPS}")
    add("--shape", action="append", default=[], metavar="M,N,K", help=f"may be repeated; default {DEFAULT_SHAPE}")
    add("--dtype", choices=sorted(DTYPES), default="bf16", help="of inputs and outputs")
    add("--inputs", choices=DISTRIBUTIONS, default="normal", help="what inputs are drawn from")
    add("--backend", help="force a backend; default: Turbo's choice")
    add("--seed", type=int, default=0)
    add("--dump", type=Path, help="folder to leave inputs and results in, for another platform")
    add("--replay", type=Path, help="folder to take inputs from, and results to compare with")
    add("-o", "--output", type=Path, help="CSV file")
    add("--device", help="default: the first GPU, else the CPU")
    add("--smoke", action="store_true", help="one tiny shape")
    args = parser.parse_args(argv)
    args.ops = args.ops.split(",")
    unknown = [op for op in args.ops if op not in OPS]
    if unknown:
        parser.error(f"--ops {','.join(unknown)}: accepted are {', '.join(OPS)}")
    if args.dump and args.replay:
        parser.error("--dump and --replay: give one of them")
    return args


def shapes(args: argparse.Namespace) -> list[tuple[int, int, int]]:
    """What the command line asks for."""
    found = []
    for text in [SMOKE_SHAPE] if args.smoke else args.shape or [DEFAULT_SHAPE]:
        try:
            m, n, k = map(int, text.split(","))
        except ValueError:
            raise SystemExit(f"--shape {text!r} must be M,N,K, like 4096,4096,4096") from None
        found.append((m, n, k))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, print, write; 0 if nothing failed its check."""
    args = parse_args(argv)
    machine: Machine = find_machine(args.device)
    if args.backend:
        GlobalBackendManager.set_gemm_backend(args.backend)
    recording = Recording(machine, args.dump, args.replay)
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {args.dtype}, {args.inputs} inputs")
    rows = [row for shape in shapes(args) for op in args.ops for row in evaluate(op, shape, args, recording)]
    print(format_table(SHOWN + (REPLAY_COLUMNS[1:] if args.replay else []), rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
