# SPDX-License-Identifier: MIT
"""Triton's machine code for both architectures, with all checks on: right numbers against float64, and no findings."""

from __future__ import annotations

import random
import struct

import pytest

from turbo_sim.testing import native

pytest.importorskip("triton")
torch = pytest.importorskip("torch")
import triton_sample  # noqa: E402

ARCHS = ("gfx942", "gfx950")
CASES = [(arch, case) for arch in ARCHS for case in triton_sample.cases(arch)]
TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}


def launch(arch: str, case, arguments: list, grid: tuple[int, int, int], **options):
    """Runs a compiled case; arguments in the order of its signature."""
    hsaco, meta = triton_sample.compile_case(case, arch)
    code = native().CodeObject.load(hsaco, arch)
    (kernel,) = code.kernels
    kernarg, memory = b"", []
    explicit = [a for a in kernel.args if not a.kind.startswith("hidden")]
    for spec, a in zip(explicit, arguments + [0] * (len(explicit) - len(arguments))):  # Triton adds scratch pointers
        kernarg = kernarg.ljust(spec.offset, b"\0")
        if isinstance(a, torch.Tensor):
            memory.append((a.data_ptr(), a.numel() * a.element_size(), spec.name or f"argument {spec.offset}"))
            kernarg += struct.pack("<Q", a.data_ptr())
        elif isinstance(a, float):
            kernarg += struct.pack("<f", a)
        else:
            kernarg += int(a).to_bytes(spec.size, "little", signed=True)
    report = native().launch(
        code,
        kernel.name,
        grid,
        (64 * meta["warps"], 1, 1),
        kernarg,
        shared=meta["shared"],
        memory=memory,
        max_steps=10_000_000,
        **options,
    )
    assert [str(f) for f in report.findings] == []
    return report


