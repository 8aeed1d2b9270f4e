# SPDX-License-Identifier: MIT
"""Public functions and their gradients."""
