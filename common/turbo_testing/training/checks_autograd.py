# SPDX-License-Identifier: MIT
"""Checks of the values, and of what autograd is asked for: checkpoints, hooks, subsets, layouts, writes in between."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from turbo_testing.training.cases import (
    OpCase,
    Step,
    Tensors,
    as_tuple,
    assert_near,
    assert_same,
    is_wide,
    leaves,
    plain,
    seeds_of,
    step,
)

__all__ = ["CHECKS"]

Check = Callable[[OpCase, torch.device], None]


def _reference(case: OpCase, tensors: Tensors) -> Step:
    doubled = {name: t.double() if is_wide(t) else t for name, t in tensors.items()}
    return step(case, leaves(case, doubled), run=case.reference)


def values(case: OpCase, device: torch.device) -> None:
    """Outputs and gradients against float64, for every dtype."""
    for dtype in case.dtypes:
        inputs = case.inputs(device, dtype)
        found = step(case, leaves(case, inputs))
        assert_near(case, found, _reference(case, inputs), dtype)
        for name, gradient in found.gradients.items():
            assert gradient is not None and gradient.dtype == inputs[name].dtype, f"gradient of {name}: {gradient}"


def repeat(case: OpCase, device: torch.device) -> None:
    """Two runs give the same bits."""
    assert_same(plain(case, device), plain(case, device), "second run")


def one_row(case: OpCase, device: torch.device) -> None:
    """A single token."""
    inputs = case.inputs(device, rows=1)
    assert_near(case, step(case, leaves(case, inputs)), _reference(case, inputs), torch.float32)


def no_rows(case: OpCase, device: torch.device) -> None:
    """No token at all: empty outputs and gradients, zeros where a sum over nothing is asked for."""
    inputs = case.inputs(device, rows=0)
    found = step(case, leaves(case, inputs))
    for name, gradient in found.gradients.items():
        assert gradient is not None, f"gradient of {name} is None"
        assert gradient.shape == inputs[name].shape and not gradient.count_nonzero(), f"gradient of {name}: {gradient}"


# --- checkpoints and hooks on what is saved ---------------------------------------------------------------------------


def _through(case: OpCase, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with its tensors handed over by position, as reentrant checkpoints need them."""

    def run(**arguments: Any) -> Any:
        names = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
        numbers = {name: value for name, value in arguments.items() if name not in names}
        return wrapper(lambda *args: case.run(**dict(zip(names, args)), **numbers), *(arguments[n] for n in names))

    return run


def _checkpointed(case: OpCase, device: torch.device, **options: Any) -> None:
    run = _through(case, lambda function, *args: checkpoint(function, *args, **options))
    found = step(case, leaves(case, case.inputs(device)), run=run, accumulate=options["use_reentrant"])
    assert_same(found, plain(case, device), f"checkpoint({options})")


def checkpoint_non_reentrant(case: OpCase, device: torch.device) -> None:
    """The default of Hugging Face and FSDP2; with and without stopping early, and nested."""
    _checkpointed(case, device, use_reentrant=False)
    with set_checkpoint_early_stop(False):
        _checkpointed(case, device, use_reentrant=False)

    def nested(function: Callable[..., Any], *args: Any) -> Any:
        return checkpoint(lambda *a: checkpoint(function, *a, use_reentrant=False), *args, use_reentrant=False)

    assert_same(
        step(case, leaves(case, case.inputs(device)), run=_through(case, nested)), plain(case, device), "nested"
    )


def checkpoint_reentrant(case: OpCase, device: torch.device) -> None:
    """The older form."""
    _checkpointed(case, device, use_reentrant=True)


def checkpoint_selective(case: OpCase, device: torch.device) -> None:
    """Every registered op saved, none recomputed; and none saved."""
    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE):

        def choose(ctx: Any, op: Any, *args: Any, _policy: Any = policy, **kwargs: Any) -> Any:
            return _policy if getattr(op, "namespace", "").startswith("turbo") else CheckpointPolicy.PREFER_RECOMPUTE

        def contexts(_choose: Any = choose) -> Any:
            return create_selective_checkpoint_contexts(_choose)

        _checkpointed(case, device, use_reentrant=False, context_fn=contexts)


class _Packed:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.unpacked = 0


