# SPDX-License-Identifier: MIT
"""Saved winners: a round trip, and files that must be refused with a message while the job goes on."""

import json

import pytest
import torch

from turbo_core import BackendType, GlobalBackendManager, load_tune_cache, logger, save_tune_cache, tuning
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


def test_a_failed_save_leaves_the_old_file(monkeypatch, op, saved):
    before = saved.read_text()
    monkeypatch.setattr(json, "dump", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_tune_cache(saved)
    assert saved.read_text() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


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
