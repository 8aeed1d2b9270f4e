# SPDX-License-Identifier: MIT
"""What the Triton kernels of several wheels share. Importing a module of it imports triton."""
