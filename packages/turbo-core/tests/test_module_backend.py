# SPDX-License-Identifier: MIT
"""Backends that are modules, defaults by architecture and vendor, and what a dispatcher keeps of calls that it saw."""

import sys
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from turbo_core import (
    AutoKernelDispatcher,
    BackendType,
    BackendUnavailableError,
    GlobalBackendManager,
    PrecisionType,
    simulated_arch,
    trace_dispatch,
)
from turbo_core.module_backend import ModuleBackend

CPU = torch.device("cpu")


class Call(NamedTuple):
    x: torch.Tensor
    factor: float = 2.0


class Log:
    """What the two modules were asked."""

    def __init__(self):
        self.asked = []


@pytest.fixture
def log(monkeypatch):
    log = Log()
    for name in ("quick", "plain"):
        module = ModuleType(f"turbo_core_test_{name}")

        def why_not(call, name=name):
            log.asked.append(f"{name}?")
            return "x is a vector" if name == "quick" and call.x.dim() == 1 else None

        def run(call, name=name):
            log.asked.append(name)
            return call.x * call.factor

        module.why_not, module.run = why_not, run
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return log


@pytest.fixture
def op(log):
    class Dispatcher(AutoKernelDispatcher):
        op = "scale_by_modules"
        family = "norm_act"
        backends = {
            BackendType.TRITON: ModuleBackend("turbo_core_test_quick", lambda device: Dispatcher.missing),
            BackendType.TORCH: ModuleBackend("turbo_core_test_plain"),
        }
        defaults = {"gfx950": BackendType.TORCH, "amd": BackendType.TRITON, "cpu": BackendType.TRITON}
        missing = None

        @classmethod
        def precision(cls, call):
            return PrecisionType.BF16_FP16_FP32

    return Dispatcher


def test_a_module_answers_and_runs(op, log):
    x = torch.ones(2, 3)
    assert torch.equal(op.dispatch(Call(x)), 2 * x) and log.asked == ["quick?", "quick"]
    log.asked.clear()
    assert torch.equal(op.dispatch(Call(torch.ones(3))), torch.full((3,), 2.0))
    assert log.asked == ["quick?", "quick?", "plain?", "plain"]


def test_what_it_requires_is_asked_before_it_is_imported():
    backend = ModuleBackend("turbo_core_test_that_is_not_there", lambda device: f"nothing runs on {device.type}")
    assert backend.why_not(Call(torch.ones(1))) == "nothing runs on cpu" and not backend.can_handle(Call(torch.ones(1)))
    with pytest.raises(ModuleNotFoundError):
        ModuleBackend("turbo_core_test_that_is_not_there").why_not(Call(torch.ones(1)))


def test_the_default_is_that_of_the_architecture_before_that_of_the_vendor(op):
    call = Call(torch.ones(2, 3))
    assert op.default_backend(call) is BackendType.TRITON
    with simulated_arch("gfx942"):
        assert op.default_backend(call) is BackendType.TRITON
    with simulated_arch("gfx950"):
        assert op.default_backend(call) is BackendType.TORCH


# --- calls that repeat (`_repeated` is what `dispatch` does on a GPU) -------------------------------------------------


def test_a_call_like_one_before_asks_nobody(op, log):
    x = torch.ones(2, 3)
    assert torch.equal(op._repeated(Call(x), CPU), 2 * x)
    log.asked.clear()
    assert torch.equal(op._repeated(Call(3 * x), CPU), 6 * x) and log.asked == ["quick"]


@pytest.mark.parametrize(
    "other",
    [Call(torch.ones(2, 4)), Call(torch.ones(3, 2).t()), Call(torch.ones(2, 3).double()), Call(torch.ones(2, 3), 3.0)],
    ids=["shape", "strides", "dtype", "value"],
)
def test_another_call_is_asked_for(op, log, other):
    op._repeated(Call(torch.ones(2, 3)), CPU)
    log.asked.clear()
    assert torch.equal(op._repeated(other, CPU), other.x * other.factor) and log.asked == ["quick?", "quick"]


def test_a_changed_setting_is_followed_at_once(op, log, monkeypatch):
    call = Call(torch.ones(2, 3))
    for _ in range(2):
        op._repeated(call, CPU)
    GlobalBackendManager.set_norm_act_backend("torch")
    log.asked.clear()
    op._repeated(call, CPU)
    assert log.asked[-1] == "plain"
    GlobalBackendManager.set_norm_act_backend(None)
    op._repeated(call, CPU)
    assert log.asked[-1] == "quick"
    op.family = "gemm"
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "TORCH")
    op._repeated(call, CPU)
    assert log.asked[-1] == "plain"
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "CK")
    with pytest.raises(BackendUnavailableError, match="CK"):
        op._repeated(call, CPU)
    monkeypatch.delenv("PRIMUS_TURBO_GEMM_BACKEND")
    op._repeated(call, CPU)
    assert log.asked[-1] == "quick"


def test_a_refusal_is_not_kept(op, log):
    op.missing = "not today"
    GlobalBackendManager.set_norm_act_backend("triton")
    with pytest.raises(BackendUnavailableError, match="not today"):
        op._repeated(Call(torch.ones(2, 3)), CPU)
    op.missing = None
    op._repeated(Call(torch.ones(2, 3)), CPU)
    assert log.asked[-1] == "quick"


def test_winners_of_auto_tuning_are_looked_up_each_time(op, log):
    GlobalBackendManager.set_norm_act_backend(auto_tune=True)
    call = Call(torch.ones(2, 3))
    op._repeated(call, CPU)
    assert not op._known
    op._repeated(call, CPU)
    assert log.asked[-2].endswith("?"), "the winner was asked again"


def test_what_is_kept_is_bounded(op):
    op._known.limit = 3
    for size in range(1, 10):
        op._repeated(Call(torch.ones(size, 2)), CPU)
    assert 0 < len(op._known) <= 3


def test_traces_see_every_call(op):
    with trace_dispatch() as trace:
        for _ in range(3):
            op.dispatch(Call(torch.ones(2, 3)))
    assert [record.backend for record in trace.records] == [BackendType.TRITON] * 3


def test_a_module_with_both_runs_what_it_has_no_plan_for(op, log):
    module = sys.modules["turbo_core_test_quick"]
    module.plan = lambda call, facts: (call.x.clone(), []) if call.factor == 1.0 else None
    for factor, asked in ((1.0, ["quick?"]), (2.0, ["quick?", "quick"])):
        for dispatch in (op.dispatch, lambda call: op._repeated(call, CPU)):
            log.asked.clear()
            x = torch.ones(2, 3)
            assert torch.equal(dispatch(Call(x, factor)), factor * x) and log.asked == asked
