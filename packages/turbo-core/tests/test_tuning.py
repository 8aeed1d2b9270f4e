# SPDX-License-Identifier: MIT
"""Auto-tuning: who wins, what it may touch, when it must not run, and that ranks agree."""

import threading

import pytest
import torch
import torch.distributed as dist

from turbo_core import BackendType, GlobalBackendManager, UnsupportedError, logger, set_tune_group, tuning
from turbo_core.tune_cache import TuneCache, TuneEntry
from turbo_testing.distributed import RankError, run_ranks
from turbo_testing.fake_op import FakeCall, make_backend, make_dispatcher

CALL = FakeCall(torch.ones(2, 3))


def build(name="fake_op", **options):
    names = ("HIPBLASLT", "TRITON", "TORCH")
    op = make_dispatcher({BackendType[n]: make_backend(n, **options.get(n, {})) for n in names}, name=name)
    op.cache.clear()
    return op


def pretend_times(monkeypatch, **milliseconds):
    """Have the tuner see these times; returns the list of backends that it timed."""
    timed = []

    def measure(impl, call):
        impl.execute(call)
        timed.append(impl.__name__)
        return milliseconds[impl.__name__]

    monkeypatch.setattr(tuning, "measure_milliseconds", measure)
    return timed


def test_fastest_wins_and_is_kept(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    assert [op.dispatch(CALL) for _ in range(3)] == ["TRITON"] * 3
    assert timed == ["HIPBLASLT", "TRITON", "TORCH"]
    assert op.resolve(CALL).reason == "auto-tuned winner (1.000 ms)"


def test_real_clock_finds_the_slow_backend():
    op = build()
    slow = op.backends[BackendType.HIPBLASLT]
    execute = slow.execute.__func__
    slow.execute = classmethod(lambda cls, call: (torch.randn(300, 300) @ torch.randn(300, 300), execute(cls, call))[1])
    GlobalBackendManager.set_gemm_backend(auto_tune=True)
    assert op.dispatch(CALL) in ("TRITON", "TORCH")


def test_noise_does_not_unseat_the_earlier_backend(monkeypatch):
    pretend_times(monkeypatch, HIPBLASLT=1.0, TRITON=0.99, TORCH=0.98)
    GlobalBackendManager.set_auto_tune(True)
    assert build().dispatch(CALL) == "HIPBLASLT"


def test_per_op_setting_and_variable_ask_for_tuning_too(monkeypatch):
    pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    monkeypatch.setenv("PRIMUS_TURBO_GEMM_BACKEND", "autotune")
    assert build().dispatch(CALL) == "TRITON"


def test_named_backend_holds_over_tuning(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    GlobalBackendManager.set_gemm_backend("torch")
    assert build().dispatch(CALL) == "TORCH"
    assert not timed


@pytest.mark.parametrize("how", ["global switch", "per op"])
def test_only_scratch_is_written_while_tuning(how):
    if how == "global switch":
        GlobalBackendManager.set_auto_tune(True)
    else:
        GlobalBackendManager.set_gemm_backend(auto_tune=True)
    op = build()
    out = torch.zeros(2, 3)
    op.dispatch(CALL._replace(out=out))
    assert torch.equal(out, torch.ones(2, 3)), "main_grad must see the one real call and no timed one"


def test_winner_of_a_plain_call_does_not_serve_an_accumulating_one(monkeypatch):
    pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    op.dispatch(CALL)
    pretend_times(monkeypatch, HIPBLASLT=1.0, TRITON=2.0, TORCH=9.0)
    assert op.dispatch(CALL._replace(out=torch.zeros(2, 3))) == "HIPBLASLT"
    assert op.dispatch(CALL) == "TRITON"


def test_cached_winner_is_asked_again(monkeypatch):
    pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    assert op.dispatch(CALL) == "TRITON"
    op.backends[BackendType.TRITON].reason = "it is gone"
    assert op.dispatch(CALL) == "HIPBLASLT"


def test_candidate_that_fails_is_left_out_with_a_message(monkeypatch, capfd):
    logger.set_level("WARNING")
    pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    assert build(TRITON={"fails": True}).dispatch(CALL) == "HIPBLASLT"
    assert "TRITON failed and is left out: RuntimeError('TRITON is broken')" in capfd.readouterr().err


def test_candidates_that_refuse_or_do_not_take_part_are_not_timed(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=0.1)
    GlobalBackendManager.set_auto_tune(True)
    op = build(TRITON={"refuses": "no"}, TORCH={"tunable": False})
    assert op.dispatch(CALL) == "HIPBLASLT"
    assert timed == ["HIPBLASLT"]


def test_deterministic_mode_neither_tunes_nor_uses_winners_of_this_process(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    assert op.dispatch(CALL) == "TRITON"
    torch.use_deterministic_algorithms(True)
    try:
        assert op.dispatch(CALL) == "HIPBLASLT"
        assert op.dispatch(FakeCall(torch.ones(7))) == "HIPBLASLT"
        op.cache.put(op.make_key(CALL), TuneEntry(BackendType.TRITON, 1.0, loaded=True))
        assert op.dispatch(CALL) == "TRITON", "a winner from a file is the same in every run"
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(timed) == 3


def test_capture_and_tracing_do_not_tune(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert op.dispatch(CALL) == "HIPBLASLT"
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert op.dispatch(CALL) == "HIPBLASLT"
    assert not timed
    assert op.dispatch(CALL) == "TRITON"


def test_threads_tune_a_call_once(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    results = []
    threads = [threading.Thread(target=lambda: results.append(op.dispatch(CALL))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["TRITON"] * 8
    assert len(timed) == 3


def test_cache_is_bounded_and_drops_the_least_recently_used(capfd):
    logger.set_level("WARNING")
    cache = TuneCache("bounded", capacity=2)
    first, second = TuneEntry(BackendType.CK, 1.0), TuneEntry(BackendType.TRITON, 2.0)
    cache.put("a", first)
    cache.put("b", second)
    assert cache.get("a") == first
    cache.put("c", second)
    assert ("a" in cache, "b" in cache, "c" in cache, len(cache)) == (True, False, True, 2)
    assert "auto-tune cache of bounded is full (2 entries)" in capfd.readouterr().err


# --- ranks ----------------------------------------------------------------------------------------------------------


def tune_on_rank(rank, world_size, with_group, shapes):
    """Each rank finds another backend fastest; returns what each rank then runs."""
    times = ({"HIPBLASLT": 2.0, "TRITON": 1.0, "TORCH": 9.0}, {"HIPBLASLT": 1.0, "TRITON": 2.0, "TORCH": 9.0})[rank]
    tuning.measure_milliseconds = lambda impl, call: times[impl.__name__]
    GlobalBackendManager.set_auto_tune(True)
    if with_group:
        set_tune_group(dist.group.WORLD)
    op = build()
    return [op.dispatch(FakeCall(torch.ones(shape))) for shape in shapes[rank]]


@pytest.mark.dist
def test_ranks_with_different_timings_choose_alike():
    same = [(2, 3), (4,)]
    assert run_ranks(tune_on_rank, 2, True, [same, same]) == [["TRITON", "TRITON"]] * 2


@pytest.mark.dist
def test_without_a_group_ranks_do_not_tune():
    same = [(2, 3)]
    assert run_ranks(tune_on_rank, 2, False, [same, same]) == [["HIPBLASLT"]] * 2


@pytest.mark.dist
def test_ranks_that_make_different_calls_get_an_error_instead_of_a_hang():
    with pytest.raises(RankError, match="ranks of the tune group make different calls") as error:
        run_ranks(tune_on_rank, 2, True, [[(2, 3)], [(4,)]])
    assert isinstance(error.value.__cause__, UnsupportedError)
