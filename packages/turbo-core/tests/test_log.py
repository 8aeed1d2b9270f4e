# SPDX-License-Identifier: MIT
"""The logger: level from the environment, messages printed once, messages of one rank."""

import pytest
import torch.distributed as dist

from turbo_core import UnsupportedError
from turbo_core.log import TurboLogger
from turbo_testing.distributed import run_ranks


def fresh(name):
    return TurboLogger(f"turbo_log_test_{name}")


def test_default_level_is_warning(capfd, monkeypatch):
    monkeypatch.delenv("PRIMUS_TURBO_LOG_LEVEL", raising=False)
    log = fresh("default")
    log.info("quiet")
    log.warning("heard %d", 1)
    assert capfd.readouterr().err == "[turbo_log_test_default] WARNING: heard 1\n"


def test_level_from_the_environment(capfd, monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_LOG_LEVEL", "debug")
    fresh("environment").debug("heard")
    assert "DEBUG: heard" in capfd.readouterr().err


def test_each_method_has_its_level(capfd, monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_LOG_LEVEL", "DEBUG")
    log = fresh("methods")
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("text %s", name)
    told = [f"[turbo_log_test_methods] {name.upper()}: text {name}" for name in ("debug", "info", "warning", "error")]
    assert capfd.readouterr().err.splitlines() == told


@pytest.mark.parametrize("level", ["error", "ERROR", 40])
def test_level_in_code_holds_over_the_environment(capfd, monkeypatch, level):
    monkeypatch.setenv("PRIMUS_TURBO_LOG_LEVEL", "DEBUG")
    log = fresh(f"code_{level}")
    log.set_level(level)
    log.warning("quiet")
    log.error("heard")
    assert capfd.readouterr().err == f"[turbo_log_test_code_{level}] ERROR: heard\n"


def test_two_loggers_of_a_name_print_a_message_once_and_leave_the_root_alone(capfd, caplog):
    for _ in range(2):
        fresh("twice").warning("text")
    assert capfd.readouterr().err.count("text") == 2
    assert not caplog.records, "it goes to stderr and to nobody else"


@pytest.mark.parametrize("options", [{}, {"once": True}, {"rank": 0}])
def test_a_message_that_is_not_printed_is_not_counted_as_said(capfd, options):
    log = fresh(f"silent_{'_'.join(options)}")
    log.set_level("ERROR")
    log.warning("text", **options)
    log.set_level("WARNING")
    log.warning("text", **options)
    assert capfd.readouterr().err.count("text") == 1


def test_bad_level_is_quoted(monkeypatch):
    monkeypatch.setenv("PRIMUS_TURBO_LOG_LEVEL", "loud")
    with pytest.raises(UnsupportedError, match="PRIMUS_TURBO_LOG_LEVEL='loud': accepted levels are DEBUG"):
        fresh("bad").warning("anything")


def test_once_counts_the_finished_message(capfd):
    log = fresh("once")
    for value in (1, 1, 2):
        log.error("value %d", value, once=True)
    assert capfd.readouterr().err.splitlines() == [f"[turbo_log_test_once] ERROR: value {v}" for v in (1, 2)]
    log.forget_once()
    log.error("value %d", 1, once=True)
    assert "value 1" in capfd.readouterr().err


def test_percent_sign_without_arguments(capfd):
    fresh("percent").error("100 % sure", once=True)
    assert "100 % sure" in capfd.readouterr().err


def test_outside_a_job_the_rank_is_zero(capfd):
    fresh("rank").error("zero", rank=0)
    fresh("rank").error("one", rank=1)
    assert "zero" in (err := capfd.readouterr().err)
    assert "one" not in err


def speak(rank, world_size):
    heard = []
    log = fresh("ranks")
    log._ready().handle = lambda record: heard.append(record.getMessage())
    log.error("from rank one only", rank=1)
    assert dist.get_world_size() == world_size
    return heard


@pytest.mark.dist
def test_message_of_one_rank():
    assert run_ranks(speak, 2) == [[], ["from rank one only"]]
