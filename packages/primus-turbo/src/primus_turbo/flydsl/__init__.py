# SPDX-License-Identifier: MIT
"""Names under which code asks for kernels written in FlyDSL; Turbo's own compute them."""
