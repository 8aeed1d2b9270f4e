# SPDX-License-Identifier: MIT
"""Every method and attribute of torch.Tensor on a `QuantizedTensor`: what its dequantised twin gives, or a refusal.

The calls are generated: each name of torch.Tensor with each of a dozen argument lists. They run in a process of their
own, since what goes wrong with a tensor without memory is a crash.
"""

import copy
import faulthandler
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from turbo_core import UnsupportedError
from turbo_core.low_precision import ScalingGranularity
from turbo_quant import QuantizedTensor

KINDS = {
    "tensorwise": (ScalingGranularity.TENSORWISE, {}),
    "rowwise": (ScalingGranularity.ROWWISE, {"axis": -1}),
    "blockwise": (ScalingGranularity.BLOCKWISE, {"axis": -2, "block_size": 2}),
    "mx": (ScalingGranularity.MX_BLOCKWISE, {"axis": -1}),
}
# a class's own, not a tensor's
_OF_THE_CLASS = {"__class__", "__class_getitem__", "__delattr__", "__dict__", "__doc__", "__getattribute__", "__init__",
                 "__init_subclass__", "__module__", "__new__", "__setattr__", "__subclasshook__", "__weakref__",
                 "__annotations__", "__slots__"}  # fmt: skip
# one object's own, or of memory that nobody wrote: called, not compared
_NOT_COMPARED = {"__dir__", "__dlpack_c_exchange_api__", "__getstate__", "__hash__", "__reduce_ex__", "__repr__",
                 "__sizeof__", "__str__", "_cdata", "_python_dispatch", "_reduce_ex_internal", "_use_count", "_version",
                 "new", "new_empty", "new_empty_strided", "real_dtype", "untyped_storage", "_view_func",
                 "_view_func_unsafe", "_rev_view_func_unsafe", "dequantize"}  # fmt: skip


def make(kind):
    """A tensor [4, 4] whose values FP8 holds exactly, quantised; and its twin."""
    granularity, options = KINDS[kind]
    x = torch.tensor([[7.0, 1, -2, 0.5], [7, -3, 0, 4], [-7, 6, 5, 2.5], [7, -0.25, 1.5, 3]])
    if kind == "blockwise":
        x[:2] = x[:2].sign() * 3.5
    q = QuantizedTensor.quantize(x, torch.float8_e4m3fn, granularity, **options)
    return q, q.dequantize().clone()


def arguments():
    """Lists of arguments; together they suit most methods. New ones for each call, since a call may write to them."""
    ones = torch.ones(4, 4)
    index = torch.tensor([[0, 1, 2, 0]] * 4)  # exact in FP8
    return [
        (), (0,), (1,), (-1,), (0, 1), (2.0,), ([16],), ((2, 8),), (ones,), (ones, ones), (index,), (0, index),
        (0, index[0]), (torch.float16,), (torch.float64,), ("cpu",), (torch.ones(4),), (0, index, ones),
        (ones > 0,), (ones > 0, 2.0), (lambda *values: values[0],), (0, 0, 1), ("meta",), (slice(0, 2),), (2, 4, 2),
    ]  # fmt: skip


def plain(value):
    """What may be compared: no quantised tensors."""
    if isinstance(value, QuantizedTensor):
        return value.detach().dequantize() if not value.is_meta else torch.empty(value.shape, device="meta")
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def same(ours, theirs):
    ours, theirs = plain(ours), plain(theirs)
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor) or (ours.shape, ours.device) != (theirs.shape, theirs.device):
            return False
        if ours.is_meta:
            return True
        return ours.dtype == theirs.dtype and torch.allclose(ours.double(), theirs.double(), 1e-3, 1e-6)
    if isinstance(theirs, (list, tuple)) and len(ours) == len(theirs):
        return all(map(same, ours, theirs))
    return ours is theirs or ours == theirs


def attempt(tensor, name, values):
    """(what a call, or for None an attribute, gives; None) or (None; what it raises)."""
    try:
        member = getattr(tensor, name)
        return (member if values is None else member(*values)), None
    except Exception as error:  # any exception is an answer
        return None, error


def judge(kind, name, at):
    """What is wrong with a call, or None."""
    q, twin = make(kind)
    before = twin.clone()
    values, others = (None, None) if at is None else (arguments()[at], arguments()[at])
    ours, refusal = attempt(q, name, values)
    theirs, error = attempt(twin, name, others)
    if refusal is not None:
        known = isinstance(refusal, (UnsupportedError, TypeError)) or error is not None
        if not known:
            return f"raises {type(refusal).__name__}: {refusal}"
        return None if torch.equal(q.dequantize(), before) else "was refused, and changed the tensor"
    if name in _NOT_COMPARED:
        return None
    if error is not None:
        return f"gives {plain(ours)!r}; its twin raises {type(error).__name__}: {error}"
    if callable(theirs) and values is None:
        return None
    if ours is not NotImplemented and not same(ours, theirs):
        return f"gives {plain(ours)!r}, not {theirs!r}"
    if q.shape == twin.shape and not same(q, twin):
        return f"leaves {q.dequantize()!r}, not {twin!r}"
    return None


