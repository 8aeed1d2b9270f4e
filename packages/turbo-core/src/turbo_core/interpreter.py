# SPDX-License-Identifier: MIT
"""Makes Triton's CPU interpreter (TRITON_INTERPRET=1) right for bf16 and fp8.

The interpreter keeps bf16 and fp8 values as raw integers in numpy arrays and forgets it in several places (seen in
3.6, 3.8 and 3.9; each has a test that fails once upstream is right, so that its patch goes):

* `tl.dot` of bf16 multiplies the integers; so do `+ - * /`, negation, comparison, min, max, clamp and fma, and
  casts between bf16 and integers or float64;
* float32 -> bf16 truncates, where hardware rounds to nearest even;
* float32 -> fp8 loses the carry from the mantissa into the exponent (0.497 becomes 0.25) and rounds ties up;
* NaN and inf of fp8 become numbers.

The patch decodes bf16 and fp8 operands, runs the interpreter's own operation in float32 and rounds the answer once,
to nearest even. Casts equal torch's on every input (number_formats.py says what happens out of range). It also saves
what the interpreter does over and over (interpreter_speed.py).

It is for the whole process and put in place when a backend is first asked whether it can run in the interpreter
(`turbo_core.why_no_triton`), never at import. `install` checks that the interpreter's inside is what it knows and that
the patch took; where not, `why_not` has the reason and no kernel of ours runs. Left as they are: fp8e4b15, atomics on
bf16, descriptor loads padded with NaN in bf16. Needs numpy, as the interpreter does, and no torch.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import threading
from types import ModuleType
from typing import Any

from turbo_core.interpreter_speed import replacements

__all__ = ["VARIABLE", "InterpreterPatchError", "install", "requested", "why_not"]

VARIABLE = "TRITON_INTERPRET"
_MARK = "_turbo_core_patched"
_lock = threading.Lock()


class InterpreterPatchError(RuntimeError):
    """This triton's interpreter is not built as the patch expects."""


def requested() -> bool:
    """Whether TRITON_INTERPRET asks for the interpreter; Triton reads it where a kernel is defined."""
    return os.environ.get(VARIABLE, "0").lower() in ("1", "true", "on", "yes", "y")


def is_in_use() -> bool:
    """Whether triton, which is imported for it, was imported with the interpreter on.

    Its own library of kernels then consists of interpreted functions, and so do ours.
    """
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    return not isinstance(tl.softmax, JITFunction)


@functools.cache
def why_not() -> str | None:
    """Why kernels cannot run in this process, in which the interpreter `is_in_use`; None once it is mended."""
    try:
        install()
    except InterpreterPatchError as error:
        return (
            f"Triton's interpreter ({VARIABLE}) is wrong in bf16 and FP8 until it is mended, which fails here: {error}"
        )
    return None


def install() -> None:
    """Patch triton.runtime.interpreter in place, once.

    Raises:
        InterpreterPatchError: the patch does not fit, and nothing was changed.
    """
    try:
        import triton.language as tl
        from triton.runtime import interpreter as module
    except ImportError as error:
        raise InterpreterPatchError(f"it cannot be imported: {error}") from error
    with _lock:
        if getattr(module, _MARK, False):
            return
        _check_inside(module)
        originals: list[tuple[Any, str, Any]] = []
        try:
            _Patch(module, tl).apply(originals)
            _self_check(module, tl)
        except Exception as error:  # an inside that nobody has seen fails in its own ways
            for owner, name, function in originals:
                setattr(owner, name, function)
            known = isinstance(error, InterpreterPatchError)
            raise InterpreterPatchError(str(error) if known else f"the patch does not run: {error!r}") from error
        setattr(module, _MARK, True)


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


def _check_inside(module: ModuleType) -> None:
    """Every function that the patch replaces or relies on must be there, with the arguments that it knows."""
    where = f"triton {importlib.metadata.version('triton')}: triton.runtime.interpreter"
    for path, expected in _EXPECTED.items():
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        names = list(inspect.signature(found).parameters) if callable(found) else None
        if names != expected:
            raise InterpreterPatchError(f"{where}.{path} takes {names}, the patch knows {expected}")
    for name in ("TensorHandle", "interpreter_builder", "_get_np_dtype", "_ir"):
        if not hasattr(module, name):
            raise InterpreterPatchError(f"{where} has no {name}")


