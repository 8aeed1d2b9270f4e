# SPDX-License-Identifier: MIT
"""Triton kernels of many kinds, compiled ahead of time for gfx942 and gfx950: customers of decoder and simulator."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, z, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(z + o, tl.load(x + o, mask=o < n) + tl.load(y + o, mask=o < n), mask=o < n)


@triton.jit
def softmax(x, y, n, B: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf")).to(tl.float32)
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + o, (v / tl.sum(v, 0)).to(y.dtype.element_ty), mask=o < n)


@triton.jit
def rmsnorm(x, w, y, n, eps, B: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(y + row * n + o, (v * r * tl.load(w + o, mask=o < n, other=0.0)).to(y.dtype.element_ty), mask=o < n)


@triton.jit
def gemm(a, b, c, M, N, K, sam, sak, sbk, sbn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    om, on, ok = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        x = tl.load(
            a + om[:, None] * sam + (k + ok)[None, :] * sak, mask=(om[:, None] < M) & ((k + ok)[None, :] < K), other=0.0
        )
        y = tl.load(
            b + (k + ok)[:, None] * sbk + on[None, :] * sbn, mask=(on[None, :] < N) & ((k + ok)[:, None] < K), other=0.0
        )
        acc = tl.dot(x, y, acc, input_precision="ieee", out_dtype=ACC)
    tl.store(c + om[:, None] * N + on[None, :], acc.to(c.dtype.element_ty), mask=(om[:, None] < M) & (on[None, :] < N))


@triton.jit
def dot_scaled(
    a,
    sa,
    b,
    sb,
    c,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FA: tl.constexpr,
    FB: tl.constexpr,
    PA: tl.constexpr,
    PB: tl.constexpr,
):
    om, on, os = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK // 32)
    oka, okb = tl.arange(0, BK // PA), tl.arange(0, BK // PB)
    x, y = tl.load(a + om[:, None] * (BK // PA) + oka[None, :]), tl.load(b + okb[:, None] * BN + on[None, :])
    p, q = tl.load(sa + om[:, None] * (BK // 32) + os[None, :]), tl.load(sb + on[:, None] * (BK // 32) + os[None, :])
    tl.store(c + om[:, None] * BN + on[None, :], tl.dot_scaled(x, p, FA, y, q, FB))


@triton.jit
def attention(Q, K, V, O, L, S, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):  # noqa: E741
    om, od = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + om[:, None] * D + od[None, :], mask=om[:, None] < S, other=0.0)
    m, s, acc = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for n in range(0, S, BN):
        on = n + tl.arange(0, BN)
        k = tl.load(K + on[None, :] * D + od[:, None], mask=on[None, :] < S, other=0.0)
        v = tl.load(V + on[:, None] * D + od[None, :], mask=on[:, None] < S, other=0.0)
        t = tl.where(
            (on[None, :] < S) & (on[None, :] <= om[:, None]),
            tl.dot(q, k, input_precision="ieee") * scale,
            -float("inf"),
        )
        top = tl.maximum(m, tl.max(t, 1))
        p, alpha = tl.exp(t - top[:, None]), tl.exp(m - top)
        s, acc, m = (
            s * alpha + tl.sum(p, 1),
            acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee"),
            top,
        )
    tl.store(O + om[:, None] * D + od[None, :], (acc / s[:, None]).to(O.dtype.element_ty), mask=om[:, None] < S)
    tl.store(L + om, m + tl.log(s), mask=om < S)


@triton.jit
def attention_backward(
    Q, K, V, DO, L, DELTA, DQ, DK, DV, S, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    on, od = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    k = tl.load(K + on[:, None] * D + od[None, :], mask=on[:, None] < S, other=0.0)
    v = tl.load(V + on[:, None] * D + od[None, :], mask=on[:, None] < S, other=0.0)
    dk, dv = tl.zeros((BN, D), tl.float32), tl.zeros((BN, D), tl.float32)
    for i in range(0, S, BM):
        om = i + tl.arange(0, BM)
        q = tl.load(Q + om[:, None] * D + od[None, :], mask=om[:, None] < S, other=0.0)
        do = tl.load(DO + om[:, None] * D + od[None, :], mask=om[:, None] < S, other=0.0)
        lse, delta = tl.load(L + om, mask=om < S, other=0.0), tl.load(DELTA + om, mask=om < S, other=0.0)
        keep = (on[None, :] < S) & (on[None, :] <= om[:, None]) & (om[:, None] < S)
        p = tl.where(keep, tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None]) * scale
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        tl.atomic_add(DQ + om[:, None] * D + od[None, :], dq, mask=om[:, None] < S)
    tl.store(DK + on[:, None] * D + od[None, :], dk, mask=on[:, None] < S)
    tl.store(DV + on[:, None] * D + od[None, :], dv, mask=on[:, None] < S)


@triton.jit
def sort(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.sort(tl.load(x + o)))


@triton.jit
def scan(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.cumsum(tl.load(x + o), 0))


@triton.jit
def histogram(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y + (o % 32), tl.load(x + o, mask=o < n), mask=o < n)


@triton.jit
def cast(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n).to(y.dtype.element_ty), mask=o < n)


@triton.jit
def functions(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    r = tl.sin(v) + tl.log(v) * tl.sqrt(v) + tl.floor(v) + tl.exp2(v) / (v + 3) + tl.erf(v)
    tl.store(y + o, r + ((o * 7 + 3) // (n + 1) + o % 13), mask=o < n)


@triton.jit
def random(y, seed, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.randn(seed, o))


@dataclass(frozen=True)
class Case:
    """One kernel to compile. `aligned`: pointers and sizes are multiples of 16, buffers below 2 GiB."""

    name: str
    kernel: object
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, object], ...]
    warps: int = 4
    aligned: bool = False
    dtypes: tuple[str, ...] = field(default=())


def float8(arch: str) -> tuple[str, str]:
    """The architecture's own FP8 types: FNUZ on gfx942, OCP on gfx950."""
    return ("fp8e4b8", "fp8e5b16") if arch == "gfx942" else ("fp8e4nv", "fp8e5")


