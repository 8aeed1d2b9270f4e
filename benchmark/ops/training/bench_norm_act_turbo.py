# SPDX-License-Identifier: MIT
"""Norms and gated activations: correctness, then bytes a second, next to torch, torch.compile and liger-kernel.

    python benchmark/ops/training/bench_norm_act_turbo.py --ops rmsnorm,swiglu -o norm_act.csv
    python benchmark/ops/training/bench_norm_act_turbo.py --smoke

A rate counts the bytes that must move: each input read once and each output written once, in the dtype of x (weights
and row statistics are left out; liger, torch and Turbo are given the same count). ``of copy`` is that rate over the
rate of a large device-to-device copy that takes turns with them. On a GPU each function is captured in a graph and the
graph is replayed, so that what is timed is the device; ``--no-graph`` times the calls as Python makes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.results import format_table, geometric_mean, write_csv  # noqa: E402
from benchmark.common.timing import Budget, measure  # noqa: E402
from turbo_norm_act import geglu, layernorm, rmsnorm, rmsnorm_residual, swiglu  # noqa: E402
from turbo_testing import metrics  # noqa: E402
from turbo_testing.cases import load  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PEERS = ("torch", "compile", "liger")
COLUMNS = ["Platform", "GPU", "Op", "Pass", "Rows", "Width", "Dtype", "Check", "Copy GB/s", "Turbo ms", "Turbo GB/s"]
COLUMNS += ["Of copy", "Of best peer"] + [f"{peer} GB/s" for peer in PEERS]
SHOWN = [column for column in COLUMNS if column not in ("Platform", "GPU", "Dtype")]
COPY_ELEMENTS = 1 << 29
CHECKED_ROWS = 64

Function = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Op:
    """What is timed: ``data`` tensors [rows, width] and ``weights`` [width] in, ``outputs`` [rows, width] out.

    The backward reads the data that it needs (``saved``) and the outputs' gradients, and writes the data's gradients.
    """

    data: int
    weights: int
    outputs: int
    saved: int
    turbo: Function
    torch: Function
    grads: int

    def tensors(self, which: str) -> int:
        """Data tensors that must be read or written."""
        return self.data + self.outputs if which == "forward" else self.saved + self.outputs + self.grads


def _torch_residual(x: Tensor, r: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    s = x + r
    return F.rms_norm(s, s.shape[-1:], g, 1e-6), s


OPS = {
    "rmsnorm": Op(1, 1, 1, 1, rmsnorm, lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6), 1),
    "rmsnorm_residual": Op(2, 1, 2, 1, rmsnorm_residual, _torch_residual, 1),
    "layernorm": Op(1, 2, 1, 1, layernorm, lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b, 1e-5), 1),
    "swiglu": Op(2, 0, 1, 2, swiglu, lambda gate, up: F.silu(gate) * up, 2),
    "geglu": Op(
        2, 0, 1, 2, lambda g, u: geglu(g, u, approximate="tanh"), lambda g, u: F.gelu(g, approximate="tanh") * u, 2
    ),
}


def liger_functions() -> dict[str, Function]:
    """liger-kernel's spelling of each op; empty where it is not installed."""
    try:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.geglu import LigerGELUMulFunction
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        return {}
    return {  # in_place=False: an in-place backward would overwrite dy, which the next timed call reads
        "rmsnorm": lambda x, g: LigerRMSNormFunction.apply(x, g, 1e-6, 0.0, "llama", False),
        "rmsnorm_residual": lambda x, r, g: LigerFusedAddRMSNormFunction.apply(x, r, g, 1e-6, 0.0, "llama", False),
        "layernorm": lambda x, g, b: LigerLayerNormFunction.apply(x, g, b, 1e-5),
        "swiglu": LigerSiLUMulFunction.apply,  # its backward writes over gate and up: see `measured`
        "geglu": LigerGELUMulFunction.apply,
    }


# --- correctness ----------------------------------------------------------------------------------------------------


