# SPDX-License-Identifier: MIT
"""Hand-written kernels of the amd-aiter wheel, run from their code objects: right numbers against float64.

The option --aiter-wheel names the wheel. Each argument of these kernels takes 16 bytes.
"""

from __future__ import annotations

import functools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from turbo_sim.testing import native

torch = pytest.importorskip("torch")


@pytest.fixture
def run(aiter_wheel: Path) -> Callable[..., list[str]]:
    return functools.partial(launch, aiter_wheel)


def launch(
    wheel: Path, arch: str, path: str, grid: tuple[int, int, int], *args, block: int = 256, **options
) -> list[str]:
    """Launches the only kernel of a code object; returns the kinds of findings."""
    with zipfile.ZipFile(wheel) as z:
        code = native().CodeObject.load(z.read(f"aiter_meta/hsa/{arch}/{path}"), arch)
    kernarg, memory = b"", []
    for a in args:
        if isinstance(a, torch.Tensor):
            memory.append((a.data_ptr(), a.numel() * a.element_size(), f"argument {len(kernarg) // 16}"))
            kernarg += struct.pack("<Q8x", a.data_ptr())
        else:
            kernarg += bytes(16) if a is None else struct.pack("<f12x" if isinstance(a, float) else "<I12x", a)
    report = native().launch(
        code, code.kernels[0].name, grid, (block, 1, 1), kernarg, memory=memory, max_steps=10_000_000, **options
    )
    return sorted({f.check for f in report.findings})


