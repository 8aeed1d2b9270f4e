# SPDX-License-Identifier: MIT
"""Every MFMA variant against float64 dots over an independent statement of the register layouts.

VGPR and AGPR operands, constant C, D on top of C and of A, random per-block scales, mixed formats.
"""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import AGPR, ALL, native, run_asm, why_no_assembler

ml_dtypes = pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

TYPES = {
    "f64": (64, np.float64),
    "f32": (32, np.float32),
    "xf32": (32, np.float32),
    "f16": (16, np.float16),
    "bf16": (16, ml_dtypes.bfloat16),
    "i8": (8, np.int8),
    "fp8": (8, ml_dtypes.float8_e4m3fn),
    "bf8": (8, ml_dtypes.float8_e5m2),
    "fp8_fnuz": (8, ml_dtypes.float8_e4m3fnuz),
    "bf8_fnuz": (8, ml_dtypes.float8_e5m2fnuz),
    "fp6": (6, ml_dtypes.float6_e2m3fn),
    "bf6": (6, ml_dtypes.float6_e3m2fn),
    "fp4": (4, ml_dtypes.float4_e2m1fn),
}

# mnemonic suffix: (rows, K, blocks, type A, type B, archs)
BOTH, OLD, NEW = ("gfx942", "gfx950"), ("gfx942",), ("gfx950",)
FORMS: dict[str, tuple] = {}
for kind in ("f16", "bf16"):
    FORMS[f"f32_16x16x16_{kind}"] = (16, 16, 1, kind, kind, BOTH)
    FORMS[f"f32_32x32x8_{kind}"] = (32, 8, 1, kind, kind, BOTH)
    FORMS[f"f32_16x16x32_{kind}"] = (16, 32, 1, kind, kind, NEW)
    FORMS[f"f32_32x32x16_{kind}"] = (32, 16, 1, kind, kind, NEW)
    FORMS[f"f32_32x32x4_2b_{kind}"] = (32, 4, 2, kind, kind, BOTH)
    FORMS[f"f32_16x16x4_4b_{kind}"] = (16, 4, 4, kind, kind, BOTH)
    FORMS[f"f32_4x4x4_16b_{kind}"] = (4, 4, 16, kind, kind, BOTH)
FORMS |= {
    "f32_16x16x4_f32": (16, 4, 1, "f32", "f32", BOTH),
    "f32_32x32x2_f32": (32, 2, 1, "f32", "f32", BOTH),
    "f32_32x32x1_2b_f32": (32, 1, 2, "f32", "f32", BOTH),
    "f32_16x16x1_4b_f32": (16, 1, 4, "f32", "f32", BOTH),
    "f32_4x4x1_16b_f32": (4, 1, 16, "f32", "f32", BOTH),
    "f32_16x16x8_xf32": (16, 8, 1, "xf32", "xf32", OLD),
    "f32_32x32x4_xf32": (32, 4, 1, "xf32", "xf32", OLD),
    "i32_16x16x32_i8": (16, 32, 1, "i8", "i8", BOTH),
    "i32_32x32x16_i8": (32, 16, 1, "i8", "i8", BOTH),
    "i32_16x16x64_i8": (16, 64, 1, "i8", "i8", NEW),
    "i32_32x32x32_i8": (32, 32, 1, "i8", "i8", NEW),
    "i32_32x32x4_2b_i8": (32, 4, 2, "i8", "i8", BOTH),
    "i32_16x16x4_4b_i8": (16, 4, 4, "i8", "i8", BOTH),
    "i32_4x4x4_16b_i8": (4, 4, 16, "i8", "i8", BOTH),
}
for a in ("fp8", "bf8"):
    for b in ("fp8", "bf8"):
        FORMS[f"f32_16x16x32_{a}_{b}"] = (16, 32, 1, a, b, BOTH)
        FORMS[f"f32_32x32x16_{a}_{b}"] = (32, 16, 1, a, b, BOTH)
