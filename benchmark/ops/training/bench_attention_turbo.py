# SPDX-License-Identifier: MIT
"""Attention: correctness, then speed of forward and backward, next to torch's FlashAttention and cuDNN in the same run.

    python benchmark/ops/training/bench_attention_turbo.py --backend triton -o attention.csv
    python benchmark/ops/training/bench_attention_turbo.py --varlen --deterministic
    python benchmark/ops/training/bench_attention_turbo.py --fp8 --layout sbhd

The method is described in benchmark/README.md.
"""

from __future__ import annotations

import argparse
import functools
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
from benchmark.common.results import format_table, geometric_mean, shard, write_csv  # noqa: E402
from benchmark.common.timing import Budget, Measurement, input_sets, measure  # noqa: E402
from benchmark.ops.training.attention_peers import PEERS, Attend, peer_function  # noqa: E402
from benchmark.ops.training.config import (  # noqa: E402
    ATTENTION_SHAPES,
    SMOKE_ATTENTION,
    SMOKE_VARLEN,
    VARLEN_SHAPES,
    AttentionShape,
)
from turbo_attention import flash_attn_fp8_func, flash_attn_func, flash_attn_varlen_func  # noqa: E402
from turbo_core import BackendUnavailableError, GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_testing import attention_references, metrics  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BACKENDS = ("auto", "triton", "turbo", "aiter", "torch")
# Where sequence, batch and head lie in memory; what is passed is always [B,S,H,D].
LAYOUTS = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}
PARTS = {"Forward": 1.0, "Backward": 2.5}  # operations, in units of the forward's
SIDES = ("", *(f"{name.capitalize()} " for name in PEERS))
GATES = {"bf16": 40.0, "fp16": 50.0, "fp32": 80.0, "fp8": 20.0}  # dB that each result must exceed
COLUMNS = (
    ["TestID", "Platform", "GPU", "Case", "MBS", "SeqLen", "Heads", "KV Heads", "Head Dim", "Causal", "Window", "Sink"]
    + ["Varlen", "Layout", "Deterministic", "Dtype", "Check"]
    + [f"{part} {unit}" for part in PARTS for unit in ("Time (ms)", "TFLOPS")]
    + ["Backend", "Worst SNR (dB)"]
    + [f"{side}{part} {unit}" for side in SIDES[1:] for part in PARTS for unit in ("Time (ms)", "TFLOPS")]
    + [f"{side}{part} Ratio" for side in SIDES[1:] for part in PARTS]
    + ["Calls"]
)
SHOWN = ["Case", "Backend", "Check", "Worst SNR (dB)", "Forward TFLOPS", "Backward TFLOPS"]


@dataclass(frozen=True)
class Inputs:
    """q, k, v and the gradient of the result, [B,S,H,D] or, ragged, [total,H,D]: random, never zeros."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v


def make_inputs(shape: AttentionShape, layout: str, dtype: torch.dtype, machine: Machine) -> list[Inputs]:
    """As many sets as it takes to find none of them in the cache when they are used in turn."""
    generator = torch.Generator(machine.device).manual_seed(shape.seqlen + shape.heads)
    order = LAYOUTS[layout]

    def random(heads: int) -> Tensor:
        sizes = (shape.batch, shape.seqlen, heads, shape.head_dim)
        if shape.lengths:
            sizes, places = (sum(shape.lengths), heads, shape.head_dim), (0, 1, 2)
        else:
            places = order
        stored = [sizes[place] for place in places]
        made = torch.randn(stored, generator=generator, device=machine.device, dtype=dtype)
        return made.permute(places)  # each order is its own inverse

    tokens = sum(shape.lengths) or shape.batch * shape.seqlen
    size = 2 * tokens * (shape.heads + shape.kv_heads) * shape.head_dim * dtype.itemsize
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    return [
        Inputs(*(random(count).requires_grad_() for count in heads), random(shape.heads))
        for _ in range(input_sets(size, machine.cache_bytes))
    ]


def turbo_function(
    shape: AttentionShape, args: argparse.Namespace, device: torch.device
) -> tuple[Attend, Tensor | None]:
    """Turbo's attention of the shape as a function of q, k, v; and the sink."""
    sink = torch.randn(shape.heads, device=device) if shape.sink else None
    window = (-1, -1) if shape.window is None else (shape.window, -1)
    options = {"causal": shape.causal, "window_size": window, "sink": sink, "deterministic": args.deterministic}
    if shape.lengths:
        starts, longest = sequence_starts(shape, device), shape.seqlen
        return lambda q, k, v: flash_attn_varlen_func(q, k, v, starts, starts, longest, longest, **options), sink
    return functools.partial(flash_attn_fp8_func if args.fp8 else flash_attn_func, **options), sink


