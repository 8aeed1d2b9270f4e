# SPDX-License-Identifier: MIT
"""Makes the helper modules of this folder importable (asm_kernels, triton_sample)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
