# SPDX-License-Identifier: MIT
"""AutoKernelDispatcher: the order of choice, refusals, the fallback's warning, traces."""

import threading

import pytest
import torch

from turbo_core import (
    AutoKernelDispatcher,
    BackendType,
    BackendUnavailableError,
    GlobalBackendManager,
    PrecisionType,
    logger,
    trace_dispatch,
)
from turbo_core.backend import NOT_BUILT
from turbo_core.environment import FAMILIES
from turbo_core.tune_cache import TuneEntry
from turbo_testing.fake_op import FakeCall, make_backend, make_dispatcher

CALL = FakeCall(torch.ones(2, 3))


def build(default="HIPBLASLT", **refusals):
    """A dispatcher over HIPBLASLT, TRITON and TORCH; a keyword names what a backend answers to why_not."""
    names = ("HIPBLASLT", "TRITON", "TORCH")
    backends = {BackendType[n]: make_backend(n, refuses=refusals.get(n)) for n in names}
    return make_dispatcher(backends, default=BackendType[default])


def test_default_runs_when_nobody_chose():
    assert build().dispatch(CALL) == "HIPBLASLT"
    assert build().resolve(CALL).reason == "default"


@pytest.mark.parametrize("default", ["HIPBLASLT", "TRITON", "TORCH"])
def test_the_default_is_what_the_op_says_wherever_it_stands(default):
    """And where it refuses, the first of the others in the order of the op takes the call."""
    op = build(default=default)
    assert op.dispatch(CALL) == default
    op.backends[BackendType[default]].reason = "not today"
    decision = op.resolve(CALL)
    assert decision.backend.name == ("TRITON" if default == "HIPBLASLT" else "HIPBLASLT")
    assert decision.impl is op.backends[decision.backend]
    assert decision.reason == f"default {default} cannot take the call: not today"


@pytest.mark.parametrize("family", ["gemm", "grouped_gemm", "attn", "sparse_attn", "norm_act", "quant"])
def test_each_op_is_governed_by_its_own_family(family):
    op = build()
    op.family = family
    for other in FAMILIES:
        getattr(GlobalBackendManager, f"set_{other}_backend")("triton")
        assert op.dispatch(CALL) == ("TRITON" if other == family else "HIPBLASLT")
        getattr(GlobalBackendManager, f"set_{other}_backend")(None)


def test_ops_of_two_names_share_no_winners():
    one, two = (make_dispatcher({BackendType.TORCH: make_backend("TORCH")}, name=name) for name in ("one_op", "two_op"))
    again = make_dispatcher({BackendType.TORCH: make_backend("TORCH")}, name="one_op")
    assert one.cache is again.cache is not two.cache


def test_setter_holds_over_variable_and_variable_over_default(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "torch")
    op = build()
    decision = op.resolve(CALL)
    assert (decision.backend, decision.reason) == (BackendType.TORCH, "named by PRIMUS_TURBO_GEMM_BACKEND")
    GlobalBackendManager.set_gemm_backend("triton")
    decision = op.resolve(CALL)
    assert (decision.backend, decision.reason) == (BackendType.TRITON, "set in code")


@pytest.mark.parametrize("variable", ["PRIMUS_TURBO_ATTENTION_BACKEND", "PRIMUS_TURBO_ATTN_BACKEND"])
def test_messages_name_the_variable_that_is_set(monkeypatch, variable):
    op = build(TRITON="x is too small")
    op.family = "attn"
    monkeypatch.setenv(variable, "torch")
    assert op.resolve(CALL).reason == f"named by {variable}"
    monkeypatch.setenv(variable, "triton")
    with pytest.raises(BackendUnavailableError, match=rf"TRITON \(named by {variable}\)"):
        op.dispatch(CALL)


def test_choice_is_per_precision():
    GlobalBackendManager.set_gemm_backend("triton", PrecisionType.FP8)
    op = build()
    assert op.dispatch(CALL) == "HIPBLASLT"
    assert op.dispatch(CALL._replace(precision=PrecisionType.FP8)) == "TRITON"


def test_named_backend_that_cannot_take_the_call_is_an_error_and_nothing_runs():
    op = build(TRITON="x is too small")
    GlobalBackendManager.set_gemm_backend("triton")
    with pytest.raises(BackendUnavailableError, match=r"TRITON \(set in code\).*x is too small.*x \[2, 3\]"):
        op.dispatch(CALL)
    assert all(not impl.calls for impl in op.backends.values())


def test_named_backend_that_the_op_lacks_is_an_error():
    GlobalBackendManager.set_gemm_backend("aiter")
    with pytest.raises(BackendUnavailableError, match="AITER .* does not exist for this op; it has HIPBLASLT, TRITON"):
        build().dispatch(CALL)


def test_fallback_takes_the_next_in_order_and_warns_once_with_the_reason(capfd):
    logger.set_level("WARNING")
    op = build(HIPBLASLT="no GPU here")
    assert [op.dispatch(CALL) for _ in range(3)] == ["TRITON"] * 3
    errors = capfd.readouterr().err
    assert errors.count("fake_op runs on TRITON: default HIPBLASLT cannot take the call: no GPU here") == 1
    assert build(HIPBLASLT="no GPU", TRITON="no triton").dispatch(CALL) == "TORCH"


