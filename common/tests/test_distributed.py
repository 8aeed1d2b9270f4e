# SPDX-License-Identifier: MIT
"""run_ranks: results by rank, and each way to fail is told apart and named."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from turbo_testing.distributed import RankError, run_ranks

pytestmark = pytest.mark.dist
SLEEP = 60  # seconds, many times what anything here takes on a busy machine


@dataclass
class Box:
    """A class of this test module travels both ways."""

    value: torch.Tensor


def total(rank, world_size, box):
    t = box.value + rank
    dist.all_reduce(t)
    return Box(t), rank, world_size


def fails_on_one(rank, world_size):
    if rank == 1:
        raise KeyError("the wrong one")
    dist.barrier()


def fails_while_the_other_sleeps(rank, world_size, awoken):
    if rank == 0:
        raise ValueError("at once")
    time.sleep(SLEEP)
    Path(awoken).touch()


def dies(rank, world_size):
    if rank == 0:
        os._exit(7)
    dist.barrier()


def hangs_here(rank, world_size):
    if rank == 1:
        time.sleep(SLEEP)
    return rank


def skips(rank, world_size):
    pytest.skip("not on a Monday")


def returns_a_lambda(rank, world_size):
    return lambda: None


def environment(rank, world_size):
    return os.environ.get("TURBO_TESTING_PROBE")


def interpreted_add(rank, world_size):
    from turbo_testing import interpreter

    return interpreter.install_if_requested()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_results_come_back_by_rank(world_size):
    results = run_ranks(total, world_size, Box(torch.ones(3)))
    expected = torch.full((3,), world_size + sum(range(world_size)), dtype=torch.float32)
    assert [r[1:] for r in results] == [(rank, world_size) for rank in range(world_size)]
    assert all(type(r[0]) is Box and torch.equal(r[0].value, expected) for r in results)


def test_exception_keeps_rank_traceback_and_cause():
    with pytest.raises(RankError, match="rank 1 of 2 failed") as caught:
        run_ranks(fails_on_one, 2, timeout=30)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in fails_on_one" in str(caught.value) and "the wrong one" in str(caught.value)


def test_a_failure_does_not_wait_for_the_others(tmp_path):
    with pytest.raises(RankError, match="at once"):
        run_ranks(fails_while_the_other_sleeps, 2, str(tmp_path / "awoken"), timeout=2 * SLEEP)
    assert not (tmp_path / "awoken").exists()


def test_a_dead_rank_is_named_with_its_exit_code():
    with pytest.raises(RankError, match=r"exit code 7") as caught:
        run_ranks(dies, 2, timeout=30)
    assert caught.value.rank == 0


def test_a_hang_names_the_rank_and_shows_where():
    with pytest.raises(RankError, match=r"no answer from ranks \[1\] of 2 within 8 s") as caught:
        run_ranks(hangs_here, 2, timeout=8)  # for the other to start and to answer: a tenth of a second, when idle
    assert "in hangs_here" in str(caught.value)


def test_skip_in_a_rank_skips_the_test():
    with pytest.raises(pytest.skip.Exception, match="not on a Monday"):
        run_ranks(skips, 2)


def test_a_result_that_cannot_travel_is_an_error():
    with pytest.raises(RankError, match="cannot be pickled"):
        run_ranks(returns_a_lambda, 1)


def test_a_local_function_is_refused():
    def local(rank, world_size):
        return rank

    for fn in (local, lambda rank, world_size: rank):
        with pytest.raises(ValueError, match="top of a module"):
            run_ranks(fn, 1)


def test_children_see_the_environment_of_the_moment(monkeypatch):
    for value in ("one", "two"):
        monkeypatch.setenv("TURBO_TESTING_PROBE", value)
        assert run_ranks(environment, 1) == [value]


def test_a_child_has_the_interpreter_patch_when_this_process_has_it():
    from turbo_testing import interpreter

    assert run_ranks(interpreted_add, 1) == [interpreter.install_if_requested()]


@pytest.mark.gpu(count=2)
def test_nccl_uses_one_gpu_a_rank():
    results = run_ranks(on_gpu, 2, backend="nccl")
    assert results == [(0, 3.0), (1, 3.0)]


def on_gpu(rank, world_size):
    t = torch.full((4,), rank + 1.0, device="cuda")
    dist.all_reduce(t)
    return t.device.index, t[0].item()
