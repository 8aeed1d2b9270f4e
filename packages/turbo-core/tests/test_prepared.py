# SPDX-License-Identifier: MIT
"""Calls that repeat are started from what was kept of the first: with their own tensors, and never another call's."""

import gc
import weakref
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from turbo_core.launch import Launch, fill_with_zeros  # noqa: E402
from turbo_core.prepared import first_run, signature  # noqa: E402

CPU = torch.device("cpu")


class Launcher:
    """As a dispatcher does it: calls by their signatures, what repeats them, and the plan for those not seen before."""

    def __init__(self):
        self.known = {}

    def run(self, call, plan):
        key, tensors = signature(call)
        if key in self.known:
            return self.known[key].repeat(tensors, CPU)
        outputs, prepared = first_run(plan(), tensors, CPU)
        if prepared is not None:
            self.known[key] = prepared
        return outputs


class Call(NamedTuple):
    x: torch.Tensor
    factor: int
    y: torch.Tensor | None = None


class Outputs(NamedTuple):
    scaled: torch.Tensor
    total: torch.Tensor | None
    bits: torch.Tensor


class Kernel:
    """(x, out, partial, factor, y): partial = factor x; out = partial + y. Starts are counted."""

    arg_names = ("x", "out", "partial", "factor", "y")

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        def start(x, out, partial, factor, y):
            self.grids.append(grid)
            partial, out = partial.view(torch.float32), out.view(torch.float32)  # memory is what a kernel is given
            x = x.view(torch.float32) if x.dtype == torch.int32 else x
            partial.copy_(x * factor)
            out.copy_(partial if y is None else partial + y)

        return start


@pytest.fixture
def machine(monkeypatch):
    """A kernel whose compilation is itself, and plans that are counted."""
    kernel, plans = Kernel(), []

    def run(launch, device):
        kernel[launch.whole_grid()](*launch.by_position())
        return kernel

    monkeypatch.setattr(Launch, "run", run)

    def plan(call):
        plans.append(call)
        x = call.x
        out, partial = torch.empty(x.shape), torch.empty(x.shape)
        arguments = dict(y=call.y, factor=call.factor, partial=partial, out=out.view(torch.float32), x=x)
        second = {**arguments, "x": out, "out": partial, "partial": out, "y": None}
        outputs = Outputs(partial, None, out.view(torch.int32))
        return outputs, [Launch(kernel, (3,), arguments, {}), Launch(kernel, (1, 2), second, {})]

    prepared = Launcher()

    def answer(call):
        return prepared.run(call, lambda: plan(call))

    return SimpleNamespace(kernel=kernel, plans=plans, answer=answer, prepared=prepared, run=run)


def test_a_call_that_repeats_is_not_planned_again(machine):
    for number in range(4):
        x, y = torch.randn(5, 7), torch.randn(5, 7)
        outputs = machine.answer(Call(x, 3, y))
        assert isinstance(outputs, Outputs) and outputs.total is None
        wanted = 3 * x + y
        assert torch.equal(outputs.scaled, 3 * wanted)
        # the second start writes 3 (3 x + y) through its scratch argument, which is the first one's result
        assert outputs.bits.dtype == torch.int32 and torch.equal(outputs.bits.view(torch.float32), 3 * wanted)
        assert len(machine.kernel.grids) == 2 * (number + 1)
    assert len(machine.plans) == 1 and machine.kernel.grids[-2:] == [(3, 1, 1), (1, 2, 1)]


def test_outputs_are_new_memory(machine):
    x = torch.randn(5, 7)
    results = [machine.answer(Call(x, 2)).scaled for _ in range(3)]
    assert len({result.data_ptr() for result in results}) == 3


@pytest.mark.parametrize(
    "other",
    [
        Call(torch.ones(7, 5), 2),
        Call(torch.ones(7, 5).t(), 2),
        Call(torch.ones(4, 7), 2),
        Call(torch.ones(5, 7, dtype=torch.float64), 2),
        Call(torch.ones(36)[1:].view(5, 7), 2),
        Call(torch.ones(5, 7), 3),
        Call(torch.ones(5, 7), 2, torch.ones(5, 7)),
    ],
    ids=["sizes", "strides", "sizes of the same strides", "dtype", "alignment", "option", "another tensor"],
)
def test_another_call_is_planned_anew(machine, other):
    call = Call(torch.ones(5, 7), 2)
    for _ in range(2):
        machine.answer(call)
        found = machine.answer(other).scaled
        assert torch.equal(found, (other.x * other.factor + (0 if other.y is None else other.y)).float() * other.factor)
    assert len(machine.plans) == 2


