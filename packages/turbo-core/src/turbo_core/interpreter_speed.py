# SPDX-License-Identifier: MIT
"""Makes Triton's CPU interpreter quicker, with the same results: kernels that call others take half the time or less.

What it does over and over is done once here:

* for each function that a kernel calls it looks through all of triton.language and replaces its operations once more,
  although those of the launch are in place already;
* for each value it builds its table of numpy types anew, the type of a block with its shape, and that shape again.

An inside that is not as known is left as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["replacements"]


def replacements(module: Any, tl: Any) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(owner, name, function) of what replaces a function of ``triton.runtime.interpreter`` (module) or of tl."""
    scope = getattr(module, "_LangPatchScope", None)
    if _takes(getattr(module, "_patch_lang", None), ["fn"]) and _takes(getattr(scope, "restore", None), ["self"]):
        yield module, "_patch_lang", _patch_once(module._patch_lang, (tl, tl.core))
    if _takes(getattr(module, "_get_np_dtype", None), ["tt_dtype"]):
        yield module, "_get_np_dtype", _remembered(module._get_np_dtype, tl.dtype)
    if _takes(tl.block_type.__init__, ["self", "element_ty", "shape"]) and hasattr(tl.tuple(()), "values"):
        yield tl.block_type, "__init__", _same_types(tl)
    if _takes(tl.tensor.__init__, ["self", "handle", "type"]) and set(vars(tl.tensor(None, tl.int32))) == _FIELDS:
        yield tl.tensor, "__init__", _same_shapes(tl)


def _takes(function: Any, names: list[str]) -> bool:
    return callable(function) and list(inspect.signature(function).parameters) == names


class _Scope:
    """What a launch restores when it ends."""

    def __init__(self, inner: Any, patched: set[int]) -> None:
        self.inner, self.patched = inner, patched

    def restore(self) -> None:
        self.patched.clear()
        self.inner.restore()


class _Nothing:
    """What a call inside a kernel restores."""

    def restore(self) -> None:
        pass


def _patch_once(original: Callable[[Any], Any], languages: tuple[Any, ...]) -> Callable[[Any], Any]:
    """``original`` for the first function of a launch, and for those that see a module which it has not seen."""
    patched: set[int] = set()  # ids of the modules, while a launch lasts
    seen_by: dict[Any, set[int]] = {}  # of functions, which the interpreter keeps as well

    def patch_lang(fn: Any) -> Any:
        seen = seen_by.get(fn)
        if seen is None:
            values = list(map(id, fn.__globals__.values()))
            seen = seen_by[fn] = {id(language) for language in languages if id(language) in values}
        if seen and seen <= patched:
            return _Nothing()
        inside = bool(patched)
        scope = original(fn)
        patched.update(seen)
        return scope if inside else _Scope(scope, patched)

    return patch_lang


def _remembered(original: Callable[[Any], Any], plain: Any) -> Callable[[Any], Any]:
    """``original`` once for each type of elements; only ``plain`` types, which are no pointers, have a name to know."""
    known: dict[str, Any] = {}

    def get_np_dtype(tt_dtype: Any) -> Any:
        scalar: Any = tt_dtype.scalar
        if type(scalar) is not plain:
            return original(tt_dtype)
        found = known.get(scalar.name)
        if found is None:
            found = known[scalar.name] = original(scalar)
        return found

    return get_np_dtype


# --- blocks -----------------------------------------------------------------------------------------------------------

_FIELDS = {"handle", "shape", "numel", "type", "dtype"}  # of a tensor, which has nothing else


def _same_types(tl: Any) -> Callable[..., None]:
    """``block_type.__init__`` that gives what it gave for the same elements and shape."""
    original, plain, tuple_type = tl.block_type.__init__, tl.dtype, tl.tuple
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = shape.values if type(shape) is tuple_type else shape
        if type(element_ty) is not plain or any(type(size) is not int for size in sizes):
            original(self, element_ty, shape)
            return
        key = (element_ty.name, *sizes)
        found = known.get(key)
        if found is None:
            original(self, element_ty, shape)
            known[key] = dict(vars(self))
        else:
            vars(self).update(found)

    return init


def _same_shapes(tl: Any) -> Callable[..., None]:
    """``tensor.__init__`` that gives the shape which it gave for the same one."""
    original = tl.tensor.__init__
    known: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        found = known.get(key)
        if found is None:
            original(self, handle, type)
            known[key] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = found

    return init