CASES = [(name, arch) for name, form in FORMS.items() for arch in form[5]]


def element_index(
    m: int, k_total: int, blocks: int, lane: int, i: int, split: bool, per_lane: int
) -> tuple[int, int, int]:
    """(block, row, k) of element i of a lane."""
    group, row = divmod(lane, m)
    if blocks > 1:
        return group, row, i
    if split:
        return 0, row, (i // 16) * (k_total // 2) + 16 * group + i % 16
    return 0, row, per_lane * group + i


def random_operand(rng, m, k_total, blocks, kind, split=False):
    """(register rows uint32 [n, 64], matrix float64 [blocks, m, k]). Codes are random, NaN and infinity excluded."""
    bits, dtype = TYPES[kind]
    per_lane = m * k_total * blocks // 64
    n = max(1, per_lane * bits // 32)
    words = [0] * 64
    matrix = np.zeros((blocks, m, k_total))
    for lane in range(64):
        for i in range(per_lane):
            while True:
                if bits >= 32:  # moderate exponents, full mantissas
                    value = np.array(rng.standard_normal() * 2.0 ** rng.integers(-4, 4)).astype(dtype)
                    code = int(value.view(np.uint32))
                    if kind == "xf32":
                        value = np.array(code & 0xFFFFE000, np.uint32).view(np.float32)
                else:
                    code = int(rng.integers(0, 1 << bits))
                    value = np.array(code, np.uint16 if bits == 16 else np.uint8).view(dtype)
                    if (
                        kind == "f16"
                        and abs(float(value)) > 256
                        or kind == "bf16"
                        and not 1e-3 < abs(float(value)) < 1e3
                    ):
                        continue
                if np.isfinite(float(value)):
                    break
            block, row, k = element_index(m, k_total, blocks, lane, i, split, per_lane)
            matrix[block, row, k] = float(value)
            words[lane] |= code << (bits * i)
    rows = np.array([[w >> (32 * r) & 0xFFFFFFFF for w in words] for r in range(n)], np.uint32)
    return rows, matrix


def output_position(m: int, reg: int, lane: int) -> tuple[int, int, int]:
    """(block, row, column) of a lane of D."""
    if m == 32:
        return reg // 16, 8 * (reg % 16 // 4) + 4 * (lane // 32) + reg % 4, lane % 32
    if m == 16:
        return reg // 4, 4 * (lane // 16) + reg % 4, lane % 16
    return lane // 4, reg, lane % 4


def expected(m, blocks, a, b, c_rows, integer=False):
    """float64 [n, 64] from matrices [blocks, m, k] and C in register layout."""
    product = np.einsum("bik,bjk->bij", a, b)
    n = m * m * blocks // 64
    out = np.zeros((n, 64))
    for reg in range(n):
        for lane in range(64):
            out[reg, lane] = product[output_position(m, reg, lane)]
    if integer:
        return (out.astype(np.int64) + c_rows.view(np.int32)) & 0xFFFFFFFF
    return out + c_rows.view(np.float32)


def assert_rounded(rows: np.ndarray, want: np.ndarray, magnitude: float = 0.0) -> None:
    """One rounding of the float64 value; one ulp of slack for the order of the float64 sums."""
    got = rows.view(np.float32)
    with np.errstate(over="ignore"):
        w = want.astype(np.float32)
    finite = np.isfinite(w)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite & ~np.isnan(w)], w[~finite & ~np.isnan(w)])
    error = np.abs(got[finite].astype(np.float64) - want[finite])
    assert (error <= np.spacing(np.abs(w[finite])).astype(np.float64) + magnitude * 1e-12).all(), error.max()


def random_c(rng, n, integer):
    if integer:
        return rng.integers(0, 2**32, (n, 64), dtype=np.uint32)
    return (rng.standard_normal((n, 64)) * 4).astype(np.float32).view(np.uint32)


