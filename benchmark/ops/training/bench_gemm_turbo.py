# SPDX-License-Identifier: MIT
"""Dense GEMM: correctness, then speed of forward, dgrad and wgrad, next to torch in the same run.

    python benchmark/ops/training/bench_gemm_turbo.py --dtype bf16 --cases llama3.1-8b --backend HIPBLASLT,TRITON
    python benchmark/ops/training/bench_gemm_turbo.py --dtype fp8 --granularity rowwise --cases square-4096

The method is described in benchmark/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.poison import poison  # noqa: E402
from benchmark.common.results import format_table, gemm_tflops, geometric_mean, shard, write_csv  # noqa: E402
from benchmark.common.sampling import one_of_each_stretch  # noqa: E402
from benchmark.common.timing import Budget, Measurement, input_sets, measure  # noqa: E402
from benchmark.ops.training.config import SMOKE_SHAPES, GemmShape, dense_gemm_shapes  # noqa: E402
from benchmark.ops.training.quant_gemm import GRANULARITIES, QuantGemm  # noqa: E402
from turbo_core import GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_gemm import gemm  # noqa: E402
from turbo_testing import metrics, references  # noqa: E402

# of inputs and outputs
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.bfloat16,
    "fp4": torch.bfloat16,
}
PARTS = ("Forward", "Backward", "Dgrad", "Wgrad")
QUANT_PARTS = ("Forward", "Backward", "Gemm")
COLUMNS = (
    ["TestID", "Platform", "GPU", "Case", "MBS", "M", "N", "K", "Dtype", "Check"]
    + [f"{part} {unit}" for part in PARTS[:2] for unit in ("Time (ms)", "TFLOPS")]
    + ["Backend"]
    + [f"{part} {unit}" for part in PARTS[2:] for unit in ("Time (ms)", "TFLOPS")]
    + [f"Torch {part} {unit}" for part in PARTS for unit in ("Time (ms)", "TFLOPS")]
    + [f"{part} Ratio" for part in PARTS]
    + [
        "Calls",
        "Granularity",
        "Gemm Time (ms)",
        "Gemm TFLOPS",
        "Torch Gemm Time (ms)",
        "Torch Gemm TFLOPS",
        "Gemm Ratio",
    ]
)
SHOWN = ["Case", "M", "N", "K", "Backend", "Check", "Forward TFLOPS", "Dgrad TFLOPS", "Wgrad TFLOPS"]
QUANT_SHOWN = ["Case", "M", "N", "K", "Backend", "Check", "Gemm TFLOPS", "Forward TFLOPS", "Backward TFLOPS"]
CHECKED_ROWS = 128
EXHAUSTIVE_FLOPS = 1 << 34  # up to here every row is checked


@dataclass(frozen=True)
class Inputs:
    """x [M, K], w [N, K] and the gradient of y [M, N]: random, never zeros."""

    x: Tensor
    w: Tensor
    dy: Tensor


def make_inputs(shape: GemmShape, dtype: torch.dtype, machine: Machine) -> list[Inputs]:
    """As many sets as it takes to find none of them in the cache when they are used in turn."""
    elements = shape.m * shape.k + shape.n * shape.k + shape.m * shape.n
    generator = torch.Generator(machine.device).manual_seed(shape.m + shape.n + shape.k)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=machine.device, dtype=dtype)

    return [
        Inputs(
            random(shape.m, shape.k).requires_grad_(),
            random(shape.n, shape.k).requires_grad_(),
            random(shape.m, shape.n),
        )
        for _ in range(input_sets(elements * dtype.itemsize, machine.cache_bytes))
    ]


# --- correctness ----------------------------------------------------------------------------------------------------


def sampled_rows(count: int, shape: GemmShape, device: torch.device) -> Tensor:
    """Rows to check, one at random out of each of `CHECKED_ROWS` equal stretches; all rows of small GEMMs."""
    everything = 2 * shape.m * shape.n * shape.k <= EXHAUSTIVE_FLOPS
    return one_of_each_stretch(count, count if everything else CHECKED_ROWS, device)


def check(shape: GemmShape, inputs: Inputs, quant: QuantGemm | None = None) -> str | None:
    """What is wrong with y, dx or dw against float64; None when all is right.

    Each is compared in units of its own root mean square: the inputs are of order one, so a sum of 128256 products is
    of order 358, and what float32 loses on the way to an element that cancels is no fault of the kernel. Quantised
    products are judged by their signal-to-noise ratio.
    """
    x, w, dy = inputs.x, inputs.w, inputs.dy
    poison(dy)
    y = gemm(x, w, trans_b=True) if quant is None else quant.op(x, w)
    poison(x, w)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    rows_m, rows_n = sampled_rows(shape.m, shape, x.device), sampled_rows(shape.n, shape, x.device)
    with torch.no_grad():
        expected = {
            "y": (y, rows_m, references.gemm(x[rows_m], w, trans_b=True)),
            "dx": (dx, rows_m, references.gemm(dy[rows_m], w)),
            "dw": (dw, rows_n, references.gemm(dy[:, rows_n], x, trans_a=True)),
        }
        for name, (actual, rows, reference) in expected.items():
            if not actual.isfinite().all():
                return f"{name} holds NaN or infinity, or was not written everywhere"
            try:
                if quant is not None:
                    metrics.assert_snr(actual[rows].double(), reference, quant.snr, name)
                    continue
                unit = reference.square().mean().sqrt()
                metrics.assert_close(actual[rows].double() / unit, reference / unit, dtype=x.dtype, what=name)
            except AssertionError as error:
                return str(error)
    return None


# --- speed ----------------------------------------------------------------------------------------------------------


def product(x: Tensor, w: Tensor, trans_a: bool = False, trans_b: bool = False) -> Tensor:
    """`gemm`, spelt in torch."""
    return torch.mm(x.t() if trans_a else x, w.t() if trans_b else w)


def timed_parts(sets: list[Inputs], mm: Callable[..., Tensor]) -> dict[str, Callable[[int], object]]:
    """What is timed, by part; the gradients separately as the GEMM that each is, and both through autograd."""
    outputs = [mm(s.x, s.w, trans_b=True) for s in sets]

    def pick(number: int) -> Inputs:
        return sets[number % len(sets)]

    def forward(number: int) -> object:
        s = pick(number)
        with torch.no_grad():
            return mm(s.x, s.w, trans_b=True)

    def backward(number: int) -> object:
        s = pick(number)
        return torch.autograd.grad(outputs[number % len(sets)], (s.x, s.w), s.dy, retain_graph=True)

    def dgrad(number: int) -> object:
        s = pick(number)
        with torch.no_grad():
            return mm(s.dy, s.w)

    def wgrad(number: int) -> object:
        s = pick(number)
        with torch.no_grad():
            return mm(s.dy, s.x, trans_a=True)

    return {"Forward": forward, "Backward": backward, "Dgrad": dgrad, "Wgrad": wgrad}


def quant_parts(sets: list[Inputs], kind: QuantGemm, peer: bool) -> dict[str, dict[str, Callable[[int], object]]]:
    """The same for a quantised GEMM, by side: the product alone, the op, and both gradients through autograd."""
    products = [kind.products(s.x, s.w) for s in sets]

    def side(name: str, mm: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Callable[[int], object]]:
        parts = timed_parts(sets, lambda x, w, **_: mm(x, w))
        found = {part: parts[part] for part in ("Forward", "Backward")}
        if name in products[0]:
            found["Gemm"] = lambda number: products[number % len(sets)][name]()
        return found

    return {"": side("", kind.op)} | ({"Torch ": side("Torch ", kind.peer)} if peer else {})


def speed(
    shape: GemmShape, sets: list[Inputs], quant: QuantGemm | None, peer: str, machine: Machine, budget: Budget
) -> dict[str, object]:
    """Times, rates and ratios of all parts, as columns of the result."""
    if quant is not None:
        sides = quant_parts(sets, quant, peer != "none" and quant.peer_takes(sets[0].x, sets[0].w))
    else:
        sides = {"": timed_parts(sets, gemm)}
        if peer != "none":
            sides["Torch "] = timed_parts(sets, product)
    columns: dict[str, object] = {}
    for part in sides[""]:
        measured: dict[str, Measurement] = measure(
            {side: parts[part] for side, parts in sides.items() if part in parts}, machine.device, budget
        )
        for side, result in measured.items():
            columns[f"{side}{part} Time (ms)"] = result.milliseconds
            columns[f"{side}{part} TFLOPS"] = gemm_tflops(
                shape.m, shape.n, shape.k, result.milliseconds, gemms=2 if part == "Backward" else 1
            )
        if "Torch " in measured:
            columns[f"{part} Ratio"] = measured["Torch "].milliseconds / measured[""].milliseconds
        if part == "Forward":
            columns["Calls"] = measured[""].calls
    return columns


def bench(
    shape: GemmShape, backend: str, args: argparse.Namespace, machine: Machine, budget: Budget
) -> dict[str, object]:
    """One row: check, then time what passed."""
    row: dict[str, object] = {"Case": shape.case, "MBS": shape.mbs, "M": shape.m, "N": shape.n, "K": shape.k}
    quant = quant_of(args)
    row |= {
        "Granularity": quant.granularity if quant else "",
        "Dtype": args.dtype,
        "Platform": machine.platform,
        "GPU": machine.name,
        "Backend": backend,
    }
    try:
        GlobalBackendManager.set_gemm_backend(None if backend == "AUTO" else backend)
        sets = make_inputs(shape, DTYPES[args.dtype], machine)
        with trace_dispatch() as trace:
            fault = check(shape, sets[0], quant)
        row["Backend"] = "/".join(dict.fromkeys(record.backend.name for record in trace.records))
        row["Check"] = "PASS" if fault is None else "FAIL"
        if fault is None:
            row |= speed(shape, sets, quant, args.peer, machine, budget)
        else:
            print(f"FAIL {shape.case} on {backend}: {fault}", file=sys.stderr)
    except Exception as error:  # a benchmark goes on to the next shape, whatever this one failed with
        row["Check"] = "ERROR"
        print(f"ERROR {shape.case} on {backend}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        GlobalBackendManager.set_gemm_backend(None)
    return row


# --- the command ----------------------------------------------------------------------------------------------------


def quant_of(args: argparse.Namespace) -> QuantGemm | None:
    """The quantised GEMM that the command line asks for, None for the plain one."""
    if args.dtype not in ("fp8", "fp4"):
        return None
    return QuantGemm("mxfp4" if args.dtype == "fp4" else args.granularity, args.peer == "torch-fast")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--dtype", choices=sorted(DTYPES), default="bf16")
    add("--backend", default="AUTO", help="comma list of backends, a row each; AUTO is Turbo's own choice (default)")
    add("--cases", help="comma list like llama3.1-8b,square-4096; default: all of config.py")
    add("--shape", action="append", default=[], metavar="M,N,K", help="measure this shape (may be repeated)")
    add("--mbs", default="1", help="comma list of micro-batch sizes (default 1)")
    add("--granularity", choices=GRANULARITIES[:-1], default="tensorwise", help="scales of --dtype fp8")
    add(
        "--peer",
        choices=("torch", "torch-fast", "none"),
        default="torch",
        help="what to compare with in the same run; torch-fast: with use_fast_accum in torch's FP8 product",
    )
    add("-o", "--output", type=Path, help="CSV file")
    add("--num-shards", type=int, default=1)
    add("--shard-id", type=int, default=0)
    add("--seconds", type=float, default=1.0, help="longest time to spend on one measurement (default 1)")
    add("--settle", type=float, default=0.0, help="seconds of untimed calls before each turn, for clocks under load")
    add("--device", help="default: the first GPU, else the CPU")
    add("--smoke", action="store_true", help="two tiny shapes and few calls: shows that the benchmark works")
    return parser.parse_args(argv)


def chosen_shapes(args: argparse.Namespace, machine: Machine) -> list[GemmShape]:
    """What the command line asks for."""
    if args.smoke:
        return [GemmShape(f"smoke {m}x{n}x{k}", 1, m, n, k) for m, n, k in SMOKE_SHAPES]
    shapes = []
    for text in args.shape:
        try:
            m, n, k = map(int, text.split(","))
        except ValueError:
            raise SystemExit(f"--shape {text!r} must be M,N,K, like 4096,4096,4096") from None
        shapes.append(GemmShape(f"{m}x{n}x{k}", 1, m, n, k))
    if args.cases or not shapes:
        if not args.cases and machine.device.type == "cpu":
            raise SystemExit("all cases take hours on a CPU: give --smoke, --shape or --cases")
        try:
            shapes += dense_gemm_shapes(
                args.cases.split(",") if args.cases else None, list(map(int, args.mbs.split(",")))
            )
        except ValueError as error:
            raise SystemExit(str(error)) from None
    return shapes


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if everything passed its check."""
    args = parse_args(argv)
    machine = find_machine(args.device)
    budget = Budget(2, 5, 0.1) if args.smoke else Budget(seconds=args.seconds, settle=args.settle)
    plan = [(s, b) for s in chosen_shapes(args, machine) for b in args.backend.upper().split(",")]
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {args.dtype}, {len(plan)} rows in all")
    rows: list[dict[str, object]] = []
    for number, (shape, backend) in shard(list(enumerate(plan, 1)), args.shard_id, args.num_shards):
        rows.append({"TestID": number} | bench(shape, backend, args, machine, budget))
        print(f"[{number}/{len(plan)}] {shape.case}, {backend}: {rows[-1]['Check']}", flush=True)
        if args.output:
            write_csv(args.output, COLUMNS, rows)  # after each row, so that a run that is cut off leaves its rows
    quant = quant_of(args)
    ratios = [f"{part} Ratio" for part in (PARTS if quant is None else QUANT_PARTS)] if args.peer != "none" else []
    if quant is not None and not quant.has_peer(machine.device):
        ratios = []
    print("\n" + format_table((SHOWN if quant is None else QUANT_SHOWN) + ratios, rows))
    if ratios:
        print("\nRatio: torch's time over ours, above 1 is faster than torch. Geometric means:")
        for backend in dict.fromkeys(str(row["Backend"]) for row in rows if row["Check"] == "PASS"):
            mine = [row for row in rows if row["Backend"] == backend and row["Check"] == "PASS"]
            means = (f"{name} {geometric_mean(float(str(row[name])) for row in mine):.3f}" for name in ratios)
            print(f"  {backend}, {len(mine)} shapes: {', '.join(means)}")
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
