# SPDX-License-Identifier: MIT
"""The cost model: bank conflicts, segments, MFMA issue cycles and counts, against hand calculations."""

from __future__ import annotations

import json

import asm_kernels
import numpy as np
import pytest

from turbo_sim.testing import native, why_no_assembler

pytestmark = pytest.mark.skipif(why_no_assembler() is not None, reason=str(why_no_assembler()))

from memory_case import random_bytes  # noqa: E402


def profile(text: str, *args, arch: str, **options) -> dict:
    lds = options.pop("lds", 0)
    code = native().CodeObject.from_text(asm_kernels.assemble_kernel(text, arch), arch, lds, 0, 64, 64)
    kernarg = b"".join(a.ctypes.data.to_bytes(8, "little") for a in args)
    memory = [(a.ctypes.data, a.nbytes, f"arg{k}") for k, a in enumerate(args)] or [(1 << 46, 1, "nothing")]
    grid, block = options.pop("grid", (1, 1, 1)), options.pop("block", (64, 1, 1))
    report = native().launch(
        code, "kernel", grid, block, kernarg, memory=memory, costs=True, checks=options.pop("checks", None)
    )
    return json.loads(native().profile_json(code, report))


# name, bytes, address of a lane, cycles on gfx942 (32 banks), on gfx950 (64 banks); ideal cycles follow from the width
LDS_CASES = [
    ("b32", 4, lambda n: 4 * n, 2, 1),  # unit stride
    ("b32", 4, lambda n: 0, 2, 1),  # one word for all: broadcast
    ("b32", 4, lambda n: 8 * n, 4, 2),  # every other bank
    ("b32", 4, lambda n: 128 * n, 64, 32),  # one bank of 32; two of 64
    ("b32", 4, lambda n: 256 * n, 64, 64),  # one bank
    ("b32", 4, lambda n: 132 * n, 2, 1),  # padded column: 33 words, all banks differ
    ("b64", 8, lambda n: 8 * n, 4, 2),
    ("b128", 16, lambda n: 16 * n, 8, 4),
    ("b128", 16, lambda n: 256 * n, 64, 64),
    ("u8", 1, lambda n: n, 2, 1),  # four lanes share a word
]


@pytest.mark.parametrize("case", range(len(LDS_CASES)))
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_bank_conflicts(arch, case):
    name, size, where, *cycles = LDS_CASES[case]
    at = np.array([where(lane) for lane in range(64)], np.uint32)
    registers = {4: "v4", 8: "v[4:5]", 16: "v[4:7]", 1: "v4"}[size]
    text = f"""
      s_load_dwordx2 s[4:5], s[0:1], 0x0
      v_lshlrev_b32 v1, 2, v0
      s_waitcnt lgkmcnt(0)
      global_load_dword v2, v1, s[4:5]
      s_waitcnt vmcnt(0)
      ds_read_{name} {registers}, v2
      s_endpgm
    """
    p = profile(text, at, arch=arch, lds=64 * 1024, checks=False)
    expected = cycles[0 if arch == "gfx942" else 1]
    banks = 32 if arch == "gfx942" else 64
    ideal = 64 // max(1, banks // max(1, size // 4))
    assert p["lds_cycles"] == expected and p["lds_conflict_cycles"] == expected - ideal
    assert p["lds_bytes_moved"] == 64 * size


@pytest.mark.parametrize("stride,segments", [(4, 4), (8, 8), (64, 64), (0, 1), (62, 62), (60, 60)])
def test_segments(stride, segments):
    block = np.zeros(8192, np.uint8)
    start = -block.ctypes.data % 64
    at = np.arange(64, dtype=np.uint32) * stride + start
    text = """
      s_load_dwordx4 s[4:7], s[0:1], 0x0
      v_lshlrev_b32 v1, 2, v0
      s_waitcnt lgkmcnt(0)
      global_load_dword v2, v1, s[4:5]
      s_waitcnt vmcnt(0)
      global_load_dword v3, v2, s[6:7]
      s_endpgm
    """
    p = profile(text, at, block, arch="gfx950")
    hot = next(h for h in p["hot"] if h["instruction"].startswith("global_load_dword v3"))
    assert hot["segments"] == segments


