# SPDX-License-Identifier: MIT
"""Command line: ``python -m turbo_core doctor`` and ``python -m turbo_core audit``."""

from __future__ import annotations

import argparse
import json
import sys

from turbo_core import audit as audits
from turbo_core import doctor as doctors
from turbo_core.errors import UnsupportedError
from turbo_core.installed import entry_points
from turbo_core.native import no_device_code
from turbo_core.requirements import require_torch, require_triton


def doctor(options: argparse.Namespace) -> int:
    """Print the doctor's report."""
    facts = doctors.report()
    print(json.dumps(facts, indent=2) if options.json else doctors.format_report(facts))
    return 0


def audit(options: argparse.Namespace) -> int:
    """Print the audit's table; 1 when a kernel failed or there was none to audit, 2 when it could not begin."""
    try:
        if entry_points(audits.ENTRY_POINT_GROUP):  # the lists of kernels need both, of which a wheel brings neither
            require_torch()
            require_triton()
        rows = list(audits.audit(full=options.full, archs=options.arch or audits.ARCHS, wheels=options.wheel))
    except (ImportError, UnsupportedError) as error:
        print(f"python -m turbo_core audit: {error}", file=sys.stderr)
        return 2
    if not rows:
        print("no wheel with kernels is installed: pip install turbo-gemm, or primus-turbo for all", file=sys.stderr)
    print(json.dumps(audits.to_json(rows), indent=2) if options.json else audits.format_table(rows))
    for wheel in options.wheel or sorted(entry_points(audits.ENTRY_POINT_GROUP)):
        if reason := no_device_code(wheel.replace("-", "_")):
            print(f"no HIP kernels: {reason}", file=sys.stderr)
    return 0 if rows and not any(row.failures for row in rows) else 1


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m turbo_core", description="Tools of the Turbo operators.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("doctor", help="versions, devices, and which backend each op can use here")
    command.set_defaults(run=doctor)
    command.add_argument("--json", action="store_true", help="print plain data instead of text")
    command = commands.add_parser("audit", help="registers, spills and LDS of every kernel on gfx942 and gfx950")
    command.set_defaults(run=audit)
    command.add_argument("--json", action="store_true", help="print plain data instead of a table")
    command.add_argument("--full", action="store_true", help="every configuration, not a representative part")
    command.add_argument("--arch", action="append", choices=audits.ARCHS, help="one architecture (may be repeated)")
    command.add_argument("--wheel", action="append", help="one wheel (may be repeated)")
    options = parser.parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    raise SystemExit(main())
