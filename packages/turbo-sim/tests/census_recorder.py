# SPDX-License-Identifier: MIT
"""pytest plugin that notes which instructions each test makes the simulator execute.

    pytest -n 0 -p census_recorder --census-out executed.json packages/turbo-sim/tests

Writes {"test_file.py::test": {"gfx950": [mnemonic, ...]}}. It sees what goes through the compiled module, not through
the HIP library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turbo_sim.testing import native

_executed: dict[str, set[str]] = {}


def base(text: str) -> str:
    """The mnemonic of an instruction's text without the suffix that names its encoding."""
    return re.sub(r"(_e32|_e64|_dpp|_sdwa)$", "", text.split()[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--census-out", metavar="FILE", help="where to write which instructions each test executed")


def pytest_configure(config: pytest.Config) -> None:
    module = native()
    run_wave, launch = module.run_wave, module.launch

    def recorded_run_wave(arch: str, code: bytes, *args: Any, **options: Any) -> Any:
        result = run_wave(arch, code, *args, **options)
        _executed.setdefault(arch, set()).update(base(text) for _, _, text in module.disassemble(code, arch))
        return result

    def recorded_launch(code: Any, *args: Any, **options: Any) -> Any:
        report = launch(code, *args, **options)
        texts = code.instruction_texts()
        names = {base(text) for (_, text), count in zip(texts, report.pc_counts) if count}
        _executed.setdefault(code.arch, set()).update(names)
        return report

    module.run_wave, module.launch = recorded_run_wave, recorded_launch
    config.stash[_RESULT] = {}


_RESULT: pytest.StashKey[dict[str, dict[str, list[str]]]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _executed.clear()
    result = yield  # a test that fails shows nothing
    if _executed:
        _, _, test = item.nodeid.partition("::")
        item.config.stash[_RESULT][f"{item.path.name}::{test}"] = {
            arch: sorted(names) for arch, names in _executed.items()
        }
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if out := session.config.getoption("--census-out"):
        Path(out).write_text(json.dumps(session.config.stash[_RESULT], indent=1))
