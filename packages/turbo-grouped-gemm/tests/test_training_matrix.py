# SPDX-License-Identifier: MIT
"""What training loops do to the ops and modules of `training_cases.py`."""

from turbo_testing.training import module_matrix, op_matrix

test_op = op_matrix(__file__)
test_module = module_matrix(__file__)
