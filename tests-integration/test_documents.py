# SPDX-License-Identifier: MIT
"""What a program can answer stands in the documents as the program answers it, and READMEs of wheels suit an index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tools import documents
from tools.monorepo import ROOT, Wheel, wheels

every_wheel = pytest.mark.parametrize("wheel", wheels(), ids=lambda wheel: wheel.name)


@pytest.mark.parametrize("name", documents.TABLES)
def test_table_is_what_is_true_today(name: str) -> None:
    document, make = documents.TABLES[name]
    assert documents.parts(document, name)[1] == make(), "python -m tools.documents writes it anew"


def test_a_stale_table_is_found_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "README.md"
    document.write_text("before\n<!-- generated x: begin -->\n| old |\n<!-- generated x: end -->\nbehind\n")
    monkeypatch.setattr(documents, "TABLES", {"x": documents.Table(document, lambda: "| new |")})
    assert documents.parts(document, "x")[1] == "| old |"
    assert documents.write("x") and not documents.write("x")
    assert document.read_text() == "before\n<!-- generated x: begin -->\n| new |\n<!-- generated x: end -->\nbehind\n"
    with pytest.raises(ValueError, match="there must be one line <!-- generated y: begin -->"):
        documents.parts(document, "y")


def test_first_of_a_cell_is_what_explain_says() -> None:
    """The table's first backend is the one that `explain` shows on this machine's kind of device."""
    from turbo_core import explain

    rows = {row.split("|")[1].strip(): row.split("|") for row in documents.operators().splitlines()[2:]}
    cell = rows["`gemm`, with bias and wgrad added to `main_grad`"][-2].strip()
    import torch

    assert cell == explain("gemm", torch.ones(4, 4), torch.ones(4, 4)).entries[0].backend.name == "TORCH"
    of_blocks = rows["`gemm_fp8`, one scale a block"]
    assert of_blocks[3].split(",")[0].strip() == "TRITON", "the default of a granularity is its own"
    assert rows["`gemm_fp4`, MXFP4"][3].split(",")[0].strip() == "TRITON"
    assert rows["`gemm_fp4`, MXFP4"][4].split(",")[0].strip() == "TURBO"


@every_wheel
def test_links_of_a_wheels_readme_work_on_a_package_index(wheel: Wheel) -> None:
    """An index shows the README without the repository around it: files there are named, not linked."""
    text = re.sub(r"```.*?```", "", (wheel.path / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"(?<!`)\]\(([^)\s]+)\)", text)
    assert [link for link in links if not re.match(r"https?://|#", link)] == []


@every_wheel
def test_what_a_readme_names_exists(wheel: Wheel) -> None:
    """Paths in a wheel's README are the wheel's, or the repository's."""
    text = (wheel.path / "README.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:csrc|docs|tests|benchmark|src|examples|tools)/[\w./-]+)`", text)
    assert [path for path in paths if not ((wheel.path / path).exists() or (ROOT / path).exists())] == []


@every_wheel
def test_a_wheel_is_described_in_words_of_its_own(wheel: Wheel) -> None:
    template = (ROOT / "common" / "template" / "pyproject.toml.in").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'^description = "(.*)"', template, re.MULTILINE)
    words = re.escape(pattern).replace("template", r"[\w-]+")
    assert not re.fullmatch(words, wheel.project["description"])


@every_wheel
def test_a_smoke_test_calls_what_the_wheel_is_for(wheel: Wheel) -> None:
    """It names something public of the wheel, and computes."""
    text = (wheel.path / "tests" / "smoke.py").read_text(encoding="utf-8")
    body = text.partition("def with_torch()")[2] or text
    assert f"{wheel.import_name}." in body or "turbo." in body or "native()" in body
    assert "assert" in body, "it must compare what it computed"


def test_readme_begins_with_what_it_is_for_whom_and_what_was_never_run() -> None:
    beginning = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    for words in ("Operators for training", "It is for people who", "No run on AMD hardware yet", "MI300X"):
        assert words in beginning
    assert (
        "H200"
        not in (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("## What there is")[2]
        .partition("## What is checked")[0]
    ), "numbers are in docs/benchmarks.md"


@pytest.mark.parametrize(
    "words", ["breaks on nothing", "rehearsal", "crosses wheels", r"\b[Dd]oor\b", r"is to join", r"\(to come\)"]
)
def test_words_are_plain(words: str) -> None:
    documents_of_users = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmark" / "README.md"]
    documents_of_users += [*(ROOT / "docs").glob("*.md"), *ROOT.glob("packages/*/README.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in documents_of_users
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(words, line)
    ]
    assert found == []
