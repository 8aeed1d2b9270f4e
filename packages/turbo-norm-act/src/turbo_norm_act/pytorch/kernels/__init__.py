# SPDX-License-Identifier: MIT
"""Dispatchers and backends."""
