# SPDX-License-Identifier: MIT
"""Lengths of groups: they add up, and are spread as their names say."""

from __future__ import annotations

import pytest

from turbo_testing.group_lens import GROUP_LENS, group_lens


@pytest.mark.parametrize("kind", GROUP_LENS)
@pytest.mark.parametrize(("groups", "rows"), [(1, 7), (8, 4096), (256, 32768), (33, 1001), (5, 2), (4, 0), (0, 0)])
def test_they_add_up(kind: str, groups: int, rows: int) -> None:
    lens = group_lens(kind, groups, rows)
    assert len(lens) == groups and sum(lens) == rows and all(length >= 0 for length in lens)


def test_they_are_spread_as_their_names_say() -> None:
    assert group_lens("balanced", 4, 4096) == [1024] * 4
    assert set(group_lens("balanced", 7, 100)) == {14, 15}
    zipf = sorted(group_lens("zipf", 8, 32768), reverse=True)
    assert zipf[0] == pytest.approx(8 * zipf[-1], rel=0.01) and zipf[0] == pytest.approx(2 * zipf[1], rel=0.01)
    assert sorted(group_lens("one-takes-all", 8, 4096)) == [0] * 7 + [4096]
    assert sorted(group_lens("many-empty", 8, 4096)) == [0] * 6 + [2048] * 2


@pytest.mark.parametrize("kind", ["zipf", "one-takes-all", "many-empty"])
def test_the_seed_decides_which_groups(kind: str) -> None:
    first, again, other = (group_lens(kind, 64, 6400, seed) for seed in (1, 1, 2))
    assert first == again != other and sorted(first) == pytest.approx(sorted(other), abs=1)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="lens 'even' are unknown; there are balanced, zipf"):
        group_lens("even", 4, 8)
    with pytest.raises(ValueError, match="3 rows need a group"):
        group_lens("balanced", 0, 3)