def test_a_tensor_given_twice_is_not_taken_for_two(machine):
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    for a, b in ((x, x), (x, y), (y, y), (y, x)):
        assert torch.equal(machine.answer(Call(a, 2, b)).scaled, 2 * (2 * a + b))
    assert len(machine.plans) == 2


def test_which_of_three_tensors_are_one_is_part_of_the_call():
    """The plan gives the kernel the number of a tensor, which differs."""
    prepared, seen = Launcher(), []
    kernel = SimpleNamespace(arg_names=("out", "a", "b", "c"))
    kernel.start = lambda out, *given: (seen.append(given), out.copy_(given[0] + 10 * given[1] + 100 * given[2]))

    def plan(given):
        out = torch.empty(3)
        return out, [Launch(kernel, (1,), dict(zip("abc", given, strict=True), out=out), {})]

    def run(launch, device):
        kernel.start(*launch.by_position())
        return compiled

    compiled = type("Compiled", (), {"__getitem__": lambda self, grid: kernel.start})()
    x, y, z = (torch.full((3,), float(n)) for n in (1, 2, 3))
    with mock.patch.object(Launch, "run", run):
        for given in [(x, x, y), (x, y, y), (y, x, y), (x, y, z), (z, z, z)] * 2:
            out = prepared.run(given, partial(plan, given))
            assert torch.equal(out, given[0] + 10 * given[1] + 100 * given[2])
    assert len(prepared.known) == 5


def test_calls_of_two_types_are_kept_apart():
    class One(NamedTuple):
        x: torch.Tensor

    class Other(NamedTuple):
        x: torch.Tensor

    x = torch.ones(3)
    assert signature(One(x)).key == signature(One(torch.zeros(3))).key != signature(Other(x)).key
    assert signature((One(x), 1)).key != signature((One(x), 2)).key


def test_no_tensor_of_a_call_is_kept(machine):
    call = Call(torch.randn(5, 7), 2, torch.randn(5, 7))
    outputs = machine.answer(call)
    kept = [weakref.ref(tensor) for tensor in (call.x, call.y, outputs.scaled, outputs.bits)]
    machine.plans.clear()
    del call, outputs
    gc.collect()
    assert [ref() for ref in kept] == [None] * 4


def test_a_call_with_an_empty_tensor_is_planned_each_time(machine):
    """It has no address to be known by."""
    for _ in range(2):
        outputs = machine.answer(Call(torch.empty(0, 7), 2, torch.empty(0, 7)))
        assert outputs.scaled.shape == (0, 7)
    assert len(machine.prepared.known) == 0 and len(machine.plans) == 2


def test_memory_of_a_repeated_call_is_of_the_device_of_the_call(machine, monkeypatch):
    x, devices = torch.randn(5, 7), []
    machine.answer(Call(x, 2))
    empty_strided = torch.empty_strided

    def note(*given, device, **named):
        devices.append(device)
        return empty_strided(*given, **named)

    monkeypatch.setattr(torch, "empty_strided", note)
    machine.answer(Call(x, 2))
    assert devices == [CPU] * 2


@pytest.mark.parametrize(
    "make", [lambda: torch.empty(10)[::2], lambda: torch.empty(10)[:5]], ids=["every other", "the first"]
)
def test_an_output_that_is_not_all_of_its_memory_is_planned_each_time(machine, make):
    """A repeated call would make it of other memory."""

    def plan():
        out = make()
        arguments = dict(x=torch.ones(5), out=out, partial=torch.empty(5), factor=2, y=None)
        return out, [Launch(machine.kernel, (1,), arguments, {})]

    for _ in range(2):
        out = machine.prepared.run((), plan)
        assert torch.equal(out, torch.full((5,), 2.0)) and out.stride() == make().stride()
    assert len(machine.prepared.known) == 0


