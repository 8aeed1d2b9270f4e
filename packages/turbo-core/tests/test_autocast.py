# SPDX-License-Identifier: MIT
"""Autocast decides dtypes where a call comes in; inside, for every backend, it is off."""

from __future__ import annotations

import pytest
import torch

from turbo_core import BackendType, GlobalBackendManager, KernelBackend
from turbo_core.autocast import autocast_dtype, without_autocast
from turbo_testing.fake_op import FakeCall, make_dispatcher

CPU = torch.device("cpu")


def product_dtype() -> torch.dtype:
    """What a product of float32 operands comes out as: autocast's dtype where it is on."""
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


class Product(KernelBackend):
    seen: list[torch.dtype] = []

    @classmethod
    def why_not(cls, call: FakeCall) -> str | None:
        return None

    @classmethod
    def execute(cls, call: FakeCall) -> torch.dtype:
        cls.seen.append(product_dtype())
        return cls.seen[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtype(dtype):
    assert autocast_dtype(CPU) is None
    with torch.autocast("cpu", dtype):
        assert autocast_dtype(CPU) is dtype
        assert autocast_dtype(torch.device("meta")) is None, "meta has no autocast"
        with torch.autocast("cpu", enabled=False):
            assert autocast_dtype(CPU) is None
    assert autocast_dtype(CPU) is None


def test_another_device_is_left_alone():
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(torch.device("meta")):
            assert product_dtype() is torch.bfloat16
        with without_autocast(CPU):
            assert product_dtype() is torch.float32
        assert product_dtype() is torch.bfloat16


def test_backends_run_without_autocast():
    dispatcher = make_dispatcher({BackendType.HIPBLASLT: Product, BackendType.TORCH: Product})
    with torch.autocast("cpu", torch.bfloat16):
        assert dispatcher.dispatch(FakeCall(torch.ones(1))) is torch.float32
        assert product_dtype() is torch.bfloat16, "it is on again behind the call"


def test_tuning_runs_without_autocast():
    dispatcher = make_dispatcher({BackendType.HIPBLASLT: Product, BackendType.TORCH: Product}, name="fake_autocast")
    GlobalBackendManager.set_auto_tune(True)
    Product.seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        dispatcher.dispatch(FakeCall(torch.ones(1)))
    assert len(Product.seen) > 2 and set(Product.seen) == {torch.float32}


def test_it_comes_back_on_after_an_error():
    class Broken(Product):
        @classmethod
        def execute(cls, call: FakeCall) -> torch.dtype:
            raise RuntimeError("broken")

    dispatcher = make_dispatcher({BackendType.HIPBLASLT: Broken, BackendType.TORCH: Broken})
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match="broken"):
            dispatcher.dispatch(FakeCall(torch.ones(1)))
        assert product_dtype() is torch.bfloat16


def test_torch_compile_traces_it():
    def cast(x):
        dtype = autocast_dtype(x.device)
        return x if dtype is None else x.to(dtype)

    compiled = torch.compile(cast, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).dtype is torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert compiled(torch.ones(2)).dtype is dtype
    assert compiled(torch.ones(2)).dtype is torch.float32
