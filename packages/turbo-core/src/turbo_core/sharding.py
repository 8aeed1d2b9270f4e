# SPDX-License-Identifier: MIT
"""Ops on `torch.distributed.tensor.DTensor`: which pieces an op can work on alone, and running it on them.

An op names its `Rule`s: ways in which one dimension of a device mesh may divide its arguments so that each rank
computes from its own pieces a piece of the result, or a term of it. For every mesh dimension in turn the rule is taken
that moves the fewest bytes; arguments are redistributed to it, the op runs on the local tensors, and what it returns is
a DTensor again. Gradients go the same way back: that of a piece is a piece, and that of an argument which every rank
had whole is a sum over the ranks.

Only what torch publishes is called, and nothing of `torch.distributed` before the first DTensor is seen. All of it can
be traced by a compiler.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from turbo_core.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = ["SUM", "WHOLE", "Rule", "Split", "amax_over", "full_pieces", "is_sharded", "refuse_sharded", "shardable"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

SUM = "sum"
"""An output of which each rank has a term."""


class Split(NamedTuple):
    """An output divided along ``dim``, ``size`` long before that."""

    dim: int
    size: int


class Rule(NamedTuple):
    """One way in which a mesh dimension may divide a call.

    Attributes:
        inputs: name of an argument -> the dimension along which it is divided; others are whole on every rank.
        outputs: for each output a `Split`, `SUM`, or None where all ranks compute the same. Empty: all are the same.
        shared: whole arguments that are added once to an output that is a sum: each rank adds its share of them.
    """

    inputs: Mapping[str, int]
    outputs: Sequence[Split | str | None]
    shared: tuple[str, ...] = ()


WHOLE = Rule({}, ())
"""Every rank computes all of it."""

Shapes = Mapping[str, Sequence[int]]
Rules = Callable[[Shapes, Mapping[str, Any], int], list[Rule]]
"""(shapes of the tensors, all arguments, ranks in the mesh dimension) -> the rules, those to be preferred first."""


def is_sharded(*values: Any) -> bool:
    """Whether a DTensor is among ``values``."""
    # every call of every op asks, and any() of a generator takes ten times as long
    for value in values:  # noqa: SIM110
        if type(value).__name__ == "DTensor":
            return True
    return False


def full_pieces(rules: list[Rule], shapes: Shapes, parts: int) -> list[Rule]:
    """Those of the rules that leave no rank empty-handed; one that is would take no part in `amax_over`."""

    def is_full(size: int) -> bool:
        return -(-size // parts) * (parts - 1) < size

    return [
        rule for rule in rules if all(is_full(shapes[name][dim]) for name, dim in rule.inputs.items() if name in shapes)
    ]


def refuse_sharded(op: str, accepted: str, **values: Any) -> None:
    """No DTensor is among ``values``, or an `UnsupportedError` says what is ``accepted``."""
    for name, value in values.items():
        if is_sharded(value):
            raise UnsupportedError(f"{op}: {name} is a DTensor; {accepted}")


def shardable(
    rules: Rules,
    local: Callable[..., Any] | None = None,
    *,
    replicated: tuple[str, ...] = (),
    name: str | None = None,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Makes a function take DTensors, for which ``rules`` say how it may be divided. Other calls go straight through.

    Args:
        rules: see `Rules`; a refusal is raised there.
        local: computes a call from local tensors, in place of the function itself: it takes the function's arguments
            by name, and ``divided``, the names of the process groups over which each argument, and the ``output``, is
            divided.
        replicated: arguments that may be plain tensors beside DTensors: index tensors without a gradient, of which
            every rank has the same.
        name: for messages, where it is not that of the function.
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        parameters = inspect.signature(function).parameters
        names = tuple(parameters)
        defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
        op = name or function.__name__

        @functools.wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            if not is_sharded(*args) and not (kwargs and is_sharded(*kwargs.values())):
                return function(*args, **kwargs)
            arguments = {**defaults, **dict(zip(names, args)), **kwargs}
            if len(args) > len(names) or set(arguments) != set(names):
                return function(*args, **kwargs)  # which says what is wrong with them
            result: _Result = _run(op, function, local, rules, arguments, replicated)
            return result

        return call

    return decorate


def amax_over(x: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
    """max |x|, float32, of a tensor of which each rank of the process groups has a piece; NaN where there is one."""
    import torch
    from torch.distributed import _functional_collectives

    collectives: Any = _functional_collectives  # which takes names of groups, if not by its annotations
    amax = torch.linalg.vector_norm(x.detach(), torch.inf, dtype=torch.float32)
    bits = amax.abs().view(torch.int32)  # ordered like the numbers, NaN above all, which a maximum of floats may drop
    for group in groups:
        bits = collectives.all_reduce(bits, "max", group)
    return bits.view(torch.float32)


# --- one call -------------------------------------------------------------------------------------------------------


def _run(
    op: str,
    function: Callable[..., Any],
    local: Callable[..., Any] | None,
    rules: Rules,
    arguments: dict[str, Any],
    replicated: tuple[str, ...],
) -> Any:
    import torch

    tensors, mesh = _tensors(op, arguments, replicated)
    chosen = _choose(tensors, mesh, rules, arguments)
    pieces = dict(arguments)
    for name, tensor in tensors.items():
        pieces[name] = _piece(name, tensor, chosen)
    if local is None:
        results = function(**pieces)
    else:
        results = local(**pieces, divided=_groups(mesh, chosen, [*tensors, "output"]))
    if isinstance(results, torch.Tensor):
        return _assembled(results, 0, mesh, chosen)
    return tuple(_assembled(result, index, mesh, chosen) for index, result in enumerate(results))


def _tensors(op: str, arguments: Mapping[str, Any], replicated: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """The DTensors among the arguments, and the mesh of all of them."""
    import torch

    tensors = {name: value for name, value in arguments.items() if is_sharded(value)}
    first, *others = tensors
    mesh = tensors[first].device_mesh
    for name in others:
        if tensors[name].device_mesh != mesh:
            raise UnsupportedError(
                f"{op}: {name} is on {tensors[name].device_mesh} and {first} on {mesh}; one mesh is needed"
            )
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and name not in tensors and name not in replicated:
            raise UnsupportedError(
                f"{op}: {name} is a {type(value).__name__} and {first} a DTensor; all tensors are to be DTensors of "
                "one mesh (torch.distributed.tensor.distribute_tensor, DTensor.from_local), or all of them local"
            )
    return tensors, mesh


def _choose(
    tensors: Mapping[str, Any], mesh: Any, rules: Rules, arguments: Mapping[str, Any]
) -> list[tuple[Rule, int]]:
    """For each mesh dimension the rule that moves the fewest bytes, and the ranks in that dimension."""
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    chosen = []
    for level in range(mesh.ndim):
        parts = mesh.size(level)
        best, least = WHOLE, -1.0
        for rule in rules(shapes, arguments, parts):
            cost = 0.0
            for name, tensor in tensors.items():
                size = tensor.element_size()
                for extent in shapes[name]:
                    size *= extent
                cost += _cost(tensor.placements[level], rule.inputs.get(name), size, parts)
            if least < 0 or cost < least:
                best, least = rule, cost
        for name, dim in best.inputs.items():
            if name in shapes:
                shapes[name][dim] = -(-shapes[name][dim] // parts)
        chosen.append((best, parts))
    return chosen


def _cost(placement: Any, dim: int | None, size: int, parts: int) -> float:
    """Bytes that a rank receives, and 1 where it only drops some."""
    if placement.is_replicate():
        return 0 if dim is None else 1
    if placement.is_partial():
        return 2 * size if dim is None else size
    if dim is None or not placement.is_shard():
        return size
    return 0 if placement.is_shard(dim) else size / parts + 1


def _piece(name: str, tensor: Any, chosen: list[tuple[Rule, int]]) -> Any:
    """The local tensor that the rules ask for, its gradient described."""
    import torch
    from torch.distributed.tensor import Partial, Replicate, Shard

    placements: list[Any] = []
    gradient: list[Any] = []
    share = 1
    for rule, parts in chosen:
        dim = rule.inputs.get(name)
        if dim is not None:
            placements.append(Shard(dim))
            gradient.append(Shard(dim))
        else:
            placements.append(Replicate())
            gradient.append(Partial() if rule.inputs else Replicate())
            share *= parts if name in rule.shared else 1
    # of a parameter the gradient has the parameter's own placements: optimizers read it many times
    if list(tensor.placements) != placements or (placements != gradient and isinstance(tensor, torch.nn.Parameter)):
        tensor = tensor.redistribute(placements=placements)
    piece = tensor.to_local(grad_placements=gradient)
    if share == 1:
        return piece
    return (piece if share & (share - 1) == 0 else piece.float()) / share


def _groups(mesh: Any, chosen: list[tuple[Rule, int]], names: list[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        found = []
        for level, (rule, _) in enumerate(chosen):
            first = rule.outputs[0] if rule.outputs else None
            if isinstance(first, Split) if name == "output" else name in rule.inputs:
                found.append(mesh.get_group(level).group_name)
        groups[name] = tuple(found)
    return groups


def _assembled(result: Any, index: int, mesh: Any, chosen: list[tuple[Rule, int]]) -> Any:
    """A DTensor of the local result."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    placements: list[Any] = []
    shape = list(result.shape)
    uneven = False
    for rule, parts in reversed(chosen):
        output = rule.outputs[index] if rule.outputs else None
        if output is None:
            placements.append(Replicate())
        elif isinstance(output, Split):
            placements.append(Shard(output.dim))
            shape[output.dim] = output.size
            uneven = uneven or output.size % parts != 0
        else:
            placements.append(Partial())
    placements.reverse()
    if not uneven:
        return DTensor.from_local(result, mesh, placements, run_check=False)
    strides = [1] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (result.stride(dim), -dim)):
        strides[dim] = step
        step *= max(1, shape[dim])
    return DTensor.from_local(result, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides))