MFMA = [
    ("gfx942", "v_mfma_f32_16x16x16_bf16 v[4:7], v[8:9], v[10:11], 0", 16),
    ("gfx942", "v_mfma_f32_32x32x8_f16 v[4:19], v[20:21], v[22:23], 0", 32),
    ("gfx942", "v_mfma_f32_16x16x32_fp8_fp8 v[4:7], v[8:9], v[10:11], 0", 16),
    ("gfx942", "v_mfma_f32_32x32x16_fp8_fp8 v[4:19], v[20:21], v[22:23], 0", 32),
    ("gfx942", "v_mfma_i32_16x16x32_i8 v[4:7], v[8:9], v[10:11], 0", 16),
    ("gfx942", "v_mfma_f32_16x16x8_xf32 v[4:7], v[8:9], v[10:11], 0", 16),
    ("gfx942", "v_mfma_f32_16x16x4_f32 v[4:7], v8, v9, 0", 32),
    ("gfx942", "v_mfma_f64_16x16x4_f64 v[4:11], v[20:21], v[22:23], 0", 32),
    ("gfx942", "v_mfma_f32_4x4x4_16b_f16 v[4:7], v[8:9], v[10:11], 0", 8),
    ("gfx950", "v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], 0", 16),
    ("gfx950", "v_mfma_f32_32x32x16_f16 v[4:19], v[20:23], v[24:27], 0", 32),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:11], v[12:15], 0 cbsz:4 blgp:4", 16),
    ("gfx950", "v_mfma_f32_32x32x64_f8f6f4 v[4:19], v[20:25], v[26:31], 0 cbsz:2 blgp:3", 32),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:23], 0", 32),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:19], 0 blgp:4", 32),
    ("gfx950", "v_mfma_f32_32x32x64_f8f6f4 v[4:19], v[20:27], v[28:35], 0 cbsz:1 blgp:1", 64),
    ("gfx950", "v_mfma_scale_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:23], 0, v24, v25", 32),
    ("gfx950", "v_mfma_scale_f32_16x16x128_f8f6f4 v[4:7], v[8:11], v[12:15], 0, v24, v25 cbsz:4 blgp:4", 16),
]


@pytest.mark.parametrize("arch,text,cycles", MFMA)
def test_mfma_cycles(arch, text, cycles):
    """FP8 in the f8f6f4 forms takes twice as long as FP4 and FP6: the table of the ISA, which llvm-mca does not
    follow.
    """
    p = profile("\n".join([text] * 3) + "\ns_endpgm", arch=arch, checks=False)
    assert p["unit_cycles"]["mfma"] == 3 * cycles and p["limit"] == "mfma"
    assert p["mfma"] == {text.split()[0]: 3}
    assert p["bound_cycles"] == 3 * cycles, "one wave: one matrix unit"


# A matrix instruction, its cycles, and for how many of them it holds vector instructions of its SIMD.
HELD = [
    ("gfx942", "v_mfma_f32_16x16x32_fp8_fp8 v[4:7], v[8:9], v[10:11], 0", 16, 4),
    ("gfx942", "v_mfma_f32_32x32x16_fp8_fp8 v[4:19], v[20:21], v[22:23], 0", 32, 4),
    ("gfx942", "v_mfma_f32_16x16x8_xf32 v[4:7], v[8:9], v[10:11], 0", 16, 4),
    ("gfx942", "v_mfma_f32_16x16x4_f32 v[4:7], v8, v9, 0", 32, 32),
    ("gfx942", "v_mfma_f64_16x16x4_f64 v[4:11], v[20:21], v[22:23], 0", 32, 32),
    ("gfx950", "v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], 0", 16, 8),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:23], 0", 32, 12),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:19], 0 blgp:4", 32, 12),
    ("gfx950", "v_mfma_scale_f32_16x16x128_f8f6f4 v[4:7], v[8:11], v[12:15], 0, v24, v25 cbsz:4 blgp:4", 16, 8),
]
BESIDE = ["v_fma_f32 v40, v0, v0, v0", "v_add_u32 v40, v0, v0", "v_pk_fma_f16 v40, v0, v0, v0"]
ALONE = [
    ("v_pk_fma_f32 v[40:41], v[0:1], v[0:1], v[0:1]", 4),
    ("v_pk_mov_b32 v[40:41], v[0:1], v[0:1]", 4),
    ("v_dot2_f32_f16 v40, v0, v0, v0", 4),
    ("v_exp_f32 v40, v0", 16),
]


