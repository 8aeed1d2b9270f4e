# SPDX-License-Identifier: MIT
"""Kernels that show what Triton's interpreter does with bf16 and fp8; used by test_interpreter.py.

As a script it prints, as JSON, which of PROBES are wrong in this process, without the patch.
"""

import json

import torch
import triton
import triton.language as tl

FP8 = {
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}


@triton.jit
def cast_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=i < n)


@triton.jit
def cast_toward_zero_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(out + i, value.to(out.dtype.element_ty, fp_downcast_rounding="rtz"), mask=i < n)


@triton.jit
def sum_of(x):
    return tl.sum(x, 0)


@triton.jit
def calling_kernel(x, out, calls, BLOCK: tl.constexpr):
    total = 0.0
    for _ in range(calls):
        total += sum_of(tl.load(x + tl.arange(0, BLOCK)))
    tl.store(out, total)


@triton.jit
def binary_kernel(x, y, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n, other=1)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = (a / b).to(out.dtype.element_ty)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "neg":
        r = -a
    elif OP == "less":
        r = tl.where(a < b, a, b)
    elif OP == "fma":
        r = tl.fma(a, b, b)
    elif OP == "clamp":
        r = tl.clamp(a, -b, b)
    elif OP == "clamp and keep NaN":
        r = tl.clamp(a, -b, b, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + i, r, mask=i < n)


@triton.jit
def dot_kernel(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(x, y, input_precision="ieee"))


def supported():
    """The fp8 types that this triton's interpreter knows."""
    from triton.runtime.interpreter import InterpreterBuilder

    return [name for name in FP8 if hasattr(InterpreterBuilder, f"get_{name}_ty")]


def cast(x, dtype, kernel=cast_kernel):
    """x cast to dtype by a kernel."""
    out = torch.empty(x.shape, dtype=dtype)
    kernel[(triton.cdiv(x.numel(), 65536),)](x, out, x.numel(), BLOCK=65536)
    return out


def binary(x, y, op):
    """op(x, y) by a kernel, in the dtype of x."""
    out = torch.empty_like(x)
    binary_kernel[(1,)](x, y, out, x.numel(), OP=op, BLOCK=1024)
    return out


def dot(a, b):
    """a [M, K] times b [K, N] by tl.dot, float32."""
    out = torch.empty(a.shape[0], b.shape[1])
    dot_kernel[(1,)](a, b, out, M=a.shape[0], N=b.shape[1], K=a.shape[1])
    return out


def _bf16_dot():
    a, b = torch.randn(16, 32).bfloat16(), torch.randn(32, 16).bfloat16()
    return bool((dot(a, b).double() - a.double() @ b.double()).abs().max() < 1e-3)


def _bf16_add():
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    return torch.equal(binary(x, y, "add"), x + y)


def _int_to_bf16():
    x = torch.arange(64)
    return torch.equal(cast(x, torch.bfloat16), x.bfloat16())


def _float_to_bf16():
    x = torch.randn(64)
    return torch.equal(cast(x, torch.bfloat16), x.bfloat16())


def _fp8_cast(name):
    x = torch.tensor([0.497, -0.497, 0.9999])
    return torch.equal(cast(x, FP8[name]).float(), x.to(FP8[name]).float())


def _fp8_nan():
    return bool(cast(torch.tensor([float("nan")]).to(torch.float8_e4m3fn), torch.float32).isnan())


PROBES = {
    "bf16 dot": _bf16_dot,
    "bf16 add": _bf16_add,
    "int -> bf16": _int_to_bf16,
    "float32 -> bf16": _float_to_bf16,
    **{f"float32 -> {name}": (lambda name=name: _fp8_cast(name)) for name in supported()},
    "NaN of fp8e4nv": _fp8_nan,
}


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps([name for name, right in PROBES.items() if not right()]))