def error(actual, expected) -> float:
    return float((actual.double() - expected.double()).abs().max() / expected.double().abs().max())


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", [32, 48, 64, 96])
def test_bf16_gemm(run, arch: str, tile: int) -> None:
    torch.manual_seed(0)
    m, n, k = 2 * tile - 5, 128, 320
    a, b, d = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16(), torch.zeros(m, n)
    findings = run(
        arch,
        f"bf16gemm/bf16gemm_outf32_tn_{tile}x64_pf3.co",
        (n // 64, 2, 1),
        d,
        None,
        a,
        b,
        1.0,
        0.0,
        0,
        0,
        n * 4,
        0,
        k * 2,
        0,
        k * 2,
        0,
        m,
        n,
        k,
        1,
    )
    assert findings == [] and error(d, a.double() @ b.double().T) < 1e-6


def test_layer_norm(run) -> None:
    torch.manual_seed(0)
    m, n = 4, 8192
    x, residual, w, b = (torch.randn(s).bfloat16() for s in ((m, n), (m, n), (n,), (n,)))
    out, residual_out = torch.zeros_like(x), torch.zeros_like(x)
    findings = run(
        "gfx942", "layer_norm.co", (m // 2, 1, 1), out, x, w, b, 1e-5, m, n, residual_out, residual, None, None
    )
    # A wave of the next iteration may write LDS that a slower one still reads: no barrier at the end of the loop.
    assert findings == ["race"]
    total = x.double() + residual.double()
    assert error(residual_out, total) < 1e-2
    assert error(out, torch.nn.functional.layer_norm(total, (n,), w.double(), b.double(), 1e-5)) < 2e-2


@pytest.mark.parametrize("experts, k", [(128, 6), (128, 8), (256, 6), (256, 8)])
def test_topk_softmax(run, experts: int, k: int) -> None:
    torch.manual_seed(0)
    tokens = 7
    gate, weights, indices = (
        torch.randn(tokens, experts),
        torch.zeros(tokens, k),
        torch.zeros(tokens, k, dtype=torch.int32),
    )
    findings = run(
        "gfx942",
        f"topksoftmax/topksoftmax_4x{experts}x{k}.co",
        (2, 1, 1),
        indices,
        weights,
        gate,
        tokens,
        experts,
        k,
        1,
        k * 4,
    )
    want = torch.softmax(gate.double(), 1).topk(k)
    # v_readlane's SGPR goes to the vector ALU at once, where LLVM keeps two wait states between.
    assert findings == ["hazard"] and torch.equal(indices.long(), want.indices)
    assert error(weights, want.values / want.values.sum(1, keepdim=True)) < 1e-6


def preshuffled(x, rows: int):
    """The layout of a pre-shuffled B: tiles of `rows` x 32 bytes, 16 bytes of a row beside the next row's."""
    n, k = x.shape
    per = 16 // x.element_size()
    return x.view(n // rows, rows, k // (2 * per), 2, per).permute(0, 2, 3, 1, 4).contiguous().view(n, k)


def test_int8_gemm(run) -> None:
    torch.manual_seed(0)
    m, n, k = 100, 256, 640
    a, b = (torch.randint(-128, 128, s).to(torch.int8) for s in ((m, k), (n, k)))
    sa, sb, bias, c = torch.rand(m, 1) * 0.01, torch.rand(1, n) * 0.01, torch.randn(1, n), torch.zeros(m, n).bfloat16()
    findings = run(
        "gfx942",
        "i8gemm/I8gemm_bf16_perTokenI8_BpreShuffle_128x128.co",
        (n // 128, 1, 1),
        c,
        a,
        preshuffled(b, 32),
        sa,
        sb,
        bias,
        m,
        n,
        k,
        k,
        k,
        n * 2,
        1,
    )
    # The last prefetch, whose values nobody uses, meets the epilogue's stores; and one wait state between v_cmp and the
    # v_cndmask that reads its SGPRs, where LLVM keeps two.
    assert set(findings) <= {"race", "hazard"}
    assert error(c, a.double() @ b.double().T * sa.double() * sb.double() + bias.double()) < 1e-2


def test_fp4_gemm(run) -> None:
    """Random scale per block of 32; scales in the 32 x 8 shuffle that the kernel reads with one dword a lane."""
    torch.manual_seed(0)
    m, n, k = 128, 256, 512
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    codes = [torch.randint(0, 16, (r, k)) for r in (m, n)]
    packed = [(c[:, 0::2] | c[:, 1::2] << 4).to(torch.uint8) for c in codes]
    scales = [torch.randint(120, 134, (r, k // 32)).to(torch.uint8) for r in (m, n)]
    shuffled = [
        s.view(s.shape[0] // 32, 2, 16, k // 256, 2, 4, 1).permute(0, 3, 5, 2, 4, 1, 6).contiguous() for s in scales
    ]
    values = [
        table[c & 7] * torch.where(c > 7, -1.0, 1.0) * torch.exp2(s.double() - 127).repeat_interleave(32, 1)
        for c, s in zip(codes, scales)
    ]
    c = torch.zeros(m, n).bfloat16()
    findings = run(
        "gfx950",
        "f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_128x128.co",
        (n // 128, m // 128, 1),
        c,
        None,
        packed[0],
        preshuffled(packed[1], 16),
        1.0,
        0.0,
        0,
        0,
        n,
        0,
        k,
        0,
        k,
        0,
        m,
        n,
        k,
        *shuffled,
        k // 32,
        0,
        k // 32,
        0,
        0,
    )
    assert findings == [] and error(c, values[0] @ values[1].T) < 1e-2


@pytest.mark.parametrize("arch, folder, suffix", [("gfx942", "MI300/", "_rtne"), ("gfx950", "", "")])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward(run, arch: str, folder: str, suffix: str, causal: bool) -> None:
    torch.manual_seed(0)
    s, heads, d = 256, 2, 128
    q, k, v = (torch.randn(s, heads, d).bfloat16() for _ in range(3))
    o, lse = torch.zeros_like(q), torch.zeros(heads, s)
    row, batch = heads * d * 2, s * heads * d * 2
    strides = (row, d * 2, batch)
    findings = run(
        arch,
        f"fmha_v3_fwd/{folder}fwd_hd128_bf16{'_causal' if causal else ''}{suffix}.co",
        (1, heads, 1),
        o,
        q,
        k,
        v,
        lse,
        d**-0.5,
        s,
        row,
        256 * row,
        d * 2,
        batch,
        1,
        *strides,
        3 if causal else 5,
        1,
        s,
        d,
        d,
        heads,
        *strides,
        *strides,
        None,
        None,
        s * 4,
        None,
        None,
        block=512,
    )
    # One wait state less than LLVM keeps between v_cmp and v_cndmask, between two v_permlane*_swap (gfx950), and on
    # gfx942 some results of MFMAs are read sooner.
    assert findings == ["hazard"]
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * d**-0.5
    if causal:
        scores = scores.masked_fill(torch.triu(torch.ones(s, s), 1).bool(), -float("inf"))
    assert error(o, torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v.double())) < 1e-2
    assert error(lse, torch.logsumexp(scores, -1)) < 1e-6
