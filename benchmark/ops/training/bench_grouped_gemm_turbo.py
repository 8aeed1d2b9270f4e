# SPDX-License-Identifier: MIT
"""Grouped GEMM: correctness, then speed of forward, dgrad and wgrad, next to torch in the same run.

    python benchmark/ops/training/bench_grouped_gemm_turbo.py --cases deepseek-v3,mixtral-8x7b --lens balanced,zipf
    python benchmark/ops/training/bench_grouped_gemm_turbo.py --dtype fp8 --granularity rowwise --cases qwen3-30b

The method is described in benchmark/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.memory import peak_mib  # noqa: E402
from benchmark.common.poison import poison  # noqa: E402
from benchmark.common.results import format_table, geometric_mean, shard, write_csv  # noqa: E402
from benchmark.common.timing import Budget, host_microseconds, input_sets, measure  # noqa: E402
from benchmark.ops.training.config import SMOKE_GROUPED, GroupedShape, grouped_gemm_shapes  # noqa: E402
from benchmark.ops.training.grouped_check import checked_rows, exact_product, exact_wgrad  # noqa: E402
from benchmark.ops.training.grouped_quant import QuantGroupedGemm  # noqa: E402
from benchmark.ops.training.grouped_sides import (  # noqa: E402
    GroupedMm,
    Inputs,
    Linear,
    Loop,
    Parts,
    Turbo,
    gradient_parts,
    groups_of,
    op_parts,
    parts_or_none,
)
from benchmark.ops.training.quant_gemm import GRANULARITIES, QuantGemm  # noqa: E402
from turbo_core import GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_testing import metrics  # noqa: E402
from turbo_testing.group_lens import GROUP_LENS  # noqa: E402

# of inputs and outputs
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.bfloat16,
    "fp4": torch.bfloat16,
}
OP_PARTS, GRADIENTS, PRODUCTS = ("Forward", "Backward"), ("Dgrad", "Wgrad"), ("Gemm", "Wgrad Gemm")
RESULTS = {"Forward": "y", "Backward": "dx dw", "Dgrad": "dx", "Wgrad": "dw", "Gemm": "y", "Wgrad Gemm": "dw"}
# Who takes turns with us, and the parts at which each can: of the plain product, and of quantised ones.
PLAIN_PEERS = {"torch": (*OP_PARTS, *GRADIENTS), "loop": (*OP_PARTS, *GRADIENTS)}
QUANT_PEERS = {"torch": PRODUCTS, "bf16": OP_PARTS}
PEERS = tuple(dict.fromkeys((*PLAIN_PEERS, *QUANT_PEERS)))
PEER_PARTS = {peer: PLAIN_PEERS.get(peer, ()) + QUANT_PEERS.get(peer, ()) for peer in PEERS}
UNITS = ("Time (ms)", "TFLOPS")
COLUMNS = (
    ["TestID", "Platform", "GPU", "Case", "MBS", "M", "N", "K", "Dtype", "Check"]
    + [f"{part} {unit}" for part in OP_PARTS for unit in UNITS]
    + ["Backend", "G", "Lens", "Rows", "EP", "Granularity", "Schedule"]
    + [f"{part} {unit}" for part in (*GRADIENTS, *PRODUCTS) for unit in UNITS]
    + [f"{peer.capitalize()} {part} {unit}" for peer in PEERS for part in PEER_PARTS[peer] for unit in UNITS]
    + [f"{peer.capitalize()} {part} Ratio" for peer in PEERS for part in PEER_PARTS[peer]]
    + [f"{side}{part} Host (us)" for side in ("", "Torch ", "Loop ", "Bf16 ") for part in OP_PARTS]
    + [f"{side}Peak (MiB)" for side in ("", "Torch ", "Loop ", "Bf16 ")]
    + ["Calls"]
)
SHOWN = ["Case", "G", "M", "N", "K", "Lens", "Backend", "Check"]
CHECKED_STRETCHES = 128
EXHAUSTIVE_FLOPS = 1 << 30  # up to here every row is checked


def make_inputs(shape: GroupedShape, dtype: torch.dtype, machine: Machine) -> list[Inputs]:
    """Random, never zeros; as many sets as it takes to find none of them in the cache when they are used in turn."""
    elements = shape.rows * (shape.k + shape.n) + shape.groups * shape.n * shape.k
    generator = torch.Generator(machine.device).manual_seed(shape.rows + shape.n + shape.k)
    groups = groups_of(shape.group_lens(), machine.device)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=machine.device, dtype=dtype)

    return [
        Inputs(
            random(shape.rows, shape.k).requires_grad_(),
            random(shape.groups, shape.n, shape.k).requires_grad_(),
            random(shape.rows, shape.n),
            groups,
        )
        for _ in range(input_sets(elements * dtype.itemsize, machine.cache_bytes))
    ]


# --- correctness ----------------------------------------------------------------------------------------------------


def results(parts: Parts, inputs: Inputs) -> list[tuple[str, str, Tensor]]:
    """Every result of a side, as (part, which of y, dx and dw, result), computed into poisoned memory."""
    found = []
    for part, call in parts.items():
        poison(inputs.x, inputs.w, inputs.dy)
        result = call(0)
        names = RESULTS[part].split()
        found += [(part, *pair) for pair in zip(names, result if len(names) > 1 else (result,), strict=True)]
    return found


def check(shape: GroupedShape, inputs: Inputs, parts: Parts, snr: float | None) -> str | None:
    """What is wrong with a y, dx or dw against float64; None when all is right.

    Each is compared in units of its root mean square, dw after division by the root of its group's length, so that
    all have one size. ``snr``: the signal-to-noise ratio in dB by which quantised products are judged.
    """
    x, w, dy, bounds = inputs.x.detach(), inputs.w.detach(), inputs.dy, inputs.groups.bounds
    whole = shape.flops() <= EXHAUSTIVE_FLOPS
    rows = checked_rows(shape.rows, bounds, shape.rows if whole else CHECKED_STRETCHES, x.device)
    share = shape.n if whole else max(1, CHECKED_STRETCHES // shape.groups)
    columns = checked_rows(shape.n, [(0, shape.n)], share, x.device)
    root = inputs.groups.lens.clamp(min=1).double().sqrt()[:, None, None]
    exact = {
        "y": exact_product(x, w.transpose(1, 2), bounds, rows),
        "dx": exact_product(dy, w, bounds, rows),
        "dw": exact_wgrad(dy, x, bounds, columns) / root,
    }
    for part, name, result in results(parts, inputs):
        what, reference = f"{name} ({part})", exact[name]
        if not result.isfinite().all():
            return f"{what} holds NaN or infinity, or was not written everywhere"
        if name == "dw" and result[inputs.groups.lens == 0].any():
            return f"{what} of an empty group is not zero"
        actual = result[:, columns].double() / root if name == "dw" else result[rows].double()
        try:
            if snr is not None:
                metrics.assert_snr(actual, reference, snr, what)
            else:
                unit = reference.square().mean().sqrt()
                metrics.assert_close(actual / unit, reference / unit, dtype=x.dtype, what=what)
        except AssertionError as error:
            return str(error)
    return None


# --- speed ----------------------------------------------------------------------------------------------------------


def linears(args: argparse.Namespace) -> dict[str, Linear]:
    """The forward of each side: ours under no name, then the peers that have one."""
    quant = quant_of(args)
    if quant is not None:
        return {"": quant.forward} | ({"Bf16 ": GroupedMm().forward} if "bf16" in args.peers else {})
    peers = {"torch": GroupedMm().forward, "loop": Loop().forward}
    named = {f"{name.capitalize()} ": forward for name, forward in peers.items() if name in args.peers}
    return {"": Turbo(args.schedule).forward, **named}


def our_parts(sets: list[Inputs], args: argparse.Namespace) -> Parts:
    """What is timed of Turbo."""
    quant = quant_of(args)
    if quant is None:
        turbo = Turbo(args.schedule)
        return op_parts(sets, turbo.forward) | gradient_parts(sets, turbo)
    return op_parts(sets, quant.forward) | quant.product_parts(sets)


def peer_parts(name: str, sets: list[Inputs], args: argparse.Namespace) -> Parts:
    """What is timed of a peer."""
    quant = quant_of(args)
    if quant is None:
        side = GroupedMm() if name == "torch" else Loop()
        return op_parts(sets, side.forward) | gradient_parts(sets, side)
    return quant.peer_product_parts(sets) if name == "torch" else op_parts(sets, GroupedMm().forward)


def speed(
    shape: GroupedShape, sets: list[Inputs], ours: Parts, args: argparse.Namespace, machine: Machine, budget: Budget
) -> dict[str, object]:
    """Times, rates and ratios of all parts, as columns of the result."""
    sides = {"": ours}
    for name in PLAIN_PEERS if quant_of(args) is None else QUANT_PEERS:
        if name in args.peers:
            parts = parts_or_none(name, shape.case, lambda name=name: peer_parts(name, sets, args))
            sides |= {f"{name.capitalize()} ": parts} if parts else {}
    columns: dict[str, object] = {}
    for part in ours:
        calls = {side: parts[part] for side, parts in sides.items() if part in parts}
        measured = measure(calls, machine.device, budget)
        for side, taken in measured.items():
            products = 2 if part == "Backward" else 1
            columns[f"{side}{part} Time (ms)"] = taken.milliseconds
            columns[f"{side}{part} TFLOPS"] = products * shape.flops() / (taken.milliseconds * 1e9)
            if side:
                columns[f"{side}{part} Ratio"] = taken.milliseconds / measured[""].milliseconds
        if part in OP_PARTS:
            hosts = host_microseconds(calls, machine.device, budget.warm_up)
            columns |= {f"{side}{part} Host (us)": spent for side, spent in hosts.items()}
        if part == "Forward":
            columns["Calls"] = measured[""].calls
    return columns


def peaks(shape: GroupedShape, inputs: Inputs, args: argparse.Namespace, machine: Machine) -> dict[str, object]:
    """The most memory that forward and backward of each side take beyond what is in use before, gradients included."""
    found: dict[str, object] = {}
    for side, linear in linears(args).items():

        def step(number: int, linear: Linear = linear) -> object:
            y = linear(inputs.x, inputs.w, inputs.groups)
            return y, torch.autograd.grad(y, (inputs.x, inputs.w), inputs.dy)

        if parts_or_none(side.strip() or "Turbo", shape.case, lambda step=step: {"Peak": step}):
            found[f"{side}Peak (MiB)"] = peak_mib(lambda step=step: step(0), machine.device)
    return {name: peak for name, peak in found.items() if peak is not None}


def bench(
    shape: GroupedShape, backend: str, args: argparse.Namespace, machine: Machine, budget: Budget
) -> dict[str, object]:
    """One row: check, then time what passed."""
    row: dict[str, object] = {"Case": shape.case, "MBS": shape.mbs, "M": shape.rows // max(1, shape.groups)}
    row |= {"N": shape.n, "K": shape.k, "G": shape.groups, "Lens": shape.lens, "Rows": shape.rows, "EP": shape.ep}
    quant = quant_of(args)
    row |= {"Granularity": quant.kind.granularity if quant else "", "Dtype": args.dtype, "Schedule": args.schedule}
    row |= {"Platform": machine.platform, "GPU": machine.name, "Backend": backend}
    try:
        GlobalBackendManager.set_grouped_gemm_backend(None if backend == "AUTO" else backend)
        sets = make_inputs(shape, DTYPES[args.dtype], machine)
        with trace_dispatch() as trace:
            ours = our_parts(sets, args)
            fault = check(shape, sets[0], ours, quant.kind.snr if quant else None)
        served = [record.backend.name for record in trace.records if record.op.startswith("grouped_gemm")]
        row["Backend"] = "/".join(dict.fromkeys(served))
        row["Check"] = "PASS" if fault is None else "FAIL"
        if fault is None:
            row |= speed(shape, sets, ours, args, machine, budget)
            row |= peaks(shape, sets[0], args, machine) if args.peak_memory else {}
        else:
            print(f"FAIL {shape.case} on {backend}: {fault}", file=sys.stderr)
    except Exception as error:  # a benchmark goes on to the next shape, whatever this one failed with
        row["Check"] = "ERROR"
        print(f"ERROR {shape.case} on {backend}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        GlobalBackendManager.set_grouped_gemm_backend(None)
    return row


# --- the command ----------------------------------------------------------------------------------------------------


def quant_of(args: argparse.Namespace) -> QuantGroupedGemm | None:
    """The quantised product that the command line asks for, None for the plain one."""
    if args.dtype not in ("fp8", "fp4"):
        return None
    kind = QuantGemm("mxfp4" if args.dtype == "fp4" else args.granularity, args.fast_accum)
    return QuantGroupedGemm(kind, args.schedule)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--dtype", choices=sorted(DTYPES), default="bf16")
    add("--granularity", choices=GRANULARITIES, help="scales of --dtype fp8 (default tensorwise) and fp4 (mxfp4)")
    add("--backend", default="AUTO", help="comma list of backends, a row each; AUTO is Turbo's own choice (default)")
    add("--cases", help="comma list of models like deepseek-v3,mixtral-8x7b; default: all of config.py")
    add("--shape", action="append", default=[], metavar="G,M,N,K", help="G groups of M rows on average (repeatable)")
    add("--ep", help="comma list of degrees of expert parallelism; default: each model's in config.py")
    add("--mbs", default="1", help="comma list of micro-batch sizes (default 1)")
    add("--lens", default="balanced,zipf", help=f"comma list of {', '.join(GROUP_LENS)}; default balanced,zipf")
    add("--schedule", choices=("static", "work_steal"), default="static", help="who takes which tile")
    add("--peers", default=",".join(PEERS), help=f"comma list of {', '.join(PEERS)}; empty: none")
    add("--fast-accum", action="store_true", help="torch's FP8 products with use_fast_accum")
    add("--peak-memory", action="store_true", help="also measure what forward and backward add to the memory in use")
    add("-o", "--output", type=Path, help="CSV file")
    add("--num-shards", type=int, default=1)
    add("--shard-id", type=int, default=0)
    add("--seconds", type=float, default=1.0, help="longest time to spend on one measurement (default 1)")
    add("--settle", type=float, default=0.0, help="seconds of untimed calls before each turn, for clocks under load")
    add("--device", help="default: the first GPU, else the CPU")
    add("--smoke", action="store_true", help="tiny shapes and few calls: shows that the benchmark works")
    args = parser.parse_args(argv)
    args.peers, args.lens = list(filter(None, args.peers.split(","))), args.lens.split(",")
    for option, names, accepted in (("peers", args.peers, PEERS), ("lens", args.lens, GROUP_LENS)):
        if unknown := [name for name in names if name not in accepted]:
            parser.error(f"--{option} {','.join(unknown)}: accepted are {', '.join(accepted)}")
    of_dtype = {"fp8": GRANULARITIES[:-1], "fp4": GRANULARITIES[-1:]}.get(args.dtype, ())
    if args.granularity not in (None, *of_dtype):
        parser.error(f"--granularity {args.granularity}: --dtype {args.dtype} has {', '.join(of_dtype) or 'none'}")
    args.granularity = args.granularity or "tensorwise"
    return args


def chosen_shapes(args: argparse.Namespace, machine: Machine) -> list[GroupedShape]:
    """What the command line asks for."""
    if args.smoke:
        sizes = [(f"smoke {'x'.join(map(str, size))}", *size) for size in SMOKE_GROUPED]
        return [GroupedShape(case, 1, g, rows, n, k, 1, lens) for case, g, rows, n, k in sizes for lens in args.lens]
    shapes = []
    for text in args.shape:
        try:
            g, m, n, k = map(int, text.split(","))
        except ValueError:
            raise SystemExit(f"--shape {text!r} must be G,M,N,K, like 32,2048,4096,2048") from None
        shapes += [GroupedShape(f"{g}x{m}x{n}x{k}", 1, g, g * m, n, k, 1, lens) for lens in args.lens]
    if args.cases or not shapes:
        if not args.cases and machine.device.type == "cpu":
            raise SystemExit("all cases take hours on a CPU: give --smoke, --shape or --cases")
        cases = args.cases.split(",") if args.cases else None
        degrees = list(map(int, args.ep.split(","))) if args.ep else None
        try:
            shapes += grouped_gemm_shapes(cases, list(map(int, args.mbs.split(","))), degrees, args.lens)
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
        print(f"[{number}/{len(plan)}] {shape.case}, {shape.lens}, {backend}: {rows[-1]['Check']}", flush=True)
        if args.output:
            write_csv(args.output, COLUMNS, rows)  # after each row, so that a run that is cut off leaves its rows
    show(rows, args)
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


def show(rows: list[dict[str, object]], args: argparse.Namespace) -> None:
    """The table, and the means of the ratios by lengths."""
    ours = [*OP_PARTS, *(GRADIENTS if quant_of(args) is None else PRODUCTS)]
    peers = PLAIN_PEERS if quant_of(args) is None else QUANT_PEERS
    ratios = [f"{peer.capitalize()} {part} Ratio" for peer in peers for part in peers[peer]]
    ratios = [name for name in ratios if any(name in row for row in rows)]
    print("\n" + format_table([*SHOWN, *(f"{part} TFLOPS" for part in ours), *ratios], rows))
    means = [{"Lens": lens} | _means(ratios, [row for row in rows if row["Lens"] == lens]) for lens in args.lens]
    if ratios:
        print("\nRatio: the peer's time over ours, above 1 is faster than the peer. Geometric means:")
        print(format_table(["Lens", *ratios], means))


def _means(ratios: list[str], rows: list[dict[str, object]]) -> dict[str, object]:
    return {name: geometric_mean(float(str(row[name])) for row in rows if name in row) for name in ratios}


if __name__ == "__main__":
    sys.exit(main())
