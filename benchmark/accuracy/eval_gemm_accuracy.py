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
from benchmark.accuracy.options import (  # noqa: E402
    DTYPES,
    add_input_options,
    add_recording_options,
    check_names,
    draw,
    sizes,
)
from benchmark.accuracy.recording import REPLAY_COLUMNS, Recording  # noqa: E402
from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.results import format_table, write_csv  # noqa: E402
from turbo_core import GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_gemm import gemm, gemm_fp4, gemm_fp8  # noqa: E402
from turbo_testing import references  # noqa: E402
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, gate  # noqa: E402

OPS = ["gemm", *FP8_CONFIGS, *FP4_CONFIGS]
DEFAULT_OPS = "gemm,tensorwise-e4m3,rowwise-e4m3,blockwise-e4m3,mx-e4m3,mxfp4"
DEFAULT_SHAPE, SMOKE_SHAPE = "2048,2048,2048", "96,64,160"
COLUMNS = ["Platform", "GPU", "Op", "Backend", "M", "N", "K", "Dtype", "Inputs", "Part", "Check"]
COLUMNS += FIGURES + REPLAY_COLUMNS
SHOWN = ["Op", "Backend", "Part", "Check", "Relative Error", "SNR (dB)", "Cosine", "Max ULP"]


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


def evaluate(op: str, shape: tuple[int, ...], args: argparse.Namespace, recording: Recording) -> list[dict]:
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
    add_input_options(parser)
    add_recording_options(parser)
    add("--smoke", action="store_true", help="one tiny shape")
    args = parser.parse_args(argv)
    args.ops = check_names(parser, "ops", args.ops, OPS)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, print, write; 0 if nothing failed its check."""
    args = parse_args(argv)
    machine: Machine = find_machine(args.device)
    if args.backend:
        GlobalBackendManager.set_gemm_backend(args.backend)
    recording = Recording(machine, args.dump, args.replay)
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {args.dtype}, {args.inputs} inputs")
    texts = [SMOKE_SHAPE] if args.smoke else args.shape or [DEFAULT_SHAPE]
    shapes = [sizes(text, "M,N,K", "4096,4096,4096") for text in texts]
    rows = [row for shape in shapes for op in args.ops for row in evaluate(op, shape, args, recording)]
    print(format_table(SHOWN + (REPLAY_COLUMNS[1:] if args.replay else []), rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
