# SPDX-License-Identifier: MIT
"""Public functions and their `torch.autograd` formulas; they call kernels."""