def registers(kind: str, first: int, count: int) -> str:
    return f"{kind}[{first}:{first + count - 1}]" if count > 1 else f"{kind}{first}"


def arch_kind(kind: str, arch: str) -> str:
    return f"{kind}_fnuz" if arch == "gfx942" and kind in ("fp8", "bf8") else kind


@pytest.mark.parametrize("files", ["vvv", "aaa", "vav", "ava"])
@pytest.mark.parametrize("name,arch", CASES)
def test_every_variant(name, arch, files):
    """Operands A, B, C/D in the given register files; D separate, then on top of C. EXEC does not matter."""
    m, k, blocks, kind_a, kind_b, _ = FORMS[name]
    rng = np.random.default_rng(hash((name, files)) % 2**32)
    a_rows, a = random_operand(rng, m, k, blocks, arch_kind(kind_a, arch))
    b_rows, b = random_operand(rng, m, k, blocks, arch_kind(kind_b, arch))
    integer = name.startswith("i32")
    n = m * m * blocks // 64
    c_rows = random_c(rng, n, integer)
    base = {"v": 0, "a": AGPR}
    v = {base[files[0]] + 2 + r: row for r, row in enumerate(a_rows)}
    v |= {base[files[1]] + 12 + r: row for r, row in enumerate(b_rows)}
    v |= {base[files[2]] + 32 + r: row for r, row in enumerate(c_rows)}
    ops = f"{registers(files[0], 2, len(a_rows))}, {registers(files[1], 12, len(b_rows))}, {registers(files[2], 32, n)}"
    want = expected(m, blocks, a, b, c_rows, integer)
    for dst in (80, 32):
        out = run_asm(f"v_mfma_{name} {registers(files[2], dst, n)}, {ops}", arch=arch, v=v, exec_mask=0x5)
        got = out.v[base[files[2]] + dst : base[files[2]] + dst + n]
        if integer:
            np.testing.assert_array_equal(got, want)
        else:
            assert_rounded(got, want, np.abs(want).max())


@pytest.mark.parametrize("constant,value", [("0", 0.0), ("1.0", 1.0), ("-4.0", -4.0)])
@pytest.mark.parametrize("name", ["f32_16x16x16_bf16", "f32_32x32x8_f16", "f32_16x16x4_f32"])
def test_constant_c(name, constant, value):
    m, k, blocks, kind, _, _ = FORMS[name]
    rng = np.random.default_rng(5)
    (a_rows, a), (b_rows, b) = (random_operand(rng, m, k, blocks, kind) for _ in range(2))
    n = m * m // 64
    v = {2 + r: row for r, row in enumerate(a_rows)} | {12 + r: row for r, row in enumerate(b_rows)}
    inputs = f"{registers('v', 2, len(a_rows))}, {registers('v', 12, len(b_rows))}"
    text = f"v_mfma_{name} {registers('v', 32, n)}, {inputs}, {constant}"
    got = run_asm(text, v=v).v[32 : 32 + n]
    c = np.full((n, 64), value, np.float32).view(np.uint32)
    assert_rounded(got, expected(m, 1, a, b, c), 10)


def test_i8_constant_c_and_wrap():
    rng = np.random.default_rng(6)
    (a_rows, a), (b_rows, b) = (random_operand(rng, 16, 32, 1, "i8") for _ in range(2))
    v = {2: a_rows[0], 3: a_rows[1], 4: b_rows[0], 5: b_rows[1]}
    got = run_asm("v_mfma_i32_16x16x32_i8 v[8:11], v[2:3], v[4:5], -16", v=v).v[8:12]
    np.testing.assert_array_equal(got, expected(16, 1, a, b, np.full((4, 64), 2**32 - 16, np.uint32), True))
    v |= {8 + r: np.full(64, 0x7FFFFFFF, np.uint32) for r in range(4)}
    got = run_asm("v_mfma_i32_16x16x32_i8 v[8:11], v[2:3], v[4:5], v[8:11]", v=v).v[8:12]
    np.testing.assert_array_equal(got, expected(16, 1, a, b, np.full((4, 64), 0x7FFFFFFF, np.uint32), True))


