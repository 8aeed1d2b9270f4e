# SPDX-License-Identifier: MIT
"""Rows of tile tables: none without a reason; a device's own rows before those of its vendor."""

import pytest

from turbo_core import arch_facts
from turbo_core.tiles import Tile, rows_for


def test_a_row_says_why_it_is_there():
    with pytest.raises(ValueError, match="why it is there"):
        Tile(num_warps=4, why="")


def test_options_of_the_target_join_those_of_every_launch():
    tile = Tile(num_warps=4, why="a test", options=(("waves_per_eu", 2),))
    assert tile.launch_options() == {"num_warps": 4, "num_stages": 1, "waves_per_eu": 2}


def test_an_architecture_comes_before_its_vendor():
    table = {"gfx950": "own", "amd": "all"}
    assert rows_for(table, arch_facts("gfx950")) == "own"
    assert rows_for(table, arch_facts("gfx942")) == "all"
