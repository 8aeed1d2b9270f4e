# SPDX-License-Identifier: MIT
"""`torch.nn.Module` wrappers; they call ops."""
