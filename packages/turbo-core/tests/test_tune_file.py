# SPDX-License-Identifier: MIT
"""Saved winners: a round trip, and files that must be refused with a message while the job goes on."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from turbo_core import BackendType, GlobalBackendManager, load_tune_cache, logger, save_tune_cache, tune_file, tuning
from turbo_core.tune_cache import TuneEntry
from turbo_testing.fake_op import FakeCall, make_backend, make_dispatcher

CALL = FakeCall(torch.ones(2, 3, dtype=torch.bfloat16))


@pytest.fixture
def op():
    names = ("HIPBLASLT", "TRITON", "TORCH")
    made = make_dispatcher({BackendType[n]: make_backend(n) for n in names}, name="saved_op")
    GlobalBackendManager.reset()
    GlobalBackendManager.set_auto_tune(True)
    return made


@pytest.fixture
def saved(op, tmp_path):
    """A file with one winner; the cache is empty again."""
    op.cache.put(op.make_key(CALL), TuneEntry(BackendType.TRITON, 1.25))
    path = tmp_path / "winners.json"
    assert save_tune_cache(path) == 1
    op.cache.clear()
    return path


def test_round_trip_serves_without_tuning(monkeypatch, op, saved):
    def never(impl, call):
        raise AssertionError("a loaded winner must not be timed again")

    monkeypatch.setattr(tuning, "measure_milliseconds", never)
    assert load_tune_cache(saved) == 1
    assert op.dispatch(CALL) == "TRITON"
    assert op.resolve(CALL).reason == "auto-tuned winner (from file)"


def test_winners_load_before_their_op_exists(monkeypatch, tmp_path, saved):
    document = json.loads(saved.read_text())
    document["entries"] = {"op_imported_later": document["entries"]["saved_op"]}
    saved.write_text(json.dumps(document))
    assert load_tune_cache(saved) == 1
    late = make_dispatcher(
        {BackendType[n]: make_backend(n) for n in ("HIPBLASLT", "TRITON", "TORCH")}, name="op_imported_later"
    )
    assert late.dispatch(CALL) == "TRITON"


def test_saving_again_keeps_loaded_winners(op, saved, tmp_path):
    load_tune_cache(saved)
    again = tmp_path / "again.json"
    assert save_tune_cache(again) == 1
    assert json.loads(again.read_text())["entries"] == json.loads(saved.read_text())["entries"]


class Crash(BaseException):
    """Stands for the end of the process at that place."""


@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), Crash()], ids=["error", "crash"])
def test_a_save_that_ends_anywhere_before_the_replacement_leaves_the_old_file(monkeypatch, op, saved, place, error):
    """A process that dies cleans nothing up; one that raises leaves no temporary file."""
    before = saved.read_text()
    op.cache.put(op.make_key(CALL), TuneEntry(BackendType.TORCH, 2.5))

    def fail(*args, **kwargs):
        if place == "write":
            args[1].write("half of")
            args[1].flush()
        assert saved.read_text() == before, "written in place"
        raise error

    owner, name = {"write": (json, "dump"), "fsync": (os, "fsync"), "replace": (os, "replace")}[place]
    if isinstance(error, Crash):
        monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: None)
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(type(error)):
        save_tune_cache(saved)
    monkeypatch.undo()
    assert saved.read_text() == before
    assert load_tune_cache(saved) == 1
    if not isinstance(error, Crash):
        assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_what_was_written_is_on_the_disk_before_it_takes_the_place(monkeypatch, op, saved):
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (fsync(handle), steps.append(("fsync", os.fstat(handle).st_size))))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append(("replace",)), replace(*names)))
    save_tune_cache(saved)
    assert steps == [("fsync", saved.stat().st_size), ("replace",)]


def test_a_reader_sees_a_whole_file_at_any_time(op, saved):
    """It reads while files of one and of many winners are written in turn."""
    many = [FakeCall(torch.empty(1, n)) for n in range(1, 400)]
    stop, seen, wrong = threading.Event(), set(), []

    def read():
        while not stop.is_set():
            try:
                seen.add(len(json.loads(saved.read_text())["entries"]["saved_op"]))
            except (OSError, ValueError) as error:
                wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(6):
            for calls in (many, [CALL]):
                op.cache.clear()
                for call in calls:
                    op.cache.put(op.make_key(call), TuneEntry(BackendType.TRITON, 1.25))
                save_tune_cache(saved)
    finally:
        stop.set()
        reader.join()
    assert not wrong and seen and seen <= {1, len(many)}


def test_writers_at_the_same_time_do_not_mix(op, saved):
    """Each has a temporary file of its own."""
    threads = [threading.Thread(target=save_tune_cache, args=(saved,)) for _ in range(8)]
    op.cache.put(op.make_key(CALL), TuneEntry(BackendType.TRITON, 1.25))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_tune_cache(saved) == 1
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_others_may_read_what_they_may_read_otherwise(op, saved):
    other = saved.with_name("other")
    other.write_text("")
    assert saved.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("name", ["torch", "hip", "cuda", "triton", "turbo-core", "turbo-gemm", "amd-aiter"])
@pytest.mark.parametrize("side", ["file", "here", "both"])
def test_a_file_made_with_other_software_is_refused(monkeypatch, capfd, op, saved, name, side):
    """Another version, or one that only the file or only this process has."""
    logger.set_level("WARNING")
    document = json.loads(saved.read_text())
    made, here = dict(document["built_with"]), dict(document["built_with"])
    made[name], here[name] = "1.0", "2.0"
    told = {"file": f"{name} 1.0 -> None", "here": f"{name} None -> 2.0", "both": f"{name} 1.0 -> 2.0"}[side]
    if side != "both":
        del (here if side == "file" else made)[name]
    document["built_with"] = made
    saved.write_text(json.dumps(document))
    monkeypatch.setattr(tune_file, "software_versions", lambda: here)
    assert load_tune_cache(saved) == 0
    assert len(op.cache) == 0
    assert f"was made with other software ({told})" in capfd.readouterr().err


def test_the_software_is_all_that_a_winner_depends_on(monkeypatch):
    found = tune_file.software_versions()
    assert found["torch"] == torch.__version__
    assert (found["hip"], found["cuda"]) == (str(torch.version.hip), str(torch.version.cuda))
    assert found["turbo-core"] == importlib.metadata.version("turbo-core")
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(tune_file, "versions", lambda names: {name: "1" for name in names})
    found = tune_file.software_versions()
    assert found == dict(sorted(found.items()))
    assert (found["hip"], found["cuda"], found["triton"], found["amd-aiter"]) == ("7.1", "13.0", "1", "1")


def test_a_file_is_read_before_torch_was_imported(op, saved):
    """A program may load its winners first; torch's version is part of the file all the same."""
    code = f"from turbo_core import load_tune_cache; print(load_tune_cache({str(saved)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "1", done.stderr


