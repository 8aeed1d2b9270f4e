# SPDX-License-Identifier: MIT
"""Ops of one call: `OpLibrary` registers them from the fields of the call, what the results look like, and a gradient.

    class ScaleCall(NamedTuple):            # turbo_x/calls.py: shapes and dtypes are documented here
        x: torch.Tensor
        factor: float

    def specs(call: ScaleCall) -> Spec: ...                                  # what the result looks like
    def run(call: ScaleCall) -> torch.Tensor: ...                            # computes it
    def saves(call, result, needs): return (call.factor,)                    # what the backward reads
    def backward(saved, dy, needs): return {"x": scale(ScaleCall(dy, saved[0]))}

    scale = OpLibrary("turbo_x").op("scale", ScaleCall, run, specs, Differentiable(backward, saves, "scale"))

In eager mode a call goes straight to ``run``, through one autograd.Function where a gradient is wanted; under a
compiler, a dispatch mode, a transform, or with tensor subclasses it goes through ``torch.ops.turbo_x.scale``. Both ways
compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from turbo_core.call_fields import CallFields, has_optional_fields
from turbo_core.calls import PLAIN, device_of, empty
from turbo_core.calls import outputs as empty_outputs
from turbo_core.registration import (
    Gradient,
    no_derivative,
    no_forward_mode,
    registered_op,
    under_transforms,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "Differentiable",
    "OpLibrary",
    "Refused",
    "no_derivative",
    "no_forward_mode",
    "under_transforms",
]


class Differentiable(NamedTuple):
    """How an op is differentiated.

    Attributes:
        backward: (saved, grads, needs) -> gradients by the names of the call's fields; what is left out has none. grads
            is like the op's result, None for what got no gradient; needs is like the call, True for what wants one.
            Made of ops of a library, it can be differentiated in turn.
        saves: (call, result, needs) -> a tuple of what ``backward`` reads: tensors, values, tuples of them.
        name: the public function, for messages.
        constants: names of the results that have no gradient.
    """

    backward: Callable[[Any, Any, Any], Mapping[str, Any]]
    saves: Callable[[Any, Any, Any], tuple[Any, ...]]
    name: str
    constants: tuple[str, ...] = ()


class Refused(NamedTuple):
    """Differentiating through the op is an UnsupportedError: ``name`` does not support ``what``."""

    name: str
    what: str = "second derivatives"


class OpLibrary:
    """The registered ops of one name space, ``torch.ops.<name>``."""

    def __init__(self, name: str) -> None:
        import torch

        self._library = torch.library.Library(name, "FRAGMENT")

    def op(
        self,
        name: str,
        call_type: Any,
        run: Callable[[Any], Any],
        specs: Callable[[Any], Any] | None,
        gradient: Differentiable | Refused | None = None,
        *,
        result: Any = None,
        omits: tuple[str, ...] = (),
        writes: str | None = None,
    ) -> Callable[[Any], Any]:
        """Register an op and return the function that calls it: call -> result.

        Args:
            name: of the op.
            call_type: the NamedTuple that it takes; see `turbo_core.call_fields` for the types of its fields.
            run: computes a call, on any device; nothing is recorded while it runs.
            specs: call -> what the result looks like: a `Spec`, or ``result`` of Specs and None.
            gradient: None: the result is a constant of the call, as if its tensors had been detached.
            result: the NamedTuple that ``run`` returns, of tensors and None; None: it returns one tensor.
            omits: fields that this op does not have: they keep their defaults.
            writes: the field, a tensor or None, that the op writes; it is a tensor then, and the op returns nothing.
        """
        if writes is not None:
            run = _writer(run)
        fields = CallFields(call_type, omits, writes)
        outputs = _Outputs(result, specs, writes is not None)
        schema = f"{name}({fields.schema()}) -> {outputs.schema()}"

        def implementation(*values: Any) -> Any:
            return outputs.pack(run(fields.unflatten(fields.decode(values))), values)

        def fake(*values: Any) -> Any:
            return outputs.fakes(fields.unflatten(fields.decode(values)), values)

        if isinstance(gradient, Refused):
            gradient = _refusal(gradient)
        formula = None if gradient is None else _registered_gradient(fields, outputs, gradient)
        overload = registered_op(self._library, schema, implementation, fake, formula)
        record = None if gradient is None else _recorder(name, fields, outputs, run, gradient)
        op = _caller(fields, outputs, overload, run, record)
        op.__doc__ = f"Answer a `{call_type.__name__}`, as the registered op ``{overload.name()}`` does."
        return op


def _writer(run: Callable[[Any], Any]) -> Callable[[Any], None]:
    """``run`` for what it writes."""

    def write(call: Any) -> None:
        run(call)

    return write


class _Outputs:
    """What an op gives back, as ``run`` returns it and as the registered op does, which knows no None."""

    def __init__(self, result: Any, specs: Callable[[Any], Any] | None, writes: bool) -> None:
        self.result, self.specs, self.writes = result, specs, writes
        self._is_whole = result is not None and not has_optional_fields(result)

    def schema(self) -> str:
        if self.writes:
            return "()"
        return "Tensor" if self.result is None else f"({', '.join(f'Tensor {n}' for n in self.result._fields)})"

    def pack(self, result: Any, values: tuple[Any, ...]) -> Any:
        """What the registered op returns: empty tensors in place of None."""
        if self.writes or self.result is None:
            return None if self.writes else result
        return tuple(_nothing(values) if part is None else part for part in result)

    def fakes(self, call: Any, values: tuple[Any, ...]) -> Any:
        if self.writes or self.specs is None:
            return None
        device: Any = device_of(call)
        specs = self.specs(call)
        return empty(specs, device) if self.result is None else self.pack(empty_outputs(specs, device), values)

    def unpack(self, call: Any, packed: Any) -> Any:
        """What ``run`` would have returned."""
        if self.writes or self.result is None or self.specs is None:
            return packed
        if self._is_whole:
            return self.result(*packed)
        return self.result(*(None if spec is None else part for spec, part in zip(self.specs(call), packed)))

    def gradients(self, grads: tuple[Any, ...]) -> Any:
        return grads[0] if self.result is None else self.result._make(grads)


def _nothing(values: tuple[Any, ...]) -> torch.Tensor:
    """An empty tensor where the others are."""
    import torch

    return next(value for value in values if isinstance(value, torch.Tensor)).new_empty(0)


# --- eager calls ------------------------------------------------------------------------------------------------------


def _caller(fields: CallFields, outputs: _Outputs, overload: Any, run: Any, record: Any) -> Callable[[Any], Any]:
    """call -> result: ``run`` itself where plain tensors meet nothing that would see a registered op."""
    import torch

    is_compiling, dispatch_modes = torch.compiler.is_compiling, torch._C._len_torch_dispatch_stack
    is_traced, transforms = torch._C._get_tracing_state, torch._C._are_functorch_transforms_active
    # by a transform, which may be over: `vjp` returns them
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    forward_mode, is_recording = torch.autograd.forward_ad, torch.is_grad_enabled
    below_autograd = torch._C._AutoDispatchBelowAutograd
    tensor_type, parameter_type = torch.Tensor, torch.nn.Parameter
    flatten, encode = fields.flatten, fields.encode

    def through_dispatcher(call: Any) -> Any:
        return outputs.unpack(call, overload(*encode(flatten(call))))

    def op(call: Any) -> Any:
        if (
            is_compiling()
            or dispatch_modes()
            or transforms()
            or forward_mode._current_level >= 0
            or is_traced() is not None
        ):
            return through_dispatcher(call)
        values, records = flatten(call), False
        for value in values:
            kind = type(value)
            if kind is tensor_type or kind is parameter_type:
                if value.is_meta or is_wrapped(value):
                    return through_dispatcher(call)
                if value.requires_grad:
                    records = True
            elif kind not in PLAIN and isinstance(value, tensor_type):
                return through_dispatcher(call)
        if not records or not is_recording():
            return run(call)
        if record is None:
            with below_autograd():
                return run(call)
        return record(values)

    return op


def _recorder(
    name: str, fields: CallFields, outputs: _Outputs, run: Callable[[Any], Any], gradient: Differentiable
) -> Callable[[Any], Any]:
    """Flat values -> result, recorded by autograd as one node."""
    import torch

    keep, formula = _keeper(gradient), _formula(fields, outputs, gradient)

    def forward(ctx: Any, *values: Any) -> Any:
        call = fields.unflatten(values)
        result = run(call)
        keep(ctx, call, result, fields.unflatten(ctx.needs_input_grad))
        return result if outputs.result is None else tuple(result)

    members = {"forward": staticmethod(forward), "backward": staticmethod(formula)}
    function: Any = type(name, (torch.autograd.Function,), members)
    # past the part of `apply` that looks for transforms and wrapped tensors: the caller has
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    if outputs.result is None:
        return lambda values: apply(*values)
    make = outputs.result._make
    return lambda values: make(apply(*values))


def _refusal(refused: Refused) -> Differentiable:
    def backward(saved: Any, grads: Any, needs: Any) -> Any:
        raise no_derivative(refused.name, refused.what)

    return Differentiable(backward, lambda call, result, needs: (), refused.name)


# --- gradients --------------------------------------------------------------------------------------------------------


def _keeper(gradient: Differentiable) -> Callable[..., None]:
    """(ctx, call, result, needs, absent): saves what the backward reads, tensors apart from other values.

    ``absent``: tensors in the places of results that are None.
    """
    import torch

    saves, constants, tensor_type = gradient.saves, gradient.constants, torch.Tensor

    def keep(ctx: Any, call: Any, result: Any, needs: Any, absent: tuple[Any, ...] = ()) -> None:
        tensors: list[torch.Tensor] = []
        ctx.kept = _without_tensors(saves(call, result, needs), tensors, tensor_type)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        if constants or absent:
            given = [getattr(result, constant) for constant in constants]
            ctx.mark_non_differentiable(*absent, *[tensor for tensor in given if tensor is not None])

    return keep


class _Kept(NamedTuple):
    """A tuple without its tensors.

    Attributes:
        make: its type, from a list of its parts.
        parts: its values, None in place of tensors and tuples.
        tensors: where a tensor stood, and its number among those that are saved.
        inner: where a tuple stood, and what was kept of it.
    """

    make: Callable[[list[Any]], Any]
    parts: list[Any]
    tensors: list[tuple[int, int]]
    inner: list[tuple[int, _Kept]]


def _without_tensors(saved: tuple[Any, ...], tensors: list[torch.Tensor], tensor_type: Any) -> _Kept:
    """``saved`` without its tensors, which go to ``tensors``."""
    places: list[tuple[int, int]] = []
    inner: list[tuple[int, _Kept]] = []
    parts = list(saved)
    for place, value in enumerate(saved):
        if type(value) in PLAIN:
            continue
        if isinstance(value, tensor_type):
            places.append((place, len(tensors)))
            tensors.append(value)
            parts[place] = None
        elif isinstance(value, tuple):
            inner.append((place, _without_tensors(value, tensors, tensor_type)))
            parts[place] = None
    return _Kept(getattr(saved, "_make", tuple), parts, places, inner)


def _with_tensors(kept: _Kept, tensors: tuple[torch.Tensor, ...]) -> Any:
    """The inverse."""
    make, parts, places, inner = kept
    parts = parts.copy()
    for place, number in places:
        parts[place] = tensors[number]
    for place, part in inner:
        parts[place] = _with_tensors(part, tensors)
    return make(parts)


def _formula(fields: CallFields, outputs: _Outputs, gradient: Differentiable) -> Callable[..., Any]:
    """(ctx, *gradients of the outputs) -> a gradient or None for each argument."""
    names, count = fields.names, len(fields.names)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        for grad in grads:
            if grad is not None:
                break
        else:
            return (None,) * count
        saved = _with_tensors(ctx.kept, ctx.saved_tensors)
        needs = fields.unflatten(ctx.needs_input_grad)
        found = gradient.backward(saved, outputs.gradients(grads), needs)
        return tuple([found.get(name) for name in names])

    return backward


def _registered_gradient(fields: CallFields, outputs: _Outputs, gradient: Differentiable) -> Gradient:
    """The same for the registered op."""
    keep = _keeper(gradient)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        call = fields.unflatten(fields.decode(inputs))
        needs = getattr(ctx, "needs_input_grad", None) or (True,) * len(inputs)
        result = outputs.unpack(call, output)
        absent = () if outputs.result is None else tuple(made for made, part in zip(output, result) if part is None)
        keep(ctx, call, result, fields.unflatten(needs[-len(inputs) :]), absent)

    return Gradient(_formula(fields, outputs, gradient), setup_context, gradient.name)
