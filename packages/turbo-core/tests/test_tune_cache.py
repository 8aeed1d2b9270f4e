# SPDX-License-Identifier: MIT
"""The cache of winners: what stays when it is full, and winners of a file in it."""

import pytest

from turbo_core import BackendType, logger
from turbo_core.tune_cache import TuneCache, TuneEntry


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
