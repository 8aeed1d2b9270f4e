# SPDX-License-Identifier: MIT
"""``torch.nn`` modules; they call ops."""