def saved_tensors(case: OpCase, device: torch.device) -> None:
    """Each saved tensor is unpacked once, and what the hook gives back is used; nothing saved is kept elsewhere."""
    packs: list[_Packed] = []

    def pack(tensor: torch.Tensor) -> _Packed:
        packs.append(_Packed(tensor.detach().clone()))
        return packs[-1]

    def unpack(packed: _Packed) -> torch.Tensor:
        packed.unpacked += 1
        return packed.tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        found = step(case, leaves(case, case.inputs(device)))
    assert_same(found, plain(case, device), "under saved-tensor hooks")
    counts = Counter(packed.unpacked for packed in packs)
    assert packs or not case.gradients, "nothing was saved through save_for_backward"
    assert set(counts) <= {1}, f"saved tensors by how often they were unpacked: {dict(counts)}"


def save_on_cpu(case: OpCase, device: torch.device) -> None:
    """Activations offloaded."""
    with torch.autograd.graph.save_on_cpu():
        found = step(case, leaves(case, case.inputs(device)))
    assert_same(found, plain(case, device), "under save_on_cpu")


# --- which gradients, and how they come -------------------------------------------------------------------------------


def _subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    sizes = range(len(names) + 1) if len(names) <= 3 else (0, 1, len(names) - 1)
    return itertools.chain.from_iterable(itertools.combinations(names, size) for size in sizes)


def subsets(case: OpCase, device: torch.device) -> None:
    """Whatever is frozen, the other gradients are what they were, and nothing is made for the frozen ones."""
    expected = plain(case, device)
    for wanted in _subsets(tuple(case.gradients)):
        found = step(case, leaves(case, case.inputs(device), wanted))
        gradients = {name: expected.gradients[name] for name in wanted}
        assert_same(found, Step(expected.outputs, gradients), f"gradients of {wanted or 'nothing'}")


def partial_gradients(case: OpCase, device: torch.device) -> None:
    """autograd.grad of one input at a time from one graph, and a second backward through it."""
    expected = plain(case, device)
    tensors = leaves(case, case.inputs(device))
    outputs = [o for o in as_tuple(case.run(**tensors, **case.first_numbers())) if o.requires_grad]

    for _ in range(2):
        for name in case.gradients:
            (found,) = torch.autograd.grad(outputs, [tensors[name]], seeds_of(outputs), retain_graph=True)
            assert_same(Step((), {name: found}), Step((), {name: expected.gradients[name]}), "alone")


