# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-quant: a plain program, so that it runs where nothing else is installed."""

import importlib.util
import sys

import turbo_quant


def without_torch() -> None:
    assert "torch" not in sys.modules
    assert dir(turbo_quant)


def with_torch() -> None:
    import turbo_quant.pytorch.kernels
    import turbo_quant.pytorch.modules
    import turbo_quant.pytorch.ops  # noqa: F401


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-quant: ok without torch")
    else:
        with_torch()
        print("turbo-quant: ok with torch")
