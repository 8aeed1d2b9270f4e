# SPDX-License-Identifier: MIT
"""Command line: ``python -m turbo_core doctor [--json]``."""

from __future__ import annotations

import argparse
import json

from turbo_core.doctor import format_report, report


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m turbo_core", description="Tools of the Turbo operators.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="versions, devices, and which backend each op can use here")
    doctor.add_argument("--json", action="store_true", help="print plain data instead of text")
    options = parser.parse_args(arguments)
    facts = report()
    print(json.dumps(facts, indent=2) if options.json else format_report(facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