def close(actual, expected, tolerance: float) -> None:
    a, e = actual.double(), expected.double()
    error = (a - e).abs() / (1 + e.abs())
    assert bool((error <= tolerance).all()), (
        f"worst error {float(error.nan_to_num(float('inf')).max()):.3g}, allowed {tolerance}"
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def check_add(arch, case):
    t, n = TYPES[case.dtypes[0]], 4096 if case.aligned else 3001
    x, y, z = torch.randn(n).to(t), torch.randn(n).to(t), torch.zeros(n, dtype=t)
    launch(arch, case, [x, y, z, n], (4, 1, 1))
    close(z, (x.float() + y.float()).to(t), 0)


def check_softmax(arch, case):
    n = 1024 if case.aligned else 777
    x, y = torch.randn(5, n).bfloat16(), torch.zeros(5, n).bfloat16()
    launch(arch, case, [x, y, n], (5, 1, 1))
    close(y, torch.softmax(x.double(), 1), 1e-3)


def check_rmsnorm(arch, case):
    n = 1024 if case.aligned else 777
    x, w, y = torch.randn(5, n).bfloat16(), torch.randn(n), torch.zeros(5, n).bfloat16()
    launch(arch, case, [x, w, y, n, 1e-5], (5, 1, 1))
    d = x.double()
    close(y, d * torch.rsqrt((d * d).mean(1, keepdim=True) + 1e-5) * w.double(), 1e-2)


def check_gemm(arch, case):
    source, target = (TYPES[t] for t in case.dtypes)
    b_m = dict(case.constants)["BM"]
    m, n, k = (2 * b_m, b_m, 192) if case.aligned else (b_m + 17, 2 * b_m - 5, 141)
    draw = (lambda *s: torch.randint(-128, 128, s)) if source == torch.int8 else torch.randn
    a, b, c = draw(m, k).to(source), draw(k, n).to(source), torch.zeros(m, n, dtype=target)
    launch(arch, case, [a, b, c, m, n, k, k, 1, n, 1], (ceil_div(m, b_m), ceil_div(n, b_m), 1))
    close(c, a.double() @ b.double(), {torch.bfloat16: 1e-2, torch.int32: 0}.get(target, 1e-4))


check_gemm128 = check_gemm


def operand(kind: str, rows: int, k: int):
    """(stored, value) of a random operand of dot_scaled: fp4 is two to a byte, low nibble first."""
    if kind == "bf16":
        x = torch.randn(rows, k).bfloat16()
        return x, x.double()
    if kind == "e2m1":
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        codes = torch.randint(0, 16, (rows, k))
        value = table[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
        return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8), value
    x = torch.randn(rows, k).to(torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2)
    return x.view(torch.uint8), x.double()


def check_dot_scaled(arch, case):
    kind_a, kind_b = case.dtypes
    n, k = dict(case.constants)["BM"], 256
    (a, av), (b, bv) = operand(kind_a, n, k), operand(kind_b, n, k)
    sa, sb = (
        torch.randint(120, 134, (n, k // 32)).to(torch.uint8) for _ in range(2)
    )  # random per block: uniform hides errors
    c = torch.zeros(n, n)
    launch(arch, case, [a, sa, b.T.contiguous(), sb, c], (1, 1, 1))
    scaled = lambda v, s, kind: v if kind == "bf16" else v * torch.exp2(s.double() - 127).repeat_interleave(32, 1)  # noqa: E731
    want = scaled(av, sa, kind_a) @ scaled(bv, sb, kind_b).T
    close(c / want.abs().max(), want / want.abs().max(), 1e-2 if "bf16" in case.dtypes else 1e-5)


check_dot_scaled32 = check_dot_scaled64 = check_dot_scaled


def attention_inputs(case):
    t, d = TYPES[case.dtypes[0]], dict(case.constants)["D"]
    s = 128 if case.aligned else 100
    q, k, v = (torch.randn(s, d).to(t) for _ in range(3))
    scale = d**-0.5
    scores = (q.double() @ k.double().T * scale).masked_fill(torch.triu(torch.ones(s, s), 1).bool(), -float("inf"))
    return t, s, d, q, k, v, scale, scores


def check_attention(arch, case):
    t, s, d, q, k, v, scale, scores = attention_inputs(case)
    o, lse = torch.zeros(s, d, dtype=t), torch.zeros(s)
    launch(arch, case, [q, k, v, o, lse, s, scale], (ceil_div(s, dict(case.constants)["BM"]), 1, 1))
    close(o, torch.softmax(scores, 1) @ v.double(), 1e-2 if t == torch.float16 else 1e-4)
    close(lse, torch.logsumexp(scores, 1), 1e-3)


def check_attention_backward(arch, case):
    t, s, d, q, k, v, scale, scores = attention_inputs(case)
    p, do = torch.softmax(scores, 1), torch.randn(s, d).to(t)
    out = p @ v.double()
    delta = (out * do.double()).sum(1)
    dq, dk, dv = (torch.zeros(s, d) for _ in range(3))
    arguments = [q, k, v, do, torch.logsumexp(scores, 1).float(), delta.float(), dq, dk, dv, s, scale]
    launch(arch, case, arguments, (ceil_div(s, dict(case.constants)["BN"]), 1, 1))
    ds = p * (do.double() @ v.double().T - delta[:, None]) * scale
    tolerance = 2e-2 if t == torch.float16 else 1e-4
    close(dv, p.T @ do.double(), tolerance)
    close(dk, ds.T @ q.double(), tolerance)
    close(dq, ds @ k.double(), tolerance)


def values(t, n: int):
    return torch.randint(-1000, 1000, (n,)).to(t) if t in (torch.int32, torch.int64) else torch.randn(n).to(t)


def check_sort(arch, case):
    x = values(TYPES[case.dtypes[0]], 512)
    y = torch.zeros_like(x)
    launch(arch, case, [x, y], (2, 1, 1))
    assert torch.equal(y, x.view(2, 256).sort(1).values.view(-1))


def check_scan(arch, case):
    x = values(TYPES[case.dtypes[0]], 512)
    y = torch.zeros_like(x)
    launch(arch, case, [x, y], (1, 1, 1))
    close(y, x.double().cumsum(0), 3e-2 if x.dtype == torch.float16 else 0)


def check_histogram(arch, case):
    t = TYPES[case.dtypes[0]]
    x, y = torch.randint(-10, 10, (1000,)).to(t), torch.zeros(32, dtype=t)
    launch(arch, case, [x, y, 1000], (4, 1, 1))
    close(y, torch.zeros(32, dtype=torch.float64).index_add_(0, torch.arange(1000) % 32, x.double()), 0)


def check_cast(arch, case):
    source, target = (TYPES[t] for t in case.dtypes)
    x, y = (torch.randn(1024) * 3).to(source), torch.zeros(1024, dtype=target)
    launch(arch, case, [x, y, 1024], (1, 1, 1))
    close(y.float(), x.float().to(target).float(), 0)


def check_functions(arch, case):
    n = 500
    x, y = torch.rand(512) * 3 + 0.1, torch.zeros(512)
    launch(arch, case, [x, y, n], (1, 1, 1))
    d, o = x.double(), torch.arange(512)
    want = (
        d.sin()
        + d.log() * d.sqrt()
        + d.floor()
        + torch.exp2(d) / (d + 3)
        + torch.erf(d)
        + ((o * 7 + 3) // (n + 1) + o % 13)
    )
    close(y[:n], want[:n], 1e-5)
    assert not y[n:].any()


def check_random(arch, case):
    y = torch.zeros(4096)
    launch(arch, case, [y, 16], (8, 1, 1))
    assert abs(float(y.mean())) < 0.06 and abs(float(y.std()) - 1) < 0.04 and len(y.unique()) > 4000


@pytest.mark.parametrize("arch, case", CASES, ids=[f"{a}-{c.name}" for a, c in CASES])
def test_kernel(arch: str, case) -> None:
    torch.manual_seed(0)
    globals()["check_" + case.name.split("_" + case.dtypes[0])[0]](arch, case)


@pytest.mark.parametrize("arch", ARCHS)
def test_interleaving_waves_changes_nothing(arch: str) -> None:
    case = next(c for c in triton_sample.cases(arch) if c.name.startswith("gemm_bf16") and not c.aligned)
    a, b = torch.randn(70, 90).bfloat16(), torch.randn(90, 64).bfloat16()
    results = []
    for seed in (0, 1, 2):
        c = torch.zeros(70, 64).bfloat16()
        launch(arch, case, [a, b, c, 70, 64, 90, 90, 1, 64, 1], (2, 1, 1), seed=seed)
        results.append(c)
    assert all(torch.equal(r, results[0]) for r in results)


def test_damaged_code_objects_are_refused_not_followed() -> None:
    """Random damage to an ELF file: a LoadError or a code object, never a crash."""
    case = next(c for c in triton_sample.cases("gfx950") if c.name.startswith("add_fp32"))
    whole, _ = triton_sample.compile_case(case, "gfx950")
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 12)):
            data[draw.randrange(64 if draw.random() < 0.4 else len(data))] = draw.choice((0, 255, draw.randrange(256)))
        data = data[: draw.randrange(len(data))] if draw.random() < 0.2 else data
        try:
            native().CodeObject.load(bytes(data)).instruction_texts()
        except native().LoadError:
            refused += 1
    assert refused > 100