def edited(**changes):
    def edit(text):
        document = json.loads(text)
        document.update(changes)
        return json.dumps(document)

    return edit


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda text: text[: len(text) // 2], "is corrupt"),
        (lambda text: "", "is corrupt"),
        (lambda text: "[]", "is corrupt"),
        (lambda text: text.replace("TRITON", "CUTLASS"), "'CUTLASS' is not a backend"),
        (lambda text: text.replace("1.25", '"fast"'), "is corrupt"),
        (edited(version=0), "has format version 0, this turbo-core reads 1"),
        (edited(format="something else"), "is not an auto-tune cache"),
        (edited(built_with={"torch": "1.0"}), "was made with other software"),
    ],
)
def test_bad_file_is_refused_whole_with_a_message(capfd, op, saved, damage, complaint):
    logger.set_level("WARNING")
    saved.write_text(damage(saved.read_text()))
    assert load_tune_cache(saved) == 0
    assert len(op.cache) == 0
    message = capfd.readouterr().err
    assert complaint in message
    assert str(saved) in message


def test_missing_file_is_refused_with_a_message(capfd, op, tmp_path):
    logger.set_level("WARNING")
    assert load_tune_cache(tmp_path / "nowhere.json") == 0
    assert "cannot be read" in capfd.readouterr().err
