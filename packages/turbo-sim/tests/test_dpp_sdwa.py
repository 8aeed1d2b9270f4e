# SPDX-License-Identifier: MIT
"""DPP with every control, mask and bound_ctrl, and SDWA with every select, against an independent model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from turbo_sim.testing import ALL, DEFAULT_MODE, VCC, lane_values, native, run_asm, why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

PARTIAL = 0x8000_0F0F_5A5A_F0F1


def shifted(lane, n, low, high, wrap=False):
    k = lane + n
    if wrap:
        return low + (k - low) % (high - low)
    return k if low <= k < high else None


def controls():
    """(text, function lane -> source lane or None)"""
    for q in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 0, 0, 0), (1, 0, 3, 2), (2, 3, 1, 1)):
        yield f"quad_perm:[{','.join(map(str, q))}]", lambda lane, q=q: (lane & ~3) + q[lane & 3]
    for n in (1, 2, 7, 8, 15):
        yield f"row_shl:{n}", lambda lane, n=n: shifted(lane, n, lane & ~15, (lane & ~15) + 16)
        yield f"row_shr:{n}", lambda lane, n=n: shifted(lane, -n, lane & ~15, (lane & ~15) + 16)
        yield f"row_ror:{n}", lambda lane, n=n: shifted(lane, -n, lane & ~15, (lane & ~15) + 16, wrap=True)
    yield "wave_shl:1", lambda lane: shifted(lane, 1, 0, 64)
    yield "wave_rol:1", lambda lane: shifted(lane, 1, 0, 64, wrap=True)
    yield "wave_shr:1", lambda lane: shifted(lane, -1, 0, 64)
    yield "wave_ror:1", lambda lane: shifted(lane, -1, 0, 64, wrap=True)
    yield "row_mirror", lambda lane: (lane & ~15) + 15 - (lane & 15)
    yield "row_half_mirror", lambda lane: (lane & ~7) + 7 - (lane & 7)
    yield "row_bcast:15", lambda lane: (lane & ~15) - 1 if lane >= 16 else None
    yield "row_bcast:31", lambda lane: 31 if lane >= 32 else None
    for n in (0, 3, 15):
        yield f"row_newbcast:{n}", lambda lane, n=n: (lane & ~15) + n


CONTROLS = dict(controls())


def model(name, control, a, b, old, row_mask, bank_mask, zero, exec_mask):
    f = {
        "v_mov_b32": lambda x, y: x,
        "v_add_u32": lambda x, y: (x + y) & 0xFFFFFFFF,
        "v_sub_u32": lambda x, y: (x - y) & 0xFFFFFFFF,
    }[name]
    out = []
    for lane in range(64):
        written = exec_mask >> lane & 1 and row_mask >> (lane // 16) & 1 and bank_mask >> (lane // 4 % 4) & 1
        s = CONTROLS[control](lane)
        valid = s is not None and exec_mask >> s & 1
        if not written or not (valid or zero):
            out.append(int(old[lane]))
        else:
            out.append(f(int(a[s]) if valid else 0, int(b[lane])))
    return out


@pytest.mark.parametrize("control", CONTROLS)
def test_every_control(control):
    a, b, old = (lane_values("u32", k) for k in range(3))
    for name, zero, mask in itertools.product(("v_mov_b32", "v_sub_u32"), (False, True), (ALL, PARTIAL)):
        bound = " bound_ctrl:0" if zero else ""  # in text, bound_ctrl:0 sets the bit: invalid lanes read 0
        for dst, src in ((0, 1), (1, 1), (2, 1)):
            second = ", v2" if name != "v_mov_b32" else ""
            v = {0: old, 1: a, 2: b}
            text = f"{name}_dpp v{dst}, v{src}{second} {control} row_mask:0xf bank_mask:0xf{bound}"
            got = run_asm(text, v=v, exec_mask=mask).v[dst]
            assert got.tolist() == model(name, control, a, b, v[dst], 0xF, 0xF, zero, mask), text


@pytest.mark.parametrize("row_mask,bank_mask", [(0xA, 0xF), (0xC, 0xF), (0x5, 0x3), (0xF, 0x8), (0x0, 0xF), (0xF, 0x0)])
@pytest.mark.parametrize("control", ["row_shr:1", "row_bcast:15", "quad_perm:[1,0,3,2]"])
def test_masks(control, row_mask, bank_mask):
    a, b = lane_values("u32", 1), lane_values("u32", 2)
    for zero in (False, True):
        text = f"v_add_u32_dpp v2, v1, v2 {control} row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}" + (
            " bound_ctrl:0" if zero else ""
        )
        got = run_asm(text, v={1: a, 2: b}, exec_mask=PARTIAL).v[2]
        assert got.tolist() == model("v_add_u32", control, a, b, b, row_mask, bank_mask, zero, PARTIAL), text


def test_all_lanes_are_read_before_any_is_written():
    a = np.arange(64, dtype=np.uint32) + 100
    out = run_asm("v_mov_b32_dpp v0, v0 row_mirror row_mask:0xf bank_mask:0xf", v={0: a}).v[0]
    assert out.tolist() == [100 + (lane & ~15) + 15 - (lane & 15) for lane in range(64)]


def test_float_modifiers_and_accumulation():
    x = np.linspace(-4, 4, 64).astype(np.float32)
    y = np.linspace(9, 1, 64).astype(np.float32)
    c = np.linspace(1, 2, 64).astype(np.float32)
    src = x[[(lane & ~15) + 5 for lane in range(64)]]
    text = "v_mul_f32_dpp v0, -v1, |v2| row_newbcast:5 row_mask:0xf bank_mask:0xf\n"
    text += "v_fmac_f32_dpp v3, |v1|, -v2 row_newbcast:5 row_mask:0xf bank_mask:0xf"
    out = run_asm(text, v={1: x.view(np.uint32), 2: y.view(np.uint32), 3: c.view(np.uint32)})
    np.testing.assert_array_equal(out.v[0].view(np.float32), -src * np.abs(y))
    want = (np.abs(src).astype(np.float64) * -y.astype(np.float64) + c).astype(np.float32)
    np.testing.assert_array_equal(out.v[3].view(np.float32), want)


def test_mov_b64_dpp():
    a, b = lane_values("u32", 1), lane_values("u32", 2)
    out = run_asm("v_mov_b64_dpp v[0:1], v[2:3] row_newbcast:2 row_mask:0xf bank_mask:0xf", v={2: a, 3: b})
    lanes = [(lane & ~15) + 2 for lane in range(64)]
    assert out.v[0].tolist() == a[lanes].tolist() and out.v[1].tolist() == b[lanes].tolist()


def test_unknown_control_is_refused():
    from turbo_sim.testing import assemble

    code = bytearray(assemble("v_mov_b32_dpp v0, v1 row_mirror row_mask:0xf bank_mask:0xf", "gfx950"))
    code[5], code[6] = 0x44, (code[6] & ~1) | 1  # dpp_ctrl 0x144
    with pytest.raises(Exception, match="dpp_ctrl"):
        native().run_wave("gfx950", bytes(code), np.zeros((512, 64), np.uint32), np.zeros(128, np.uint32))


# --- SDWA ---------------------------------------------------------------------------------------------------------
SELECTS = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "DWORD": (0, 32),
}


def select(x: int, sel: str, sext: bool) -> int:
    shift, width = SELECTS[sel]
    field = x >> shift & ((1 << width) - 1)
    if sext and field >> (width - 1):
        field -= 1 << width
    return field & 0xFFFFFFFF


def place(result: int, old: int, sel: str, unused: str) -> int:
    shift, width = SELECTS[sel]
    mask = ((1 << width) - 1) << shift
    placed = result << shift & mask
    if width == 32:
        return result & 0xFFFFFFFF
    if unused == "UNUSED_PRESERVE":
        return old & ~mask & 0xFFFFFFFF | placed
    if unused == "UNUSED_SEXT" and result >> (width - 1) & 1:
        placed |= 0xFFFFFFFF << (shift + width) & 0xFFFFFFFF
    return placed


@pytest.mark.parametrize("sel0", SELECTS)
@pytest.mark.parametrize("sel1", SELECTS)
def test_source_selects(sel0, sel1):
    a, b = lane_values("u32", 1), lane_values("u32", 2)
    for s0, s1 in itertools.product((False, True), repeat=2):
        x, y = ("sext(v1)" if s0 else "v1"), ("sext(v2)" if s1 else "v2")
        text = f"v_add_u32_sdwa v0, {x}, {y} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:{sel0} src1_sel:{sel1}"
        got = run_asm(text, v={1: a, 2: b}).v[0]
        want = [(select(int(p), sel0, s0) + select(int(q), sel1, s1)) & 0xFFFFFFFF for p, q in zip(a, b)]
        assert got.tolist() == want, text


@pytest.mark.parametrize("unused", ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"])
@pytest.mark.parametrize("sel", SELECTS)
def test_destination_selects(sel, unused):
    a, b, old = (lane_values("u32", k) for k in range(3))
    for dst in (0, 1):
        v = {0: old, 1: a, 2: b}
        text = f"v_xor_b32_sdwa v{dst}, v1, v2 dst_sel:{sel} dst_unused:{unused} src0_sel:WORD_1 src1_sel:BYTE_0"
        got = run_asm(text, v=v, exec_mask=PARTIAL).v[dst]
        for lane in range(64):
            r = select(int(a[lane]), "WORD_1", False) ^ select(int(b[lane]), "BYTE_0", False)
            want = place(r, int(v[dst][lane]), sel, unused) if PARTIAL >> lane & 1 else int(v[dst][lane])
            assert int(got[lane]) == want, (text, lane)


def test_sdwa_of_16_bit_and_scalars():
    a, b = lane_values("u32", 3), lane_values("u32", 4)
    out = run_asm(
        "v_lshlrev_b16_sdwa v0, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:BYTE_3\n"
        "v_max_u16_sdwa v3, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD\n"
        "v_and_b32_sdwa v4, s9, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:DWORD",
        v={1: a, 2: b},
        s={9: 0x87654321},
    )
    assert out.v[0].tolist() == [(int(q) >> 24 << (int(p) & 15)) & 0xFFFF for p, q in zip(a, b)]
    assert out.v[3].tolist() == [max(int(p) & 0xFFFF, int(q) & 0xFFFF) << 16 for p, q in zip(a, b)]
    assert out.v[4].tolist() == [0x87 & int(q) for q in b]


def test_sdwa_floats():
    h = np.linspace(-8, 8, 64).astype(np.float16)
    g = np.linspace(3, 5, 64).astype(np.float16)
    word = h.view(np.uint16).astype(np.uint32) << np.uint32(16) | g.view(np.uint16)
    old = lane_values("u32", 5)
    out = run_asm(
        "v_cvt_f32_f16_sdwa v1, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1\n"
        "v_add_f16_sdwa v2, -v0, |v0| dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1\n"
        "v_cvt_f16_f32_sdwa v3, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD\n"
        "v_mul_f32_sdwa v4, v1, v1 clamp dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
        v={0: word, 3: old},
        mode=DEFAULT_MODE,
    )
    np.testing.assert_array_equal(out.v[1].view(np.float32), h.astype(np.float32))
    np.testing.assert_array_equal(out.v[2], (-g + np.abs(h)).view(np.uint16))
    np.testing.assert_array_equal(out.v[3], (old & 0xFFFF) | h.view(np.uint16).astype(np.uint32) << np.uint32(16))
    np.testing.assert_array_equal(out.v[4].view(np.float32), np.clip(h.astype(np.float32) ** 2, 0, 1))


def test_sdwa_compare_and_cndmask():
    a, b = lane_values("u32", 6), lane_values("u32", 7)
    out = run_asm(
        "v_cmp_gt_u32_sdwa s[10:11], v1, v2 src0_sel:BYTE_1 src1_sel:BYTE_2\n"
        "v_cmp_eq_u16_sdwa vcc, v1, v2 src0_sel:BYTE_0 src1_sel:DWORD\n"
        "v_cndmask_b32_sdwa v3, v1, v2, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:WORD_1",
        v={1: a, 2: b},
    )
    assert out.s64(10) == sum(1 << lane for lane in range(64) if (int(a[lane]) >> 8 & 255) > (int(b[lane]) >> 16 & 255))
    equal = [(int(a[lane]) & 255) == (int(b[lane]) & 0xFFFF) for lane in range(64)]
    assert out.s64(VCC) == sum(1 << lane for lane in range(64) if equal[lane])
    assert out.v[3].tolist() == [int((b if equal[lane] else a)[lane]) >> 16 for lane in range(64)]
