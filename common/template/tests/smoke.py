# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-example: a plain program, so that it runs where nothing else is installed."""

import importlib.util
import sys

import turbo_example


def without_torch() -> None:
    assert "torch" not in sys.modules
    assert dir(turbo_example)


def with_torch() -> None:
    import turbo_example.pytorch.kernels
    import turbo_example.pytorch.modules
    import turbo_example.pytorch.ops  # noqa: F401


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-example: ok without torch")
    else:
        with_torch()
        print("turbo-example: ok with torch")
