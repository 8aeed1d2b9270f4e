# SPDX-License-Identifier: MIT
"""Makes Triton's CPU interpreter (TRITON_INTERPRET=1) right for bf16 and fp8.

The interpreter keeps bf16 and fp8 values as raw integers in numpy arrays, and forgets it in several places (seen in
3.6, 3.8 and 3.9; each has a test that fails once upstream is right, so that its patch goes):

* `tl.dot` of bf16 multiplies the integers; so do `+ - * /`, negation, comparison, min, max, clamp and fma, and a cast
  of an integer to bf16;
* float32 -> bf16 truncates, where hardware rounds to nearest even;
* float32 -> fp8 loses the carry from the mantissa into the exponent (0.497 becomes 0.25) and rounds ties up;
* NaN and inf of fp8 become numbers.

The patch computes through float32: bf16 and fp8 operands are decoded, the numpy operation runs, the result is rounded
once, to nearest even. Casts to fp8 equal torch's on every input, also out of range: e4m3fn and the two FNUZ formats
give NaN, e5m2 gives inf. Hardware may saturate there instead; a kernel that relies on either is wrong, and NaN shows it.

`install()` checks that the interpreter's inside is what it knows, and that the patch took: it raises
InterpreterPatchError, it never does nothing. fp8e4b15 is left as it is. Needs numpy, not torch.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
from types import ModuleType
from typing import Any

_VARIABLE = "TRITON_INTERPRET"
_MARK = "_turbo_testing_patched"


class InterpreterPatchError(RuntimeError):
    """This triton's interpreter is not built as the patch expects; interpreter.py needs a look."""


def requested() -> bool:
    """True when TRITON_INTERPRET asks for the interpreter."""
    return os.environ.get(_VARIABLE, "0").lower() in ("1", "true", "on", "yes", "y")


def request() -> None:
    """Asks for the interpreter unless the caller decided; must come before triton is imported."""
    if _VARIABLE in os.environ:
        return
    if "triton" in sys.modules:
        raise RuntimeError(f"triton was imported before {_VARIABLE} could be set; set it before starting pytest")
    os.environ[_VARIABLE] = "1"


def install_if_requested() -> bool:
    """Installs the patch when the interpreter is asked for and triton is there; returns whether it is in place."""
    if not requested() or importlib.util.find_spec("triton") is None:
        return False
    install()
    return True


def install() -> None:
    """Patches triton.runtime.interpreter in place, once. Raises InterpreterPatchError when it does not fit."""
    try:
        import triton.language as tl
        from triton.runtime import interpreter as module
    except ImportError as error:
        raise InterpreterPatchError(f"triton's interpreter cannot be imported: {error}") from error
    if getattr(module, _MARK, False):
        return
    _check_shape(module)
    _Patch(module, tl).apply()
    setattr(module, _MARK, True)
    _self_check(module, tl)


_EXPECTED = {
    "_convert_float": ["input", "input_dtype", "output_dtype", "rounding_mode"],
    "InterpreterBuilder.cast_impl": ["self", "src", "dst_type"],
    "InterpreterBuilder.create_fp_to_fp": ["self", "src", "dst_type", "rounding_mode"],
    "InterpreterBuilder.create_dot": ["self", "a", "b", "d", "input_precision", "max_num_imprecise_acc"],
    "InterpreterBuilder.binary_op": ["self", "lhs", "rhs", "op"],
    "InterpreterBuilder.unary_op": ["self", "arg", "op"],
    "InterpreterBuilder.ternary_op": ["self", "lhs", "rhs", "other", "op"],
    "InterpreterBuilder.create_fma": ["self", "x", "y", "z"],
}


def _check_shape(module: ModuleType) -> None:
    """Every function that the patch replaces must be there with the arguments that it knows."""
    from importlib.metadata import version

    for path, expected in _EXPECTED.items():
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        names = list(inspect.signature(found).parameters) if callable(found) else None
        if names != expected:
            raise InterpreterPatchError(
                f"triton {version('triton')}: triton.runtime.interpreter.{path} takes {names}, the patch knows {expected}"
            )
    for name in ("TensorHandle", "_get_np_dtype", "_ir"):
        if not hasattr(module, name):
            raise InterpreterPatchError(f"triton {version('triton')}: triton.runtime.interpreter has no {name}")


