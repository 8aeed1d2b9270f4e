# SPDX-License-Identifier: MIT
"""The matrix itself: cases by checks by backends, as parametrised tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from turbo_core import BackendUnavailableError, GlobalBackendManager, why_no_triton
from turbo_testing.cases import load_file
from turbo_testing.training import checks_autograd, checks_compile, checks_modules, checks_state, checks_transforms
from turbo_testing.training.cases import ModuleCase, OpCase, plain
from turbo_testing.training.checks_state import state_unchanged

__all__ = ["MODULE_CHECKS", "OP_CHECKS", "load_training_cases", "module_matrix", "op_matrix", "run_check"]

OP_CHECKS = {
    **checks_autograd.CHECKS,
    **checks_state.CHECKS,
    **checks_transforms.CHECKS,
    **checks_compile.CHECKS,
}
MODULE_CHECKS = checks_modules.CHECKS

SETTERS = ("gemm", "grouped_gemm", "attn", "sparse_attn", "norm_act", "quant")

# What a backend can get wrong by itself; all else is the op's, whatever the backend, and Triton's interpreter is slow.
OF_BACKENDS = (
    "values", "repeat", "no_rows", "subsets", "gradient_layouts", "input_layouts", "second_derivatives", "streams",
    "graph_capture",
)  # fmt: skip


# What a check needs of a case to be one: without it there is nothing to look at.
GRADIENTS = (
    "subsets", "partial_gradients", "gradient_layouts", "unused_outputs", "writes_in_between", "tensor_hooks",
    "accumulation", "func_grad", "vjp", "second_derivatives", "per_sample_gradients", "compiled_autograd",
    "checkpoint_non_reentrant", "checkpoint_reentrant", "checkpoint_selective", "saved_tensors", "save_on_cpu",
)  # fmt: skip
NUMBERS = ("compile_numbers", "number_types")
GPU = ("streams", "graph_capture")


def applies(check: str, case: OpCase | ModuleCase) -> bool:
    """Whether ``case`` has what ``check`` looks at."""
    if isinstance(case, ModuleCase):
        return check != "stock" or case.stock is not None
    if check in GRADIENTS:
        return bool(case.gradients)
    if check in NUMBERS:
        return bool(case.numbers)
    if check in ("values", "one_row"):
        return case.reference is not None
    return check != "promotion" or bool(case.mixed)


def load_training_cases(tests: Path) -> Any:
    """The module ``training_cases.py`` of a wheel's tests folder."""
    return load_file(tests / "training_cases.py", f"training_cases_of_{tests.parent.name.replace('-', '_')}")


def name_backend(backend: str) -> None:
    """Every family of ops runs on ``backend``; ``default`` leaves the choice to the ops."""
    for setter in SETTERS if backend != "default" else ():
        getattr(GlobalBackendManager, f"set_{setter}_backend")(backend)


def run_check(name: str, case: OpCase | ModuleCase, device: torch.device) -> None:
    """One check of one case; the settings of torch must be left as they were."""
    if isinstance(case, OpCase):
        with state_unchanged():
            OP_CHECKS[name](case, device)
        return
    with state_unchanged(), torch.random.fork_rng(devices=[]):  # making a module draws numbers
        MODULE_CHECKS[name](case, device)


def _parameters(cases: list[Any], checks: dict[str, Any], backends: tuple[str, ...]) -> Iterator[Any]:
    for case in cases:
        unknown = set(case.without) - set(checks)
        if unknown:
            raise ValueError(f"{case.id}: without names {sorted(unknown)}, which are no checks")
        for check, backend in itertools.product(checks, backends):
            if applies(check, case) and (backend == "default" or check in OF_BACKENDS):
                reason = case.without.get(check)
                marks = [pytest.mark.skip(reason=f"{case.id}: {reason}")] if reason else []
                if check in GPU:
                    marks.append(pytest.mark.gpu)
                yield pytest.param(case, check, backend, id=f"{case.id}-{check}-{backend}", marks=marks)


def op_matrix(test_file: str) -> Callable[..., None] | None:
    """The test of every op that the wheel of ``test_file`` lists; None where it lists none."""
    cases = load_training_cases(Path(test_file).parent).OPS
    if not cases:
        return None

    @pytest.mark.parametrize("case, check, backend", list(_parameters(cases, OP_CHECKS, ("default", "TRITON"))))
    def test(case: OpCase, check: str, backend: str, device: torch.device) -> None:
        if backend == "TRITON":
            if reason := why_no_triton(device):
                pytest.skip(f"backend TRITON: {reason}")
            name_backend(backend)
            try:
                plain(case, device)
            except BackendUnavailableError as refusal:
                pytest.skip(f"{case.id}: {refusal}")
        run_check(check, case, device)

    return test


def module_matrix(test_file: str) -> Callable[..., None] | None:
    """The test of every module that the wheel of ``test_file`` lists; None where it lists none."""
    cases = load_training_cases(Path(test_file).parent).MODULES
    if not cases:
        return None

    @pytest.mark.parametrize("case, check, backend", list(_parameters(cases, MODULE_CHECKS, ("default",))))
    def test(case: ModuleCase, check: str, backend: str, device: torch.device) -> None:
        run_check(check, case, device)

    return test
