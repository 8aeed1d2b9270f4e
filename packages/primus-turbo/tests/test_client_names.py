# SPDX-License-Identifier: MIT
"""Every name that training frameworks import from here is there, or says which wheel is to bring it."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from primus_turbo.planned import PLANNED

LINES = [line.split() for line in (Path(__file__).parent / "client_names.txt").read_text().splitlines()]
NEEDED = [name for kind, name in (line for line in LINES if len(line) == 2) if kind == "needed"]
TRIED = [name for kind, name in (line for line in LINES if len(line) == 2) if kind == "tried"]


def to_come(name):
    return next((wheel for planned, wheel in PLANNED.items() if f"{name}.".startswith(f"{planned}.")), None)


def take(name):
    """``from module import attribute``, as clients write it; a module itself by its name."""
    module, _, attribute = name.rpartition(".")
    if not module:
        return importlib.import_module(name)
    scope = {}
    exec(f"from {module} import {attribute}", scope)
    return scope[attribute]


def test_the_list_is_read():
    assert len(NEEDED) == 71 and len(TRIED) == 7 and len(set(NEEDED)) == 71


@pytest.mark.parametrize("name", [name for name in NEEDED if to_come(name) is None])
def test_it_is_there(name):
    assert take(name) is not None


@pytest.mark.parametrize("name", sorted({*PLANNED, *(name for name in NEEDED if to_come(name))}))
def test_what_is_to_come_says_with_which_wheel(name):
    with pytest.raises(ImportError, match=rf"is not there yet: it comes with a later version of {to_come(name)}$"):
        take(name)
    module, _, attribute = name.rpartition(".")
    if module in sys.modules:
        assert not hasattr(sys.modules[module], attribute), "a program that asks first is told no"


@pytest.mark.parametrize("name", TRIED)
def test_what_is_tried_is_there_or_an_import_error(name):
    try:
        take(name)
    except ImportError as error:
        assert name.split(".")[1] in str(error)


def test_attributes_to_come_name_the_wheel():
    import primus_turbo.pytorch as turbo

    for module, name, wheel in (
        (turbo.ops, "tokens_per_expert_to_mask", "turbo-moe"),
        (turbo.modules, "DeepEPTokenDispatcher", "turbo-moe"),
        (turbo, "_C", "turbo-async-tp"),
    ):
        with pytest.raises(AttributeError, match=rf"\.{name} is not there yet: .* {wheel}$"):
            getattr(module, name)


def test_what_nobody_plans_is_an_ordinary_error():
    import primus_turbo.pytorch as turbo

    with pytest.raises(AttributeError, match="module 'primus_turbo.pytorch.ops' has no attribute 'gemn'"):
        turbo.ops.gemn  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="primus_turbo.pytorch.ops.gemn"):
        importlib.import_module("primus_turbo.pytorch.ops.gemn")
    with pytest.raises(ModuleNotFoundError, match="No module named 'primus_turb'"):
        importlib.import_module("primus_turb")


def test_functions_are_not_hidden_by_the_modules_of_their_names():
    """In whatever order modules and functions are asked for."""
    code = (
        "from primus_turbo.pytorch.ops.gemm_fp8 import gemm_fp8\n"
        "import primus_turbo.pytorch.ops.gemm, primus_turbo.pytorch.ops.gemm_fp4\n"
        "import primus_turbo.pytorch as turbo\n"
        "assert callable(turbo.ops.gemm) and callable(turbo.ops.gemm_fp4) and turbo.ops.gemm_fp8 is gemm_fp8\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_constants_need_no_torch():
    code = (
        "import sys\n"
        "from primus_turbo.common.constants import ENV_GEMM_BACKEND, ENV_GROUPED_GEMM_BACKEND, ENV_ATTN_BACKEND\n"
        "from primus_turbo.common.constants import DEFAULT_BLOCK_SIZE, MXFP4_BLOCK_SIZE, MXFP8_BLOCK_SIZE\n"
        "assert (DEFAULT_BLOCK_SIZE, MXFP4_BLOCK_SIZE, MXFP8_BLOCK_SIZE) == (128, 32, 32)\n"
        "assert ENV_GEMM_BACKEND == 'PRIMUS_TURBO_GEMM_BACKEND' and ENV_ATTN_BACKEND == 'PRIMUS_TURBO_ATTN_BACKEND'\n"
        "assert ENV_GROUPED_GEMM_BACKEND == 'PRIMUS_TURBO_GROUPED_GEMM_BACKEND'\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