class Fp8Format:
    """One 8-bit format as a table of its 256 values, with an encoder that rounds to nearest even (or toward zero).

    exponent bits follow from `mantissa`; `finite_only` formats have no inf. `fnuz`: no inf, no negative zero, NaN is 0x80.
    """

    def __init__(self, mantissa: int, bias: int, *, fnuz: bool = False, has_inf: bool = False) -> None:
        import numpy as np

        codes = np.arange(128)
        exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
        magnitude = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
        if fnuz:
            self.overflow, last = 0x80, 0x7F
        elif has_inf:
            self.overflow, last = 0x7C, 0x7B
        else:
            self.overflow, last = 0x7F, 0x7E
        self.nan = 0x80 if fnuz else 0x7F
        self.fnuz, self.last = fnuz, last
        # The first value past the largest finite one, which the overflow code stands for when rounding.
        top = 2 * magnitude[-1] - magnitude[-2] if last == 0x7F else magnitude[last + 1]
        self._levels = np.append(magnitude[: last + 1], top)
        self._midpoints = (self._levels[:-1] + self._levels[1:]) / 2
        positive = magnitude.astype(np.float32)
        positive[last + 1 :] = np.nan
        if has_inf:
            positive[0x7C] = np.inf
        self.values = np.concatenate([positive, -positive])
        if fnuz:
            self.values[0x80] = np.nan

    def decode(self, codes: Any) -> Any:
        """uint8 codes -> float32 values."""
        return self.values[codes]

    def encode(self, values: Any, toward_zero: bool = False) -> Any:
        """float values -> uint8 codes."""
        import numpy as np

        size = np.abs(values).astype(np.float64)
        if toward_zero:
            code = np.searchsorted(self._levels[: self.last + 1], size, side="right") - 1
        else:
            code = np.searchsorted(self._midpoints, size, side="left")
            tie = self._midpoints[np.minimum(code, self.last)] == size
            code = code + (tie & (code & 1 == 1))
        code = np.where((code > self.last) | (np.isinf(size) & (not toward_zero)), self.overflow, code)
        code = np.where(np.isnan(size), self.nan, code).astype(np.uint8)
        negative = np.signbit(values)
        if self.fnuz:
            negative &= code != 0
        return (code | (negative.astype(np.uint8) << 7)).astype(np.uint8)


@functools.cache
def fp8_formats() -> dict[str, Fp8Format]:
    """By Triton's name: fp8e4nv = e4m3fn, fp8e5 = e5m2, fp8e4b8 = e4m3fnuz, fp8e5b16 = e5m2fnuz."""
    return {
        "fp8e4nv": Fp8Format(3, 7),
        "fp8e5": Fp8Format(2, 15, has_inf=True),
        "fp8e4b8": Fp8Format(3, 8, fnuz=True),
        "fp8e5b16": Fp8Format(2, 16, fnuz=True),
    }


