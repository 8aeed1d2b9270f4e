# SPDX-License-Identifier: MIT
"""Quantise and dequantise: bit-equality with the reference, then bytes a second, next to torch.compile and a copy.

    python benchmark/ops/training/bench_quantize_turbo.py --ops rowwise,mxfp8_dual -o quantize.csv
    python benchmark/ops/training/bench_quantize_turbo.py --smoke

A rate counts the bytes that must move: x read once (tensorwise: twice, since its scale is known only at the end), each
payload and scale written once. ``of copy`` is that rate over the rate of a large device-to-device copy that takes turns
with them. The peer is the formula in plain torch, or for MX the TORCH backend, under torch.compile. On a GPU each
function is captured in a graph and the graph is replayed, so that what is timed is the device; ``--no-graph`` times the
calls as Python makes them. On a GPU the backend is TRITON, on a CPU TORCH, the reference; ``--backend`` names another.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "common")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmark.common.machine import Machine, find_machine  # noqa: E402
from benchmark.common.results import format_table, geometric_mean, write_csv  # noqa: E402
from benchmark.common.timing import Budget, input_sets, measure  # noqa: E402
from turbo_core.low_precision import ScalingGranularity, fp8_amax_floor, fp8_max  # noqa: E402
from turbo_quant.calls import (  # noqa: E402
    DequantizeFloatCall,
    DequantizeMxCall,
    MxDirection,
    QuantizeFloatCall,
    QuantizeMxCall,
)
from turbo_quant.pytorch.kernels import reference  # noqa: E402

BACKENDS = {
    "TRITON": "turbo_quant.triton.quantize",
    "TURBO": "turbo_quant.pytorch.kernels.native",
    "TORCH": "turbo_quant.pytorch.kernels.reference",
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHAPES = [(16384, 4096), (8192, 8192), (16384, 14336), (4096, 7168)]
COLUMNS = ["Platform", "GPU", "Op", "Rows", "Width", "Dtype", "Check", "Copy GB/s", "Turbo ms", "Turbo GB/s", "Of copy"]
COLUMNS += ["compile GB/s", "Over compile"]
SHOWN = [column for column in COLUMNS if column not in ("Platform", "GPU", "Dtype")]
COPY_ELEMENTS = 1 << 29

FP8 = torch.float8_e4m3fn
TENSORWISE, ROWWISE, BLOCKWISE = (
    ScalingGranularity.TENSORWISE,
    ScalingGranularity.ROWWISE,
    ScalingGranularity.BLOCKWISE,
)
PLAIN = MxDirection()


class Op(NamedTuple):
    """The call that a backend gets for x [R,C], and how often x is read."""

    call: Callable[[Tensor], Any]
    reads: int = 1


def _float(*options: Any, k_major: bool = False) -> Callable[[Tensor], QuantizeFloatCall]:
    return lambda x: QuantizeFloatCall(x[None], FP8, *options, k_major=k_major)


def _mx(format: str, row: MxDirection | None, column: MxDirection | None) -> Callable[[Tensor], QuantizeMxCall]:
    def call(x: Tensor) -> QuantizeMxCall:
        stochastic = any(direction is not None and direction.stochastic for direction in (row, column))
        rng = torch.tensor([1, 2], device=x.device) if stochastic else None
        return QuantizeMxCall(x[None], format, row, column, 0x9C35, rng)

    return call


def _dequantize_float(x: Tensor) -> DequantizeFloatCall:
    made = reference.quantize_float(QuantizeFloatCall(x[None], FP8, BLOCKWISE, 128, True, False))
    assert made.row is not None and made.row_scale_inv is not None
    return DequantizeFloatCall(made.row, made.row_scale_inv, BLOCKWISE, 128, 2, x.dtype)


def _dequantize_mx(format: str) -> Callable[[Tensor], DequantizeMxCall]:
    def call(x: Tensor) -> DequantizeMxCall:
        made = reference.quantize_mx(QuantizeMxCall(x[None], format, PLAIN, None))
        assert made.row is not None and made.row_scale is not None
        payload, scale = made.row.view(torch.uint8), made.row_scale.view(torch.uint8)
        return DequantizeMxCall(payload, scale, format, x.shape[1], False, False, 0, x.dtype)

    return call


OPS = {
    "tensorwise": Op(_float(TENSORWISE, 0, True, False), reads=2),
    "rowwise": Op(_float(ROWWISE, 0, True, False)),
    "columnwise": Op(_float(ROWWISE, 0, False, True), reads=2),
    "block_row": Op(_float(BLOCKWISE, 128, True, False)),
    "block_dual": Op(_float(BLOCKWISE, 128, True, True)),
    "block_tile": Op(_float(BLOCKWISE, 128, True, False, True)),
    "tensorwise_kmajor": Op(_float(TENSORWISE, 0, True, True, k_major=True), reads=2),
    "rowwise_kmajor": Op(_float(ROWWISE, 0, True, True, k_major=True), reads=2),
    "block_kmajor": Op(_float(BLOCKWISE, 128, True, True, k_major=True)),
    "block_tile_kmajor": Op(_float(BLOCKWISE, 128, True, True, True, k_major=True)),
    "mxfp8_row": Op(_mx("e4m3", PLAIN, None)),
    "mxfp8_dual": Op(_mx("e4m3", PLAIN, PLAIN)),
    "mxfp4_row": Op(_mx("e2m1", PLAIN, None)),
    "mxfp4_dual": Op(_mx("e2m1", PLAIN, PLAIN)),
    "mxfp4_dual_rht_sr": Op(_mx("e2m1", MxDirection(stochastic=True), MxDirection(rht=True, stochastic=True))),
    "dequantize_block": Op(_dequantize_float),
    "dequantize_mxfp8": Op(_dequantize_mx("e4m3")),
    "dequantize_mxfp4": Op(_dequantize_mx("e2m1")),
}


# --- the peer -------------------------------------------------------------------------------------------------------


def plain_float(x: Tensor, granularity: ScalingGranularity, size: int, row: bool, column: bool, tile: bool) -> Any:
    """The formula as one would write it for a compiler; the sizes are multiples of the block."""
    R, C = x.shape
    blocks: list[tuple[int, int]] = []
    if granularity is TENSORWISE:
        blocks.append((R, C))
    elif granularity is ROWWISE:
        blocks += [(1, C)] * row + [(R, 1)] * column
    else:
        blocks += [(size if tile else 1, size)] * row + [(size, 1)] * column
    outputs = []
    for rows, columns in blocks:
        parts = x.float().view(R // rows, rows, C // columns, columns)
        amax = parts.abs().amax((1, 3), keepdim=True)
        scale = fp8_max(FP8) / amax.clamp(min=fp8_amax_floor(FP8))
        outputs += [(parts * scale).clamp(-fp8_max(FP8), fp8_max(FP8)).to(FP8).view(R, C), scale.reciprocal()]
    return outputs


def peer(call: Any) -> Callable[[], Any]:
    """What torch.compile gets."""
    if isinstance(call, QuantizeFloatCall) and not call.k_major:
        return lambda: plain_float(call.x[0], call.granularity, call.block_size, call.row, call.column, call.tile)
    return lambda: reference.run(call)


# --- measuring ------------------------------------------------------------------------------------------------------


def outputs_of(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [tensor for tensor in result if tensor is not None]


def wrong_bits(found: Any, expected: Any) -> str | None:
    """Which output differs from the reference's, None if none does."""
    for number, (one, other) in enumerate(zip(outputs_of(found), outputs_of(expected), strict=True)):
        if one.shape != other.shape or not torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (one, other))):
            return f"output {number} has other bits than the reference"
    return None


