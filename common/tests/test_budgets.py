# SPDX-License-Identifier: MIT
"""The check of what tests cost, with made-up durations; and the plugin that measures them."""

import subprocess
import sys

import pytest

from tools.monorepo import wheels
from turbo_testing import budgets
from turbo_testing.budgets import BUDGETS, Budget, Cost, Meter, over, table, wheel_of

MADE_UP = {"turbo-a": Budget(100, 80), "turbo-b": Budget(10, 8)}


def test_every_wheel_has_a_budget():
    assert {wheel.name for wheel in wheels()} == set(BUDGETS) - {"of several wheels"}


@pytest.mark.parametrize(
    "nodeid, name",
    [
        ("packages/turbo-a/tests/test_x.py::test_y[1/2]", "turbo-a"),
        ("packages/turbo-a/tests/deep/test_x.py::test_y", "turbo-a"),
        ("tests-integration/test_x.py::test_y", "of several wheels"),
        ("common/tests/test_x.py::test_y", "of several wheels"),
    ],
)
def test_the_folder_names_the_wheel(nodeid, name):
    assert wheel_of(nodeid) == name


def test_a_budget_leaves_room_but_not_much():
    assert all(budget.measured <= budget.seconds <= 1.5 * budget.measured for budget in BUDGETS.values())


def test_half_past_the_budget_is_too_much():
    costs = {"turbo-a": Cost(5, 149.0), "turbo-b": Cost(2, 15.5), "turbo-new": Cost(1, 999.0)}
    (sentence,) = over(costs, MADE_UP)
    assert sentence == "the tests of turbo-b took 16 s of CPU time, more than 1.5 times their budget of 10 s"
    assert over({"turbo-a": Cost(5, 151.0)}, MADE_UP)


def test_a_slower_machine_has_longer_budgets_and_a_faster_one_no_shorter():
    costs = {"turbo-b": Cost(2, 29.0)}
    assert over(costs, MADE_UP, slower=2.0) == []
    assert over(costs, MADE_UP, slower=0.5) == over(costs, MADE_UP) != []


def test_the_table_shows_each_wheel_beside_its_budget():
    lines = table({"turbo-b": Cost(2, 15.5), "turbo-new": Cost(1, 3.0), "turbo-a": Cost(5, 100.0)}, MADE_UP)
    assert [line.split() for line in lines] == [
        ["wheel", "tests", "CPU", "s", "budget"],
        ["turbo-a", "5", "100", "100"],
        ["turbo-b", "2", "16", "10"],
        ["turbo-new", "1", "3", "none"],
        ["all", "8", "118"],
    ]


def test_a_child_counts_while_it_lives_and_after():
    burn = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\nsys.stdin.read()"
    before = budgets._cpu()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        if sys.platform == "linux":
            assert budgets._cpu() - before >= 0.4
    assert budgets._cpu() - before >= 0.4


class Report:
    def __init__(self, when, seconds, nodeid="packages/turbo-sim/tests/test_x.py::test_y"):
        self.when, self.cpu_seconds, self.nodeid = when, seconds, nodeid


class Session:
    def __init__(self):
        self.exitstatus = pytest.ExitCode.OK


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("factor", [1, 1000])
def test_too_much_fails_the_run_where_it_is_checked(checked, factor):
    meter, session = Meter(checked), Session()
    for when, share in (("setup", 0.2), ("call", 0.5), ("teardown", 0.3)):
        meter.pytest_runtest_logreport(Report(when, share * factor * BUDGETS["turbo-sim"].seconds))
    assert meter.costs["turbo-sim"].tests == 1
    meter.pytest_sessionfinish(session)
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if checked and factor > 1 else pytest.ExitCode.OK)
    assert len(meter.over()) == (checked and factor > 1)