@pytest.mark.parametrize("arch", BOTH)
@pytest.mark.parametrize("negate", ["", "neg:[1,0,0]", "neg:[0,1,1]"])
@pytest.mark.parametrize("m,blocks", [(16, 1), (4, 4)])
def test_f64(m, blocks, negate, arch):
    """16x16x4: A lane = row + 16 k; D row 4 r + lane / 16. 4x4x4: lane = row + 4 (block + 4 k)."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, blocks, m, 4))
    n = m * m * blocks // 64
    c = rng.standard_normal((n, 64))

    def pack(values):
        bits = values.view(np.uint64)
        return (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)

    lanes = np.arange(64)
    row, block, k = lanes % m, lanes // m % blocks, lanes // (m * blocks)
    v = dict(zip((2, 3, 4, 5), (*pack(a[block, row, k].copy()), *pack(b[block, row, k].copy()))))
    for r in range(n):
        v[8 + 2 * r], v[9 + 2 * r] = pack(c[r].copy())
    shape = "16x16x4" if m == 16 else "4x4x4_4b"
    text = f"v_mfma_f64_{shape}_f64 v[20:{19 + 2 * n}], v[2:3], v[4:5], v[8:{7 + 2 * n}] {negate}"
    out = run_asm(text, arch=arch, v=v)
    sa, sb, sc = (-1.0 if negate[5 + 2 * p : 6 + 2 * p] == "1" else 1.0 for p in range(3))
    for r in range(n):
        got = out.v64(20 + 2 * r).view(np.float64)
        for lane in range(64):
            col = lane % m
            blk = lane // m % blocks
            i = 4 * r + lane // 16 if m == 16 else lane // 16
            want = sc * c[r, lane] + sa * sb * np.dot(a[blk, i], b[blk, col])
            assert abs(got[lane] - want) < 1e-14


FORMATS = ["fp8", "bf8", "fp6", "bf6", "fp4"]
PAIRS = [(a, b) for a in FORMATS for b in FORMATS]


def f8f6f4_operands(rng, m, k, kind_a, kind_b):
    a_rows, a = random_operand(rng, m, k, 1, kind_a, split=kind_a in ("fp8", "bf8"))
    b_rows, b = random_operand(rng, m, k, 1, kind_b, split=kind_b in ("fp8", "bf8"))
    return a_rows, a[0], b_rows, b[0]


@pytest.mark.parametrize("kind_a,kind_b", PAIRS)
@pytest.mark.parametrize("m,k", [(16, 128), (32, 64)])
def test_f8f6f4_unscaled(m, k, kind_a, kind_b):
    rng = np.random.default_rng(8)
    a_rows, a, b_rows, b = f8f6f4_operands(rng, m, k, kind_a, kind_b)
    n = m * m // 64
    c_rows = random_c(rng, n, False)
    v = {2 + r: row for r, row in enumerate(a_rows)} | {12 + r: row for r, row in enumerate(b_rows)}
    v |= {AGPR + r: row for r, row in enumerate(c_rows)}
    text = (
        f"v_mfma_f32_{m}x{m}x{k}_f8f6f4 a[0:{n - 1}], v[2:{1 + len(a_rows)}], v[12:{11 + len(b_rows)}], a[0:{n - 1}] "
        f"cbsz:{FORMATS.index(kind_a)} blgp:{FORMATS.index(kind_b)}"
    )
    want = expected(m, 1, a[None], b[None], c_rows)
    assert_rounded(run_asm(text, v=v).v[AGPR : AGPR + n], want, np.abs(want).max() + np.abs(a).max() * np.abs(b).max())


@pytest.mark.parametrize("kind_a,kind_b", PAIRS)
@pytest.mark.parametrize("m,k", [(16, 128), (32, 64)])
def test_f8f6f4_scaled(m, k, kind_a, kind_b):
    """Random e8m0 scale per (row, K block of 32), in every byte of the scale register."""
    rng = np.random.default_rng(9)
    a_rows, a, b_rows, b = f8f6f4_operands(rng, m, k, kind_a, kind_b)
    n = m * m // 64
    c_rows = random_c(rng, n, False)
    v = {2 + r: row for r, row in enumerate(a_rows)} | {12 + r: row for r, row in enumerate(b_rows)}
    v |= {32 + r: row for r, row in enumerate(c_rows)}
    scale_a, scale_b = rng.integers(120, 135, (2, 64, 4), dtype=np.uint32)
    shifts = np.array([0, 8, 16, 24], np.uint32)
    v |= {60: (scale_a << shifts).sum(1, dtype=np.uint32), 61: (scale_b << shifts).sum(1, dtype=np.uint32)}
    for byte_a, byte_b in ((0, 0), (1, 2), (3, 1), (2, 3)):
        op_sel = f"op_sel:[{byte_a & 1},{byte_b & 1},0] op_sel_hi:[{byte_a >> 1},{byte_b >> 1},0]"
        text = (
            f"v_mfma_scale_f32_{m}x{m}x{k}_f8f6f4 v[64:{63 + n}], v[2:{1 + len(a_rows)}], v[12:{11 + len(b_rows)}], "
            f"v[32:{31 + n}], v60, v61 {op_sel} cbsz:{FORMATS.index(kind_a)} blgp:{FORMATS.index(kind_b)}"
        )
        # Lane l scales row l % m of K block l / m.
        grid_a = 2.0 ** (scale_a[:, byte_a].reshape(64 // m, m).T.astype(np.float64) - 127)
        grid_b = 2.0 ** (scale_b[:, byte_b].reshape(64 // m, m).T.astype(np.float64) - 127)
        scaled_a, scaled_b = a * np.repeat(grid_a, 32, 1), b * np.repeat(grid_b, 32, 1)
        want = expected(m, 1, scaled_a[None], scaled_b[None], c_rows)
        magnitude = np.abs(scaled_a).max() * np.abs(scaled_b).max()
        assert_rounded(run_asm(text, v=v).v[64 : 64 + n], want, np.abs(want).max() + magnitude)


def test_constant_scale_and_nan_scale():
    rng = np.random.default_rng(10)
    a_rows, a, b_rows, b = f8f6f4_operands(rng, 16, 128, "fp4", "fp4")
    v = {2 + r: row for r, row in enumerate(a_rows)} | {12 + r: row for r, row in enumerate(b_rows)}
    scale = np.full(64, 127, np.uint32)
    scale[5] = 255  # row 5, K block 0
    v |= {60: scale, 61: np.full(64, 127, np.uint32)}
    out = run_asm("v_mfma_scale_f32_16x16x128_f8f6f4 v[64:67], v[2:5], v[12:15], 0, v60, v61 cbsz:4 blgp:4", v=v)
    want = expected(16, 1, a[None], b[None], np.zeros((4, 64), np.uint32))
    rows = np.array([[output_position(16, r, lane)[1] for lane in range(64)] for r in range(4)])
    got = out.v[64:68].view(np.float32)
    assert np.isnan(got[rows == 5]).all()
    np.testing.assert_array_equal(got[rows != 5], want.astype(np.float32)[rows != 5])


def test_destination_over_inputs():
    """D on top of A: everything is read before anything is written."""
    rng = np.random.default_rng(11)
    (a_rows, a), (b_rows, b) = (random_operand(rng, 16, 32, 1, "bf16") for _ in range(2))
    v = {2 + r: row for r, row in enumerate(a_rows)} | {12 + r: row for r, row in enumerate(b_rows)}
    want = expected(16, 1, a, b, np.zeros((4, 64), np.uint32))
    assert_rounded(native_run(v, rng), want, 10)


def native_run(v, _rng):
    # llvm-mc refuses this overlap in text, so the destination field is changed in the encoding.
    from turbo_sim.testing import assemble

    code = bytearray(assemble("v_mfma_f32_16x16x32_bf16 v[32:35], v[2:5], v[12:15], 0", "gfx950"))
    code[0] = 2
    rows = np.zeros((512, 64), np.uint32)
    for row, values in v.items():
        rows[row] = values
    scalars = np.zeros(128, np.uint32)
    out, _, _ = native().run_wave("gfx950", bytes(code), rows, scalars)
    return out[2:6]


@pytest.mark.parametrize("kind,special", [("bf16", 0x7FC0), ("f16", 0x7E00), ("bf16", 0x7F80)])
def test_nan_and_infinity_reach_their_row_only(kind, special):
    v = {2: np.zeros(64, np.uint32), 3: np.zeros(64, np.uint32)}
    one = 0x3F80 if kind == "bf16" else 0x3C00
    v |= {4: np.full(64, one * 0x10001, np.uint32), 5: np.full(64, one * 0x10001, np.uint32)}
    v[2][7] = special  # row 7, k 0
    out = run_asm(f"v_mfma_f32_16x16x16_{kind} v[8:11], v[2:3], v[4:5], 0", v=v).v[8:12].view(np.float32)
    rows = np.array([[output_position(16, r, lane)[1] for lane in range(64)] for r in range(4)])
    hit = out[rows == 7]
    assert (np.isnan(hit) if special != 0x7F80 else np.isposinf(hit)).all()
    assert (out[rows != 7] == 0).all()


def test_subnormals_are_kept():
    v = {2: np.full(64, 0x00010001, np.uint32), 3: np.zeros(64, np.uint32)}
    v |= {4: np.full(64, 0x3C003C00, np.uint32), 5: np.zeros(64, np.uint32)}
    out = run_asm("v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], 0", v=v).v[8:12].view(np.float32)
    np.testing.assert_array_equal(out, np.float32(8 * 2.0**-24))  # 2 of the 4 elements in each of 4 groups
    v = {2: np.full(64, 1.0, np.float32).view(np.uint32), 4: np.full(64, 1, np.uint32)}
    out = run_asm("v_mfma_f32_16x16x4_f32 v[8:11], v2, v4, 0", v=v, mode=0x300).v[8:12]
    np.testing.assert_array_equal(out, 4)


@pytest.mark.parametrize("cbsz,abid", [(1, 0), (1, 1), (2, 0), (2, 3)])
def test_broadcast_of_a_blocks(cbsz, abid):
    rng = np.random.default_rng(12)
    (a_rows, a), (b_rows, b) = (random_operand(rng, 4, 4, 16, "f16") for _ in range(2))
    v = {2 + r: row for r, row in enumerate(a_rows)} | {12 + r: row for r, row in enumerate(b_rows)}
    out = run_asm(f"v_mfma_f32_4x4x4_16b_f16 v[20:23], v[2:3], v[12:13], 0 cbsz:{cbsz} abid:{abid}", v=v).v[20:24]
    shared = np.stack([a[(block >> cbsz << cbsz) + abid] for block in range(16)])
    want = expected(4, 16, shared, b, np.zeros((4, 64), np.uint32))
    assert_rounded(out, want, np.abs(want).max())


@pytest.mark.parametrize(
    "text,named",
    [
        ("v_mfma_f32_4x4x4_16b_f16 v[20:23], v[2:3], v[12:13], 0 blgp:1", "blgp"),
        ("v_mfma_f32_16x16x16_f16 v[20:23], v[2:3], v[12:13], 0 cbsz:1", "cbsz"),
    ],
)
def test_unknown_modifiers_are_refused(text, named):
    with pytest.raises(Exception, match=named):
        run_asm(text, exec_mask=ALL)
