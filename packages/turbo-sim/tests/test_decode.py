# SPDX-License-Identifier: MIT
"""The decoder against LLVM: our text of every instruction equals llvm-objdump's and llvm-mc's."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from objdump import differences, needs_llvm

from turbo_sim.testing import llvm_tool, native

TOOLS = Path(__file__).parents[1] / "tools"
ARCHS = ("gfx942", "gfx950")


def enumerator():
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location("enumerate_opcodes", TOOLS / "enumerate_opcodes.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(TOOLS))


# Opcodes that no compiler emits, and whose operands our text shows in another way. None has a handler.
NOT_COMPARED = (
    "s_cbranch_g_fork",
    "s_rfe_restore_b64",
    "s_sendmsg",
    "s_set_gpr_idx_on",
    "s_atc_probe",
    "ds_write_addtid_b32",
)


@needs_llvm
@pytest.mark.parametrize("arch", ARCHS)
def test_every_opcode(arch: str) -> None:
    """All opcode numbers of all formats, with distinct operand registers."""
    tool = enumerator()
    items = tool.variants()
    bad, count = [], 0
    for (fmt, op, code), want in zip(items, tool.disassemble(llvm_tool("llvm-mc"), arch, items)):
        # "Invalid register": LLVM shows operands that the hardware does not take; we refuse most of them.
        if want is None or "Invalid" in want or want.startswith(NOT_COMPARED):
            continue
        if fmt == "VOP3" and code[1] & 0x0C and code[1] >> 3 & 15 and "op_sel" not in want:
            continue  # op_sel bits of an opcode that has none
        got = native().disassemble(code, arch)
        count += 1
        if len(got) != 1 or got[0][2] != want:
            bad.append(f"{fmt} {op:#x} {code.hex()}: {got}, LLVM says {want!r}")
    assert not bad, "\n".join(bad[:20])
    assert count > 2000


MODIFIERS = """
v_add_f16_e64 v0, 0.15915494, -v1
v_add_f64 v[0:1], 0.15915494309189532, neg(1.0)
v_add_f32_e64 v0, -|v1|, neg(1.0)
v_add_f32_e64 v0, |1.0|, -|2.0| clamp mul:2
v_med3_f32 v0, v1, v2, v3 clamp div:2
v_cmp_class_f32_e64 s[0:1], -|v0|, v1
v_mad_u64_u32 v[0:1], s[2:3], v4, v5, v[6:7] clamp
v_fma_mix_f32 v0, |v1|, -v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0] clamp
v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[1,0] neg_hi:[0,1] clamp
v_add_u32_sdwa v0, sext(v1), v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0 src1_sel:WORD_1
v_cmp_eq_u32_sdwa s[2:3], v1, v2 src0_sel:BYTE_0 src1_sel:WORD_1
v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xa bank_mask:0x3 bound_ctrl:1
v_add_f32_dpp v0, -v1, |v2| wave_shl:1 row_mask:0xa bank_mask:0x3
v_mov_b32_dpp v0, v1 row_newbcast:3 row_mask:0xf bank_mask:0xf
v_mov_b32_dpp v0, v1 row_half_mirror row_mask:0xf bank_mask:0xf
v_mov_b32_dpp v0, v1 row_bcast:31 row_mask:0xf bank_mask:0xf
v_mov_b32_dpp v0, v1 wave_ror:1 row_mask:0xf bank_mask:0xf
v_mfma_f64_16x16x4_f64 v[0:7], v[10:11], v[12:13], v[0:7] neg:[1,0,1]
v_mfma_f32_16x16x32_fp8_fp8 v[0:3], a[0:1], v[2:3], 1.0 cbsz:1 abid:2 blgp:3
v_mov_b32_e32 v0, src_shared_base
ds_swizzle_b32 v0, v1 offset:swizzle(QUAD_PERM,0,1,2,3)
ds_swizzle_b32 v0, v1 offset:swizzle(BITMASK_PERM,"01pi0")
ds_swizzle_b32 v0, v1 offset:swizzle(BROADCAST,4,1)
ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)
ds_swizzle_b32 v0, v1 offset:swizzle(REVERSE,8)
ds_read2st64_b64 v[0:3], v1 offset0:2 offset1:255
ds_write_b128 v0, a[4:7] offset:65520
buffer_load_dword v1, off, s[0:3], s4 offset:16 sc0 nt sc1
buffer_load_dword v9, s[24:27], 0 idxen lds
buffer_store_byte v0, v[2:3], s[0:3], m0 idxen offen
buffer_load_dwordx4 a[0:3], v1, s[0:3], 0 offen
global_load_dword v0, v1, s[2:3] offset:-16 sc0 nt sc1
global_atomic_add v1, v[2:3], v4, off sc0
global_store_dwordx4 v[0:1], a[2:5], off offset:4095
flat_load_dword v0, v[2:3] offset:4095
tbuffer_load_format_xyz v[0:2], v5, s[8:11], 0 format:[BUF_DATA_FORMAT_16_16,BUF_NUM_FORMAT_SINT] idxen offset:7 sc0
scratch_load_dword v0, v1, s2 offset:4
scratch_load_dword v0, off, off
scratch_store_dwordx4 off, v[0:3], s4 offset:-8
s_load_dword s0, s[2:3], s4 offset:0x10 glc
s_load_dword s0, s[2:3], s4
s_load_dword s0, s[2:3], -0x10
s_buffer_load_dwordx16 s[8:23], s[4:7], 0x10
s_atomic_inc s0, s[2:3], 0x0 glc
s_mov_b64 s[0:1], 0x12345678
s_waitcnt vmcnt(63) expcnt(7) lgkmcnt(15)
s_waitcnt vmcnt(17) lgkmcnt(3)
s_setreg_b32 hwreg(HW_REG_MODE), s0
s_getreg_b32 s0, hwreg(HW_REG_XCC_ID, 3, 4)
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
s_set_gpr_idx_on s0, gpr_idx(SRC0,SRC1,SRC2,DST)
s_setvskip s0, s1
s_movk_i32 s0, 0xfff0
s_cmpk_lt_u32 s0, 0x8000
s_sendmsg sendmsg(MSG_INTERRUPT)
s_endpgm
"""
MODIFIERS_950 = """
v_bitop3_b32 v0, v1, v2, v3 bitop3:0xe4
v_bitop3_b16 v0, v1, v2, v3 bitop3:0x1b op_sel:[1,0,0,1]
v_cvt_scalef32_pk_f32_fp8 v[0:1], v2, v3 op_sel:[1,0,0]
v_cvt_scalef32_pk_fp8_f32 v0, v2, v3, v4 op_sel:[0,0,0,1]
v_mfma_f32_16x16x128_f8f6f4 a[0:3], v[0:5], a[8:11], a[0:3] cbsz:2 blgp:4
v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[44:51], v[60:63], v[0:15], v19, v18 op_sel:[1,1,0] op_sel_hi:[1,1,0] blgp:4
global_load_lds_dwordx4 v[0:1], off offset:16
buffer_load_dwordx4 v9, s[24:27], 0 offen lds
ds_read_b64_tr_b16 v[0:1], v2 offset:8
v_permlane32_swap_b32_e32 v0, v1
"""


@needs_llvm
@pytest.mark.parametrize("arch", ARCHS)
def test_modifiers(arch: str) -> None:
    """Text with every kind of modifier: assembled by llvm-mc, decoded by us, the same text again."""
    lines = [s for s in (MODIFIERS + (MODIFIERS_950 if arch == "gfx950" else "")).splitlines() if s]
    run = subprocess.run(
        [llvm_tool("llvm-mc"), "-triple=amdgcn", f"-mcpu={arch}", "-show-encoding"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    got = []
    for encoding in re.findall(r"encoding: \[([^\]]*)\]", run.stdout):
        got += [text for _, _, text in native().disassemble(bytes(int(b, 16) for b in encoding.split(",")), arch)]
    assert got == lines


def test_unknown_words_are_named() -> None:
    code = struct.pack("<3I", 0xBE80FF00 | 0xFF << 8, 0x7E00FF00 | 0xFF << 9, 0xF4000000)
    texts = [t for _, _, t in native().disassemble(code, "gfx942")]
    assert "unknown SOP1 opcode 0xff" in texts[0]
    assert all("undecodable" in t for t in texts)


def test_gfx950_only_opcodes_are_unknown_on_gfx942() -> None:
    code = bytes.fromhex("000434d201050e9c")  # v_bitop3_b32
    assert native().disassemble(code, "gfx950")[0][2].startswith("v_bitop3_b32")
    assert "unknown VOP3 opcode 0x234" in native().disassemble(code, "gfx942")[0][2]


# --- code objects ---------------------------------------------------------------------------------------------------


@needs_llvm
@pytest.mark.parametrize("arch", ARCHS)
def test_triton_sample(arch: str, tmp_path: Path) -> None:
    """Kernels of several kinds, compiled ahead of time."""
    pytest.importorskip("triton")
    import triton_sample

    total = 0
    for name, hsaco, _ in triton_sample.compiled(arch):
        path = tmp_path / f"{name}.hsaco"
        path.write_bytes(hsaco)
        count, bad = differences(path, arch)
        assert not bad, f"{name}: " + "\n".join(bad[:5])
        total += count
    assert total > 5000
