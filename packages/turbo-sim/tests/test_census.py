# SPDX-License-Identifier: MIT
"""Every instruction that real kernels use has a handler, and a test executes it.

census.tsv lists them: base mnemonic, architectures, and one test that executes it. The mnemonics are those of 352
Triton kernels and of all code objects of the amd-aiter wheel, as llvm-objdump shows them; tools/census.py finds the
tests anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from turbo_sim.testing import native, why_no_assembler

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    mnemonic: str
    archs: tuple[str, ...]
    test: str


def rows() -> list[Row]:
    lines = [line for line in (HERE / "census.tsv").read_text().splitlines() if line and not line.startswith("#")]
    parts = [line.split("\t") for line in lines]
    return [Row(mnemonic, tuple(archs.split(",")), test) for mnemonic, archs, test in parts]


def test_the_lists_are_whole() -> None:
    found = rows()
    count = {arch: sum(arch in row.archs for row in found) for arch in ("gfx942", "gfx950")}
    assert count == {"gfx942": 318, "gfx950": 330} and len(found) == len({row.mnemonic for row in found}) == 353


def test_every_mnemonic_has_a_handler() -> None:
    assert [row.mnemonic for row in rows() if not native().implemented(row.mnemonic)] == []
    assert not native().implemented("v_cubeid_f32"), "a mnemonic without one is told apart"


def test_the_table_of_inferred_semantics_names_instructions_that_have_handlers() -> None:
    """csrc/isa/unverified.def: every name has a handler and is there once; "as X" leads to another row."""
    text = re.sub(r"//.*", "", (HERE.parent / "csrc" / "isa" / "unverified.def").read_text())
    table = dict(re.findall(r'UNVERIFIED\(\s*(\w+),\s*"([^"]+)', text))
    assert len(table) == text.count("UNVERIFIED(") > 100, "a name twice, or a row that is not read"
    assert [name for name in table if not native().implemented(name)] == []
    others = {name: m[1] for name, reason in table.items() if (m := re.match(r"as (\w+)", reason))}
    assert {name: other for name, other in others.items() if other not in table} == {}


@pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))
def test_every_mnemonic_is_executed_by_the_test_that_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed")
    tests = sorted({row.test for row in rows()})
    out = tmp_path / "executed.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "census_recorder"]
    run = subprocess.run(
        [*command, "--census-out", str(out), *tests], env=environment, cwd=HERE, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    executed = json.loads(out.read_text())
    assert [row for row in rows() if not any(row.mnemonic in n for n in executed.get(row.test, {}).values())] == []
