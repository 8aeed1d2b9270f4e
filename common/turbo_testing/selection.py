# SPDX-License-Identifier: MIT
"""Which of the collected tests run: options, opt-in markers, and products of parameters thinned to covering arrays."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from turbo_testing.covering import covering_rows

__all__ = ["MARKERS", "choose"]

_OPT_IN = ("audit_full", "long_build", "all_objects")
_DIST_BASES = {"MultiProcessTestCase", "MultiThreadedTestCase", "MultiProcContinuousTest", "MultiProcContinousTest"}

MARKERS = (
    "deterministic: compares repeated runs bit for bit (selected by --deterministic-only)",
    "dist: runs several ranks (selected by --dist-only)",
    "gpu(count=1): needs that many GPUs, else skipped with the reason",
    "simulated: runs on simulated machine code too, where nox -s test-<arch> finds no card",
    "covering(strength=2, each=(), keep=None): a covering array of the parameters; all without a GPU only with --full",
    "full: repeats on more cases what another test shows; deselected without a GPU, unless --full",
    "audit_full: the long half of the compile audit; deselected unless -m names it",
    "long_build: builds C++ for minutes; deselected unless -m names it",
    "all_objects: disassembles minutes of machine code; deselected unless -m names it",
)


def choose(config: pytest.Config, items: list[pytest.Item], gpus: int) -> tuple[list[pytest.Item], Counter[str]]:
    """The items that run, and how many were left out for which reason."""
    full = config.getoption("--full") or gpus > 0  # a GPU is done with all of it in minutes
    left_out: Counter[str] = Counter()
    kept = []
    for item in items:
        if reason := _why_left_out(config, item, full):
            left_out[reason] += 1
        else:
            kept.append(item)
    if not full:
        covering = _covering(kept)
        left_out["run with --full"] += len(kept) - len(covering)
        kept = covering
    return kept, +left_out


def _why_left_out(config: pytest.Config, item: pytest.Item, full: bool) -> str | None:
    if config.getoption("--deterministic-only") and not item.get_closest_marker("deterministic"):
        return "--deterministic-only"
    if config.getoption("--dist-only") and not _is_dist(item):
        return "--dist-only"
    if item.get_closest_marker("full") and not full:
        return "run with --full"
    expression = config.getoption("markexpr", "") or ""
    for marker in _OPT_IN:
        if item.get_closest_marker(marker) and marker not in expression:
            return f"run with -m {marker}"
    return None


def _is_dist(item: pytest.Item) -> bool:
    if item.get_closest_marker("dist"):
        return True
    cls = getattr(item, "cls", None)
    return cls is not None and any(base.__name__ in _DIST_BASES for base in cls.__mro__)


def _covering(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items, less those of tests marked `covering` that no combination of `strength` values needs.

    The values of the arguments that `each` names share no combination: every one of them gets a covering array of the
    other arguments (a backend, which may be skipped, or an architecture). Items of which `keep(parameters)` is true all
    stay.
    """
    groups: defaultdict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("covering")
        if marker is None or not hasattr(item, "callspec") or item.get_closest_marker("gpu"):
            continue  # thinned where there is no GPU: what needs one is skipped, and stands for nothing
        each = marker.kwargs.get("each", ())
        apart = tuple(id(item.callspec.params[name]) for name in ((each,) if isinstance(each, str) else each))
        groups[item.parent, item.originalname, apart].append(item)  # type: ignore[attr-defined]
    dropped: set[pytest.Item] = set()
    for group in groups.values():
        options = group[0].get_closest_marker("covering").kwargs  # type: ignore[union-attr]
        keep = options.get("keep", lambda parameters: False)
        kept = [number for number, item in enumerate(group) if keep(item.callspec.params)]  # type: ignore[attr-defined]
        chosen = covering_rows([_row(item) for item in group], kept, options.get("strength", 2))
        dropped |= set(group) - {group[row] for row in chosen}
    return [item for item in items if item not in dropped]


def _row(item: pytest.Item) -> list[tuple[int, ...]]:
    """A value for each axis: what one `parametrize` gives, be it one argument or several, or a fixture's parameter.

    Values are told apart by identity: the tests of one product share them.
    """
    params = dict(item.callspec.params)  # type: ignore[attr-defined]
    axes = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        axes.append(tuple(id(params.pop(name)) for name in names if name))
    return [*axes, *((id(value),) for value in params.values())]
