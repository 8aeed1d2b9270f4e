# SPDX-License-Identifier: MIT
"""The Turbo training operators behind one import: `import primus_turbo.pytorch as turbo`.

Importing `primus_turbo` itself needs no framework; `primus_turbo.pytorch` is loaded when it is used.
"""

from primus_turbo import planned
from turbo_core.lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    {"common": "primus_turbo.common", "flydsl": "primus_turbo.flydsl", "pytorch": "primus_turbo.pytorch"},
)

planned.register()
