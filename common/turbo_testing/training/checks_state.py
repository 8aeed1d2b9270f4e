# SPDX-License-Identifier: MIT
"""Checks of what surrounds a call: autocast, and the settings that torch keeps for a thread or a process."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from turbo_testing.training.cases import (
    OpCase,
    Step,
    Tensors,
    as_tuple,
    assert_near,
    assert_same,
    is_wide,
    leaves,
    plain,
    seeds_of,
    step,
)

__all__ = ["CHECKS", "state_unchanged"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
AUTOCAST = (torch.bfloat16, torch.float16)


def _mixes(case: OpCase) -> list[tuple[torch.dtype, ...]]:
    """All of one dtype, and each one of another dtype than the rest: the mixes that rotary embeddings, norms make."""
    count = len(case.cast)
    mixes = [(dtype,) * count for dtype in DTYPES]
    for odd, base, other in itertools.product(range(count), DTYPES, DTYPES):
        if base is not other and count > 1:
            mixes.append(tuple(other if number == odd else base for number in range(count)))
    return list(dict.fromkeys(mixes))


def _with_dtypes(tensors: Tensors, names: Any, dtypes: Any) -> Tensors:
    return {**tensors, **{name: tensors[name].to(dtype) for name, dtype in zip(names, dtypes, strict=True)}}


def _cast(case: OpCase, dtype: torch.dtype) -> Callable[..., Any]:
    """``run`` on inputs that were cast by hand, differentiably: what autocast has to come to."""
    return lambda **arguments: case.run(
        **{name: value.to(dtype) if name in case.cast else value for name, value in arguments.items()}
    )


def autocast_casts(case: OpCase, device: torch.device) -> None:
    """A product under autocast is the product of inputs cast by hand, for every mix of dtypes, and so are gradients.

    The backward runs outside of the context; elementwise ops are not touched.
    """
    for dtype in AUTOCAST:
        for mix in _mixes(case) if case.cast else [()]:
            inputs = _with_dtypes(case.inputs(device), case.cast, mix)
            tensors = leaves(case, inputs)
            with torch.autocast(device.type, dtype):
                outputs = as_tuple(case.run(**tensors, **case.first_numbers()))
            found = step(case, tensors, run=lambda outputs=outputs, **_: outputs)
            expected = step(case, leaves(case, inputs), run=_cast(case, dtype) if case.cast else None)
            assert_same(found, expected, f"autocast({dtype}) of {mix}")


def autocast_inside(case: OpCase, device: torch.device) -> None:
    """Autocast is off inside: calls whose dtypes it does not change have the bits of calls without it.

    On in forward and backward, in the forward alone, in the backward alone, and entered and left on the way.
    """
    for dtype in AUTOCAST:
        inputs = _with_dtypes(case.inputs(device, dtype), case.cast, (dtype,) * len(case.cast))
        expected = step(case, leaves(case, inputs))

        def on(dtype: torch.dtype = dtype) -> Any:
            return torch.autocast(device.type, dtype)

        with on():
            assert_same(step(case, leaves(case, inputs)), expected, f"autocast({dtype}) around both")
        assert_same(step(case, leaves(case, inputs), backward_in=on()), expected, f"autocast({dtype}) in the backward")

        def inside(dtype: torch.dtype = dtype, **arguments: Any) -> Any:
            with torch.autocast(device.type, dtype):
                return case.run(**arguments)

        assert_same(step(case, leaves(case, inputs), run=inside), expected, f"autocast({dtype}) in the forward")
        with on():
            off = torch.autocast(device.type, enabled=False)
            with off:
                tensors = leaves(case, inputs)
                outputs = as_tuple(case.run(**tensors, **case.first_numbers()))
            found = step(case, tensors, run=lambda outputs=outputs, **_: outputs)
        assert_same(found, expected, "autocast off inside autocast")


def autocast_float32_result(case: OpCase, device: torch.device) -> None:
    """The op's own arithmetic stays float32: 16-bit inputs under autocast come as near to float64 as without it."""
    if case.reference is None or not case.cast:
        return
    inputs = _with_dtypes(case.inputs(device, torch.bfloat16), case.cast, (torch.bfloat16,) * len(case.cast))
    doubled = {name: t.double() if is_wide(t) else t for name, t in inputs.items()}
    expected = step(case, leaves(case, doubled), run=case.reference)
    with torch.autocast(device.type, torch.bfloat16):
        assert_near(case, step(case, leaves(case, inputs)), expected, torch.bfloat16)


def promotion(case: OpCase, device: torch.device) -> None:
    """Elementwise inputs of several dtypes are taken as the widest, in and out of autocast, as torch's own ops do."""
    for number, (base, other) in itertools.product(range(len(case.mixed)), itertools.permutations(DTYPES, 2)):
        dtypes = [other if n == number else base for n in range(len(case.mixed))]
        inputs = _with_dtypes(case.inputs(device), case.mixed, dtypes)
        widest = torch.promote_types(base, other)

        def promoted(widest: torch.dtype = widest, **arguments: Any) -> Any:
            return case.run(**{n: v.to(widest) if n in case.mixed else v for n, v in arguments.items()})

        expected = step(case, leaves(case, inputs), run=promoted)
        assert_same(step(case, leaves(case, inputs)), expected, f"{case.mixed} in {dtypes}")
        with torch.autocast(device.type, torch.bfloat16):
            assert_same(step(case, leaves(case, inputs)), expected, f"{case.mixed} in {dtypes} under autocast")