@pytest.mark.parametrize("arch,matrix,cycles,held", HELD)
def test_vector_instructions_beside_matrix_instructions(arch, matrix, cycles, held):
    fits = (cycles - held) // 4  # vector instructions for which a matrix instruction leaves room
    for text in BESIDE:
        p = profile("\n".join([matrix, *fits * [text]] * 2) + "\ns_endpgm", arch=arch, checks=False)
        assert p["simd_cycles"] == {"matrix": 2 * cycles, "issue": 2 * cycles}
        assert p["mfma_share"] == 1
    p = profile("\n".join([matrix, *(fits + 3) * [BESIDE[0]]] * 2) + "\ns_endpgm", arch=arch, checks=False)
    assert p["simd_cycles"] == {"matrix": 2 * cycles, "issue": 2 * (cycles + 12)}
    assert p["mfma_share"] == pytest.approx(cycles / (cycles + 12), rel=1e-5)


@pytest.mark.parametrize("text,cycles", ALONE)
def test_vector_instructions_that_wait_for_the_matrix_unit(text, cycles):
    arch, matrix, passes, held = HELD[0]
    p = profile("\n".join([matrix, *2 * [text]]) + "\ns_endpgm", arch=arch, checks=False)
    assert p["simd_cycles"] == {"matrix": passes + 2 * cycles, "issue": held + 2 * cycles}
    assert p["mfma_share"] == pytest.approx(passes / max(p["simd_cycles"].values()), rel=1e-5)


def test_counts_and_bounds():
    text = """
      s_mov_b32 s4, 0
    loop:
      v_add_f32 v1, 1.0, v0
      v_exp_f32 v2, v1
      s_add_u32 s4, s4, 1
      s_cmp_lt_u32 s4, 10
      s_cbranch_scc1 loop
      s_endpgm
    """
    p = profile(text, arch="gfx950", grid=(512, 1, 1), block=(256, 1, 1))
    waves = 512 * 4
    assert p["waves"] == waves and p["work_groups"] == 512
    assert p["instructions"] == {"valu": 10 * waves, "trans": 10 * waves, "salu": 21 * waves, "branch": 11 * waves}
    assert p["unit_cycles"]["valu"] == 10 * (4 + 16) * waves and p["compute_units_used"] == 256
    assert p["bound_cycles_by_unit"]["valu"] == 10 * 20 * waves / 256 / 4
    assert p["hot"][0]["instruction"].startswith("v_exp_f32")
    assert p["mfma_share"] == 0, "no matrix instruction"


@pytest.mark.parametrize(
    "arch,lds,waves,limit",
    [
        ("gfx942", 0, 4, "registers"),
        ("gfx942", 33 * 1024, 1, "lds"),
        ("gfx950", 33 * 1024, 4, "registers"),
        ("gfx950", 81 * 1024, 1, "lds"),
    ],
)
def test_occupancy(arch, lds, waves, limit):
    code = native().CodeObject.from_text(
        asm_kernels.assemble_kernel("s_endpgm", arch), arch, lds, 0, 64, 64
    )  # 128 in all
    report = native().launch(code, "kernel", (4, 1, 1), (256, 1, 1), b"", costs=True)
    p = json.loads(native().profile_json(code, report))
    assert (p["waves_per_simd"], p["occupancy_limit"]) == (waves, limit)


def test_costs_do_not_change_results():
    x = random_bytes(256).view(np.uint32)
    text = """
      s_load_dwordx2 s[4:5], s[0:1], 0x0
      v_lshlrev_b32 v1, 2, v0
      s_waitcnt lgkmcnt(0)
      global_load_dword v2, v1, s[4:5]
      s_waitcnt vmcnt(0)
      v_not_b32 v2, v2
      global_store_dword v1, v2, s[4:5]
      s_endpgm
    """
    before = x.copy()
    profile(text, x, arch="gfx942")
    assert np.array_equal(x, ~before)
