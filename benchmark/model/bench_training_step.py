# SPDX-License-Identifier: MIT
"""A training step of transformer blocks, forward and backward without an optimiser, from torch's ops and from Turbo's.

    python benchmark/model/bench_training_step.py --model llama3.1-8b --tokens 1x1024,1x4096

First the output and every gradient are compared with float32 torch of the same parameters, then the implementations
take turns: time of a step, the host's part of it, the GPU's part, kernels, peak memory. Inputs are random.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmark.common.machine import Machine, find_machine
from benchmark.common.memory import peak_mib
from benchmark.common.results import Row, format_table, write_csv
from benchmark.model.blocks import IMPLEMENTATIONS, SHAPES, BlockShape, Stack
from turbo_testing.group_lens import GROUP_LENS

COLUMNS = [
    "Model", "Tokens", "Implementation", "Check", "SNR (dB)", "Step (ms)", "Host (ms)", "GPU (ms)", "Kernels",
    "Peak (GiB)", "Over torch",
]  # fmt: skip
# Least SNR of one block's output and of every gradient. bfloat16 rounds at 2^-9 a value. Each FP8 product keeps 25 dB
# (E4M3), and up to eight stand one behind the other on the way to a gradient: three times two, 8 dB.
LEAST_SNR = {"torch": 35.0, "turbo-bf16": 35.0}
LEAST_SNR_FP8 = 16.0
CHECKED_TOKENS = 256


def snr(found: torch.Tensor, reference: torch.Tensor) -> float:
    """Of what was found, in dB; inf where it is exact."""
    reference = reference.double()
    noise = (found.double() - reference).square().sum()
    return float(10 * torch.log10(reference.square().sum() / noise))


class Step:
    """Forward and backward of one stack on inputs of its own."""

    def __init__(
        self, stack: torch.nn.Module, shape: BlockShape, batch: int, length: int, device: torch.device
    ) -> None:
        generator = torch.Generator("cpu").manual_seed(1)
        dtype = next(stack.parameters()).dtype

        def random(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=generator).to(device, torch.bfloat16).to(dtype)

        self.stack = stack
        self.x = random(batch, length, shape.hidden).requires_grad_()
        self.dy = random(batch, length, shape.hidden)
        angles = torch.outer(torch.arange(length), 10000.0 ** -torch.linspace(0, 1, shape.head_dim // 2 + 1)[:-1])
        angles = torch.cat((angles, angles), -1)[:, None]
        self.cos, self.sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)

    def __call__(self) -> torch.Tensor:
        self.x.grad = None
        for parameter in self.stack.parameters():
            parameter.grad = None
        y: torch.Tensor = self.stack(self.x, self.cos, self.sin)
        y.backward(self.dy)
        return y

    def results(self) -> list[torch.Tensor]:
        """Output and gradients."""
        y = self()
        assert self.x.grad is not None
        return [y.detach(), self.x.grad, *(p.grad for p in self.stack.parameters() if p.grad is not None)]


def check(name: str, shape: BlockShape, device: torch.device, lens: str) -> tuple[str, float]:
    """PASS or FAIL, and the least SNR of output and gradients, of one block and few tokens."""
    reference = Stack(shape, "torch", 1, device, lens).float()
    length = min(CHECKED_TOKENS, shape.hidden)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    expected = Step(reference, shape, 1, length, device).results()
    torch.set_float32_matmul_precision(precision)
    found = Step(Stack(shape, name, 1, device, lens), shape, 1, length, device).results()
    least = min(snr(one, other) for one, other in zip(found, expected, strict=True))
    return "PASS" if least >= LEAST_SNR.get(name, LEAST_SNR_FP8) else "FAIL", least


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(steps: dict[str, Callable[[], object]], device: torch.device, turns: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds of a step, and until the host was done with it, by name; the steps take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(turns):
        for name, step in steps.items():
            step()  # leaves the clocks and caches as this step does
            wait(device)
            start = time.perf_counter()
            step()
            host = time.perf_counter()
            wait(device)
            times[name].append((1e3 * (time.perf_counter() - start), 1e3 * (host - start)))
    return {
        name: (statistics.median(t for t, _ in found), statistics.median(h for _, h in found))
        for name, found in times.items()
    }


def kernels_of(step: Callable[[], object], device: torch.device) -> list[tuple[str, float]]:
    """Name and milliseconds of each kernel and copy of a step on a GPU."""
    if device.type != "cuda":
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        wait(device)
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [(event.name, event.device_time / 1e3) for event in events]


def by_share(kernels: list[tuple[str, float]], most: int) -> str:
    """The kernels that take longest."""
    counts, times = Counter(name for name, _ in kernels), Counter[str]()
    for name, milliseconds in kernels:
        times[name] += milliseconds
    return "\n".join(f"    {spent:8.3f} ms {counts[name]:5d} x {name[:100]}" for name, spent in times.most_common(most))


def measure_size(
    options: argparse.Namespace, machine: Machine, checks: dict[str, tuple[str, float]], batch: int, length: int
) -> list[Row]:
    """The rows of one number of tokens."""
    device, shape = machine.device, SHAPES[options.model]
    steps: dict[str, Callable[[], object]] = {}
    for name in checks:
        stack: torch.nn.Module = Stack(shape, name, options.layers, device, options.lens)
        if options.compile:
            stack = torch.compile(stack)  # type: ignore[assignment]
        steps[name] = Step(stack, shape, batch, length, device)
    times = timed({name: step for name, step in steps.items() if checks[name][0] == "PASS"}, device, options.turns)
    rows = []
    for name, (verdict, least) in checks.items():
        row: dict[str, object] = {
            "Model": options.model, "Tokens": f"{batch}x{length}", "Implementation": name, "Check": verdict,
            "SNR (dB)": least,
        }  # fmt: skip
        if name in times:
            peak = peak_mib(steps[name], device)
            row |= {} if peak is None else {"Peak (GiB)": peak / 1024}
            kernels = kernels_of(steps[name], device)
            step_ms, host_ms = times[name]
            row |= {"Step (ms)": step_ms, "Host (ms)": host_ms}
            row |= {"GPU (ms)": sum(spent for _, spent in kernels), "Kernels": len(kernels)} if kernels else {}
            row |= {"Over torch": step_ms / times["torch"][0]} if "torch" in times else {}
            if options.profile and kernels:
                print(f"{name}:\n{by_share(kernels, options.profile)}", flush=True)
        rows.append(row)
    return rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="llama3.1-8b")
    parser.add_argument("--tokens", default="1x1024,1x4096", help="batch x length, several with commas")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lens", choices=GROUP_LENS, default="balanced", help="how rows are shared out among experts")
    parser.add_argument("--implementations", default="torch,turbo-bf16,turbo-fp8-tensorwise,turbo-fp8-rowwise")
    parser.add_argument("--compile", action="store_true", help="each stack under torch.compile")
    parser.add_argument("--one-thread", action="store_true", help="backward on the thread of the forward (see README)")
    parser.add_argument("--turns", type=int, default=20, help="timed steps of each implementation")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="print the N kernels that take longest")
    parser.add_argument("--device")
    parser.add_argument("--smoke", action="store_true", help="a small model, one turn: does it work at all?")
    parser.add_argument("-o", "--output", type=Path, help="CSV file")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.model = "smoke-experts" if SHAPES[options.model].experts else "smoke"
        options.tokens, options.layers, options.turns = "1x48", 1, 1
    unknown = set(options.implementations.split(",")) - set(IMPLEMENTATIONS)
    if unknown:
        parser.error(f"--implementations {', '.join(sorted(unknown))}: accepted are {', '.join(IMPLEMENTATIONS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    machine = find_machine(options.device)
    torch.autograd.set_multithreading_enabled(not options.one_thread)
    print(f"{machine.name}, {machine.platform}, torch {torch.__version__}", flush=True)
    shape = SHAPES[options.model]
    checks = {name: check(name, shape, machine.device, options.lens) for name in options.implementations.split(",")}
    rows: list[Row] = []
    for tokens in options.tokens.split(","):
        batch, length = map(int, tokens.split("x"))
        rows += measure_size(options, machine, checks, batch, length)
        if options.output:
            write_csv(options.output, COLUMNS, rows)
    print(format_table(COLUMNS, rows))
    return 0 if all(verdict == "PASS" for verdict, _ in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
