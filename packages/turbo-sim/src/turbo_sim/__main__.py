# SPDX-License-Identifier: MIT
"""`python -m turbo_sim` is `turbo-sim`."""

import sys

from turbo_sim.cli import main

sys.exit(main())