def moved_bytes(op: Op, call: Any, result: Any) -> int:
    """Bytes that the op must read and write."""
    if isinstance(call, (QuantizeFloatCall, QuantizeMxCall)):
        read = op.reads * call.x.nbytes
    else:
        read = call.q.nbytes + (call.scale_inv if isinstance(call, DequantizeFloatCall) else call.scale).nbytes
    return read + sum(tensor.nbytes for tensor in outputs_of(result))


def graphed(function: Callable[[int], Any], sets: int, device: torch.device) -> Callable[[int], Any]:
    """Replays one graph for each set of inputs; what cannot be captured is called as it is."""
    stream = torch.cuda.Stream(device)
    graphs, kept = [], []
    try:
        for number in range(sets):
            with torch.cuda.stream(stream):
                for _ in range(2):
                    function(number)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    kept.append(function(number))
                graphs.append(graph)
    except Exception as error:  # a peer's fault must not end the run
        print(f"not captured, timed as called: {error}", file=sys.stderr)
        torch.cuda.synchronize(device)
        return function
    torch.cuda.synchronize(device)

    def replay(number: int, kept: object = kept) -> object:
        graphs[number % sets].replay()
        return kept

    return replay


def line_of(
    name: str, rows: int, width: int, dtype_name: str, machine: Machine, options: argparse.Namespace
) -> dict[str, object]:
    """One line of the table."""
    op, dtype, device = OPS[name], DTYPES[dtype_name], machine.device
    backend = importlib.import_module(BACKENDS[options.backend]).run
    generator = torch.Generator(device).manual_seed(rows + width)
    sets = input_sets(2 * rows * width * dtype.itemsize, machine.cache_bytes, most=4) if device.type == "cuda" else 1
    inputs = [torch.randn(rows, width, generator=generator, device=device, dtype=dtype) for _ in range(sets)]
    calls = [op.call(x) for x in inputs]
    line = {"Platform": machine.platform, "GPU": machine.name, "Op": name, "Rows": rows, "Width": width}
    line |= {"Dtype": dtype_name}
    result = backend(calls[0])
    checked = calls[0] if rows <= 8192 else None
    wrong = wrong_bits(result, reference.run(checked)) if checked is not None else None
    if wrong is not None:
        print(f"{name} {rows}x{width}: {wrong}", file=sys.stderr)
        return {**line, "Check": "FAIL"}
    moved = moved_bytes(op, calls[0], result)
    source = torch.randn(COPY_ELEMENTS if device.type == "cuda" else 1 << 16, device=device).bfloat16()
    target = torch.empty_like(source)
    functions: dict[str, Callable[[int], Any]] = {
        "copy": lambda number: target.copy_(source),
        "Turbo": lambda number: backend(calls[number % sets]),
    }
    if options.compile:
        torch._dynamo.reset()
        compiled = [torch.compile(peer(call), dynamic=False) for call in calls[:1]]
        functions["compile"] = lambda number: compiled[0]()
    if device.type == "cuda" and not options.no_graph:
        for which in ("Turbo", "compile"):
            if which in functions:
                functions[which] = graphed(functions[which], sets if which == "Turbo" else 1, device)
    times = measure(functions, device, Budget(seconds=options.seconds))
    rates = {which: moved / taken.milliseconds / 1e6 for which, taken in times.items()}
    copy = 2 * source.nbytes / times["copy"].milliseconds / 1e6
    line |= {"Check": "PASS" if checked is not None else "", "Copy GB/s": copy, "Turbo ms": times["Turbo"].milliseconds}
    line |= {"Turbo GB/s": rates["Turbo"], "Of copy": rates["Turbo"] / copy}
    if "compile" in rates:
        line |= {"compile GB/s": rates["compile"], "Over compile": rates["Turbo"] / rates["compile"]}
    return line


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default=",".join(OPS), help="of " + ", ".join(OPS))
    parser.add_argument("--backend", choices=BACKENDS, help="default: TRITON on a GPU, TORCH on a CPU")
    parser.add_argument("--device", help="cpu, cuda:1, ...; default: the first GPU, else the CPU")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--shape", action="append", help="ROWS,WIDTH in place of the usual ones; may be repeated")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="time the peer too")
    parser.add_argument("--seconds", type=float, default=0.2, help="longest time for one measurement")
    parser.add_argument("--no-graph", action="store_true", help="time calls as Python makes them")
    parser.add_argument("--smoke", action="store_true", help="a tiny shape, no peer: does it work at all?")
    parser.add_argument("-o", "--output", type=Path, help="CSV, rewritten after each line")
    options = parser.parse_args(arguments)
    machine = find_machine(options.device)
    on_gpu = machine.device.type == "cuda"
    options.backend = options.backend or ("TRITON" if on_gpu else "TORCH")
    if options.backend != "TORCH" and not on_gpu and not os.environ.get("TRITON_INTERPRET"):
        parser.error(f"--backend {options.backend} needs a GPU; on {machine.device} there is TORCH")
    shapes = [tuple(map(int, text.split(","))) for text in options.shape] if options.shape else SHAPES
    if options.smoke:
        options.compile, options.seconds, shapes = False, 0.01, [(128, 256)]
    lines: list[dict[str, object]] = []
    for name in options.ops.split(","):
        if name not in OPS:
            raise SystemExit(f"--ops {name}: there are {', '.join(OPS)}")
        for rows, width in shapes:
            lines.append(line_of(name, rows, width, options.dtype, machine, options))
            if options.output is not None:
                write_csv(options.output, COLUMNS, lines)
    print(f"{machine.name}, {machine.platform}, torch {torch.__version__}, {options.dtype}, {options.backend}")
    print(format_table(SHOWN, lines))
    ratios = [float(str(line["Of copy"])) for line in lines if "Of copy" in line]
    print(f"geometric mean of the part of copy bandwidth: {geometric_mean(ratios):.3f}")
    return 1 if any(line["Check"] == "FAIL" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
