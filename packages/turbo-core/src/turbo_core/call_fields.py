# SPDX-License-Identifier: MIT
"""A call as the arguments of a registered op: its fields in their order, those of calls inside it in their place.

| field of the call | argument of the op |
|---|---|
| tensor, bool, str, dtype | Tensor, bool, str, ScalarType |
| int, float | SymInt, Scalar: those of a compiled function may be symbols, which ``int`` and ``float`` would not take |
| Enum | str, its value |
| NamedTuple | its fields, named ``field_inner`` |
| NamedTuple of bools, or None | bool[]? |
| any of the first two rows, or None | the same with ``?`` |
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["CallFields", "has_optional_fields"]

_Change = Callable[[Any], Any]


class _Field(NamedTuple):
    """One argument of the op.

    Attributes:
        name: of the argument.
        schema: its type.
        encode: the field's value -> the argument's; None: they are the same.
        decode: back; None likewise.
    """

    name: str
    schema: str
    encode: _Change | None = None
    decode: _Change | None = None


class CallFields:
    """The fields of a type of call, laid out flat.

    Args:
        call_type: a NamedTuple.
        omits: fields that the op does not have; they keep their defaults.
        writes: a field, an optional tensor, that the op takes as a tensor and writes.
    """

    def __init__(self, call_type: Any, omits: tuple[str, ...] = (), writes: str | None = None) -> None:
        self.call_type = call_type
        self._omitted = {name: call_type._field_defaults[name] for name in omits}
        self._fields: list[_Field] = []
        self._lengths: list[tuple[Any, int]] = []  # of each field: what makes it of its arguments, and how many
        for name, hint in _hints(call_type).items():
            if name in self._omitted:
                continue
            if name == writes:
                found: tuple[Any, list[_Field]] = (None, [_Field(name, "Tensor(a!)")])
            else:
                found = _flat(name, hint)
            self._fields.extend(found[1])
            self._lengths.append((found[0], len(found[1])))
        self._kept = [index for index, name in enumerate(call_type._fields) if name not in self._omitted]
        self._is_flat = not self._omitted and all(make is None for make, _ in self._lengths)
        self._encoders = [(index, field.encode) for index, field in enumerate(self._fields) if field.encode]
        self._decoders = [(index, field.decode) for index, field in enumerate(self._fields) if field.decode]
        self.names = [field.name for field in self._fields]

    def schema(self) -> str:
        """The op's arguments."""
        return ", ".join(f"{field.schema} {field.name}" for field in self._fields)

    def flatten(self, call: Any) -> tuple[Any, ...]:
        """The values of ``call``, one for each argument, not encoded yet."""
        if self._is_flat:
            flat: tuple[Any, ...] = call
            return flat
        values: list[Any] = []
        for index, (make, _) in zip(self._kept, self._lengths):
            if make is None:
                values.append(call[index])
            else:
                values.extend(call[index])
        return tuple(values)

    def unflatten(self, values: Any) -> Any:
        """The call that `flatten` took apart."""
        if self._is_flat:
            return self.call_type._make(values)
        parts: list[Any] = []
        start = 0
        for make, length in self._lengths:
            parts.append(values[start] if make is None else make(*values[start : start + length]))
            start += length
        if not self._omitted:
            return self.call_type._make(parts)
        names = self.call_type._fields
        return self.call_type(**{names[index]: part for index, part in zip(self._kept, parts)}, **self._omitted)

    def encode(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Flat values as the registered op takes them."""
        return _changed(values, self._encoders)

    def decode(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Back. Numbers that are symbols stay symbols."""
        return _changed(values, self._decoders)


def _changed(values: tuple[Any, ...], changes: list[tuple[int, _Change]]) -> tuple[Any, ...]:
    """``values`` with those that stand at the places of ``changes`` changed."""
    if not changes:
        return values
    changed = list(values)
    for index, change in changes:
        changed[index] = change(changed[index])
    return tuple(changed)


def has_optional_fields(named_tuple: Any) -> bool:
    """Whether a field of it may be None."""
    return any(_without_none(hint)[1] for hint in _hints(named_tuple).values())


def _hints(call_type: Any) -> dict[str, Any]:
    """The types of the fields; torch, which a call's module imports for type checkers alone, is found here."""
    import torch

    return typing.get_type_hints(call_type, localns={"torch": torch})


def _is_call(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type, and whether None is another."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    (one, *more) = [part for part in typing.get_args(hint) if part is not type(None)]
    if more:
        raise TypeError(f"{hint} is no type of an argument: one type, or one type and None")
    return one, True


def _flat(name: str, hint: Any) -> tuple[Any, list[_Field]]:
    """What makes a field of its arguments (None: it is the argument), and these."""
    hint, optional = _without_none(hint)
    if _is_call(hint) and not optional:
        return hint, [_leaf(f"{name}_{inner}", inner_hint) for inner, inner_hint in _hints(hint).items()]
    return None, [_leaf(name, hint | None if optional else hint)]


def _leaf(name: str, hint: Any) -> _Field:
    import torch

    hint, optional = _without_none(hint)
    mark = "?" if optional else ""
    simple = {torch.Tensor: "Tensor", bool: "bool", str: "str", int: "SymInt", torch.dtype: "ScalarType"}
    if hint in simple:
        return _Field(name, simple[hint] + mark)
    if hint is float:
        return _Field(name, "Scalar" + mark, None, _as_float)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _Field(name, "str" + mark, _value_of, _or_none(hint))
    if _is_call(hint) and optional and set(_hints(hint).values()) == {bool}:
        return _Field(name, "bool[]?", _as_list, lambda flags: None if flags is None else hint(*flags))
    raise TypeError(f"{name}: {hint} is no type of an argument of a registered op")


def _value_of(member: Any) -> Any:
    return None if member is None else member.value


def _or_none(enumeration: type[enum.Enum]) -> _Change:
    return lambda value: None if value is None else enumeration(value)


def _as_list(flags: Any) -> Any:
    return None if flags is None else list(flags)


def _as_float(number: Any) -> Any:
    """A Scalar may come as an integer."""
    return float(number) if isinstance(number, int) else number