# --- settings of the process ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def settings(case: OpCase, device: torch.device) -> None:
    """Default dtype and device, deterministic algorithms, precision of products, threads: the results are the same."""
    expected = plain(case, device)
    inputs = case.inputs(device)
    for dtype in (torch.float64, torch.bfloat16):
        with _setting(torch.get_default_dtype, torch.set_default_dtype, dtype):
            assert_same(step(case, leaves(case, inputs)), expected, f"default dtype {dtype}")
    with torch.device("meta"):
        assert_same(step(case, leaves(case, inputs)), expected, "default device meta")
    deterministic = _setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
    with deterministic:
        assert_near(case, step(case, leaves(case, inputs)), expected, torch.float32)
    # the BLAS may follow the choice, which is the user's: tf32 keeps 10 bits, and where a CPU has matrix units for
    # bfloat16, medium keeps 8
    factors = {"high": 100, "medium": 100} if device.type == "cuda" else {"high": 1, "medium": 400}
    for precision, factor in factors.items():
        with _setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision):
            assert_near(case, step(case, leaves(case, inputs)), expected, torch.float32, factor)
    with _setting(torch.get_num_threads, torch.set_num_threads, 3):
        assert_near(case, step(case, leaves(case, inputs)), expected, torch.float32)


def threads(case: OpCase, device: torch.device) -> None:
    """Forward on one thread, backward on another, and several threads at once."""
    expected = plain(case, device)
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(plain(case, device))
        except BaseException as error:
            found.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for result in found:
        if isinstance(result, BaseException):
            raise result
        assert_same(result, expected, "on another thread")
    tensors = leaves(case, case.inputs(device))
    outputs = [o for o in as_tuple(case.run(**tensors, **case.first_numbers())) if o.requires_grad]
    if not outputs:
        return
    gradients: list[Any] = []
    other = threading.Thread(
        target=lambda: gradients.extend(
            torch.autograd.grad(outputs, [tensors[n] for n in case.gradients], seeds_of(outputs))
        )
    )
    other.start()
    other.join()
    assert_same(Step((), dict(zip(case.gradients, gradients))), Step((), expected.gradients), "backward elsewhere")


def streams(case: OpCase, device: torch.device) -> None:
    """A side stream, while the current device is another one where there are several."""
    expected = plain(case, device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        found = plain(case, device)
    side.synchronize()
    assert_same(found, expected, "on a side stream")
    if torch.cuda.device_count() > 1:
        with torch.cuda.device(1 - (device.index or 0)):
            assert_same(plain(case, device), expected, "with another current device")


def graph_capture(case: OpCase, device: torch.device) -> None:
    """Captured once, forward and backward, and replayed with other values."""
    expected = plain(case, device)
    tensors = leaves(case, case.inputs(device))
    outputs = as_tuple(case.run(**tensors, **case.first_numbers()))
    seeds = seeds_of([output for output in outputs if output.requires_grad])
    del outputs  # its graph ends in nodes of the default stream, which a capture may not wait for
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(2):
            step(case, tensors, seeds=lambda _: seeds)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(case, tensors, seeds=lambda _: seeds)
    values = case.inputs(device)
    with torch.no_grad():
        for tensor in tensors.values():
            if is_wide(tensor):
                tensor.mul_(0.5)
    graph.replay()
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(values[name])
    graph.replay()
    torch.cuda.synchronize(device)
    assert_same(captured, expected, "replayed")


_STATE: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "gradient mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast": lambda: [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
    "autocast dtype": lambda: [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")],
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "precision of float32 products": torch.get_float32_matmul_precision,
    "reduced precision": lambda: [
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    ],
    "threads": torch.get_num_threads,
    "generator of the CPU": lambda: torch.get_rng_state().tolist(),
    "current device": lambda: torch.cuda.current_device() if torch.cuda.is_available() else None,
}


@contextlib.contextmanager
def state_unchanged() -> Iterator[None]:
    """Fails if the block leaves one of torch's settings, or the CPU's generator, other than it found them."""
    before = {name: get() for name, get in _STATE.items()}
    yield
    changed = [name for name, get in _STATE.items() if get() != before[name]]
    if "default dtype" in changed:
        torch.set_default_dtype(before["default dtype"])
    assert not changed, f"left changed: {', '.join(changed)}"


CHECKS: dict[str, Callable[[OpCase, torch.device], None]] = {
    check.__name__: check
    for check in (
        autocast_casts, autocast_inside, autocast_float32_result, promotion, settings, threads, streams, graph_capture
    )
}  # fmt: skip
