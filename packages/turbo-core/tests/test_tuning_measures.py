# SPDX-License-Identifier: MIT
"""What tuning tells calls apart by, and how it times a candidate."""

import dataclasses
from typing import NamedTuple
from unittest import mock

import pytest
import torch

from turbo_core import simulated_arch, tuning
from turbo_core.calls import key_of
from turbo_core.tune_cache import key_text
from turbo_testing.fake_op import FakeCall, make_backend

CALL = FakeCall(torch.ones(2, 3))


class Inner(NamedTuple):
    x: torch.Tensor
    causal: bool = False


class Outer(NamedTuple):
    inner: Inner
    y: torch.Tensor | None = None
    scale: float = 1.0


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "other",
    [
        Outer(Inner(torch.ones(2, 4))),
        Outer(Inner(torch.ones(3, 2).t())),
        Outer(Inner(torch.ones(2, 3, dtype=torch.bfloat16))),
        Outer(Inner(torch.ones(2, 3), causal=True)),
        Outer(Inner(torch.ones(2, 3)), y=torch.ones(1)),
        Outer(Inner(torch.ones(2, 3)), scale=0.5),
    ],
    ids=["shape", "strides", "dtype", "option inside", "another tensor", "option"],
)
def test_a_key_tells_calls_apart_also_inside_calls(other):
    call = Outer(Inner(torch.ones(2, 3)))
    keys = [key_of(made, "forward") for made in (call, Outer(Inner(torch.zeros(2, 3))), other)]
    assert keys[0] == keys[1] != keys[2] and hash(keys[0]) == hash(keys[1])
    texts = [key_text(key) for key in keys]
    assert texts[0] == texts[1] != texts[2]
    assert "tensor(" not in texts[0]


def test_a_key_tells_roles_and_devices_apart():
    call = Outer(Inner(torch.ones(2, 3)))
    keys = {key_of(call, role) for role in ("forward", "dgrad")}
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch) as facts:
            keys.add(key_of(call, "forward"))
        renamed = dataclasses.replace(facts, name="another part")
        with mock.patch("turbo_core.device.device_facts", return_value=renamed):
            keys.add(key_of(call, "forward"))
    assert len(keys) == 6


class _Event:
    """Of a GPU on which each call takes as many milliseconds as were timed before it, less 10."""

    made: list["_Event"] = []

    def __init__(self, enable_timing):
        assert enable_timing
        self.made.append(self)

    def record(self, stream):
        assert stream == ("stream of", torch.device("cuda", 3))

    def synchronize(self):
        assert self is self.made[-1], "the end is waited for"

    def elapsed_time(self, end):
        return abs(len(self.made) // 2 - 10.0)


@pytest.mark.parametrize("call", [Inner, lambda x: Outer(Inner(x))], ids=["plain", "nested"])
def test_work_on_a_gpu_is_timed_by_its_events(monkeypatch, call):
    """Also where the tensors are inside a call inside the call; a fake device that the CPU stands for."""

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 3)

    waited = []
    monkeypatch.setattr(_Event, "made", [])
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    backend = make_backend("TRITON")
    backend.execute = classmethod(lambda cls, call: cls.calls.append(torch.is_grad_enabled()))
    milliseconds = tuning.measure_milliseconds(backend, call(torch.ones(2).as_subclass(OnGpu)))
    assert waited == [torch.device("cuda", 3)], "the warm-up is over before the first is timed"
    assert len(_Event.made) == 2 * tuning.TIMED_CALLS
    assert backend.calls == [False] * (tuning.WARM_UP_CALLS + tuning.TIMED_CALLS)
    assert milliseconds == 5.0, "the median of 9 ... 0, 1 ... 10"


def test_work_on_a_cpu_is_timed_by_the_clock(monkeypatch):
    """0.1 seconds a call: the third ends after the time that a candidate may use."""
    now = iter(range(1000))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: 0.05 * next(now))
    backend = make_backend("TRITON")
    milliseconds = tuning.measure_milliseconds(backend, CALL)
    assert milliseconds == pytest.approx(50.0)
    assert len(backend.calls) == tuning.WARM_UP_CALLS + 2


def test_a_candidate_is_timed_once_at_least(monkeypatch):
    """The process may have slept since the clock was started."""
    now = iter(range(1000))
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: 1.0 * next(now))
    backend = make_backend("TRITON")
    assert tuning.measure_milliseconds(backend, CALL) == 1000.0
    assert len(backend.calls) == tuning.WARM_UP_CALLS + 1


def test_a_call_without_tensors_is_timed_by_the_clock():
    backend = make_backend("TRITON")
    backend.execute = classmethod(lambda cls, call: cls.calls.append(call))
    assert tuning.measure_milliseconds(backend, (1, "two", None)) >= 0
    assert backend.calls == [(1, "two", None)] * (tuning.WARM_UP_CALLS + tuning.TIMED_CALLS)