def _case(
    name: str, kernel, dtypes: tuple[str, ...], signature: dict, constants: dict, warps: int = 4, aligned: bool = False
) -> Case:
    full = "_".join((name, *dtypes, "aligned" if aligned else "any"))
    return Case(full, kernel, tuple(signature.items()), tuple(constants.items()), warps, aligned, dtypes)


def cases(arch: str) -> Iterator[Case]:
    e4, e5 = float8(arch)
    for aligned in (False, True):
        for t in ("fp32", "bf16", "fp16"):
            yield _case("add", add, (t,), dict(x=f"*{t}", y=f"*{t}", z=f"*{t}", n="i32"), dict(B=1024), aligned=aligned)
        yield _case("softmax", softmax, ("bf16",), dict(x="*bf16", y="*bf16", n="i32"), dict(B=1024), aligned=aligned)
        yield _case(
            "rmsnorm",
            rmsnorm,
            ("bf16",),
            dict(x="*bf16", w="*fp32", y="*bf16", n="i32", eps="fp32"),
            dict(B=1024),
            aligned=aligned,
        )
        for t, out in (("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp32"), (e4, "bf16"), (e5, "fp32"), ("i8", "i32")):
            names = dict(
                a=f"*{t}", b=f"*{t}", c=f"*{out}", M="i32", N="i32", K="i32", sam="i32", sak="i32", sbk="i32", sbn="i32"
            )
            tile = dict(BM=64, BN=64, BK=64, ACC=tl.int32 if t == "i8" else tl.float32)
            yield _case("gemm", gemm, (t, out), names, tile, aligned=aligned)
        yield _case(
            "gemm128",
            gemm,
            ("bf16", "bf16"),
            dict(
                a="*bf16", b="*bf16", c="*bf16", M="i32", N="i32", K="i32", sam="i32", sak="i32", sbk="i32", sbn="i32"
            ),
            dict(BM=128, BN=128, BK=64, ACC=tl.float32),
            warps=8,
            aligned=aligned,
        )
        for t in ("fp16", "fp32"):
            tensors = dict(Q=f"*{t}", K=f"*{t}", V=f"*{t}")
            tile = dict(BM=64, BN=32, D=64) if t == "fp16" else dict(BM=32, BN=32, D=32)
            yield _case(
                "attention",
                attention,
                (t,),
                tensors | dict(O=f"*{t}", L="*fp32", S="i32", scale="fp32"),
                tile,
                aligned=aligned,
            )
            yield _case(
                "attention_backward",
                attention_backward,
                (t,),
                tensors
                | {
                    "DO": f"*{t}",
                    "L": "*fp32",
                    "DELTA": "*fp32",
                    "DQ": "*fp32",
                    "DK": "*fp32",
                    "DV": "*fp32",
                    "S": "i32",
                    "scale": "fp32",
                },
                dict(BM=32, BN=32, D=tile["D"]),
                aligned=aligned,
            )
    for t in ("i32", "fp16", "i64"):
        yield _case("sort", sort, (t,), dict(x=f"*{t}", y=f"*{t}"), dict(B=256))
        yield _case("scan", scan, (t,), dict(x=f"*{t}", y=f"*{t}"), dict(B=512))
    for t in ("fp32", "i32", "fp16", "bf16", "fp64"):
        yield _case("histogram", histogram, (t,), dict(x=f"*{t}", y=f"*{t}", n="i32"), dict(B=256))
    for source, target in (
        ("fp32", "bf16"),
        ("bf16", "fp32"),
        ("fp32", "fp16"),
        ("fp32", e4),
        ("fp32", e5),
        ("bf16", e4),
        ("fp16", e5),
        (e4, "fp32"),
        (e5, "fp16"),
        (e4, "bf16"),
    ):
        yield _case(
            "cast", cast, (source, target), dict(x=f"*{source}", y=f"*{target}", n="i32"), dict(B=1024), aligned=True
        )
    yield _case("functions", functions, ("fp32",), dict(x="*fp32", y="*fp32", n="i32"), dict(B=512))
    yield _case("random", random, ("fp32",), dict(y="*fp32", seed="i32"), dict(B=512))
    element = {"e4m3": "u8", "e5m2": "u8", "e2m1": "u8", "bf16": "bf16"}
    for fa, fb in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m1"), ("e2m1", "e4m3"), ("bf16", "e4m3")):
        for n in (32, 64):
            yield _case(
                f"dot_scaled{n}",
                dot_scaled,
                (fa, fb),
                dict(a=f"*{element[fa]}", sa="*u8", b=f"*{element[fb]}", sb="*u8", c="*fp32"),
                dict(BM=n, BN=n, BK=256, FA=fa, FB=fb, PA=2 if fa == "e2m1" else 1, PB=2 if fb == "e2m1" else 1),
                aligned=n == 64,
            )