def sequence_starts(shape: AttentionShape, device: torch.device) -> Tensor | None:
    """cu_seqlens of a ragged shape."""
    if not shape.lengths:
        return None
    ends = torch.tensor((0, *shape.lengths), device=device).cumsum(0)
    return ends.to(torch.int32)


# --- correctness ----------------------------------------------------------------------------------------------------


def samples(shape: AttentionShape) -> list[tuple[tuple[object, ...], int]]:
    """What is compared whole: sequences, by their index in [B,S] or [total], each with one key head.

    The last sequence with the last head, where addresses are largest; and another, the longest of ragged ones, with the
    first.
    """
    edges = [sum(shape.lengths[:number]) for number in range(len(shape.lengths) + 1)]
    second = shape.lengths.index(max(shape.lengths)) if shape.lengths else shape.batch // 2
    chosen = dict.fromkeys([(shape.batch - 1, shape.kv_heads - 1), (second, 0)])
    if shape.lengths:
        return [((slice(edges[number], edges[number + 1]),), head) for number, head in chosen]
    return [((number,), head) for number, head in chosen]


def check(shape: AttentionShape, inputs: Inputs, out: Tensor, grads: Sequence[Tensor], sink: Tensor | None) -> float:
    """The least SNR in dB of out, dq, dk and dv against float64 on the samples.

    Raises:
        AssertionError: something holds NaN or infinity, or was not written everywhere.
    """
    results = dict(zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True))
    for name, result in results.items():
        if not result.isfinite().all():
            raise AssertionError(f"{name} holds NaN or infinity, or was not written everywhere")
    group, worst = shape.heads // shape.kv_heads, float("inf")
    left = -1 if shape.window is None else shape.window
    for where, head in samples(shape):
        at_q, at_k = slice(head * group, (head + 1) * group), slice(head, head + 1)

        def part(tensor: Tensor, heads: slice, where: tuple[object, ...] = where) -> Tensor:
            return tensor.detach()[where][None, :, heads]

        q = part(inputs.q, at_q).double().requires_grad_()
        k, v = (part(x, at_k).double().requires_grad_() for x in (inputs.k, inputs.v))
        of_heads = None if sink is None else sink[at_q]
        scale, right = shape.head_dim**-0.5, 0 if shape.causal else -1
        exact, _ = attention_references.attention(q, k, v, scale, left, right, sink=of_heads)
        gradients = torch.autograd.grad(exact, (q, k, v), part(inputs.dout, at_q).double())
        for (name, result), wanted in zip(results.items(), (exact.detach(), *gradients), strict=True):
            actual = part(result, at_q if name in ("out", "dq") else at_k)
            worst = min(worst, metrics.compute_snr(wanted, actual))
    return worst


# --- speed ----------------------------------------------------------------------------------------------------------


def forward_call(attend: Attend, sets: list[Inputs]) -> Callable[[int], object]:
    def call(number: int) -> object:
        with torch.no_grad():
            return attend(*sets[number % len(sets)].leaves())

    return call


def backward_call(attend: Attend, sets: list[Inputs]) -> Callable[[int], object]:
    outputs = [attend(*s.leaves()) for s in sets]

    def call(number: int) -> object:
        s = sets[number % len(sets)]
        return torch.autograd.grad(outputs[number % len(sets)], s.leaves(), s.dout, retain_graph=True)

    return call


