# SPDX-License-Identifier: MIT
"""Wait states between pairs of instructions: one too few is a finding, enough is none.

The distances are what LLVM 22's hazard recogniser inserts for gfx942 and gfx950 (observed with
`llc -run-pass=post-RA-hazard-rec`). MFMA results have tests in test_checks.py.
"""

from __future__ import annotations

import pytest

from turbo_sim.testing import why_no_assembler

if why_no_assembler():
    pytest.skip(str(why_no_assembler()), allow_module_level=True)

from asm_kernels import launch

ARCHS = ("gfx942", "gfx950")
CMP, CMPX = "v_cmp_eq_u32 vcc, v1, v2", "v_cmpx_eq_u32 vcc, v1, v2"
READFIRST = "v_readfirstlane_b32 s4, v9"
SDWA = "v_add_u16_sdwa v1, v2, v3 dst_sel:BYTE_1 src0_sel:WORD_0 src1_sel:WORD_0"
DOT, STORE = "v_dot2_f32_f16 v1, v2, v3, v4", "global_store_dwordx4 v[2:3], v[4:7], off"
MFMA = "v_mfma_f32_4x4x1_16b_f32 v[20:23], v1, v10, 0"
MODE_ROUND = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0"
MODE_OVFL = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 0"
DPP = "quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0xf"

# name: (first, second, wait states needed, what the finding names)
PAIRS = {
    "sgpr then buffer offset": (READFIRST, "buffer_load_dword v5, off, s[8:11], s4", 5, "s4 "),
    "sgpr then descriptor": (READFIRST, "buffer_load_dword v5, off, s[4:7], 0", 5, "s4 "),
    "sgpr then saddr": ("v_readlane_b32 s5, v9, 3", "global_load_dword v5, v2, s[4:5]", 5, "s5 "),
    "carry then saddr": ("v_add_co_u32 v1, s[4:5], v2, v3", "global_store_dword v2, v6, s[4:5]", 5, "s4 "),
    "sgpr then VALU": (READFIRST, "v_mov_b32 v5, s4", 2, "s4 "),
    "compare then select": (CMP, "v_cndmask_b32 v5, v1, v2, vcc", 2, "VCC "),
    "carry out then carry in": ("v_add_co_u32 v5, vcc, v1, v2", "v_addc_co_u32 v6, vcc, v1, v2, vcc", 2, "VCC "),
    "div_scale then div_fmas": ("v_div_scale_f32 v5, vcc, v1, v2, v1", "v_div_fmas_f32 v6, v1, v2, v3", 4, "VCC "),
    "sgpr then lane of readlane": (READFIRST, "v_readlane_b32 s6, v1, s4", 4, "s4 "),
    "vcc then lane of writelane": (CMP, "v_writelane_b32 v1, 7, vcc_lo", 4, "VCC "),
    "sgpr then value of writelane": (READFIRST, "v_writelane_b32 v1, s4, 3", 2, "s4 "),
    "exec then DPP": (CMPX, f"v_mov_b32_dpp v5, v7 {DPP}", 5, "EXEC "),
    "exec then readlane": (CMPX, "v_readlane_b32 s6, v1, 3", 4, "EXEC "),
    "exec then readfirstlane": (CMPX, "v_readfirstlane_b32 s6, v1", 4, "EXEC "),
    "exec then writelane": (CMPX, "v_writelane_b32 v1, s6, 3", 4, "EXEC "),
    "exec then MFMA": (CMPX, MFMA, 4, "EXEC "),
    "vgpr then DPP": ("v_mov_b32 v7, 0", f"v_mov_b32_dpp v5, v7 {DPP}", 2, "v7 "),
    "vgpr then readlane": ("v_mov_b32 v7, 0", "v_readlane_b32 s6, v7, 3", 1, "v7 "),
    "vgpr then readfirstlane": ("v_mov_b32 v7, 0", "v_readfirstlane_b32 s6, v7", 1, "v7 "),
    "vgpr then MFMA": ("v_mov_b32 v1, 0", MFMA, 2, "v1 "),
    "exp then VALU": ("v_exp_f32 v1, v2", "v_add_f32 v5, v1, v1", 1, "v1 "),
    "rcp_f64 then compare": ("v_rcp_f64 v[2:3], v[4:5]", "v_cmp_eq_u32 vcc, v3, v6", 1, "v3 "),
    "SDWA byte then VALU": (SDWA, "v_mov_b32 v5, v1", 1, "v1 "),
    "SDWA byte then exp": (SDWA, "v_exp_f32 v5, v1", 1, "v1 "),
    "SDWA byte then overwritten": (SDWA, "v_mov_b32 v1, v5", 1, "v1 "),
    "high half then VALU": ("v_mad_i16 v1, v2, v3, v4 op_sel:[0,0,0,1]", "v_mov_b32 v5, v1", 1, "v1 "),
    "high half then low half": (
        "v_cvt_pk_fp8_f32 v1, v2, v3 op_sel:[0,0,1]",
        "v_cvt_pk_fp8_f32 v1, v2, v3",
        1,
        "v1 ",
    ),
    "dot then VALU": (DOT, "v_mov_b32 v5, v1", 3, "v1 "),
    "dot then A of a dot": (DOT, "v_dot2_f32_f16 v5, v1, v3, v4", 3, "v1 "),
    "dot then another dot": (DOT, "v_dot4_i32_i8 v5, v2, v3, v1", 3, "v1 "),
    "dot then overwritten": (DOT, "v_mov_b32 v1, v5", 3, "v1 "),
    "dot then store": (DOT, "global_store_dword v[2:3], v1, off", 3, "v1 "),
    "dot then LDS": (DOT, "ds_write_b32 v2, v1", 3, "v1 "),
    "store then overwritten": (STORE, "v_mov_b32 v5, v1", 2, "v5 is data of "),
    "buffer store then overwritten": (
        "buffer_store_dwordx3 v[4:6], off, s[8:11], 0",
        "v_mov_b32 v6, v1",
        2,
        "v6 is data of ",
    ),
    "store then overwritten by MFMA": (STORE, MFMA.replace("v[20:23]", "v[4:7]"), 2, "v4 is data of "),
    "setreg then getreg": (MODE_ROUND, "s_getreg_b32 s6, hwreg(HW_REG_MODE)", 2, "the hardware"),
    "setreg then setreg": (MODE_ROUND, MODE_OVFL, 2, "the hardware"),
}  # fmt: skip
PAIRS_950 = {
    "vgpr then permlane swap": ("v_mov_b32 v7, 0", "v_permlane16_swap_b32 v5, v7", 2, "v7 "),
    "vgpr then permlane swap's first": ("v_mov_b32 v5, 0", "v_permlane32_swap_b32 v5, v7", 2, "v5 "),
    "exec then permlane swap": (CMPX, "v_permlane32_swap_b32 v5, v7", 4, "EXEC "),
    "permlane swap then readlane": ("v_permlane32_swap_b32 v5, v7", "v_readlane_b32 s6, v7, 3", 1, "v7 "),
    "scaled high half then VALU": (
        "v_cvt_scalef32_pk_fp8_f32 v1, v2, v3, v4 op_sel:[0,0,0,1]",
        "v_mov_b32 v5, v1",
        1,
        "v1 ",
    ),
}

