# SPDX-License-Identifier: MIT
"""A launch as what the audit compiles: positions are the kernel's, whatever order a plan names its arguments in."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from turbo_core.launch import Launch  # noqa: E402


def test_positions_are_the_kernels():
    kernel = SimpleNamespace(arg_names=["x", "n", "scale", "stride", "one", "BLOCK", "DEFAULT"])
    x = torch.empty(4, device="meta")
    arguments = dict(stride=32, one=1, scale=0.5, n=7, x=x)
    signature = Launch(kernel, (1,), arguments, dict(BLOCK=64)).signature()
    assert list(signature.types) == ["x", "n", "scale", "stride", "one", "BLOCK"]
    assert signature.types["x"] == "*fp32" and signature.types["n"] == "i32" and signature.types["scale"] == "fp32"
    assert signature.constants == {"one": 1, "BLOCK": 64}
    assert set(signature.attributes) == {(0,), (3,)}  # x and stride are multiples of 16