class _Patch:
    """The replacements, bound to one interpreter module. What is neither bf16 nor fp8 goes to the original."""

    def __init__(self, module: Any, tl: Any) -> None:
        import numpy as np

        from turbo_core.number_formats import decode_bf16, encode_bf16, fp8_formats

        self.np, self.tl, self.module = np, tl, module
        self.decode_bf16, self.encode_bf16 = decode_bf16, encode_bf16
        self.fp8 = {getattr(tl, f"float8{name[3:]}"): fmt for name, fmt in fp8_formats().items()}
        self.toward_zero = module._ir.ROUNDING_MODE.RTZ

    def knows(self, *dtypes: Any) -> bool:
        """True when one of the types is bf16 or fp8 and none is one that the patch leaves alone."""
        if any(str(dtype) == "fp8e4b15" for dtype in dtypes):
            return False
        return any(dtype == self.tl.bfloat16 or dtype in self.fp8 for dtype in dtypes)

    def decode(self, data: Any, dtype: Any) -> Any:
        """The numbers that `data` stands for: float32 for bf16 and fp8, numpy's own type otherwise."""
        if dtype == self.tl.bfloat16:
            return self.decode_bf16(data)
        return self.fp8[dtype].decode(data) if dtype in self.fp8 else data

    def encode(self, values: Any, dtype: Any, toward_zero: bool = False) -> Any:
        """Numbers -> the array that the interpreter keeps for `dtype`."""
        np = self.np
        if dtype == self.tl.bfloat16:
            return self.encode_bf16(values, toward_zero)
        if dtype in self.fp8:
            return self.fp8[dtype].encode(values, toward_zero)
        out = values.astype(self.module._get_np_dtype(dtype))
        if toward_zero and dtype.is_floating():
            out = np.where(np.abs(out) > np.abs(values), np.nextafter(out, np.zeros_like(out)), out)
        return out

    def plain(self, handle: Any) -> Any:
        """`handle` with bf16 or fp8 data decoded to float32."""
        dtype = handle.dtype.scalar
        if not self.knows(dtype):
            return handle
        return self.module.TensorHandle(self.decode(handle.data, dtype), self.tl.float32)

    def apply(self, originals: list[tuple[Any, str, Any]]) -> None:
        """Replaces functions of the module and of InterpreterBuilder; notes (owner, name, function) of each."""
        builder, handle, np = self.module.InterpreterBuilder, self.module.TensorHandle, self.np
        patch = self
        original_convert, original_cast = self.module._convert_float, builder.cast_impl
        original_dot = builder.create_dot

        def convert_float(input: Any, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Any:
            if not patch.knows(input_dtype, output_dtype):
                return original_convert(input, input_dtype, output_dtype, rounding_mode)
            data = np.ascontiguousarray(input).view(patch.module._get_np_dtype(input_dtype))
            values = patch.decode(data, input_dtype).reshape(np.shape(input))
            out = patch.encode(values, output_dtype, rounding_mode == patch.toward_zero)
            return out.view(getattr(np, f"uint{output_dtype.primitive_bitwidth}"))

        def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
            source, target = src.dtype.scalar, dst_type.scalar
            if not patch.knows(source, target):
                return original_cast(self, src, dst_type)
            return handle(patch.encode(patch.decode(src.data, source), target), target)

        def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
            return original_dot(self, patch.plain(a), patch.plain(b), d, input_precision, max_num_imprecise_acc)

        def through_float32(original: Any, operands: int, answer: int) -> Any:
            """Decodes bf16 operands, runs `original`, rounds its answer; the answer of a comparison stays bool.

            `answer` is the argument whose type the result has.
            """

            def run(self: Any, *args: Any) -> Any:
                dtype = args[answer].dtype.scalar
                if dtype != patch.tl.bfloat16:
                    return original(self, *args)
                out = original(self, *(patch.plain(x) for x in args[:operands]), *args[operands:]).data
                return handle(out if out.dtype == np.bool_ else patch.encode_bf16(out), dtype)

            return run

        def replace(owner: Any, name: str, function: Any) -> None:
            originals.append((owner, name, getattr(owner, name)))
            setattr(owner, name, function)

        for owner, name, function in replacements(self.module, self.tl):
            replace(owner, name, function)
        replace(self.module, "_convert_float", convert_float)
        replace(builder, "cast_impl", cast_impl)
        replace(builder, "create_dot", create_dot)
        replace(builder, "binary_op", through_float32(builder.binary_op, operands=2, answer=0))
        replace(builder, "unary_op", through_float32(builder.unary_op, operands=1, answer=0))
        replace(builder, "ternary_op", through_float32(builder.ternary_op, operands=3, answer=2))
        replace(builder, "create_fma", through_float32(builder.create_fma, operands=3, answer=2))


def _self_check(module: Any, tl: Any) -> None:
    """Values that the unpatched interpreter gets wrong, asked through the entry points that kernels use."""
    import numpy as np

    builder, handle = module.interpreter_builder, module.TensorHandle
    values = handle(np.array([0.497], np.float32), tl.float32)
    fp8 = builder.create_fp_to_fp(values, tl.float8e4nv, module._ir.ROUNDING_MODE.RTNE).data
    ones = handle(np.full((1, 1), 0x3F80, np.uint16), tl.bfloat16)
    dot = builder.create_dot(ones, ones, handle(np.zeros((1, 1), np.float32), tl.float32), None, None).data
    total = builder.create_fadd(ones, ones).data
    if fp8[0] != 0x30 or dot[0, 0] != 1.0 or total[0, 0] != 0x4000:
        raise InterpreterPatchError(f"the patch did not take: fp8 {fp8}, dot {dot}, sum {total}")
    try:
        module.InterpretedFunction(_count_to)[(1,)](2)
    except Exception as error:
        raise InterpreterPatchError(f"a kernel with a loop fails under numpy {np.__version__}: {error}") from error


def _count_to(n):  # type: ignore[no-untyped-def]
    """A kernel that loops to an argument, which Triton before 3.7 cannot with numpy from 2.4 on."""
    for _ in range(n):
        pass