def decode_bf16(bits: Any) -> Any:
    """uint16 -> float32, exact."""
    import numpy as np

    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_bf16(values: Any, toward_zero: bool = False) -> Any:
    """float -> uint16, to nearest even; NaN becomes 0x7fc0 as in torch."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not toward_zero:
        rounded = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
        bits = np.where(np.isnan(values), np.uint32(0x7FC00000), rounded)
    return (bits >> np.uint32(16)).astype(np.uint16).reshape(np.shape(values))


class _Patch:
    """The replacements, bound to one interpreter module. Everything not bf16 or fp8 goes to the original."""

    def __init__(self, module: ModuleType, tl: Any) -> None:
        import numpy as np

        self.np, self.tl, self.module = np, tl, module
        self.handle = module.TensorHandle
        self.fp8 = {getattr(tl, f"float8{name[3:]}"): fmt for name, fmt in fp8_formats().items()}
        self.toward_zero = module._ir.ROUNDING_MODE.RTZ

    def knows(self, dtype: Any) -> bool:
        return dtype == self.tl.bfloat16 or dtype in self.fp8

    def decode(self, data: Any, dtype: Any) -> Any:
        """The numbers that `data` stands for: float32 for bf16 and fp8, numpy's own type otherwise."""
        if dtype == self.tl.bfloat16:
            return decode_bf16(data)
        return self.fp8[dtype].decode(data) if dtype in self.fp8 else data

    def encode(self, values: Any, dtype: Any, toward_zero: bool = False) -> Any:
        """Numbers -> the array that the interpreter keeps for `dtype`."""
        np = self.np
        if dtype == self.tl.bfloat16:
            return encode_bf16(values, toward_zero)
        if dtype in self.fp8:
            return self.fp8[dtype].encode(values, toward_zero)
        out = values.astype(self.module._get_np_dtype(dtype))
        if toward_zero and dtype.is_floating():
            out = np.where(np.abs(out) > np.abs(values), np.nextafter(out, np.zeros_like(out)), out)
        return out

    def plain(self, handle: Any) -> Any:
        """`handle` with bf16 or fp8 data decoded to float32."""
        dtype = handle.dtype.scalar
        return self.handle(self.decode(handle.data, dtype), self.tl.float32) if self.knows(dtype) else handle

    def apply(self) -> None:
        builder = self.module.InterpreterBuilder
        original = {path: getattr(builder, path.split(".")[1]) for path in _EXPECTED if "." in path}
        convert_original = self.module._convert_float  # type: ignore[attr-defined]
        patch, handle, np = self, self.handle, self.np

        def convert_float(input: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
            if not (patch.knows(input_dtype) or patch.knows(output_dtype)) or "e4b15" in f"{input_dtype}{output_dtype}":
                return convert_original(input, input_dtype, output_dtype, rounding_mode)
            data = input.view(patch.module._get_np_dtype(input_dtype))
            out = patch.encode(patch.decode(data, input_dtype), output_dtype, rounding_mode == patch.toward_zero)
            return np.ascontiguousarray(out).view(getattr(np, f"uint{output_dtype.primitive_bitwidth}"))

        def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
            source, target = src.dtype.scalar, dst_type.scalar
            if not (patch.knows(source) or patch.knows(target)):
                return original["InterpreterBuilder.cast_impl"](self, src, dst_type)
            return handle(patch.encode(patch.decode(src.data, source), target), target)

        def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
            call = original["InterpreterBuilder.create_dot"]
            return call(self, patch.plain(a), patch.plain(b), d, input_precision, max_num_imprecise_acc)

        def through_float32(path: str, operands: int, answer: int) -> Any:
            """Decodes bf16 operands, runs the original in float32, rounds the answer; comparisons stay bool."""
            call = original[path]

            def run(self: Any, *args: Any) -> Any:
                dtype = args[answer].dtype.scalar
                if dtype != patch.tl.bfloat16:
                    return call(self, *args)
                out = call(self, *(patch.plain(x) for x in args[:operands]), *args[operands:])
                return handle(out.data if out.data.dtype == np.bool_ else encode_bf16(out.data), dtype)

            return run

        self.module._convert_float = convert_float  # type: ignore[attr-defined]
        builder.cast_impl = cast_impl
        builder.create_dot = create_dot
        builder.binary_op = through_float32("InterpreterBuilder.binary_op", 2, 0)
        builder.unary_op = through_float32("InterpreterBuilder.unary_op", 1, 0)
        builder.ternary_op = through_float32("InterpreterBuilder.ternary_op", 3, 2)
        builder.create_fma = through_float32("InterpreterBuilder.create_fma", 3, 2)


def _self_check(module: ModuleType, tl: Any) -> None:
    """Three values that the unpatched interpreter gets wrong, asked through the interpreter's own entry points."""
    import numpy as np

    builder, handle = module.interpreter_builder, module.TensorHandle
    values = handle(np.array([0.497], np.float32), tl.float32)
    fp8 = builder.create_fp_to_fp(values, tl.float8e4nv, module._ir.ROUNDING_MODE.RTNE).data
    ones = handle(np.full((1, 1), 0x3F80, np.uint16), tl.bfloat16)
    dot = builder.create_dot(ones, ones, handle(np.zeros((1, 1), np.float32), tl.float32), None, None).data
    total = builder.create_fadd(ones, ones).data
    if fp8[0] != 0x30 or dot[0, 0] != 1.0 or total[0, 0] != 0x4000:
        raise InterpreterPatchError(f"the patch did not take: fp8 {fp8}, dot {dot}, sum {total}")