class Row:
    """One line of the result: checked, then timed."""

    def __init__(self, shape: AttentionShape, backend: str, args: argparse.Namespace, machine: Machine) -> None:
        self.shape, self.backend, self.args, self.machine = shape, backend, args, machine
        self.sets = make_inputs(shape, args.layout, DTYPES[args.dtype], machine)
        self.turbo, self.sink = turbo_function(shape, args, machine.device)
        self.backward_backend = backend

    def gradients(self, out: Tensor) -> tuple[Tensor, ...]:
        """Of the first set; on Turbo's own choice where the backend asked for has no backward."""
        first = self.sets[0]
        try:
            return torch.autograd.grad(out, first.leaves(), first.dout, retain_graph=True)
        except BackendUnavailableError as refusal:
            print(f"{self.shape.case}: backward on Turbo's own choice: {refusal}", file=sys.stderr)
            self.backward_backend = "auto"
            set_backend("auto")
            return torch.autograd.grad(out, first.leaves(), first.dout)

    def checked(self) -> dict[str, object]:
        """Who served, the verdict and the figure behind it."""
        first = self.sets[0]
        set_backend(self.backend)
        with trace_dispatch() as trace:
            poison(first.q)
            out = self.turbo(*first.leaves())
            poison(*first.leaves())
            grads = self.gradients(out)
        row: dict[str, object] = {"Backend": "/".join(dict.fromkeys(record.backend.name for record in trace.records))}
        gate = GATES["fp8" if self.args.fp8 else self.args.dtype]
        try:
            row["Worst SNR (dB)"] = snr = check(self.shape, first, out.detach(), grads, self.sink)
            fault = None if snr > gate else f"SNR {snr:.2f} dB, must be above {gate:g} dB"
        except AssertionError as error:
            fault = str(error)
        if fault is not None:
            print(f"FAIL {self.shape.case} on {self.backend}: {fault}", file=sys.stderr)
        return row | {"Check": "PASS" if fault is None else "FAIL"}

    def timed(self, peers: list[str], budget: Budget) -> dict[str, object]:
        """Times, rates and ratios of both parts."""
        sides = {"": self.turbo}
        starts = sequence_starts(self.shape, self.machine.device)
        for name in peers:
            peer = peer_function(name, self.shape, self.sets[0].leaves(), starts)
            if peer is not None:
                sides[f"{name.capitalize()} "] = peer
        columns: dict[str, object] = {}
        for part, share in PARTS.items():
            make = forward_call if part == "Forward" else backward_call
            set_backend(self.backend)
            calls = {side: make(attend, self.sets) for side, attend in sides.items()}
            if part == "Backward":
                set_backend(self.backward_backend)
            measured: dict[str, Measurement] = measure(calls, self.machine.device, budget)
            for side, result in measured.items():
                columns[f"{side}{part} Time (ms)"] = result.milliseconds
                columns[f"{side}{part} TFLOPS"] = share * self.shape.flops() / (result.milliseconds * 1e9)
                if side:
                    columns[f"{side}{part} Ratio"] = result.milliseconds / measured[""].milliseconds
            if part == "Forward":
                columns["Calls"] = measured[""].calls
        return columns


def set_backend(name: str) -> None:
    GlobalBackendManager.set_attn_backend(None if name == "auto" else name.upper())


