# SPDX-License-Identifier: MIT
"""Negative tests: each check catches its bug, names it, and stays silent on the corrected kernel."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import native, why_no_assembler

if why_no_assembler():
    pytest.skip(str(why_no_assembler()), allow_module_level=True)

from asm_kernels import checks_of, launch

ARCHS = ("gfx942", "gfx950")
CHECKS = ("bounds", "uninit", "wait", "race", "registers", "hazard")

# x[i] = 2 * x[i]; WAIT stands for the s_waitcnt of the load.
DOUBLE = """
    s_load_dwordx2 s[6:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[6:7]
    WAIT
    v_add_f32_e32 v2, v2, v2
    global_store_dword v1, v2, s[6:7]
    s_endpgm
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_correct_kernel_has_no_findings(arch: str) -> None:
    x = np.arange(64, dtype=np.float32)
    report = launch(DOUBLE.replace("WAIT", "s_waitcnt vmcnt(0)"), x, arch=arch)
    assert report.findings == [] and (x == 2 * np.arange(64)).all()
    assert (report.instructions, report.waves, report.groups) == (8, 1, 1)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("wait", ["", "s_waitcnt lgkmcnt(0)", "s_waitcnt vmcnt(1)"])
def test_missing_waitcnt(arch: str, wait: str) -> None:
    x = np.ones(64, np.float32)
    report = launch(DOUBLE.replace("WAIT", wait), x, arch=arch)
    (finding,) = report.findings
    assert finding.check == "wait" and finding.instruction == "v_add_f32_e32 v2, v2, v2"
    assert finding.kernel == "kernel" and finding.wave == 0 and finding.pc == (28 if wait else 24)
    assert "v2 is read before an s_waitcnt vmcnt" in finding.detail
    assert (x == 0).all(), "the load lands only when waited for"
    assert launch(DOUBLE.replace("WAIT", wait), np.ones(64, np.float32), arch=arch, checks=False).findings == []


def test_missing_wait_for_scalar_load() -> None:
    loads = "s_load_dwordx2 s[6:7], s[0:1], 0x0\ns_load_dword s8, s[0:1], 0x8\n"
    text = loads + "s_waitcnt lgkmcnt(1)\ns_add_u32 s9, s6, 1\ns_endpgm"
    report = launch(text, np.zeros(4), 5)
    assert checks_of(report) == ["wait"], "scalar loads return out of order: a count of 1 covers none of them"
    assert "s6" in report.findings[0].detail and "lgkmcnt" in report.findings[0].detail
    assert launch(text.replace("lgkmcnt(1)", "lgkmcnt(0)"), np.zeros(4), 5).findings == []


def test_loads_return_in_order() -> None:
    text = """
        s_load_dwordx2 s[6:7], s[0:1], 0x0
        v_lshlrev_b32_e32 v1, 2, v0
        s_waitcnt lgkmcnt(0)
        global_load_dword v2, v1, s[6:7]
        global_load_dword v3, v1, s[6:7]
        s_waitcnt vmcnt(1)
        v_add_u32_e32 v4, v2, v2
        READ
        s_endpgm
    """
    x = np.zeros(64, np.uint32)
    assert launch(text.replace("READ", ""), x).findings == []
    assert "v3" in launch(text.replace("READ", "v_mov_b32_e32 v4, v3"), x).findings[0].detail
    # Overwriting the target of a load that is under way is as wrong as reading it.
    assert "v3 is written" in launch(text.replace("READ", "v_mov_b32_e32 v3, 0"), x).findings[0].detail


def test_store_out_of_bounds() -> None:
    x = np.zeros(60, np.float32)
    report = launch(DOUBLE.replace("WAIT", "s_waitcnt vmcnt(0)"), x)
    assert checks_of(report) == ["bounds", "bounds"]
    load, store = report.findings
    assert load.lane == 60 and "4-byte load" in load.detail and "past the end of 'arg0' (240 bytes)" in load.detail
    assert "4-byte store" in store.detail and store.times == 4


def test_unallocated_address() -> None:
    report = launch(
        "v_mov_b32_e32 v2, 0x1000\nv_mov_b32_e32 v3, 0\nglobal_load_dword v4, v[2:3], off\ns_waitcnt vmcnt(0)\ns_endpgm"
    )
    assert checks_of(report) == ["bounds"] and "0x1000 is in no allocation" in report.findings[0].detail


def test_kernel_arguments_are_read_only_and_bounded() -> None:
    report = launch("s_load_dword s6, s[0:1], 0x1000\ns_waitcnt lgkmcnt(0)\ns_endpgm", 1)
    assert checks_of(report) == ["bounds"]
    store = "v_mov_b32_e32 v1, 0\nglobal_store_dword v1, v1, s[0:1]\ns_endpgm"
    report = launch(store, 1)
    assert checks_of(report) == ["bounds"] and "read-only 'kernel arguments'" in report.findings[0].detail


def test_lds_out_of_bounds() -> None:
    text = "v_lshlrev_b32_e32 v1, 2, v0\nds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_endpgm"
    assert launch(text, lds=256).findings == []
    report = launch(text, lds=252)
    assert (
        checks_of(report) == ["bounds"]
        and report.findings[0].lane == 63
        and "the work-group has 252" in report.findings[0].detail
    )


UNDEFINED = {
    "store data": ("v5", "global_store_dword v1, v5, s[6:7]", "data to store"),
    "through arithmetic": ("v6", "v_add_u32_e32 v6, v5, v1\nglobal_store_dword v1, v6, s[6:7]", "data to store"),
    "address": ("v5", "global_load_dword v2, v5, s[6:7]", "an address"),
    "scalar address": ("s20", "s_load_dword s22, s[20:21], 0x0", "an address"),
    "branch": ("SCC", "s_cmp_eq_u32 s20, 0\ns_cbranch_scc1 end", "branch condition"),
    "exec": ("s20", "s_and_saveexec_b64 s[22:23], s[20:21]", "EXEC"),
    "mfma": ("v10", "v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[10:11], 0", "MFMA operand A"),
}


@pytest.mark.parametrize("case", UNDEFINED)
def test_uninitialised_register(case: str) -> None:
    name, use, what = UNDEFINED[case]
    text = (
        f"s_load_dwordx2 s[6:7], s[0:1], 0x0\nv_lshlrev_b32_e32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\n{use}\nend:\ns_endpgm"
    )
    report = launch(text, np.zeros(64, np.uint32), checks=["uninit"])
    assert "uninit" in checks_of(report)
    assert name in report.findings[0].detail and what in report.findings[0].detail


def test_undefined_lanes_are_followed() -> None:
    """Half the lanes are written; a select that takes only those is fine, storing the others is not."""
    text = """
        s_load_dwordx2 s[6:7], s[0:1], 0x0
        v_lshlrev_b32_e32 v1, 2, v0
        s_mov_b64 exec, 0xffffffff
        v_mov_b32_e32 v2, 7
        s_mov_b64 exec, -1
        s_mov_b64 vcc, 0xffffffff
        v_cndmask_b32_e32 v3, v1, v2, vcc
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, SOURCE, s[6:7]
        s_endpgm
    """
    assert launch(text.replace("SOURCE", "v3"), np.zeros(64, np.uint32)).findings == []
    report = launch(text.replace("SOURCE", "v2"), np.zeros(64, np.uint32))
    assert checks_of(report) == ["uninit"] and report.findings[0].lane == 32


def test_uninitialised_lds() -> None:
    text = """
        s_load_dwordx2 s[6:7], s[0:1], 0x0
        v_lshlrev_b32_e32 v1, 2, v0
        WRITE
        ds_read_b32 v2, v1
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v2, s[6:7]
        s_endpgm
    """
    assert launch(text.replace("WRITE", "ds_write_b32 v1, v0"), np.zeros(64, np.uint32), lds=256).findings == []
    report = launch(text.replace("WRITE", ""), np.zeros(64, np.uint32), lds=256)
    assert checks_of(report) == ["uninit"] and "v2" in report.findings[0].detail


# Each thread writes its slot, then reads the slot of the thread 64 further on: of another wave.
EXCHANGE = """
    s_load_dwordx2 s[6:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    v_xor_b32_e32 v3, 0x100, v1
    ds_write_b32 v1, v0
    SYNC
    ds_read_b32 v2, v3
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[6:7]
    s_endpgm
"""


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lds_race(arch: str, seed: int) -> None:
    out = np.zeros(128, np.uint32)
    good = EXCHANGE.replace("SYNC", "s_waitcnt lgkmcnt(0)\ns_barrier")
    assert launch(good, out, block=(128, 1, 1), lds=512, seed=seed, arch=arch).findings == []
    assert (out == np.arange(128) ^ 64).all()
    report = launch(EXCHANGE.replace("SYNC", ""), out, block=(128, 1, 1), lds=512, seed=seed, arch=arch)
    assert "race" in checks_of(report)
    race = next(f for f in report.findings if f.check == "race")
    assert "with no barrier between" in race.detail and race.instruction.startswith("ds_")
    # A barrier alone: the write may still be under way when the other wave reads.
    report = launch(EXCHANGE.replace("SYNC", "s_barrier"), out, block=(128, 1, 1), lds=512, seed=seed, arch=arch)
    assert checks_of(report) == ["wait"] and "before an s_waitcnt of that wave" in report.findings[0].detail


def test_same_value_written_by_two_waves_is_no_race() -> None:
    text = (
        "v_and_b32_e32 v1, 63, v0\nv_lshlrev_b32_e32 v2, 2, v1\nds_write_b32 v2, VALUE\ns_waitcnt lgkmcnt(0)\ns_endpgm"
    )
    assert launch(text.replace("VALUE", "v1"), block=(128, 1, 1), lds=256).findings == []
    assert checks_of(launch(text.replace("VALUE", "v0"), block=(128, 1, 1), lds=256)) == ["race"]


DMA = """
    s_load_dwordx2 s[8:9], s[0:1], 0x0
    s_mov_b32 s10, 256
    s_mov_b32 s11, 0x20000
    s_mov_b32 m0, 0
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    buffer_load_dword v1, s[8:11], 0 offen lds
    WAIT
    ds_read_b32 v2, v1
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[8:9]
    s_endpgm
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_dma_lands_with_vmcnt(arch: str) -> None:
    x = np.arange(64, dtype=np.uint32)
    assert launch(DMA.replace("WAIT", "s_waitcnt vmcnt(0)"), x, lds=256, arch=arch).findings == []
    report = launch(DMA.replace("WAIT", ""), x, lds=256, arch=arch)
    assert checks_of(report) == ["wait"] and report.findings[0].instruction == "ds_read_b32 v2, v1"


def test_registers_beyond_the_allocation() -> None:
    text = "v_mov_b32_e32 v40, 1\nv_accvgpr_write_b32 a9, v0\ns_endpgm"
    assert launch(text, vgprs=44, agprs=12).findings == []
    report = launch(text, vgprs=40, agprs=8)
    assert checks_of(report) == ["registers", "registers"]
    assert report.findings[0].detail == "uses v40, the kernel has 40 VGPRs"
    assert report.findings[1].detail == "uses a9, the kernel has 8 AGPRs"
    # Without accumulators in use, their part of the allocation holds VGPRs as well.
    assert launch("v_mov_b32_e32 v47, 1\ns_endpgm", vgprs=40, agprs=8).findings == []
    assert checks_of(launch("v_mov_b32_e32 v48, 1\ns_endpgm", vgprs=40, agprs=8)) == ["registers"]


MFMA = """
    v_mov_b32_e32 v10, 0
    v_mov_b32_e32 v11, 0
    s_nop 7
    v_mfma_f32_32x32x8_f16 v[20:35], v[10:11], v[10:11], 0
    NOPS
    v_add_f32_e32 v1, v20, v20
    s_endpgm
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_mfma_hazard(arch: str) -> None:
    report = launch(MFMA.replace("NOPS", "s_nop 3"), arch=arch)
    assert checks_of(report) == ["hazard"]
    assert (
        "v20 was written by v_mfma_f32_32x32x8_f16" in report.findings[0].detail
        and "wait states" in report.findings[0].detail
    )
    assert launch(MFMA.replace("NOPS", "s_nop 15"), arch=arch).findings == []


# Wait states between an MFMA and a VALU read of its result: what LLVM's hazard recogniser inserts (observed with llc).
DISTANCES = [
    ("4x4x4_16b_f16", 4, {"gfx942": 5, "gfx950": 5}),
    ("16x16x16_f16", 4, {"gfx942": 7, "gfx950": 8}),
    ("32x32x8_f16", 16, {"gfx942": 11, "gfx950": 12}),
    ("32x32x4_2b_f16", 32, {"gfx942": 19, "gfx950": 20}),
    ("16x16x4_f32", 4, {"gfx942": 10, "gfx950": 10}),
    ("32x32x2_f32", 16, {"gfx942": 18, "gfx950": 18}),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form, rows, needed", DISTANCES, ids=[d[0] for d in DISTANCES])
def test_mfma_distances(arch: str, form: str, rows: int, needed: dict[str, int]) -> None:
    a = "v10" if form.endswith("f32") else "v[10:11]"
    setup = "v_mov_b32_e32 v10, 0\nv_mov_b32_e32 v11, 0\ns_nop 1\n"
    uses = {
        "read": f"v_mfma_f32_{form} v[20:{19 + rows}], {a}, {a}, 0\nNOPS\nv_mov_b32_e32 v1, v20",
        "overwrite": f"v_mfma_f32_{form} v[20:{19 + rows}], {a}, {a}, 0\nNOPS\nv_mov_b32_e32 v20, 0",
        "A": f"v_mfma_f32_{form} v[20:{19 + rows}], {a}, {a}, 0\nNOPS\nv_mfma_f32_4x4x1_16b_f32 v[60:63], v20, v20, 0",
    }
    for use in uses.values():
        for nops, want in ((needed[arch] - 1, ["hazard"]), (needed[arch], [])):
            text = setup + use.replace("NOPS", "\n".join(["s_nop 0"] * nops)) + "\ns_endpgm"
            assert checks_of(launch(text, arch=arch)) == want, f"{use} after {nops}"
    d = f"v[20:{19 + rows}]"
    again = f"v_mfma_f32_{form} {d}, {a}, {a}, 0\nNOPS\nv_mfma_f32_{form} {d}, {a}, {a}, {d}\ns_endpgm"
    nops = (
        "s_nop 1" if form.startswith("4x4") else ""
    )  # accumulating into the same registers is forwarded, but for two passes
    assert launch(setup + again.replace("NOPS", nops), arch=arch).findings == []


def test_mfma_other_hazards() -> None:
    zeros = "v_mov_b32_e32 v10, 0\nv_mov_b32_e32 v11, 0\n"
    fresh = zeros + "NOPS\nv_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[10:11], 0\ns_endpgm"
    assert checks_of(launch(fresh.replace("NOPS", "s_nop 0"))) == ["hazard"], (
        "a VALU result needs two wait states before an MFMA reads it"
    )
    assert launch(fresh.replace("NOPS", "s_nop 1")).findings == []
    c = (
        "".join(f"v_mov_b32_e32 v{k}, 0\n" for k in (10, 11, *range(40, 56)))
        + """s_nop 1
        v_mfma_f32_32x32x8_f16 v[20:35], v[10:11], v[10:11], v[40:55]
        NOPS
        v_mov_b32_e32 v40, 1
        s_endpgm"""
    )
    report = launch(c.replace("NOPS", "s_nop 5"))
    assert checks_of(report) == ["hazard"] and "v40 is C of v_mfma_f32_32x32x8_f16" in report.findings[0].detail
    assert launch(c.replace("NOPS", "s_nop 6")).findings == []


@pytest.mark.parametrize("arch", ARCHS)
def test_unknown_opcode_is_named(arch: str) -> None:
    code = native().CodeObject.from_text(bytes.fromhex("00ff80be000081bf"), arch)
    with pytest.raises(native().Fault, match="unknown SOP1 opcode 0xff.*|kernel kernel, work-group.*pc 0x0"):
        native().launch(code, "kernel", (1, 1, 1), (64, 1, 1), b"")
    assert "unknown SOP1 opcode 0xff" in code.unsupported()[0][1]


def test_unimplemented_instruction_is_named_and_only_when_reached() -> None:
    text = "s_branch skip\nv_cubeid_f32 v0, v1, v2, v3\nskip:\ns_endpgm"
    assert launch(text).findings == []
    with pytest.raises(native().Fault, match="v_cubeid_f32.*not implemented"):
        launch(text.replace("s_branch skip", "s_nop 0"))


def test_code_object_of_the_other_arch() -> None:
    header = bytearray(64)
    header[:7] = b"\x7fELF\x02\x01\x01"
    header[18:20] = (224).to_bytes(2, "little")
    header[48] = 0x4C
    with pytest.raises(native().LoadError, match="code object is for gfx942, the simulated device is gfx950"):
        native().CodeObject.load(bytes(header), "gfx950")
    header[48] = 0x42
    with pytest.raises(native().LoadError, match="machine 0x42"):
        native().CodeObject.load(bytes(header))


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_can_be_turned_off(check: str) -> None:
    assert tuple(native().checks) == CHECKS
    others = [c for c in CHECKS if c != check]
    x = np.zeros(1024, np.float32)[:60]  # what lies beyond is ours too: with "bounds" off the store happens
    text = DOUBLE.replace(
        "WAIT",
        "v_mov_b32_e32 v63, v2\nv_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[10:11], 0\nv_mov_b32_e32 v3, v20\n"
        "ds_write_b32 v4, v1",
    )
    everything = set(checks_of(launch(text, x, lds=256, vgprs=24, agprs=0, block=(128, 1, 1))))
    assert everything >= {"bounds", "uninit", "wait", "registers", "hazard"}
    assert check not in checks_of(launch(text, x, lds=256, vgprs=24, agprs=0, block=(128, 1, 1), checks=others))


def test_stop_on_finding() -> None:
    with pytest.raises(native().Fault, match="wait check: v2 is read before.*|kernel kernel"):
        launch(DOUBLE.replace("WAIT", ""), np.zeros(64, np.float32), stop_on_finding=True)
