# SPDX-License-Identifier: MIT
"""Accuracy of attention and its gradients against float64, on random or recorded inputs.

    python benchmark/accuracy/eval_attention_accuracy.py --causal --dump recorded -o first.csv
    python benchmark/accuracy/eval_attention_accuracy.py --causal --replay recorded -o second.csv

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
from benchmark.common.machine import find_machine  # noqa: E402
from benchmark.common.results import format_table, write_csv  # noqa: E402
from turbo_attention import flash_attn_fp8_func, flash_attn_func  # noqa: E402
from turbo_core import GlobalBackendManager, trace_dispatch  # noqa: E402
from turbo_testing import attention_references  # noqa: E402

OPS = {"attention": flash_attn_func, "attention-fp8": flash_attn_fp8_func}
PARTS = {"out": "q", "lse": None, "dq": "q", "dk": "k", "dv": "v"}  # and which input has its shape
GATES = {"attention-fp8": 20.0}  # dB that are promised
NAMES, DEFAULT_SHAPE, SMOKE_SHAPE = "B,S,HQ,HKV,D", "1,2048,8,2,128", "1,70,4,2,32"
COLUMNS = ["Platform", "GPU", "Op", "Backend", "B", "S", "HQ", "HKV", "D", "Causal", "Dtype", "Inputs", "Part", "Check"]
COLUMNS += FIGURES + REPLAY_COLUMNS
SHOWN = ["Op", "Backend", "Part", "Check", "Relative Error", "SNR (dB)", "Cosine", "Max ULP"]


def attend(op: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """out [B,S,HQ,D] and lse [B,HQ,S] by the op."""
    out, lse = OPS[op](q, k, v, causal=causal, return_lse=True)
    return out, lse


def exact_results(inputs: dict[str, Tensor], causal: bool) -> dict[str, Tensor]:
    """All parts in float64, a key head of a sequence at a time: the scores of all of them would fill the memory."""
    q, k, v, dout = inputs["q"], inputs["k"], inputs["v"], inputs["dout"]
    group = q.shape[2] // k.shape[2]
    exact = {name: torch.empty_like(inputs[of], dtype=torch.float64) for name, of in PARTS.items() if of}
    exact["lse"] = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float64)
    for batch in range(q.shape[0]):
        for head in range(k.shape[2]):
            at_k = (slice(batch, batch + 1), slice(None), slice(head, head + 1))
            at_q = (*at_k[:2], slice(head * group, (head + 1) * group))
            leaves = [x[at].double().requires_grad_() for x, at in ((q, at_q), (k, at_k), (v, at_k))]
            right = 0 if causal else -1
            out, lse = attention_references.attention(*leaves, q.shape[3] ** -0.5, -1, right)
            exact["out"][at_q] = out.detach()
            exact["lse"][at_q[0], at_q[2]] = lse.detach()
            gradients = torch.autograd.grad(out, leaves, dout[at_q].double())
            for name, at, gradient in zip(("dq", "dk", "dv"), (at_q, at_k, at_k), gradients, strict=True):
                exact[name][at] = gradient
    return exact


def verdict(op: str, args: argparse.Namespace, row: dict[str, float]) -> str:
    """FAIL for NaN or infinity out of place, and for less than the promised SNR where one is promised."""
    promised = None if args.inputs == "outliers" else GATES.get(op)
    good = not row["Wrong Specials"] and (promised is None or row["SNR (dB)"] > promised)
    return "PASS" if good else "FAIL"


def evaluate(op: str, shape: tuple[int, ...], args: argparse.Namespace, recording: Recording) -> list[dict]:
    """A row for each part."""
    batch, seqlen, heads, kv_heads, head_dim = shape
    dtype, machine = DTYPES[args.dtype], recording.machine
    generator = torch.Generator().manual_seed(args.seed)

    def make() -> dict[str, Tensor]:
        counts = {"q": heads, "k": kv_heads, "v": kv_heads, "dout": heads}
        return {
            name: draw(args.inputs, batch, seqlen, count, head_dim, generator=generator).to(dtype)
            for name, count in counts.items()
        }

    mask = "causal" if args.causal else "full"
    case = f"{op}_{'x'.join(map(str, shape))}_{mask}_{args.dtype}"
    inputs = recording.inputs(case, make)
    leaves = [inputs[name].detach().requires_grad_() for name in "qkv"]
    with trace_dispatch() as trace:
        out, lse = attend(op, *leaves, args.causal)
        gradients = torch.autograd.grad(out, leaves, inputs["dout"])
    results = dict(zip(PARTS, (out.detach(), lse.detach(), *gradients), strict=True))
    recording.keep(case, inputs, results)
    exact = exact_results({name: tensor.detach() for name, tensor in inputs.items()}, args.causal)
    served = {record.role: record.backend.name for record in trace.records}
    rows = []
    for part, result in results.items():
        row = figures(result, exact[part])
        rows.append(
            {
                "Platform": machine.platform,
                "GPU": machine.name,
                "Op": op,
                "Backend": served["forward" if part in ("out", "lse") else "backward"],
                **dict(zip(NAMES.split(","), shape, strict=True)),
                "Causal": args.causal,
                "Dtype": args.dtype,
                "Inputs": args.inputs,
                "Part": part,
                "Check": verdict(op, args, row),
                **row,
                **recording.compare(case, part, result),
            }
        )
    return rows


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--ops", default=",".join(OPS), help=f"comma list of {', '.join(OPS)}; default all")
    add("--shape", action="append", default=[], metavar=NAMES, help=f"may be repeated; default {DEFAULT_SHAPE}")
    add("--causal", action="store_true", help="causal masks")
    add_input_options(parser)
    add_recording_options(parser)
    add("--smoke", action="store_true", help="one tiny shape")
    args = parser.parse_args(argv)
    args.ops = check_names(parser, "ops", args.ops, list(OPS))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate, print, write; 0 if nothing failed its check."""
    args = parse_args(argv)
    machine = find_machine(args.device)
    if args.backend:
        GlobalBackendManager.set_attn_backend(args.backend)
    recording = Recording(machine, args.dump, args.replay)
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, {args.dtype}, {args.inputs} inputs")
    texts = [SMOKE_SHAPE] if args.smoke else args.shape or [DEFAULT_SHAPE]
    shapes = [sizes(text, NAMES, "4,4096,32,8,128") for text in texts]
    rows = [row for shape in shapes for op in args.ops for row in evaluate(op, shape, args, recording)]
    print(format_table(SHOWN + (REPLAY_COLUMNS[1:] if args.replay else []), rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 0 if all(row["Check"] == "PASS" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
