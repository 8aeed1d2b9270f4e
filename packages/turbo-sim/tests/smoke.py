# SPDX-License-Identifier: MIT
"""Smoke test of an installed turbo-sim: a plain program, so that it runs where nothing but numpy is installed."""

import importlib.util
import os

import turbo_sim
from turbo_sim.testing import native

END_OF_PROGRAM = bytes.fromhex("000081bf")  # s_endpgm


def main() -> None:
    for arch in ("gfx942", "gfx950"):
        text = native().disassemble(END_OF_PROGRAM, arch)
        assert "s_endpgm" in str(text), text
    assert os.path.isfile(turbo_sim.library_path()), turbo_sim.library_path()


if __name__ == "__main__":
    main()
    print(f"turbo-sim: ok {'without' if importlib.util.find_spec('torch') is None else 'with'} torch")
