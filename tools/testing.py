# SPDX-License-Identifier: MIT
"""How the sessions run pytest: on how many workers, and what a run for one architecture consists of."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from tools.monorepo import ROOT, wheels

MOST_CPU_WORKERS = 8  # each worker holds a torch of its own: about 400 MB

# Wheels with ops to test per architecture: not the core, not the meta-package, not the developer's tools.
NO_OPS = frozenset({"turbo-core", "primus-turbo", "turbo-sim"})

FIND_DEVICES = """
import torch
from turbo_core import device_facts
for index in range(torch.cuda.device_count()):
    facts = device_facts(f"cuda:{index}")
    print(facts.arch, facts.name, sep="\\t")
"""


@dataclass(frozen=True)
class Device:
    arch: str
    name: str


def devices(python: str) -> list[Device]:
    """The GPUs that the interpreter's torch sees; asks no torch where the kernel knows of no GPU at all."""
    if not any(os.path.exists(node) for node in ("/dev/kfd", "/dev/nvidiactl", "/dev/dxg")):
        return []
    found = subprocess.run([python, "-c", FIND_DEVICES], capture_output=True, text=True, cwd=ROOT)
    if found.returncode:
        raise RuntimeError(f"the GPUs could not be asked for their architecture:\n{found.stderr.strip()}")
    return [Device(*line.split("\t")) for line in found.stdout.splitlines()]


def workers(python: str, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """pytest-xdist's options and the environment that goes with them.

    One worker per GPU, or one per core without a GPU, unless the arguments say otherwise. Work is stolen, since tests
    take from a millisecond to many seconds.
    """
    schedule = [] if _has(arguments, "--dist") else ["--dist", "worksteal"]
    if _has(arguments, "-n", "--numprocesses", "--pdb", "-s", "--collect-only", "--co", "--dist-only"):
        return schedule, {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = len(devices(python))
    count = gpus or min(cores, MOST_CPU_WORKERS)
    if count < 2:
        return schedule, {}
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // count))}
    return ["-n", str(count), *schedule], threads


def names_tests(arguments: list[str]) -> bool:
    """True when the arguments name files or folders of tests, which then replace the session's own choice."""
    takes_value = {
        "-k",
        "-m",
        "-n",
        "-p",
        "-o",
        "-c",
        "-W",
        "--aiter-wheel",
        "--dist",
        "--deselect",
        "--ignore",
        "--junitxml",
        "--rootdir",
    }
    previous = ""
    for argument in arguments:
        path = argument.split("::")[0]
        if not argument.startswith("-") and previous not in takes_value and (ROOT / path).exists():
            return True
        previous = argument
    return False


def _has(arguments: list[str], *options: str) -> bool:
    def same(argument: str, option: str) -> bool:
        if option == "-n":
            return argument.startswith("-n")
        return argument == option or argument.startswith(option + "=")

    return any(same(argument, option) for argument in arguments for option in options)


@dataclass(frozen=True)
class ArchPlan:
    """What `nox -s test-<arch>` does on this machine: the line that says so, and the pytest runs.

    A run is (options, paths, environment beside that of the plan).
    """

    line: str
    runs: list[tuple[list[str], list[str], dict[str, str]]]
    environment: dict[str, str]


def arch_plan(arch: str, found: list[Device], arguments: list[str] | None = None) -> ArchPlan:
    """On the card where there is one; else what can be shown of `arch` without it.

    An audit is a file `test_*audit*.py` whose test ids hold the architecture's name. Tests with the marker `simulated`
    run on simulated machine code. Tests that the arguments name replace the choice.
    """
    folders = [wheel.path / "tests" for wheel in wheels() if wheel.name not in NO_OPS]
    ops = [str(folder.relative_to(ROOT)) for folder in folders]
    options: list[str] = []
    simulated: list[tuple[list[str], list[str], dict[str, str]]] = []
    cards = [index for index, device in enumerate(found) if device.arch == arch]
    if cards:
        count = f"{len(cards)} x " if len(cards) > 1 else ""
        line = f"{arch}: {count}{found[cards[0]].name} is here: the op tests run on the card"
        others = len(cards) < len(found)
        environment = {"HIP_VISIBLE_DEVICES": ",".join(map(str, cards))} if others else {}
    else:
        here = ", ".join(sorted({f"{device.name} ({device.arch})" for device in found})) or "no GPU"
        line = (
            f"{arch}: no such card here ({here}): turbo-sim executes the wheels' HIP and Triton kernels as {arch} "
            f"machine code on the CPU, the kernels are compiled for {arch} and audited, and the op tests run on the "
            f"CPU, Triton's in its interpreter with the choices made for {arch}"
        )
        compiled = {"TRITON_INTERPRET": "0"}  # the simulator runs compiled kernels
        simulated = [
            (["-k", arch], ["packages/turbo-sim/tests/simulated/test_wheels.py"], compiled),
            (["--simulate", arch, "-m", "simulated"], ops, compiled),
        ]
        options = ["-p", "tools.arch_plugin"]
        environment = {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "", "TURBO_TEST_ARCH": arch}
    if names_tests(arguments or []):
        return ArchPlan(line, [(options, [], {})], environment)

    audits = sorted(str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("test_*audit*.py"))
    runs = [*simulated, *([(["-k", arch], audits, {})] if audits else [])]
    runs.append(([*options, *(f"--ignore={path}" for path in audits)], ops, {}))
    return ArchPlan(line, runs, environment)
