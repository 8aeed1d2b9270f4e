# SPDX-License-Identifier: MIT
"""Accuracy of the grouped GEMMs and their gradients against float64, on random or recorded inputs.

    python benchmark/accuracy/eval_grouped_gemm_accuracy.py --lens balanced,zipf --dump recorded -o first.csv
    python benchmark/accuracy/eval_grouped_gemm_accuracy.py --lens balanced,zipf --replay recorded -o second.csv

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

import turbo_grouped_gemm  # noqa: E402
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
from benchmark.common.machine import find_machine  # noqa: E402
from benchmark.common.results import format_table, write_csv  # noqa: E402
from benchmark.ops.training.grouped_check import exact_product, exact_wgrad  # noqa: E402
from benchmark.ops.training.grouped_sides import Groups, groups_of  # noqa: E402
from turbo_core import GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_testing.group_lens import GROUP_LENS, group_lens  # noqa: E402
from turbo_testing.quantised import FP4_CONFIGS, FP8_CONFIGS, gate  # noqa: E402

FP4_OPS = [name for name, config in FP4_CONFIGS.items() if not config.use_preshuffle]
OPS = ["grouped_gemm", *FP8_CONFIGS, *FP4_OPS]
DEFAULT_OPS = "grouped_gemm,tensorwise-e4m3,rowwise-e4m3,blockwise-e4m3,mx-e4m3,mxfp4"
NAMES, DEFAULT_SHAPE, SMOKE_SHAPE = "G,M,N,K", "16,512,2048,2048", "4,40,96,64"
COLUMNS = ["Platform", "GPU", "Op", "Backend", "G", "M", "N", "K", "Lens", "Dtype", "Inputs", "Part", "Check"]
COLUMNS += FIGURES + REPLAY_COLUMNS
SHOWN = ["Op", "Lens", "Backend", "Part", "Check", "Relative Error", "SNR (dB)", "Cosine", "Max ULP"]


def product(op: str, x: Tensor, w: Tensor, lens: Tensor) -> Tensor:
    """y[r] = x[r] w[g]^T by the op, or by grouped_gemm_fp8 or grouped_gemm_fp4 under the config of that name."""
    if op == "grouped_gemm":
        return turbo_grouped_gemm.grouped_gemm(x, w, lens, trans_b=True)
    if op in FP4_CONFIGS:
        return turbo_grouped_gemm.grouped_gemm_fp4(x, w, lens, trans_b=True, config=FP4_CONFIGS[op])
    return turbo_grouped_gemm.grouped_gemm_fp8(x, w, lens, trans_b=True, config=FP8_CONFIGS[op])


def exact_results(inputs: dict[str, Tensor], groups: Groups) -> dict[str, Tensor]:
    """All parts in float64."""
    x, w, dy = inputs["x"].detach(), inputs["w"].detach(), inputs["dy"]
    rows, columns = torch.arange(x.shape[0], device=x.device), torch.arange(w.shape[1], device=x.device)
    return {
        "y": exact_product(x, w.transpose(1, 2), groups.bounds, rows),
        "dx": exact_product(dy, w, groups.bounds, rows),
        "dw": exact_wgrad(dy, x, groups.bounds, columns),
    }


def verdict(op: str, distribution: str, row: dict[str, float]) -> str:
    """FAIL for NaN or infinity out of place, and for less than the promised SNR where one is promised."""
    promised = None if op == "grouped_gemm" or distribution == "outliers" else gate({**FP8_CONFIGS, **FP4_CONFIGS}[op])
    good = not row["Wrong Specials"] and (promised is None or row["SNR (dB)"] > promised)
    return "PASS" if good else "FAIL"


def evaluate(op: str, shape: tuple[int, ...], lens: str, args: argparse.Namespace, recording: Recording) -> list[dict]:
    """A row for y, dx and dw each; ``shape``: G groups of M rows on average, N, K."""
    count, m, n, k = shape
    dtype, machine = DTYPES[args.dtype], recording.machine
    generator = torch.Generator().manual_seed(args.seed)
    groups = groups_of(group_lens(lens, count, count * m), machine.device)

    def make() -> dict[str, Tensor]:
        sizes = {"x": (count * m, k), "w": (count, n, k), "dy": (count * m, n)}
        return {name: draw(args.inputs, *size, generator=generator).to(dtype) for name, size in sizes.items()}

    case = f"{op}_{'x'.join(map(str, shape))}_{lens}_{args.dtype}"
    inputs = recording.inputs(case, make)
    x, w, dy = inputs["x"].requires_grad_(), inputs["w"].requires_grad_(), inputs["dy"]
    with trace_dispatch() as trace:
        y = product(op, x, w, groups.lens)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
    results = {"y": y.detach(), "dx": dx, "dw": dw}
    recording.keep(case, inputs, results)
    exact = exact_results(inputs, groups)
    served = {record.role: record.backend.name for record in trace.records if record.op.startswith("grouped_gemm")}
    roles = {"y": "forward", "dx": "dgrad", "dw": "wgrad"}
    rows = []
    for part, result in results.items():
        row = figures(result, exact[part])
        rows.append(
            {
                "Platform": machine.platform,
                "GPU": machine.name,
                "Op": op,
                "Backend": served[roles[part]],
                **dict(zip("GMNK", shape, strict=True)),
                "Lens": lens,
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
    add("--shape", action="append", default=[], metavar=NAMES, help=f"may be repeated; default {DEFAULT_SHAPE}")
    add("--lens", default=",".join(GROUP_LENS), help=f"comma list of {', '.join(GROUP_LENS)}; default all")
    add_input_options(parser)
    add_recording_options(parser)
    add("--smoke", action="store_true", help="one tiny shape")
    args = parser.parse_args(argv)
    args.ops = check_names(parser, "ops", args.ops, OPS)
    args.lens = check_names(parser, "lens", args.lens, GROUP_LENS)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, print, write; 0 if nothing failed its check."""
    args = parse_args(argv)
    machine = find_machine(args.device)
    if args.backend:
        GlobalBackendManager.set_grouped_gemm_backend(args.backend)
    recording = Recording(machine, args.dump, args.replay)
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {args.dtype}, {args.inputs} inputs")
    texts = [SMOKE_SHAPE] if args.smoke else args.shape or [DEFAULT_SHAPE]
    shapes = [sizes(text, NAMES, DEFAULT_SHAPE) for text in texts]
    cases = [(op, shape, lens) for shape in shapes for op in args.ops for lens in args.lens]
    rows = [row for op, shape, lens in cases for row in evaluate(op, shape, lens, args, recording)]
    print(format_table(SHOWN + (REPLAY_COLUMNS[1:] if args.replay else []), rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
