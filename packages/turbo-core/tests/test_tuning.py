# SPDX-License-Identifier: MIT
"""Auto-tuning: who wins, what it may touch, when it must not run, and that ranks agree."""

import dataclasses
import threading
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from turbo_core import (
    BackendType,
    GlobalBackendManager,
    UnsupportedError,
    logger,
    set_tune_group,
    simulated_arch,
    tuning,
)
from turbo_core.tune_cache import TuneCache, TuneEntry, key_text
from turbo_core.tuning import call_key
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


@pytest.mark.parametrize(("ask", "kept"), [("a", {"a", "d"}), ("b", {"b", "d"}), (None, {"c", "d"})])
def test_what_was_asked_for_last_stays(capfd, ask, kept):
    """Of three entries, two of which have to go when the fourth and fifth come."""
    cache = TuneCache("recent", capacity=3)
    entry = TuneEntry(BackendType.CK, 1.0)
    for key in "abc":
        cache.put(key, entry)
    for key in (ask, ask):
        assert cache.get(key) is (None if key is None else entry)
    cache.put("d", entry)
    cache.put("e", entry)
    assert kept <= {key for key in "abcde" if key in cache} and len(cache) == 3


def test_what_was_put_again_stays(capfd):
    cache = TuneCache("put again", capacity=2)
    for key, milliseconds in (("a", 1.0), ("b", 1.0), ("a", 2.0), ("c", 1.0)):
        cache.put(key, TuneEntry(BackendType.CK, milliseconds))
    assert cache.get("a").milliseconds == 2.0 and "b" not in cache


def test_winners_of_a_file_join_when_they_are_asked_for():
    cache = TuneCache("from a file")
    records = [{"key": ["a", n], "backend": "CK", "milliseconds": n} for n in (1, 2)]
    cache.add_records(records)
    assert len(cache) == 2 and ("a", 1) in cache and ("a", 3) not in cache
    assert cache.get(("a", 3)) is None
    assert cache.get(("a", 1)) == cache.get(("a", 1)) == TuneEntry(BackendType.CK, 1.0, loaded=True)
    assert len(cache) == 2 and cache.to_records() == [records[1], records[0]], "the one asked for was used last"
    cache.discard(("a", 1))
    assert cache.get(("a", 1)) is None and cache.to_records() == [records[1]]


def test_of_a_file_with_too_many_the_last_are_taken():
    cache = TuneCache("small", capacity=2)
    cache.add_records([{"key": [n], "backend": "TRITON", "milliseconds": 1.0} for n in range(5)])
    assert [(n,) in cache for n in range(5)] == [False, False, False, True, True]


def test_a_full_cache_says_so_once(capfd):
    logger.set_level("WARNING")
    cache = TuneCache("full one", capacity=1)
    for key in range(5):
        cache.put(key, TuneEntry(BackendType.CK, 1.0))
    assert capfd.readouterr().err.count("full one is full (1 entries)") == 1


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


# --- keys -----------------------------------------------------------------------------------------------------------


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
    keys = [call_key(CPU, "forward", made) for made in (call, Outer(Inner(torch.zeros(2, 3))), other)]
    assert keys[0] == keys[1] != keys[2] and hash(keys[0]) == hash(keys[1])
    texts = [key_text(key) for key in keys]
    assert texts[0] == texts[1] != texts[2]
    assert "tensor(" not in texts[0]


def test_a_key_tells_roles_and_devices_apart():
    call = Outer(Inner(torch.ones(2, 3)))
    keys = {call_key(CPU, role, call) for role in ("forward", "dgrad")}
    for arch in ("gfx942", "gfx950"):
        with simulated_arch(arch) as facts:
            keys.add(call_key(CPU, "forward", call))
        renamed = dataclasses.replace(facts, name="another part")
        with mock.patch.object(tuning, "device_facts", return_value=renamed):
            keys.add(call_key(CPU, "forward", call))
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