def main(kind):
    """Prints each call before it is made, and what is wrong with it after."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    for name in sorted(set(dir(torch.Tensor)) - _OF_THE_CLASS):
        callable_ = callable(getattr(torch.Tensor, name, None))
        for at in range(len(arguments())) if callable_ else (None,):
            print(f"CALL {name} with arguments {at}", flush=True)
            if (wrong := judge(kind, name, at)) is not None:
                print(f"WRONG {name}{'' if at is None else arguments()[at]} {wrong}".replace("\n", " "), flush=True)


@pytest.mark.parametrize("kind", ["tensorwise", "mx"])  # of any shape, and of none but its own
def test_every_method_answers_right_or_refuses(kind):
    done = subprocess.run([sys.executable, __file__, kind], capture_output=True, text=True, timeout=600)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}: {done.stderr[-3000:]}"
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert not wrong, "\n".join(wrong)
    assert len(lines) > 5000, "hardly anything was called"


def refusals(q):
    """What reaches a tensor's memory by other ways than its methods."""
    return {
        "to_dlpack": lambda: torch.utils.dlpack.to_dlpack(q),
        "from_dlpack": lambda: torch.from_dlpack(q),
        "numpy's from_dlpack": lambda: np.from_dlpack(q),
        "asarray": lambda: np.asarray(q),
        "the base class's data_ptr": lambda: torch.Tensor.data_ptr(q),
        "the base class's share_memory_": lambda: torch.Tensor.share_memory_(q),
        "the base class's apply_": lambda: torch.Tensor.apply_(q, lambda value: value),
        "untyped_storage": lambda: q.untyped_storage().share_memory_(),
        "set_": lambda: torch.empty(0).set_(q),
        "out=": lambda: torch.add(torch.ones(4, 4), 1, out=q),
        "assigned data": lambda: setattr(q, "data", torch.ones(4, 4)),
        "assigned data of another shape": lambda: setattr(q, "data", q.select(0, 0)),
        "jvp": lambda: torch.func.jvp(lambda x: x.dequantize(), (q,), (torch.ones(4, 4),)),
        "vmap": lambda: torch.vmap(lambda row: row * 2)(q),
    }


@pytest.mark.parametrize("name", refusals(None))
def test_other_ways_to_memory_are_refused(name):
    q, twin = make("tensorwise")
    with pytest.raises((UnsupportedError, RuntimeError)):
        refusals(q)[name]()
    assert torch.equal(q.dequantize(), twin)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_memory(kind):
    """What one process writes the other reads: payload and scales are moved, the tensor's pickle names them."""
    from multiprocessing.reduction import ForkingPickler

    q, twin = make(kind)
    assert not q.is_shared()
    assert q.share_memory_() is q and q.is_shared() and q.qdata.is_shared() and q.scale_inv.is_shared()
    assert torch.equal(q.dequantize(), twin)
    other = pickle.loads(ForkingPickler.dumps(q))  # as a queue hands it over
    assert torch.equal(other.dequantize(), twin) and other.is_shared()
    q.qdata.view(torch.uint8).zero_()
    assert not other.dequantize().any()


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_all_kinds(kind):
    q, twin = make(kind)
    q.requires_grad_()
    q.note = ["kept"]
    q.grad = torch.ones(4, 4)
    both = copy.deepcopy([q, q, q.qdata])
    assert both[0] is both[1] and both[2] is both[0].qdata, "what was one object stays one"
    copied = both[0]
    assert copied.requires_grad and copied.is_leaf and copied.note == ["kept"] and copied.note is not q.note
    assert torch.equal(copied.grad, q.grad) and copied.grad is not q.grad
    q.detach().zero_()
    assert torch.equal(copied.dequantize(), twin) and not q.dequantize().any()
    assert torch.equal(pickle.loads(pickle.dumps(copied)).dequantize(), twin)
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(copied.t())


def test_assigned_data():
    """As torch does for a tensor of the same kind: the values change, the object and its gradient stay."""
    q, _ = make("rowwise")
    q.requires_grad_()
    source = QuantizedTensor.quantize(torch.eye(4), torch.float8_e4m3fn, ScalingGranularity.ROWWISE, axis=-1)
    q.data = source
    assert torch.equal(q.dequantize(), torch.eye(4)) and q.requires_grad
    assert q.data.qdata is q.qdata and not q.data.requires_grad


def test_swapped_and_materialised():
    layer = torch.nn.Linear(4, 4, bias=False, device="meta")
    q, twin = make("rowwise")
    layer.weight = torch.nn.Parameter(q.to("meta"))
    layer.to_empty(device="cpu")
    assert layer.weight.qdata.device.type == layer.weight.scale_inv.device.type == "cpu"
    layer.load_state_dict({"weight": q})
    assert torch.equal(layer.weight.dequantize(), twin)
    layer.half()
    assert layer.weight.dtype == torch.float16 and torch.equal(layer.weight.dequantize(), twin.half())
    other, _ = make("tensorwise")
    torch.utils.swap_tensors(q, other)
    assert q.granularity is ScalingGranularity.TENSORWISE and torch.equal(other.dequantize(), twin)


if __name__ == "__main__":
    main(sys.argv[1])
