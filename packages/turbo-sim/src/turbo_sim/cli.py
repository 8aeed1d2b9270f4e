# SPDX-License-Identifier: MIT
"""turbo-sim on the command line.

turbo-sim info    kernel.hsaco
turbo-sim run     kernel.hsaco -k NAME --grid 4 --block 256 --arg in:x.npy --arg out:y.npy:f32[1024] --arg i32:1024
turbo-sim profile kernel.hsaco ... [--json]
turbo-sim profile --arch gfx950 script.py ...    every kernel that a Python script launches through Triton or HIP
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from turbo_sim import __version__
from turbo_sim.arguments import Argument, pack, parse
from turbo_sim.arguments import __doc__ as ARGUMENTS
from turbo_sim.session import ARCHS, CHECKS, use
from turbo_sim.tables import profile_table


def _native() -> ModuleType:
    from turbo_sim._native import module

    return module


def _dim(text: str) -> tuple[int, int, int]:
    numbers = [int(n) for n in text.replace("x", ",").split(",")]
    if not 1 <= len(numbers) <= 3:
        raise argparse.ArgumentTypeError(f"{text!r}: one to three numbers, such as 4 or 4,2")
    return (numbers + [1, 1])[0], (numbers + [1, 1])[1], (numbers + [1, 1])[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "turbo-sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"turbo-sim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="kernels of a code object, and what of it cannot be simulated")
    info.add_argument("file", type=Path)
    info.add_argument("--arch", default="", choices=["", *ARCHS], help="which entry of an offload bundle")
    for name, text in (
        ("run", "run a kernel and report findings"),
        ("profile", "run a kernel, or a script, and print what it costs"),
    ):
        command = commands.add_parser(
            name, help=text, epilog=ARGUMENTS, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("file", type=Path, help="code object, or a Python script (profile)")
        command.add_argument("-k", "--kernel", default="", help="name; may be left out where there is one")
        command.add_argument("--grid", type=_dim, default=(1, 1, 1), help="work-groups")
        command.add_argument("--block", type=_dim, default=(64, 1, 1), help="work-items of a work-group")
        command.add_argument("--shared", type=int, default=0, help="dynamic LDS, bytes")
        command.add_argument("--arg", action="append", default=[], help="one kernel argument, see below")
        command.add_argument("--arch", default="", choices=["", *ARCHS])
        command.add_argument("--checks", default="all", help=f"all, none, or a list of {', '.join(CHECKS)}")
        command.add_argument("--threads", type=int, default=0)
        command.add_argument("--seed", type=int, default=0, help="not 0: interleave waves at random")
        command.add_argument("--max-steps", type=int, default=0)
        command.add_argument("--json", action="store_true")
        command.add_argument("--hot", type=int, default=12, help="hot instructions in the table")
        command.add_argument("script_arguments", nargs="*", help=argparse.SUPPRESS)
    return parser


def _checks(text: str) -> bool | list[str]:
    return True if text == "all" else False if text == "none" else text.split(",")


def _info(options: argparse.Namespace) -> int:
    code = _native().CodeObject.load(options.file.read_bytes(), options.arch)
    print(f"{options.file}: {code.arch}, {len(code.kernels)} kernels")
    for k in code.kernels:
        print(f"\n{k.name}")
        print(
            f"  registers: {k.total_vgprs} allocated ({k.vgpr_count} VGPRs, {k.agpr_count} AGPRs), "
            f"{k.sgpr_count} SGPRs; "
            f"spills {k.vgpr_spills} + {k.sgpr_spills}; scratch {k.scratch_bytes} bytes; "
            f"LDS {k.lds_bytes} bytes (static)"
        )
        print(f"  work-group: at most {k.max_workgroup or 1024}; arguments: {k.kernarg_bytes} bytes")
        for a in k.args:
            if not a.kind.startswith("hidden_"):
                print(f"    {a.offset:4} {a.size:3}  {a.kind} {a.name}")
    unsupported = code.unsupported()
    for offset, reason in unsupported[:50]:
        print(f"  not simulated: pc {offset:#x}: {reason}")
    print(
        f"\n{len(unsupported)} instructions cannot be simulated"
        if unsupported
        else "\nevery instruction can be simulated"
    )
    return 1 if unsupported else 0


def _launch(options: argparse.Namespace, costs: bool) -> tuple[Any, Any, list[Argument]]:
    native = _native()
    code = native.CodeObject.load(options.file.read_bytes(), options.arch)
    names = [k.name for k in code.kernels]
    name = options.kernel or (names[0] if len(names) == 1 else "")
    if name not in names:
        raise ValueError(f"--kernel: one of {', '.join(names)}")
    kernel = code.kernels[names.index(name)]
    arguments = [parse(text) for text in options.arg]
    layout = [(a.offset, a.size) for a in kernel.args if not a.kind.startswith("hidden_")]
    # Triton's kernels end with two scratch pointers that nobody names.
    arguments += [Argument("ptr:0", value=bytes(8)) for _, size in layout[len(arguments) :] if size == 8]
    if layout and len(arguments) != len(layout):
        raise ValueError(f"kernel {name} takes {len(layout)} arguments, {len(arguments)} were given")
    memory = [(a.buffer.ctypes.data, a.buffer.nbytes, a.text) for a in arguments if a.buffer is not None]
    report = native.launch(
        code, name, options.grid, options.block, pack(arguments, layout), shared=options.shared,
        checks=_checks(options.checks), memory=memory,
        threads=options.threads, seed=options.seed, max_steps=options.max_steps, costs=costs,
    )  # fmt: skip
    for a in arguments:
        if a.save_to is not None and a.buffer is not None:
            np.save(a.save_to, a.buffer)
    return code, report, arguments


def _run(options: argparse.Namespace) -> int:
    _, report, _ = _launch(options, costs=False)
    findings = [str(f) for f in report.findings]
    if options.json:
        print(
            json.dumps(
                {"kernel": report.kernel, "wave_instructions": report.instructions, "findings": findings}, indent=1
            )
        )
    else:
        print(
            f"{report.kernel}: {report.instructions:,} wave-instructions, {report.waves:,} waves, "
            f"{len(findings)} findings"
        )
        print("\n".join(findings))
    return 1 if findings else 0


def _profile_script(options: argparse.Namespace) -> list[dict[str, Any]]:
    sys.argv = [str(options.file), *options.script_arguments]
    sys.path.insert(0, str(options.file.resolve().parent))
    settings = dict(
        checks=_checks(options.checks), costs=True, findings="keep", threads=options.threads, seed=options.seed
    )
    with use(options.arch or "gfx950", max_steps=options.max_steps, **settings) as session:
        runpy.run_path(str(options.file), run_name="__main__")
        return session.profiles()


def _profile(options: argparse.Namespace) -> int:
    if options.file.suffix == ".py":
        profiles = _profile_script(options)
    else:
        code, report, _ = _launch(options, costs=True)
        profiles = [json.loads(_native().profile_json(code, report, max(options.hot, 20)))]
    if options.json:
        print(json.dumps(profiles, indent=1))
    else:
        print("\n\n".join(profile_table(p, options.hot) for p in profiles))
    return 1 if any(p["findings"] for p in profiles) else 0


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        return {"info": _info, "run": _run, "profile": _profile}[options.command](options)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"turbo-sim: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
