# SPDX-License-Identifier: MIT
"""Loads the shared pytest plugin (common/turbo_testing/plugin.py) for every test of the repository."""

pytest_plugins = ("turbo_testing.plugin",)
