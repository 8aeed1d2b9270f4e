# SPDX-License-Identifier: MIT
"""What the host does for a call of an op, forward and backward, next to torch's own op of the same kind.

    python benchmark/core/bench_host_overhead.py

Tensors are tiny, so that on a GPU and on a CPU alike the time is the host's. It is this thread's own time; each number
is the least over several turns, ops and peers in turn. Each op is measured with the backend that serves it here, whose
arithmetic on a CPU is plain torch's, and with one that gives back what it computed before: what is left is Turbo's host
time, without a kernel's launch.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F

import turbo_attention
import turbo_gemm
import turbo_grouped_gemm
import turbo_norm_act
from benchmark.common.machine import find_machine
from benchmark.common.results import format_table, write_csv
from benchmark.ops.training.grouped_sides import GroupedMm, groups_of
from turbo_core import AutoKernelDispatcher, BackendType, Decision, KernelBackend
from turbo_core.low_precision import Float8QuantConfig, ScalingGranularity

COLUMNS = ["Op", "Turbo (us)", "Nothing computed (us)", "torch (us)", "Added (us)"]
TURNS, CALLS = 9, 200


def step_us(step: Callable[[], object], calls: int) -> float:
    """Microseconds of this thread's own time a call."""
    start = time.thread_time()
    for _ in range(calls):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # keeps the queue short; the wait itself is no thread time of ours that matters
    return 1e6 * (time.thread_time() - start) / calls


def forward_backward(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Callable[[], object]:
    """A step: the function of leaves, and the gradients of all of them."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    seed = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, seed)


class Replay(KernelBackend):
    """A backend that computes a call once and then gives back what it computed: aliases, made in a microsecond."""

    known: ClassVar[dict[object, object]] = {}
    resolve: ClassVar[Callable[..., Decision]]

    @classmethod
    def why_not(cls, call: object) -> str | None:
        return None

    @classmethod
    def execute(cls, call: Any) -> Any:
        key = type(call), getattr(call, "role", None), call[0].shape if hasattr(call[0], "shape") else call[0][0].shape
        if key not in cls.known:
            cls.known[key] = cls.resolve(call)
        result = cls.known[key]
        if isinstance(result, torch.Tensor):
            return result.detach()
        if result is None:
            return None
        return type(result)(*(part if part is None else _alias(part) for part in result))


def _alias(part: Any) -> Any:
    return part.detach() if isinstance(part, torch.Tensor) else tuple(map(torch.Tensor.detach, part))


@contextlib.contextmanager
def computing_nothing() -> Iterator[None]:
    """Every dispatcher chooses `Replay`, as quickly as it chooses a default."""
    resolve = vars(AutoKernelDispatcher)["resolve"]

    def replay(cls: type[AutoKernelDispatcher], call: object) -> Decision:
        Replay.resolve = lambda call: resolve.__func__(cls, call).impl.execute(call)
        return Decision(BackendType.TORCH, Replay, "default")

    AutoKernelDispatcher.resolve = classmethod(replay)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AutoKernelDispatcher.resolve = resolve
        Replay.known.clear()


def pairs(device: torch.device) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Op -> its step and torch's."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    x, w, gamma, q = random(16, 32), random(32, 32), random(32), random(1, 16, 2, 16)

    def sdpa(q: torch.Tensor) -> torch.Tensor:
        rows = q.transpose(1, 2)
        return F.scaled_dot_product_attention(rows, rows, rows, is_causal=True).transpose(1, 2)

    def gated(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    product = forward_backward(lambda a, b: a @ b.t(), x, w)
    experts, groups = random(4, 32, 32), groups_of([8, 0, 5, 3], device)
    found = {
        "gemm": (forward_backward(lambda a, b: turbo_gemm.gemm(a, b, trans_b=True), x, w), product),
        "grouped_gemm": (
            forward_backward(lambda a, b: turbo_grouped_gemm.grouped_gemm(a, b, groups.lens, trans_b=True), x, experts),
            forward_backward(lambda a, b: GroupedMm().forward(a, b, groups), x, experts),
        ),
        "rmsnorm": (
            forward_backward(turbo_norm_act.rmsnorm, x, gamma),
            forward_backward(lambda x, g: F.rms_norm(x, (32,), g), x, gamma),
        ),
        "swiglu": (forward_backward(turbo_norm_act.swiglu, x), forward_backward(gated, x)),
        "flash_attn_func": (
            forward_backward(lambda q: turbo_attention.flash_attn_func(q, q, q, causal=True), q),
            forward_backward(sdpa, q),
        ),
    }
    for granularity in (ScalingGranularity.TENSORWISE, ScalingGranularity.ROWWISE):
        config = Float8QuantConfig(granularity=granularity)
        step = forward_backward(lambda a, b, c=config: turbo_gemm.gemm_fp8(a, b, trans_b=True, config=c), x, w)
        found[f"gemm_fp8 {granularity.name}"] = step, product
    return found


def measure_all(device: torch.device, calls: int, turns: int) -> list[dict[str, object]]:
    """A row an op; what is added is the time in which nothing was computed over torch's."""
    rows: list[dict[str, object]] = []
    for name, (ours, theirs) in pairs(device).items():
        times: list[tuple[float, float, float]] = []
        for _ in range(turns + 1):  # the first turn warms up
            whole = step_us(ours, calls)
            with computing_nothing():
                ours()
                host = step_us(ours, calls)
            times.append((whole, host, step_us(theirs, calls)))
        turbo, host, peer = map(min, zip(*times[1:]))
        rows.append(dict(zip(COLUMNS, (name, turbo, host, peer, host - peer))))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="CSV file")
    parser.add_argument("--device", help="default: the first GPU, else the CPU")
    parser.add_argument("--smoke", action="store_true", help="few calls: shows that the benchmark works")
    args = parser.parse_args(argv)
    machine = find_machine(args.device)
    torch.set_num_threads(1)
    rows = measure_all(machine.device, *((5, 1) if args.smoke else (CALLS, TURNS)))
    print(f"{machine.platform}, {machine.name}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    print(format_table(COLUMNS, rows))
    if args.output:
        write_csv(args.output, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