# Neighbours that need nothing.
FREE = {
    "sgpr then scalar": (READFIRST, "s_add_u32 s6, s4, 1"),
    "scalar then VMEM": ("s_mov_b32 s4, 0", "buffer_load_dword v5, off, s[8:11], s4"),
    "sgpr overwritten by a scalar instruction": (READFIRST + "\ns_mov_b32 s4, 0", "v_mov_b32 v5, s4"),
    "exec by a scalar instruction": ("s_mov_b64 exec, 0", f"v_mov_b32_dpp v5, v7 {DPP}"),
    "exec then plain VALU": (CMPX, "v_mov_b32 v5, v7"),
    "exp then exp": ("v_exp_f32 v1, v2", "v_exp_f32 v5, v1"),
    "exp then overwritten": ("v_exp_f32 v1, v2", "v_mov_b32 v1, v5"),
    "exp then store": ("v_exp_f32 v1, v2", "global_store_dword v[2:3], v1, off"),
    "whole SDWA register": (SDWA.replace("BYTE_1", "DWORD"), "v_mov_b32 v5, v1"),
    "SDWA then store": (SDWA, "global_store_dword v[2:3], v1, off"),
    "low half": ("v_mad_i16 v1, v2, v3, v4", "v_mov_b32 v5, v1"),
    "dot accumulates": ("v_dot2c_f32_f16 v1, v2, v3", "v_dot2c_f32_f16 v1, v2, v3"),
    "short store": ("global_store_dwordx2 v[2:3], v[4:5], off", "v_mov_b32 v5, v1"),
    "buffer store with an SGPR": ("buffer_store_dwordx4 v[4:7], off, s[8:11], s4", "v_mov_b32 v5, v1"),
    "LDS store": ("ds_write_b128 v2, v[4:7]", "v_mov_b32 v5, v1"),
    "m0 then LDS-DMA": ("s_mov_b32 m0, 0", "buffer_load_dword v5, s[8:11], 0 offen lds"),
    "vgpr then second source of DPP": ("v_mov_b32 v8, 0", f"v_add_u32_dpp v5, v7, v8 {DPP}"),
    "other hardware register": (MODE_ROUND, "s_getreg_b32 s6, hwreg(HW_REG_XCC_ID)"),
}


def findings(first: str, second: str, between: int, arch: str, checks=("hazard",)) -> list:
    """Of the second instruction, `between` wait states after the first. No lane is active: nothing touches memory."""
    text = "s_mov_b64 exec, 0\ns_nop 7\n" + first + "\n" + "s_nop 0\n" * between + second + "\ns_endpgm"
    return launch(text, arch=arch, checks=list(checks), lds=256, vgprs=64).findings


@pytest.mark.parametrize("arch, case", [*((a, c) for a in ARCHS for c in PAIRS), *(("gfx950", c) for c in PAIRS_950)])
def test_distance(arch: str, case: str) -> None:
    first, second, needed, name = (PAIRS | PAIRS_950)[case]
    for between in range(needed):
        (finding,) = findings(first, second, between, arch)
        assert finding.check == "hazard" and finding.detail.startswith(name), finding.detail
        assert finding.instruction.split("_")[:2] == second.split()[0].split("_")[:2]
        assert f"{between} wait states before; {needed} are needed" in finding.detail
    assert findings(first, second, needed, arch) == []
    assert findings(first, second, 0, arch, checks=[]) == []


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", FREE)
def test_no_distance(case: str, arch: str) -> None:
    assert findings(*FREE[case], 0, arch) == []


def test_one_long_nop_counts_in_full() -> None:
    first, second, needed, _ = PAIRS["sgpr then buffer offset"]
    assert findings(first, f"s_nop {needed - 1}\n{second}", 0, "gfx950") == []
    assert len(findings(first, f"s_nop {needed - 2}\n{second}", 0, "gfx950")) == 1
