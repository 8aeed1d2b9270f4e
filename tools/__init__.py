# SPDX-License-Identifier: MIT
"""What the nox sessions and the integration tests share; never shipped.

`monorepo`, `devenv` and `new_wheel` need only the standard library, because the noxfile imports them on a machine
that has nothing but nox. `wheelhouse` runs in the development environment.
"""
