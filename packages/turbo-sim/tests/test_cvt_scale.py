# SPDX-License-Identifier: MIT
"""gfx950's v_cvt_scalef32_*: values, scales, places in the destination.

isa/unverified.def says which of these semantics are inferred.
"""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import DEFAULT_MODE, FP16_OVFL, lane_values, native, run_asm, why_no_assembler

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

NARROW = {
    "fp8": ("fp8_e4m3fn", ml_dtypes.float8_e4m3fn, 8),
    "bf8": ("fp8_e5m2", ml_dtypes.float8_e5m2, 8),
    "fp4": ("fp4_e2m1", ml_dtypes.float4_e2m1fn, 4),
    "fp6": ("fp6_e2m3", ml_dtypes.float6_e2m3fn, 6),
    "bf6": ("fp6_e3m2", ml_dtypes.float6_e3m2fn, 6),
}
WIDE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
PARTIAL = 0x8000_0F0F_5A5A_0001


def scales(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Register values with arbitrary mantissas and signs, and the powers of two that count."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(120, 134, 64)
    bits = (exponent << 23 | rng.integers(0, 1 << 23, 64) | rng.integers(0, 2, 64) << 31).astype(np.uint32)
    return bits, 2.0 ** (exponent - 127.0)


def encode(x: np.ndarray, kind: str, overflow: int = 0) -> np.ndarray:
    return native().encode_format(x.astype(np.float64).reshape(-1), NARROW[kind][0], 0, overflow).reshape(x.shape)


def decode(codes: np.ndarray, kind: str) -> np.ndarray:
    return codes.astype(np.uint8).view(NARROW[kind][1]).astype(np.float64)


def wide_values(wide: str, seed: int, columns: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((64, columns)) * 2.0 ** rng.integers(-4, 5, (64, columns))).astype(WIDE[wide])


def to_registers(x: np.ndarray, wide: str, first: int) -> dict[int, np.ndarray]:
    """Columns of values to consecutive registers (two 16-bit values a register)."""
    if wide == "f32":
        return {first + k: x[:, k].copy().view(np.uint32) for k in range(x.shape[1])}
    packed = np.ascontiguousarray(x).view(np.uint32)
    return {first + k: packed[:, k] for k in range(packed.shape[1])}


@pytest.mark.parametrize("kind", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("wide", WIDE)
def test_to_pair(kind, wide):
    x, old = wide_values(wide, 1), lane_values("u32", 1)
    bits, power = scales(2)
    width = NARROW[kind][2]
    for place in range(2 if width == 8 else 4):
        sel_bits = [0, 0, 0, place] if width == 8 else [0, 0, place & 1, place >> 1]
        sel = ",".join(map(str, sel_bits))
        v = {0: old, 9: bits} | to_registers(x, wide, 1)
        sources = "v1, v2, v9" if wide == "f32" else "v1, v9"
        if wide != "f32":
            sel = f"0,0,{place}" if width == 8 else f"0,0,{place & 1},{place >> 1}"
        text = f"v_cvt_scalef32_pk_{kind}_{wide} v0, {sources} op_sel:[{sel}]"
        got = run_asm(text, v=v, exec_mask=PARTIAL).v[0]
        codes = encode(x.astype(np.float64) / power[:, None], kind)
        field = codes[:, 0] | codes[:, 1] << width
        shift, mask = 2 * width * place, (1 << 2 * width) - 1
        want = (old & ~np.uint32(mask << shift)) | (field << shift).astype(np.uint32)
        active = np.array([PARTIAL >> k & 1 for k in range(64)], bool)
        np.testing.assert_array_equal(got, np.where(active, want, old), text)


@pytest.mark.parametrize("kind", ["fp8", "bf8", "fp4"])
def test_overflow_of_to_pair(kind):
    """Beyond the range: NaN (e5m2: infinity); with FP16_OVFL the largest number. fp4 always clamps."""
    x = np.tile(np.array([1e6, -1e6, np.inf, -np.inf], np.float32), 16)
    one = np.full(64, 0x3F800000, np.uint32)
    for mode, overflow in ((DEFAULT_MODE, 0), (DEFAULT_MODE | FP16_OVFL, 2)):
        got = run_asm(f"v_cvt_scalef32_pk_{kind}_f32 v0, v1, v1, v2", v={1: x.view(np.uint32), 2: one}, mode=mode).v[0]
        code = encode(x, kind, overflow)
        np.testing.assert_array_equal(got, code | code << NARROW[kind][2])


@pytest.mark.parametrize("kind", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("wide", WIDE)
def test_from_pair(kind, wide):
    width = NARROW[kind][2]
    source = lane_values("u32", 3)
    bits, power = scales(4)
    for place in range(2 if width == 8 else 4):
        sel = f"{place},0,0" if width == 8 else f"{place & 1},{place >> 1},0"
        dst = "v[4:5]" if wide == "f32" else "v4"
        out = run_asm(f"v_cvt_scalef32_pk_{wide}_{kind} {dst}, v1, v2 op_sel:[{sel}]", v={1: source, 2: bits})
        field = source >> np.uint32(2 * width * place)
        mask = (1 << width) - 1
        values = [decode(field >> np.uint32(width * k) & mask, kind) * power for k in range(2)]
        with np.errstate(all="ignore"):
            want = np.stack(values, 1).astype(np.float32).astype(WIDE[wide])
        got = (
            np.stack([out.v[4], out.v[5]], 1).view(np.float32)
            if wide == "f32"
            else out.v[4].view(WIDE[wide]).reshape(64, 2)
        )
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("wide", ["f32", "f16"])
def test_from_one(kind, wide):
    source, old = lane_values("u32", 5), lane_values("u32", 6)
    bits, power = scales(6)
    for byte in range(4):
        for high in (0, 1) if wide == "f16" else (0,):
            sel = f"{byte & 1},{byte >> 1},0" + (f",{high}" if wide == "f16" else "")
            if wide == "f16":
                sel = f"{byte & 1},{byte >> 1},{high}"
            got = run_asm(f"v_cvt_scalef32_{wide}_{kind} v0, v1, v2 op_sel:[{sel}]", v={0: old, 1: source, 2: bits}).v[
                0
            ]
            value = decode(source >> np.uint32(8 * byte) & 255, kind) * power
            if wide == "f32":
                np.testing.assert_array_equal(got.view(np.float32), value.astype(np.float32))
                continue
            with np.errstate(all="ignore"):
                want = value.astype(np.float16)
            part = (got >> 16 if high else got & 0xFFFF).astype(np.uint16).view(np.float16)
            np.testing.assert_array_equal(part, want)
            keep = 0xFFFF if high else 0xFFFF0000
            np.testing.assert_array_equal(got & keep, old & keep)


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("wide", WIDE)
def test_stochastic_one(kind, wide):
    x, old = (wide_values(wide, 7).astype(np.float64) / 64).astype(WIDE[wide]), lane_values("u32", 8)  # stays in range
    bits, power = scales(8)
    v = {0: old, 9: bits} | to_registers(x, wide, 1)
    for noise, away in ((0, False), (0xFFFFFFFF, True)):
        got = run_asm(
            f"v_cvt_scalef32_sr_{kind}_{wide} v0, v1, v8, v9 op_sel:[0,0,1,1]", v=v | {8: np.full(64, noise, np.uint32)}
        ).v[0]
        y = x[:, 0].astype(np.float64) / power
        mode = np.where(y > 0, 1, 2) if away else np.full(64, 3)
        codes = np.stack([native().encode_format(y, NARROW[kind][0], m, 0) for m in range(4)])
        np.testing.assert_array_equal(got >> 24, codes[mode, np.arange(64)])
        np.testing.assert_array_equal(got & 0xFFFFFF, old & 0xFFFFFF)


@pytest.mark.parametrize("wide", WIDE)
def test_stochastic_fp4(wide):
    x, old = wide_values(wide, 9), lane_values("u32", 9)
    bits, power = scales(9)
    v = {0: old, 8: np.zeros(64, np.uint32), 9: bits} | to_registers(x, wide, 2)
    source = "v[2:3]" if wide == "f32" else "v2"
    got = run_asm(f"v_cvt_scalef32_sr_pk_fp4_{wide} v0, {source}, v8, v9 op_sel:[0,0,0,1]", v=v).v[0]
    y = x.astype(np.float64) / power[:, None]
    codes = native().encode_format(y.reshape(-1), "fp4_e2m1", 3, 0).reshape(64, 2)
    np.testing.assert_array_equal(got >> 16 & 255, codes[:, 0] | codes[:, 1] << 4)
    np.testing.assert_array_equal(got & 0xFF00FFFF, old & 0xFF00FFFF)


def six_bit_fields(rows: np.ndarray) -> np.ndarray:
    """[6, 64] registers to [64, 32] codes."""
    words = [sum(int(rows[r, lane]) << (32 * r) for r in range(6)) for lane in range(64)]
    return np.array([[w >> (6 * k) & 63 for k in range(32)] for w in words], np.uint32)


@pytest.mark.parametrize("kind", ["fp6", "bf6"])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_pk32_to_six_bits(kind, wide):
    x = wide_values(wide, 11, 32)
    bits, power = scales(11)
    out = run_asm(f"v_cvt_scalef32_pk32_{kind}_{wide} v[0:5], v[8:23], v24", v={24: bits} | to_registers(x, wide, 8))
    np.testing.assert_array_equal(six_bit_fields(out.v[:6]), encode(x.astype(np.float64) / power[:, None], kind))


@pytest.mark.parametrize("kind", ["fp6", "bf6"])
def test_interleaved_to_six_bits(kind):
    x, y = wide_values("f32", 12, 16), wide_values("f32", 13, 16)
    bits, power = scales(12)
    v = {40: bits} | to_registers(x, "f32", 8) | to_registers(y, "f32", 24)
    out = run_asm(f"v_cvt_scalef32_2xpk16_{kind}_f32 v[0:5], v[8:23], v[24:39], v40", v=v)
    mixed = np.stack([x, y], 2).reshape(64, 32)
    np.testing.assert_array_equal(six_bit_fields(out.v[:6]), encode(mixed.astype(np.float64) / power[:, None], kind))


@pytest.mark.parametrize("kind", ["fp6", "bf6"])
@pytest.mark.parametrize("wide", WIDE)
def test_pk32_from_six_bits(kind, wide):
    rows = np.stack([lane_values("u32", 20 + r) for r in range(6)])
    bits, power = scales(13)
    n = 32 if wide == "f32" else 16
    out = run_asm(
        f"v_cvt_scalef32_pk32_{wide}_{kind} v[8:{7 + n}], v[0:5], v6", v={r: rows[r] for r in range(6)} | {6: bits}
    )
    values = decode(six_bit_fields(rows), kind) * power[:, None]
    got = out.v[8 : 8 + n].T.copy().view(WIDE[wide]).reshape(64, 32).astype(np.float32)
    np.testing.assert_array_equal(got, values.astype(np.float32).astype(WIDE[wide]).astype(np.float32))


@pytest.mark.parametrize("kind", ["fp6", "bf6"])
@pytest.mark.parametrize("wide", WIDE)
def test_stochastic_pk32(kind, wide):
    x = wide_values(wide, 14, 32)
    bits, power = scales(14)
    n = 32 if wide == "f32" else 16
    v = {60: np.zeros(64, np.uint32), 61: bits} | to_registers(x, wide, 8)
    out = run_asm(f"v_cvt_scalef32_sr_pk32_{kind}_{wide} v[0:5], v[8:{7 + n}], v60, v61", v=v)
    y = (x.astype(np.float64) / power[:, None]).reshape(-1)
    np.testing.assert_array_equal(
        six_bit_fields(out.v[:6]), native().encode_format(y, NARROW[kind][0], 3, 0).reshape(64, 32)
    )


def test_prng():
    a = lane_values("u32", 30)
    got = run_asm("v_prng_b32 v0, v1", v={1: a}).v[0]
    np.testing.assert_array_equal(got, (a << np.uint32(1)) ^ np.where(a >> 31, 197, 0).astype(np.uint32))


@pytest.mark.parametrize("t,low,high", [("i8", -128, 127), ("u8", 0, 255)])
def test_ashr_pk(t, low, high):
    a, b, n, old = (lane_values("u32", 31 + k) for k in range(4))
    got = run_asm(f"v_ashr_pk_{t}_i32 v0, v1, v2, v3", v={0: old, 1: a, 2: b, 3: n}).v[0]
    byte = lambda x: np.clip(x.view(np.int32).astype(np.int64) >> (n & 31), low, high) & 255  # noqa: E731
    np.testing.assert_array_equal(got, (old & 0xFFFF0000) | byte(a) | byte(b) << 8)
