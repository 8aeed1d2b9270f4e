# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-attention: a plain program, so that it runs where nothing else is installed."""

import importlib.util
import sys

import turbo_attention


def without_torch() -> None:
    assert "torch" not in sys.modules
    assert dir(turbo_attention)


def with_torch() -> None:
    import turbo_attention.pytorch.kernels
    import turbo_attention.pytorch.modules
    import turbo_attention.pytorch.ops  # noqa: F401


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        without_torch()
        print("turbo-attention: ok without torch")
    else:
        with_torch()
        print("turbo-attention: ok with torch")
