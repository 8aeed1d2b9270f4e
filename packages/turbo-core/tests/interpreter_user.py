# SPDX-License-Identifier: MIT
"""A user's process with TRITON_INTERPRET=1, run by test_interpreter.py: says when the interpreter is mended."""

import importlib.util
import json
from pathlib import Path

import torch

import turbo_core

_SPEC = importlib.util.spec_from_file_location("interpreter_probe", Path(__file__).with_name("interpreter_probe.py"))
probe = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(probe)


def wrong() -> list[str]:
    """The probes that are wrong now."""
    return [name for name, right in probe.PROBES.items() if not right()]


if __name__ == "__main__":
    torch.manual_seed(0)
    after_import = wrong()
    answer = turbo_core.why_no_triton(torch.device("cpu"))
    print(json.dumps({"after import": after_import, "answer": answer, "after the question": wrong()}))
