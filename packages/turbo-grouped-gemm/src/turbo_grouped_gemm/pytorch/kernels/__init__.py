# SPDX-License-Identifier: MIT
"""For each op the choice (`*_impl.py`) among its backends: `*_native.py`, `triton/*.py`, `*_reference.py`."""