def _with_memory(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in other memory."""
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        wide = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] * 2 + 1), 9.0)
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    if layout == "offset":
        flat = tensor.new_full((tensor.numel() + 3,), 9.0)
        flat[3:] = tensor.flatten()
        return flat[3:].view(tensor.shape)
    return tensor


def gradient_layouts(case: OpCase, device: torch.device) -> None:
    """Gradients that come expanded, overlapping, transposed or sliced count by their values."""

    inputs = case.inputs(device)

    def expanded(seed: torch.Tensor) -> torch.Tensor:
        return seed.flatten()[:1].view((1,) * seed.dim()).expand(seed.shape)

    def overlapping(seed: torch.Tensor) -> torch.Tensor:
        return seed.flatten().as_strided(seed.shape, (1,) * seed.dim())

    def with_seeds(layout: Callable[[torch.Tensor], torch.Tensor]) -> Step:
        return step(case, leaves(case, inputs), seeds=lambda outputs: [layout(seed) for seed in seeds_of(outputs)])

    expected = plain(case, device)  # memory changes no value
    for name in ("transposed", "sliced", "offset"):
        assert_near(case, with_seeds(partial(_with_memory, layout=name)), expected, torch.float32)
    for layout in (expanded, overlapping):
        copied = with_seeds(lambda seed, layout=layout: layout(seed).contiguous())
        assert_near(case, with_seeds(layout), copied, torch.float32)


def unused_outputs(case: OpCase, device: torch.device) -> None:
    """Each output alone differentiated; the others have no gradient, not a wrong one."""
    count = sum(
        o.requires_grad for o in as_tuple(case.run(**leaves(case, case.inputs(device)), **case.first_numbers()))
    )
    if count < 2 or case.reference is None:
        return
    inputs = case.inputs(device)
    doubled = {name: t.double() if is_wide(t) else t for name, t in inputs.items()}
    for number in range(count):

        def only(run: Callable[..., Any], number: int = number) -> Callable[..., Any]:
            return lambda **arguments: [o for o in as_tuple(run(**arguments)) if o.requires_grad][number]

        found = step(case, leaves(case, inputs), run=only(case.run))
        expected = step(case, leaves(case, doubled), run=only(case.reference))
        for name, value in expected.gradients.items():
            if value is None and found.gradients[name] is not None:
                assert not found.gradients[name].count_nonzero(), f"output {number}, gradient of {name}"
                expected.gradients[name] = found.gradients[name]
        assert_near(case, found, expected, torch.float32)


def input_layouts(case: OpCase, device: torch.device) -> None:
    """Inputs count by their values; those that had memory of their own are not written to."""
    expected = plain(case, device)
    for layout in ("transposed", "sliced", "offset"):
        inputs = case.inputs(device)
        moved = {n: _with_memory(t, layout) if is_wide(t) and t.dim() else t for n, t in inputs.items()}
        tensors = {n: t.detach().requires_grad_(n in case.gradients) for n, t in moved.items()}
        found = step(case, tensors)
        assert_near(case, found, expected, torch.float32)
        for name, tensor in inputs.items():
            kept = Step((tensors[name].detach().contiguous(),), {})
            assert_same(kept, Step((tensor.contiguous(),), {}), f"{layout} {name} was written to")


def writes_in_between(case: OpCase, device: torch.device) -> None:
    """An input changed in place between forward and backward: an error, or the gradients of what it was."""
    expected = plain(case, device)
    for name, tensor in case.inputs(device).items():
        if not is_wide(tensor):
            continue
        tensors = leaves(case, case.inputs(device))
        outputs = [o for o in as_tuple(case.run(**tensors, **case.first_numbers())) if o.requires_grad]
        if not outputs:
            return
        with torch.no_grad():
            tensors[name].mul_(3.0)

        try:
            found = torch.autograd.grad(outputs, [tensors[n] for n in case.gradients], seeds_of(outputs))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error), f"{name} changed: {error}"
            continue
        gradients = dict(zip(case.gradients, found))
        assert_same(Step((), gradients), Step((), expected.gradients), f"{name} changed in between")


def tensor_hooks(case: OpCase, device: torch.device) -> None:
    """Hooks on inputs and outputs see the gradients and may change them."""
    expected = plain(case, device)
    tensors = leaves(case, case.inputs(device))
    seen: Counter[str] = Counter()

    def doubled(gradient: torch.Tensor, name: str) -> torch.Tensor:
        seen[name] += 1
        return gradient * 2

    for name in case.gradients:
        tensors[name].register_hook(lambda g, name=name: doubled(g, name))
        tensors[name].register_post_accumulate_grad_hook(lambda _, name=name: seen.update({name: 10}))
    outputs = [o for o in as_tuple(case.run(**tensors, **case.first_numbers())) if o.requires_grad]

    for output in outputs:
        output.register_hook(lambda g: g * 0.5)
    if outputs:
        torch.autograd.backward(outputs, seeds_of(outputs))
    found = {name: tensors[name].grad for name in case.gradients}
    if case.snr is None:  # halved and doubled again: exact, but where a gradient is quantised
        assert_same(Step((), found), Step((), expected.gradients), "under hooks")
    assert all(seen[name] == 11 for name in case.gradients), f"hooks that ran: {dict(seen)}"


def modes(case: OpCase, device: torch.device) -> None:
    """no_grad and inference_mode record nothing; anomaly mode changes nothing."""
    expected = plain(case, device)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            outputs = as_tuple(case.run(**leaves(case, case.inputs(device)), **case.first_numbers()))
            assert not any(output.requires_grad for output in outputs)
        assert_same(Step(tuple(o.clone() for o in outputs), {}), Step(expected.outputs, {}), type(mode).__name__)
    with torch.autograd.detect_anomaly(check_nan=True):
        assert_same(step(case, leaves(case, case.inputs(device))), expected, "anomaly mode")


def accumulation(case: OpCase, device: torch.device) -> None:
    """Two micro-batches add up in .grad."""
    expected = plain(case, device)
    tensors = leaves(case, case.inputs(device))

    for _ in range(2):
        outputs = [o for o in as_tuple(case.run(**tensors, **case.first_numbers())) if o.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, seeds_of(outputs))
    for name in case.gradients:
        twice = expected.gradients[name] * 2
        assert_same(Step((), {name: tensors[name].grad}), Step((), {name: twice}), "two backwards")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        values, repeat, one_row, no_rows, checkpoint_non_reentrant, checkpoint_reentrant, checkpoint_selective,
        saved_tensors, save_on_cpu, subsets, partial_gradients, gradient_layouts, unused_outputs, input_layouts,
        writes_in_between, tensor_hooks, modes, accumulation,
    )
}  # fmt: skip