def _compile(case: Case, arch: str) -> tuple[bytes, dict]:
    signature = dict(case.signature) | {k: "constexpr" for k, _ in case.constants}
    attrs = {}
    if case.aligned:
        for k, (_, t) in enumerate(case.signature):
            if t[0] == "*":
                attrs[(k,)] = [["tt.divisibility", 16], ["tt.pointer_range", 32]]
            elif t == "i32":
                attrs[(k,)] = [["tt.divisibility", 16]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        k = triton.compile(
            ASTSource(case.kernel, signature, constexprs=dict(case.constants), attrs=attrs),
            target=GPUTarget("hip", arch, 64),
            options={"num_warps": case.warps},
        )
    return k.asm["hsaco"], {"name": k.metadata.name, "shared": k.metadata.shared, "warps": case.warps}


@functools.cache
def _compile_elsewhere(arch: str) -> dict:
    """All cases, compiled by a process without the interpreter: with TRITON_INTERPRET=1 @triton.jit makes functions
    that cannot be compiled, and the test plugin sets it where there is no GPU."""
    run = subprocess.run(
        [sys.executable, __file__, arch], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True
    )
    if run.returncode:
        raise RuntimeError(run.stderr.decode()[-2000:])
    return pickle.loads(run.stdout)


@functools.cache
def compile_case(case: Case, arch: str) -> tuple[bytes, dict]:
    """(code object, {"name", "shared", "warps"})."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return _compile(case, arch)
    result = _compile_elsewhere(arch)[case.name]
    if isinstance(result, str):
        raise RuntimeError(f"{case.name} does not compile for {arch}: {result}")
    return result


def compiled(arch: str) -> Iterator[tuple[str, bytes, dict]]:
    """All code objects of the sample: (name, code object, meta)."""
    for case in cases(arch):
        yield case.name, *compile_case(case, arch)


if __name__ == "__main__":
    results: dict[str, object] = {}
    for one in cases(sys.argv[1]):
        try:
            results[one.name] = _compile(one, sys.argv[1])
        except Exception as e:  # a case that does not compile fails its own test, not all
            results[one.name] = f"{type(e).__name__}: {e}"
    sys.stdout.buffer.write(pickle.dumps(results))
