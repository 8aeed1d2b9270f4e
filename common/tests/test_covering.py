# SPDX-License-Identifier: MIT
"""Covering arrays hold every pair, are small, are always the same ones, and keep what they are told to."""

import itertools

import pytest

from turbo_testing.covering import covering_rows


def combinations(rows, strength):
    return {c for row in rows for c in itertools.combinations(enumerate(row), strength)}


@pytest.mark.parametrize(
    "sizes, strength, at_most",
    [
        ((3, 3, 3), 2, 12),
        ((4, 3, 3, 2, 2), 2, 16),
        ((5, 2), 2, 10),
        ((2,) * 7, 2, 10),
        ((3, 3, 3, 3), 3, 45),
        ((4,), 2, 4),
    ],
)
def test_every_combination_in_few_rows(sizes, strength, at_most):
    rows = list(itertools.product(*map(range, sizes)))
    chosen = [rows[row] for row in covering_rows(rows, strength=strength)]
    assert combinations(chosen, min(strength, len(sizes))) == combinations(rows, min(strength, len(sizes)))
    assert len(chosen) <= at_most
    assert covering_rows(rows, strength=strength) == covering_rows(rows, strength=strength)


def test_what_the_rows_lack_is_not_asked_for():
    rows = [(a, b) for a in range(3) for b in range(3) if a != b]
    assert covering_rows(rows) == list(range(len(rows)))


def test_rows_that_are_kept_count():
    rows = list(itertools.product(range(2), repeat=3))
    chosen = covering_rows(rows, kept=[5, 6])
    assert {5, 6} <= set(chosen) and len(chosen) < len(rows)
    assert combinations([rows[row] for row in chosen], 2) == combinations(rows, 2)
    assert covering_rows([]) == []