def bench(shape: AttentionShape, backend: str, args: argparse.Namespace, machine: Machine, budget: Budget) -> dict:
    """One row: check, then time what passed."""
    row: dict[str, object] = {"Case": shape.case, "MBS": shape.batch, "SeqLen": shape.seqlen, "Heads": shape.heads}
    row |= {"KV Heads": shape.kv_heads, "Head Dim": shape.head_dim, "Causal": shape.causal, "Window": shape.window}
    row |= {"Sink": shape.sink, "Varlen": bool(shape.lengths), "Layout": "thd" if shape.lengths else args.layout}
    row |= {"Deterministic": args.deterministic, "Dtype": "fp8" if args.fp8 else args.dtype}
    row |= {"Platform": machine.platform, "GPU": machine.name, "Backend": backend.upper()}
    try:
        line = Row(shape, backend, args, machine)
        row |= line.checked()
        if row["Check"] == "PASS":
            row |= line.timed(args.peers, budget)
    except Exception as error:  # a benchmark goes on to the next shape, whatever this one failed with
        row["Check"] = "ERROR"
        print(f"ERROR {shape.case} on {backend}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        set_backend("auto")
    return row


# --- the command ----------------------------------------------------------------------------------------------------


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--dtype", choices=sorted(DTYPES), default="bf16", help="of inputs and outputs")
    add("--fp8", action="store_true", help="flash_attn_fp8_func: the forward multiplies FP8 numbers")
    add("--deterministic", action="store_true", help="ask for gradients that are bit-equal from run to run")
    add(
        "--backend", default="auto", help=f"comma list of {', '.join(BACKENDS)}, a row each; auto is Turbo's own choice"
    )
    add("--layout", choices=list(LAYOUTS), default="bshd", help="of q, k, v and the gradient in memory")
    add("--varlen", action="store_true", help="sequences of mixed lengths in place of dense batches")
    add("--cases", help="comma list of " + ", ".join(s.case for s in ATTENTION_SHAPES) + "; default all")
    add("--shape", action="append", default=[], metavar="B,S,HQ,HKV,D", help="measure this one, causal (repeatable)")
    add("--peers", default=",".join(PEERS), help=f"comma list of {', '.join(PEERS)}; empty: none")
    add("-o", "--output", type=Path, help="CSV file")
    add("--num-shards", type=int, default=1)
    add("--shard-id", type=int, default=0)
    add("--seconds", type=float, default=1.0, help="longest time to spend on one measurement (default 1)")
    add("--settle", type=float, default=0.0, help="seconds of untimed calls before each turn, for clocks under load")
    add("--device", help="default: the first GPU, else the CPU")
    add("--smoke", action="store_true", help="tiny shapes and few calls: shows that the benchmark works")
    args = parser.parse_args(argv)
    args.backend, args.peers = args.backend.lower().split(","), list(filter(None, args.peers.split(",")))
    for option, names, accepted in (("backend", args.backend, BACKENDS), ("peers", args.peers, PEERS)):
        if unknown := [name for name in names if name not in accepted]:
            parser.error(f"--{option} {','.join(unknown)}: accepted are {', '.join(accepted)}")
    if args.varlen and (args.fp8 or args.shape or args.cases or args.layout != "bshd"):
        parser.error(
            "--varlen: its sequences are one shape and layout, in --dtype; no --fp8, --shape, --cases, --layout"
        )
    return args


def chosen_shapes(args: argparse.Namespace, machine: Machine) -> list[AttentionShape]:
    """What the command line asks for."""
    if args.smoke:
        return list(SMOKE_VARLEN if args.varlen else SMOKE_ATTENTION)
    shapes = []
    for text in args.shape:
        try:
            batch, seqlen, heads, kv_heads, head_dim = map(int, text.split(","))
        except ValueError:
            raise SystemExit(f"--shape {text!r} must be B,S,HQ,HKV,D, like 4,4096,32,8,128") from None
        shapes.append(AttentionShape(text.replace(",", "x"), batch, seqlen, heads, kv_heads, head_dim))
    if args.shape and not args.cases:
        return shapes
    if not args.cases and machine.device.type == "cpu":
        raise SystemExit("all cases take hours on a CPU: give --smoke, --shape or --cases")
    known = {shape.case: shape for shape in (VARLEN_SHAPES if args.varlen else ATTENTION_SHAPES)}
    for case in args.cases.split(",") if args.cases else known:
        if case not in known:
            raise SystemExit(f"case {case!r} is unknown; there are {', '.join(known)}")
        shapes.append(known[case])
    return shapes


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if everything passed its check."""
    args = parse_args(argv)
    machine = find_machine(args.device)
    budget = Budget(2, 5, 0.1) if args.smoke else Budget(seconds=args.seconds, settle=args.settle)
    plan = [(s, b) for s in chosen_shapes(args, machine) for b in args.backend]
    what = "fp8" if args.fp8 else args.dtype
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {what}, {len(plan)} rows in all")
    rows: list[dict[str, object]] = []
    for number, (shape, backend) in shard(list(enumerate(plan, 1)), args.shard_id, args.num_shards):
        rows.append({"TestID": number} | bench(shape, backend, args, machine, budget))
        print(f"[{number}/{len(plan)}] {shape.case}, {backend}: {rows[-1]['Check']}", flush=True)
        if args.output:
            write_csv(args.output, COLUMNS, rows)  # after each row, so that a run that is cut off leaves its rows
    ratios = [f"{name.capitalize()} {part} Ratio" for name in args.peers for part in PARTS]
    print("\n" + format_table(SHOWN + ratios, rows))
    if ratios:
        print("\nRatio: the peer's time over ours, above 1 is faster than the peer. Geometric means:")
    for name in ratios:
        values = [float(str(row[name])) for row in rows if name in row]
        if values:
            print(f"  {name}: {geometric_mean(values):.3f} over {len(values)} rows")
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
