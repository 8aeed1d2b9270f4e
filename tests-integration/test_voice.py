# SPDX-License-Identifier: MIT
"""No file speaks of one machine or a private registry, and the documents name commands that exist."""

import ast
import os
import re
from pathlib import Path

import pytest

from tools.monorepo import ROOT, wheels

# In pieces, so that this file does not find itself.
FORBIDDEN = [
    "/" + "work/",
    "shared/" + "DESIGN",
    "shared/" + "STYLE",
    "shared/" + "TRAPS",
    "--index" + "-url",
    "--extra-index" + "-url",
    "trusted" + "-host",
    "/home/" + "[a-z]",
    "/root/" + "[.a-z]",
]
SKIPPED = {"dist", "build", "__pycache__", "venv"}
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".cfg",
    ".yml",
    ".yaml",
    ".json",
    ".csv",
    ".sh",
    ".hip",
    ".cpp",
    ".h",
    ".cmake",
    "",
}


def text_files(*suffixes: str) -> list[Path]:
    wanted = set(suffixes) or TEXT
    found = []
    for folder, subfolders, files in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if name == ".ci" or not (name.startswith(".") or name in SKIPPED)]
        found += [Path(folder, name) for name in files if Path(name).suffix in wanted]
    return sorted(found)


def test_no_file_speaks_of_one_machine():
    pattern = re.compile("|".join(FORBIDDEN))
    hits = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := pattern.search(line):
                hits.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert not hits, "\n".join(hits)


def session_names() -> set[str]:
    names = {f"test-{wheel.name}" for wheel in wheels()}
    for node in ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body:
        for decorator in getattr(node, "decorator_list", []):
            if ast.unparse(decorator).startswith("nox.session"):
                keywords = getattr(decorator, "keywords", [])
                given = [ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "name"]
                names.add(given[0] if given else node.name)
    return names


def test_the_sessions_are_those_that_were_promised():
    promised = {"quickstart", "tests", "lint", "build", "isolation", "new-wheel", "test-gfx942", "test-gfx950"}
    assert promised <= session_names()


@pytest.mark.parametrize("path", text_files(".md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_sessions_and_programs_that_exist(path):
    text = path.read_text(encoding="utf-8")
    named = {name for name in re.findall(r"\bnox (?:-s|--session) ([\w-]+)", text) if not name.endswith("-")}
    assert named <= session_names()
    for program in re.findall(r"\bpython3? ([\w./-]+\.py)\b", text):
        assert (ROOT / program).is_file() or (path.parent / program).is_file(), f"{program} does not exist"


@pytest.mark.parametrize("path", text_files(".md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_documents_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"link to {target}"
