# SPDX-License-Identifier: MIT
"""What training loops do to an op, as one matrix that every op and module goes through by being listed.

A wheel lists its ops and modules in ``tests/training_cases.py`` (`OpCase`, `ModuleCase`), and its
``tests/test_training_matrix.py`` makes tests of them:

    from turbo_testing.training import module_matrix, op_matrix

    test_op = op_matrix(__file__)
    test_module = module_matrix(__file__)

A check compares with the plain call of the same op, bit for bit where both compute the same thing, and with the case's
float64 reference where they do not.
"""

from turbo_testing.training.cases import ModuleCase, OpCase, floats
from turbo_testing.training.matrix import MODULE_CHECKS, OP_CHECKS, module_matrix, op_matrix, run_check

__all__ = [
    "MODULE_CHECKS",
    "OP_CHECKS",
    "ModuleCase",
    "OpCase",
    "floats",
    "module_matrix",
    "op_matrix",
    "run_check",
]