def _outputs(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def make_inputs(op: Op, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[list[Tensor], ...]:
    """Data and weights, and the outputs' gradients: random, never zeros."""
    generator = torch.Generator(device).manual_seed(rows + width)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=dtype)

    data = [random(rows, width) for _ in range(op.data)] + [random(width) for _ in range(op.weights)]
    return [tensor.requires_grad_() for tensor in data], [random(rows, width) for _ in range(op.outputs)]


def check(op: Op, inputs: list[Tensor], grads: list[Tensor]) -> str | None:
    """What is wrong with an output or a gradient of data against float64, on sampled rows; None when all is right."""
    outputs = _outputs(op.turbo(*inputs))
    gradients = torch.autograd.grad(outputs, inputs, grads)
    rows = torch.linspace(0, len(inputs[0]) - 1, min(CHECKED_ROWS, len(inputs[0])), device=inputs[0].device).long()
    wide = [tensor.detach()[rows] if i < op.data else tensor.detach() for i, tensor in enumerate(inputs)]
    wide = [tensor.double().requires_grad_() for tensor in wide]
    expected = _outputs(op.torch(*wide))
    expected_gradients = torch.autograd.grad(expected, wide, [grad[rows].double() for grad in grads])
    dtype = inputs[0].dtype
    pairs = [(f"output {i}", a[rows], b) for i, (a, b) in enumerate(zip(outputs, expected))]
    pairs += [(f"gradient {i}", a[rows], b) for i, (a, b) in enumerate(zip(gradients[: op.data], expected_gradients))]
    try:
        for what, actual, reference in pairs:
            metrics.assert_close(actual, reference, dtype=dtype, what=what)
        for i, gradient in enumerate(gradients):
            if not gradient.isfinite().all():
                return f"gradient {i} holds NaN or infinity, or was not written everywhere"
    except AssertionError as error:
        return str(error)
    return None


# --- speed ----------------------------------------------------------------------------------------------------------


def graphed(function: Callable[[int], object], stream: torch.cuda.Stream) -> Callable[[int], object]:
    """A function that replays one call of ``function`` from a graph; what cannot be captured is called as it is."""
    try:
        with torch.cuda.stream(stream):
            for _ in range(2):
                function(0)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                kept = function, function(0)  # the graph knows addresses alone: what they belong to must live on
    except Exception as error:  # a peer's fault must not end the run
        print(f"not captured, timed as called: {error}", file=sys.stderr)
        torch.cuda.synchronize(stream.device)
        return function

    def replay(number: int, kept: object = kept) -> object:
        graph.replay()
        return kept

    torch.cuda.synchronize(stream.device)
    return replay


def measured(
    op: Op,
    functions: Mapping[str, Function],
    inputs: list[Tensor],
    grads: list[Tensor],
    machine: Machine,
    budget: Budget,
    graph: bool,
) -> dict[str, dict[str, float]]:
    """Milliseconds by pass and function, and of the copy."""
    source = torch.randn(COPY_ELEMENTS if machine.device.type == "cuda" else 1 << 16, device=machine.device).bfloat16()
    target = torch.empty_like(source)
    stream = torch.cuda.Stream(machine.device) if graph else None
    result: dict[str, dict[str, float]] = {}
    for which in ("forward", "backward"):
        calls: dict[str, Callable[[int], object]] = {"copy": lambda number: target.copy_(source)}
        for name, function in functions.items():
            own = [tensor.detach().clone().requires_grad_() for tensor in inputs]  # liger's swiglu writes into its own
            if which == "forward":

                def call(number: int, function: Function = function, own: list[Tensor] = own) -> object:
                    with torch.no_grad():
                        return function(*own)

            else:
                if stream is not None:
                    torch.cuda.synchronize(machine.device)  # the clones are there
                with torch.cuda.stream(stream):  # autograd runs a backward on the stream of its forward
                    outputs = _outputs(function(*own))

                def call(number: int, outputs: tuple[Tensor, ...] = outputs, own: list[Tensor] = own) -> object:
                    return torch.autograd.grad(outputs, own, grads, retain_graph=True)

            calls[name] = call if stream is None else graphed(call, stream)
        times = measure(calls, machine.device, budget)
        result[which] = {name: taken.milliseconds for name, taken in times.items()}
        del calls
    result["copy"] = {"bytes": 2.0 * source.numel() * source.element_size()}
    return result


def rows_of(
    name: str, rows: int, width: int, dtype_name: str, machine: Machine, options: argparse.Namespace
) -> list[dict[str, object]]:
    """The lines of the table for one op and shape."""
    op, dtype = OPS[name], DTYPES[dtype_name]
    inputs, grads = make_inputs(op, rows, width, dtype, machine.device)
    head = {"Platform": machine.platform, "GPU": machine.name, "Op": name, "Rows": rows, "Width": width}
    head |= {"Dtype": dtype_name}
    wrong = check(op, inputs, grads)
    if wrong is not None:
        print(f"{name} {rows}x{width}: {wrong}", file=sys.stderr)
        return [{**head, "Pass": "both", "Check": "FAIL"}]
    functions: dict[str, Function] = {"Turbo": op.turbo}
    wanted = options.peers.split(",") if options.peers else []
    if "torch" in wanted:
        functions["torch"] = op.torch
    if "compile" in wanted:
        torch._dynamo.reset()
        torch._functorch.config.donated_buffer = False  # the timed backward is run again and again
        functions["compile"] = torch.compile(op.torch, dynamic=False)
    if "liger" in wanted and name in (liger := liger_functions()):
        functions["liger"] = liger[name]
    budget = Budget(seconds=options.seconds)
    graph = machine.device.type == "cuda" and not options.no_graph
    times = measured(op, functions, inputs, grads, machine, budget, graph)
    lines = []
    for which in ("forward", "backward"):
        taken = times[which]
        moved = op.tensors(which) * rows * width * dtype.itemsize
        rates = {peer: moved / taken[peer] / 1e6 for peer in functions}
        copy = times["copy"]["bytes"] / taken["copy"] / 1e6
        best = max((rates[peer] for peer in PEERS if peer in rates), default=float("nan"))
        line = {**head, "Pass": which, "Check": "PASS", "Copy GB/s": copy, "Turbo ms": taken["Turbo"]}
        line |= {"Turbo GB/s": rates["Turbo"], "Of copy": rates["Turbo"] / copy, "Of best peer": rates["Turbo"] / best}
        line |= {f"{peer} GB/s": rates[peer] for peer in PEERS if peer in rates}
        lines.append(line)
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default=",".join(OPS), help="of " + ", ".join(OPS))
    parser.add_argument("--device", help="cpu, cuda:1, ...; default: the first GPU, else the CPU")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--shape", action="append", help="ROWS,WIDTH in place of the usual ones; may be repeated")
    parser.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS) + "; empty: none")
    parser.add_argument("--seconds", type=float, default=0.3, help="longest time for one measurement")
    parser.add_argument("--no-graph", action="store_true", help="time calls as Python makes them")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, torch alone: does it work at all?")
    parser.add_argument("-o", "--output", type=Path, help="CSV, rewritten after each op and shape")
    options = parser.parse_args(arguments)
    machine = find_machine(options.device)
    cases = load("turbo-norm-act")
    if options.smoke:
        options.peers, options.seconds = "torch", 0.01
    lines: list[dict[str, object]] = []
    for name in options.ops.split(","):
        if name not in OPS:
            raise SystemExit(f"--ops {name}: there are {', '.join(OPS)}")
        shapes = cases.BENCHMARK_NORMS if OPS[name].weights else cases.BENCHMARK_ACTIVATIONS
        if options.shape:
            shapes = [tuple(int(size) for size in text.split(",")) for text in options.shape]
        if options.smoke:
            shapes = [(8, 128)]
        for rows, width in shapes:
            lines += rows_of(name, rows, width, options.dtype, machine, options)
            if options.output is not None:
                write_csv(options.output, COLUMNS, lines)
    print(f"{machine.name}, {machine.platform}, torch {torch.__version__}, {options.dtype}")
    print(format_table(SHOWN, lines))
    ratios = [float(str(line["Of best peer"])) for line in lines if line.get("Check") == "PASS" and options.peers]
    print(f"geometric mean of Turbo over the best peer: {geometric_mean(ratios):.3f}")
    return 1 if any(line["Check"] != "PASS" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
