# SPDX-License-Identifier: MIT
"""Makes the helper modules of this folder importable (asm_kernels, triton_sample), and finds the amd-aiter wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def aiter_wheel(pytestconfig: pytest.Config) -> Path:
    """The amd-aiter wheel, whose code objects are hand-written kernels."""
    given = pytestconfig.getoption("--aiter-wheel", default=None)
    if given is None:
        pytest.skip("no amd-aiter wheel (--aiter-wheel; nox -s tests and test-turbo-sim fetch it)")
    return Path(given)
