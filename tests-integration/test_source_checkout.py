# SPDX-License-Identifier: MIT
"""The tools of turbo-core where the wheels are not installed and their src folders are on PYTHONPATH."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.monorepo import wheels

PROGRAM = """
import json, torch
from turbo_core import UnsupportedError, explain
from turbo_core.doctor import report

a = torch.empty(128, 64, dtype=torch.bfloat16)
entries = explain("gemm", a, a, trans_b=True).entries
try:
    explain("no_op")
except UnsupportedError as error:
    refusal = str(error)
facts = report()
print(json.dumps({
    "entries": [[entry.role, entry.backend.name] for entry in entries],
    "refusal": refusal,
    "versions": facts["versions"],
    "ops": {name: "problem" in roles for name, roles in facts["ops"].items()},
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The installed packages without the wheels of this repository."""
    folder = tmp_path_factory.mktemp("site")
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if "turbo" not in entry.name and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def run(*path, program=PROGRAM):
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRITON", "TURBO"))}
    environment = {**keep, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_every_op_of_every_wheel_is_explained(site):
    done = run(*(wheel.path / "src" for wheel in wheels()), site)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["entries"] == [["forward", "TORCH"], ["dgrad", "TORCH"], ["wgrad", "TORCH"]]
    assert "there are: " in found["refusal"] and "gemm" in found["refusal"]
    for wheel in wheels():
        assert found["versions"][wheel.name] == wheel.project["version"]
        for op in wheel.project.get("entry-points", {}).get("turbo_core.ops", {}):
            assert found["ops"][op] is False, f"{op} is a problem of the doctor"


def test_sources_without_their_project_are_named(site, tmp_path):
    """A copy of the packages alone: nothing says which ops they have, and the message says that."""
    for wheel in wheels():
        if wheel.name in ("turbo-core", "turbo-gemm", "turbo-quant"):
            (tmp_path / wheel.import_name).symlink_to(wheel.source)
    done = run(tmp_path, site)
    assert done.returncode != 0
    message = done.stderr.splitlines()[-1]
    assert "op='gemm' is not an op of an installed wheel; there are none" in message
    assert f"Nothing says which ops are in {tmp_path / 'turbo_gemm'}, {tmp_path / 'turbo_quant'}: " in message