def test_a_part_of_a_tensor_is_planned_each_time(machine):
    x = torch.randn(5, 7)

    def plan():
        out = torch.empty(7)
        return out, [Launch(machine.kernel, (1,), dict(x=x[1], out=out, partial=torch.empty(7), factor=2, y=None), {})]

    for _ in range(2):
        assert torch.equal(machine.prepared.run((x,), plan), 2 * x[1])
    assert len(machine.prepared.known) == 0


@dataclass
class Descriptor:
    """As Triton's: the tensor is its ``base``."""

    base: torch.Tensor
    block_shape: list[int]
    checked: bool = False

    def __post_init__(self):
        self.checked = True


def test_descriptors_are_filled_with_the_tensors_of_the_call(machine, monkeypatch):
    seen = []

    def start(x, out, partial, factor, y):
        seen.append((x, y))
        out.copy_(x.base + y.base)

    monkeypatch.setattr(Kernel, "__getitem__", lambda kernel, grid: start)

    def plan(a, b):
        out = torch.empty(4, 6).t()  # an order of its dimensions that is not the usual one
        arguments = dict(x=Descriptor(a, [2, 3]), y=Descriptor(b, [3, 2]), out=out, partial=None, factor=1)
        return out, [Launch(machine.kernel, (1,), arguments, {})]

    for number in range(3):
        a, b = torch.randn(6, 4), torch.randn(6, 4)
        out = machine.prepared.run((a, b), partial(plan, a, b) if number == 0 else None)
        assert torch.equal(out, a + b) and out.stride() == (1, 6)
        x, y = seen[-1]
        assert x.base is a and y.base is b and (x.block_shape, y.block_shape) == ([2, 3], [3, 2])
        assert x.checked and isinstance(x, Descriptor)


def test_an_output_may_be_a_tensor_of_the_call(machine):
    """It is written where it is, and given back itself; one that equals it is another."""

    def plan(x, into):
        arguments = dict(x=x, out=into, partial=torch.empty(5), factor=2, y=into)
        return into, [Launch(machine.kernel, (1,), arguments, {})]

    for number in range(3):
        x, into = torch.ones(5), torch.ones(5)
        assert machine.prepared.run((x, into), partial(plan, x, into) if number == 0 else None) is into
        assert torch.equal(into, torch.full((5,), 3.0)) and torch.equal(x, torch.ones(5))


def test_one_tensor(machine):
    def plan():
        out = torch.empty(5)
        arguments = dict(x=torch.ones(5), out=out, partial=torch.empty(5), factor=2, y=None)
        return out, [Launch(machine.kernel, (1,), arguments, {})]

    for _ in range(2):
        assert machine.prepared.run((), plan).shape == (5,)


def test_nothing_is_kept_where_nothing_is_compiled(machine, monkeypatch):
    monkeypatch.setattr(Launch, "run", lambda launch, device: machine.run(launch, device) and None)
    for _ in range(2):
        machine.answer(Call(torch.ones(5, 7), 2))
    assert len(machine.plans) == 2


def test_what_shall_be_zero_is_zero_each_time(machine, monkeypatch):
    """The kernel adds to an output that is made of dirty memory."""
    empty, empty_strided = torch.empty, torch.empty_strided
    monkeypatch.setattr(torch, "empty", lambda *given, **named: empty(*given, **named).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **named: empty_strided(*given, **named).fill_(torch.nan))
    add = AddingKernel()

    def plan():
        out = torch.empty(3)
        return out, [Launch(add, (1,), dict(out=out), {}, zeroed=("out",))]

    monkeypatch.setattr(Launch, "run", run_added)
    for _ in range(3):
        assert torch.equal(machine.prepared.run((), plan), torch.ones(3))
    assert add.starts == 3


class AddingKernel:
    arg_names = ("out",)

    def __init__(self):
        self.starts = 0

    def __getitem__(self, grid):
        return self.start

    def start(self, out):
        out += 1
        self.starts += 1


def run_added(launch, device):
    for name in launch.zeroed:
        fill_with_zeros(launch.arguments[name])
    launch.kernel.start(launch.arguments["out"])
    return launch.kernel
