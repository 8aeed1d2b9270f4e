# SPDX-License-Identifier: MIT
"""Makes memory that nobody wrote show (placeholder)."""
import pytest
@pytest.fixture
def poisoned_allocations():
    yield
