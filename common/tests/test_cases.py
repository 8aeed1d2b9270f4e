# SPDX-License-Identifier: MIT
"""cases: one module for each wheel, loaded by path, and errors that say what is there."""

import pytest

from turbo_testing import cases


def wheel(root, name, text):
    folder = root / name / "tests"
    folder.mkdir(parents=True)
    (folder / "cases.py").write_text(text)


def test_two_wheels_have_two_modules_and_each_is_loaded_once(tmp_path):
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Case:\n    m: int\n\nCASES = [Case({})]\n"
    )
    wheel(tmp_path, "turbo-probe-one", text.format(1))
    wheel(tmp_path, "turbo-probe-two", text.format(2))
    one, two = (cases.load(name, tmp_path) for name in ("turbo-probe-one", "turbo-probe-two"))
    assert (one.CASES[0].m, two.CASES[0].m) == (1, 2)
    assert cases.load("turbo-probe-one", tmp_path) is one


def test_a_missing_file_names_the_wheels_that_have_one(tmp_path):
    wheel(tmp_path, "turbo-there", "")
    with pytest.raises(FileNotFoundError, match=r"turbo-absent.*\['turbo-there'\]"):
        cases.load("turbo-absent", tmp_path)


def test_a_broken_file_is_not_kept(tmp_path):
    wheel(tmp_path, "turbo-broken", "raise RuntimeError('first')\n")
    with pytest.raises(RuntimeError, match="first"):
        cases.load("turbo-broken", tmp_path)
    (tmp_path / "turbo-broken" / "tests" / "cases.py").write_text("X = 1\n")
    assert cases.load("turbo-broken", tmp_path).X == 1


def test_one_name_never_stands_for_two_files(tmp_path):
    wheel(tmp_path / "a", "turbo-same", "X = 1\n")
    wheel(tmp_path / "b", "turbo-same", "X = 2\n")
    assert cases.load("turbo-same", tmp_path / "a").X == 1
    with pytest.raises(ImportError, match="is taken by"):
        cases.load("turbo-same", tmp_path / "b")


def test_the_real_wheels_load():
    found = sorted(path.parts[-3] for path in (cases.REPOSITORY / "packages").glob("*/tests/cases.py"))
    for name in found:
        assert cases.load(name) is cases.load(name)
    if not found:
        pytest.skip("no wheel has a cases.py yet")
