# SPDX-License-Identifier: MIT
"""``python -m turbo_core doctor``: what is installed, what devices there are, and what each op can use here.

It works with nothing but turbo-core installed, and a part that cannot be read becomes a line that says why.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turbo_core.device import device_facts
from turbo_core.environment import AUTO_TUNE_VARIABLE, CHECK_INDICES_VARIABLE, FAMILIES
from turbo_core.explain import explain_calls, find_ops, where_ops_are
from turbo_core.installed import entry_points, foreign_namesake
from turbo_core.log import LEVEL_VARIABLE
from turbo_core.native import device_code, no_device_code
from turbo_core.requirements import require_torch
from turbo_core.tune_file import software_versions

__all__ = ["format_report", "report"]

KERNELS_GROUP = "turbo_core.audit"  # entry points of the wheels with kernels
NATIVE_LIBRARIES = ("libamdhip64.so", "libhipblaslt.so", "librocblas.so")


def report() -> dict[str, Any]:
    """Everything the doctor knows, as plain data (what ``--json`` prints)."""
    try:
        require_torch()
        torch_problem = None
    except ImportError as error:
        torch_problem = str(error)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": software_versions(),
        "problems": [problem for problem in (torch_problem, foreign_namesake()) if problem is not None],
        "environment": _environment(),
        "native_libraries": _native_libraries(),
        "device_code": _device_code(),
        "devices": [] if torch_problem else _devices(),
        "ops": _ops(torch_problem),
    }


def _environment() -> dict[str, str]:
    names = [name for family in FAMILIES.values() for name in family.variables]
    names += [AUTO_TUNE_VARIABLE, CHECK_INDICES_VARIABLE, LEVEL_VARIABLE, "ROCM_HOME", "TRITON_INTERPRET"]
    return {name: os.environ[name] for name in names if name in os.environ}


def _native_libraries() -> dict[str, list[str]]:
    """Where ROCm's libraries are: in torch (which brings its own), ROCM_HOME, or /opt/rocm."""
    folders = [Path(os.environ.get("ROCM_HOME") or "/opt/rocm") / "lib"]
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin:
        folders.insert(0, Path(spec.origin).parent / "lib")
    return {
        library: [str(path) for folder in folders for path in sorted(folder.glob(f"{library}*"))]
        for library in NATIVE_LIBRARIES
    }


def _device_code() -> dict[str, str]:
    """Per wheel with kernels, the architectures that its HIP kernels were compiled for, or why there are none."""
    found = {}
    for wheel in sorted(entry_points(KERNELS_GROUP)):
        package = wheel.replace("-", "_")
        archs = device_code(package)
        found[wheel] = no_device_code(package) or ("not built" if archs is None else ", ".join(archs))
    return found


def _devices() -> list[dict[str, Any]]:
    torch = require_torch()
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["cpu"]
    return [{"device": name, **asdict(device_facts(name))} for name in names]


def _ops(torch_problem: str | None) -> dict[str, Any]:
    """Per op and role, the backend that would run on the current device and every backend's answer."""
    found: dict[str, Any] = {}
    for name, point in find_ops().items():
        if torch_problem is not None:
            found[name] = {"problem": torch_problem}
            continue
        try:
            info = point.load()
            device = require_torch().device("cuda" if require_torch().cuda.is_available() else "cpu")
            explanation = explain_calls(info, info.example(device))
        except Exception as error:  # the doctor reports a broken wheel, it does not break on it
            found[name] = {"problem": f"{type(error).__name__}: {error}"}
            continue
        found[name] = {
            entry.role: {
                "backend": None if entry.backend is None else entry.backend.name,
                "reason": entry.reason,
                "answers": {b.name: why_not or "available" for b, why_not in entry.answers.items()},
            }
            for entry in explanation.entries
        }
    return found


def format_report(facts: dict[str, Any]) -> str:
    """The report as text."""
    lines = [f"Python {facts['python']} on {facts['platform']}"]
    lines += ["", "Versions"] + [f"  {name:<22}{version}" for name, version in facts["versions"].items()]
    lines += [f"  problem: {problem}" for problem in facts["problems"]]
    lines += ["", "Settings"] + [f"  {name}={value}" for name, value in facts["environment"].items()]
    if not facts["environment"]:
        lines.append("  none set: defaults everywhere")
    lines += ["", "Native libraries"]
    lines += [f"  {name:<22}{', '.join(paths) or 'not found'}" for name, paths in facts["native_libraries"].items()]
    if facts["device_code"]:
        lines += ["", "HIP kernels"]
    lines += [f"  {wheel:<22}{archs}" for wheel, archs in facts["device_code"].items()]
    lines += ["", "Devices"]
    for device in facts["devices"]:
        encoding = "FNUZ" if device["fp8_fnuz"] else "OCP"
        lines.append(
            f"  {device['device']:<8}{device['name']}, {device['arch']}, {device['compute_units']} compute units, "
            f"{device['xcds']} XCD, {device['lds_bytes'] // 1024} KiB LDS, FP8 encoding {encoding}"
        )
    if not facts["devices"]:
        lines.append("  unknown without torch")
    lines += ["", "Ops"]
    for op, roles in facts["ops"].items():
        if "problem" in roles:
            lines.append(f"  {op}: {roles['problem']}")
            continue
        for role, entry in roles.items():
            lines.append(f"  {op} {role}: {entry['backend'] or 'no backend'} ({entry['reason']})")
            lines += [f"      {backend:<10} {answer}" for backend, answer in entry["answers"].items()]
    if not facts["ops"]:
        lines.append(f"  {where_ops_are([])} (pip install turbo-gemm, or primus-turbo for all)")
    return "\n".join(lines)