def test_no_backend_lists_every_reason():
    op = build(HIPBLASLT="first reason", TRITON="second reason", TORCH="third reason")
    with pytest.raises(BackendUnavailableError, match="HIPBLASLT: first reason; TRITON: second.*TORCH: third reason"):
        op.dispatch(CALL)


@pytest.mark.parametrize("setting", ["default", "set in code", "variable", "auto-tuned", "from file"])
def test_a_choice_asks_the_backend_that_runs_once_and_no_other(monkeypatch, setting):
    """What a warm choice may cost: no question that does not matter, no second look at the settings."""
    op, asked, looked = build(), [], []
    for impl in op.backends.values():
        monkeypatch.setattr(impl, "why_not", classmethod(lambda cls, call: asked.append(cls.__name__)))
    if setting == "set in code":
        GlobalBackendManager.set_gemm_backend("triton")
    elif setting == "variable":
        monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "triton")
    elif setting != "default":
        GlobalBackendManager.set_auto_tune(True)
        op.cache.put(op.make_key(CALL), TuneEntry(BackendType.TRITON, 1.0, loaded=setting == "from file"))
    choice = GlobalBackendManager.choice.__func__
    monkeypatch.setattr(
        GlobalBackendManager,
        "choice",
        classmethod(lambda cls, family, precision: (looked.append(family), choice(cls, family, precision))[1]),
    )
    op.dispatch(CALL)
    assert asked == ["HIPBLASLT" if setting == "default" else "TRITON"]
    assert looked == ["gemm"]


def test_reference_must_come_last():
    with pytest.raises(TypeError, match="last backend must be TORCH"):
        make_dispatcher({BackendType.TORCH: make_backend("TORCH"), BackendType.TRITON: make_backend("TRITON")})


def test_can_handle_is_why_not_being_none():
    backend = make_backend("TRITON", refuses="reason")
    assert not backend.can_handle(CALL)
    backend.reason = None
    assert backend.can_handle(CALL)


def test_trace_sees_every_thread_and_nothing_after_the_block():
    op = build()
    with trace_dispatch() as outer, trace_dispatch() as inner:
        op.dispatch(CALL)
        thread = threading.Thread(target=op.dispatch, args=(CALL,))
        thread.start()
        thread.join()
    op.dispatch(CALL)
    assert len(outer.records) == len(inner.records) == 2
    record = outer.records[0]
    assert (record.op, record.role, record.backend) == ("fake_op", "forward", BackendType.HIPBLASLT)
    assert (record.reason, record.call) == ("default", "x [2, 3]")


def test_a_trace_ends_with_its_own_block_and_with_an_error():
    """Also where an outer one has recorded the same so far."""
    op = build()
    with trace_dispatch() as outer:
        with pytest.raises(RuntimeError, match="inside"), trace_dispatch() as inner:
            op.dispatch(CALL)
            raise RuntimeError("inside")
        op.dispatch(CALL)
    op.dispatch(CALL)
    assert (len(inner.records), len(outer.records)) == (1, 2)


def test_records_tell_the_parts_of_an_op_apart():
    op = build()
    op.role = classmethod(lambda cls, call: "dgrad" if call.out is not None else "forward")
    with trace_dispatch() as trace:
        op.dispatch(CALL)
        op.dispatch(CALL._replace(out=torch.zeros(2, 3)))
    assert [record.role for record in trace.records] == ["forward", "dgrad"]


def test_what_an_op_need_not_say():
    """Calls that write nothing, have one part and describe themselves."""
    default = AutoKernelDispatcher
    assert default.scratch(CALL) is CALL
    assert default.role(CALL) == "forward"
    assert default.describe(("x", 3)) == "('x', 3)"


def test_a_call_is_computed_once_and_its_result_returned():
    op = build()
    assert op.dispatch(CALL) == "HIPBLASLT"
    assert [impl.calls for impl in op.backends.values()] == [[CALL], [], []]


@pytest.mark.parametrize("backend", list(NOT_BUILT), ids=lambda backend: backend.name)
def test_a_backend_that_is_not_built_is_refused_with_what_is_missing(monkeypatch, backend):
    op = build()
    op.family = "gemm"
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", backend.name.lower())
    with pytest.raises(BackendUnavailableError) as refusal:
        op.dispatch(CALL)
    assert f"{backend.name} (named by PRIMUS_TURBO_GEMM_BACKEND)" in str(refusal.value)
    assert NOT_BUILT[backend] in str(refusal.value)
    assert list(op.answers(CALL)) == [backend, *op.backends] and op.answers(CALL)[backend] == NOT_BUILT[backend]
    monkeypatch.delenv("PRIMUS_TURBO_GEMM_BACKEND")
    assert list(op.answers(CALL)) == list(op.backends)
