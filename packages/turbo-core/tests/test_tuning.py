# SPDX-License-Identifier: MIT
"""Auto-tuning: who wins, what it may touch, when it must not run, and that ranks agree."""

import threading

import pytest
import torch
import torch.distributed as dist

from turbo_core import (
    BackendType,
    GlobalBackendManager,
    UnsupportedError,
    logger,
    set_tune_group,
    tuning,
)
from turbo_core.tune_cache import TuneEntry
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


@pytest.mark.parametrize(
    ("triton", "torch_", "winner"),
    [(0.99, 0.98, "HIPBLASLT"), (0.975, 0.96, "TORCH"), (0.96, 0.94, "TRITON"), (0.96, 0.92, "TORCH")],
)
def test_noise_does_not_unseat_the_earlier_backend(monkeypatch, triton, torch_, winner):
    """Three percent faster than the best before it."""
    pretend_times(monkeypatch, HIPBLASLT=1.0, TRITON=triton, TORCH=torch_)
    GlobalBackendManager.set_auto_tune(True)
    assert build().dispatch(CALL) == winner


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
    for owner, name in ((torch.compiler, "is_compiling"), (torch.jit, "is_tracing")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda: True)
            assert op.dispatch(CALL) == "HIPBLASLT"
    assert not timed
    assert op.dispatch(CALL) == "TRITON"


def test_threads_tune_a_call_once(monkeypatch):
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    together = threading.Barrier(8)  # all have found nothing before the first tunes
    monkeypatch.setattr(tuning, "why_not_tune", lambda: (together.wait(60), None)[1])
    results = []
    threads = [threading.Thread(target=lambda: results.append(op.dispatch(CALL))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["TRITON"] * 8
    assert len(timed) == 3


def test_a_winner_of_a_backend_that_the_op_lacks_is_forgotten(monkeypatch):
    """From a file of a version in which the op had it."""
    timed = pretend_times(monkeypatch, HIPBLASLT=2.0, TRITON=1.0, TORCH=9.0)
    GlobalBackendManager.set_auto_tune(True)
    op = build()
    op.cache.put(op.make_key(CALL), TuneEntry(BackendType.CK, 1.0, loaded=True))
    assert op.dispatch(CALL) == "HIPBLASLT" and not timed
    assert op.make_key(CALL) not in op.cache
    assert op.dispatch(CALL) == "TRITON"


def test_nothing_is_kept_where_nothing_could_be_timed(monkeypatch):
    pretend_times(monkeypatch)
    GlobalBackendManager.set_auto_tune(True)
    op = build(HIPBLASLT={"tunable": False}, TRITON={"tunable": False}, TORCH={"tunable": False})
    assert op.dispatch(CALL) == "HIPBLASLT"
    assert len(op.cache) == 0


def test_why_nothing_is_timed_is_told_once(monkeypatch, capfd):
    logger.set_level("INFO")
    GlobalBackendManager.set_auto_tune(True)
    op = build("untimed_op")
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            op.dispatch(CALL)
    finally:
        torch.use_deterministic_algorithms(False)
        logger.set_level("WARNING")
    assert capfd.readouterr().err.count("untimed_op is not auto-tuned: torch is in deterministic mode") == 1


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


def tune_in_a_part(rank, world_size, members):
    """The ranks of ``members`` tune as a group of their own, the others do nothing."""
    group = dist.new_group(members)
    if rank not in members:
        return None
    fastest = {0: "HIPBLASLT", 1: "TORCH", 2: "TRITON"}[rank]
    tuning.measure_milliseconds = lambda impl, call: 1.0 if impl.__name__ == fastest else 2.0
    GlobalBackendManager.set_auto_tune(True)
    set_tune_group(group)
    return build().dispatch(FakeCall(torch.ones(2, 3)))


@pytest.mark.dist
@pytest.mark.parametrize(
    ("members", "expected"), [([1, 2], [None, "TORCH", "TORCH"]), ([0, 2], ["HIPBLASLT", None, "HIPBLASLT"])], ids=str
)
def test_a_group_of_some_ranks_follows_its_own_first(members, expected):
    assert run_ranks(tune_in_a_part, 3, members) == expected


def ask_for_a_group_of_others(rank, world_size):
    group = dist.new_group([0])
    try:
        set_tune_group(group)
    except UnsupportedError as error:
        return str(error)
    return tuning._group is group


@pytest.mark.dist
def test_a_group_without_this_rank_is_refused():
    assert run_ranks(ask_for_a_group_of_others, 2) == [
        True,
        "set_tune_group: group does not hold this rank; give a group that does, or None",
    ]


def tune_on_a_rank_that_fails(rank, world_size):
    GlobalBackendManager.set_auto_tune(True)
    set_tune_group(dist.group.WORLD)
    op = build()

    def out_of_memory(call):
        raise MemoryError("no room for scratch outputs")

    op.scratch = out_of_memory
    try:
        return op.dispatch(CALL)
    except MemoryError as error:
        return str(error)


@pytest.mark.dist
def test_ranks_do_not_wait_for_the_winner_of_one_that_failed():
    assert run_ranks(tune_on_a_rank_that_fails, 2) == ["no room for scratch outputs", "HIPBLASLT"]
