# SPDX-License-Identifier: MIT
"""Control flow, barriers, launch ABI, VGPR indexing, VSKIP, scratch, threads and interleaving."""

from __future__ import annotations

import numpy as np
import pytest

from turbo_sim.testing import native, why_no_assembler

if why_no_assembler():
    pytest.skip(str(why_no_assembler()), allow_module_level=True)

from asm_kernels import launch

ARCHS = ("gfx942", "gfx950")
# out[lane] = v9
STORE = """
    s_load_dwordx2 s[80:81], s[0:1], 0x0
    v_and_b32_e32 v60, 0x3ff, v0
    v_lshlrev_b32_e32 v60, 2, v60
    s_waitcnt lgkmcnt(0)
    global_store_dword v60, v9, s[80:81]
    s_endpgm
"""


def run(text: str, n: int = 64, arch: str = "gfx950", **options) -> np.ndarray:
    out = np.zeros(n, np.uint32)
    report = launch(text + STORE, out, arch=arch, block=options.pop("block", (n, 1, 1)), **options)
    assert report.findings == []
    return out


@pytest.mark.parametrize("arch", ARCHS)
def test_loop_and_branches(arch: str) -> None:
    out = run(
        """
        v_mov_b32_e32 v9, 0
        s_mov_b32 s10, 0
    loop:
        v_add_u32_e32 v9, v9, v0
        s_addk_i32 s10, 1
        s_cmp_lt_i32 s10, 7
        s_cbranch_scc1 loop
        v_cmp_gt_u32_e32 vcc, 32, v0
        s_and_saveexec_b64 s[12:13], vcc
        s_cbranch_execz skip
        v_add_u32_e32 v9, 0x64, v9
    skip:
        s_or_b64 exec, exec, s[12:13]
    """,
        arch=arch,
    )
    lanes = np.arange(64)
    assert (out == 7 * lanes + np.where(lanes < 32, 100, 0)).all()


def test_calls_and_program_counter() -> None:
    out = run("""
        s_getpc_b64 s[10:11]
    here:
        s_add_u32 s10, s10, function-here
        s_addc_u32 s11, s11, 0
        s_mov_b32 s20, 5
        s_swappc_b64 s[30:31], s[10:11]
        s_call_b64 s[30:31], function
        v_mov_b32_e32 v9, s20
        s_branch done
    function:
        s_mul_i32 s20, s20, 3
        s_setpc_b64 s[30:31]
    done:
    """)
    assert (out == 45).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_hints_and_cache_control_change_nothing(arch: str) -> None:
    hints = ["s_setprio 3", "s_sleep 1", "s_sethalt 0", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "s_nop 15"]
    caches = ["buffer_wbl2 sc0 sc1", "buffer_inv sc0 sc1", "buffer_inv sc1"]
    text = "v_mov_b32_e32 v9, v0\n" + "\n".join([*hints, *caches])
    assert (run(text, arch=arch) == np.arange(64)).all()


def test_scc_vcc_and_exec_branches() -> None:
    out = run("""
        s_mov_b32 s10, 0
        s_cmp_eq_u32 s10, 0
        s_cbranch_scc0 bad
        s_cmp_eq_u32 s10, 1
        s_cbranch_scc1 bad
        s_cbranch_scc0 v
        s_branch bad
    v:
        s_mov_b64 vcc, 0
        s_cbranch_vccnz bad
        s_cbranch_vccz a
        s_branch bad
    a:  s_mov_b64 vcc, 2
        s_cbranch_vccz bad
        s_cbranch_execz bad
        s_cbranch_execnz b
    bad:
        s_mov_b32 s10, 1
    b:  v_mov_b32_e32 v9, s10
    """)
    assert (out == 0).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_ids(arch: str) -> None:
    """Work-group ids in SGPRs, packed work-item ids in v0, a partly filled last wave."""
    grid, block = (3, 2, 2), (5, 7, 3)
    items = block[0] * block[1] * block[2]
    out = np.full((2, 2, 3, items), 0xFFFFFFFF, np.uint32)
    text = f"""
        s_load_dwordx2 s[6:7], s[0:1], 0x0
        v_and_b32_e32 v1, 0x3ff, v0
        v_bfe_u32 v2, v0, 10, 10
        v_bfe_u32 v3, v0, 20, 10
        v_mul_u32_u24_e32 v4, {block[1]}, v3
        v_add_u32_e32 v4, v4, v2
        v_mul_u32_u24_e32 v4, {block[0]}, v4
        v_add_u32_e32 v4, v4, v1
        s_mul_i32 s8, s4, {grid[1]}
        s_add_i32 s8, s8, s3
        s_mul_i32 s8, s8, {grid[0]}
        s_add_i32 s8, s8, s2
        s_mul_i32 s8, s8, {items}
        v_add_u32_e32 v5, s8, v4
        v_lshlrev_b32_e32 v6, 2, v5
        s_waitcnt lgkmcnt(0)
        global_store_dword v6, v5, s[6:7]
        s_endpgm
    """
    report = launch(text, out, arch=arch, grid=grid, block=block)
    assert report.findings == [] and report.waves == 12 * 2
    assert (out.ravel() == np.arange(out.size)).all()


def test_kernel_arguments_and_grid_too_large() -> None:
    out = run("s_load_dword s10, s[0:1], 0x8\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v9, s10\n", n=64)
    assert (out == 0).all()  # beyond the arguments, within the segment: zero
    code = native().CodeObject.from_text(bytes.fromhex("000081bf"), "gfx942")
    for block, message in (((1025, 1, 1), "1025 is not in 1..1024"), ((64, 64, 1), "4096 work-items")):
        with pytest.raises(ValueError, match=message):
            native().launch(code, "kernel", (1, 1, 1), block, b"")
    with pytest.raises(ValueError, match="65540 bytes of LDS, gfx942 has 65536"):
        native().launch(code, "kernel", (1, 1, 1), (64, 1, 1), b"", shared=65540)
    with pytest.raises(ValueError, match="no kernel missing"):
        native().launch(code, "missing", (1, 1, 1), (64, 1, 1), b"")


# Sum over the threads of a work-group through LDS, in log2 steps with a barrier each.
REDUCE = """
    v_lshlrev_b32_e32 v1, 2, v0
    v_add_u32_e32 v2, 1, v0
    ds_write_b32 v1, v2
    s_waitcnt lgkmcnt(0)
    s_barrier
    s_movk_i32 s10, 0x100
step:
    s_lshl_b32 s11, s10, 2
    v_cmp_gt_u32_e32 vcc, s10, v0
    s_and_saveexec_b64 s[12:13], vcc
    v_add_u32_e32 v3, s11, v1
    ds_read_b32 v4, v3
    ds_read_b32 v5, v1
    s_waitcnt lgkmcnt(0)
    v_add_u32_e32 v4, v4, v5
    ds_write_b32 v1, v4
    s_or_b64 exec, exec, s[12:13]
    s_waitcnt lgkmcnt(0)
    s_barrier
    s_lshr_b32 s10, s10, 1
    s_cmp_lg_u32 s10, 0
    s_cbranch_scc1 step
    v_mov_b32_e32 v6, 0
    ds_read_b32 v9, v6
    s_waitcnt lgkmcnt(0)
"""


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_barriers(seed: int, threads: int) -> None:
    out = run(REDUCE, n=512, lds=2048, seed=seed, threads=threads, grid=(5, 1, 1))
    assert (out == 512 * 513 // 2).all()


def test_waves_that_have_ended_do_not_hold_a_barrier() -> None:
    out = run(
        """
        v_cmp_gt_u32_e32 vcc, 64, v0
        s_cbranch_vccz wait
        v_mov_b32_e32 v9, 1
        s_branch store
    wait:
        s_barrier
        v_mov_b32_e32 v9, 2
    store:
    """,
        n=192,
    )
    assert (out[:64] == 1).all() and (out[64:] == 2).all()


def test_spinning_on_another_wave() -> None:
    """Wave 0 waits in a loop for a flag that wave 1 sets: waves must get turns without a barrier."""
    out = run(
        """
        v_mov_b32_e32 v1, 0
        v_cmp_gt_u32_e32 vcc, 64, v0
        s_cbranch_vccz second
    spin:
        ds_add_rtn_u32 v2, v1, v1
        s_waitcnt lgkmcnt(0)
        v_readfirstlane_b32 s10, v2
        s_cmp_eq_u32 s10, 0
        s_cbranch_scc1 spin
        s_branch done
    second:
        v_mov_b32_e32 v3, 1
        ds_add_u32 v1, v3
        s_waitcnt lgkmcnt(0)
    done:
        v_mov_b32_e32 v9, 3
    """,
        n=128,
        lds=64,
        checks=["wait"],
    )
    assert (out == 3).all()


def test_endless_loop_is_stopped() -> None:
    with pytest.raises(native().Fault, match="more than 1000 instructions"):
        launch("loop: s_branch loop", max_steps=1000)


def test_running_off_the_end() -> None:
    with pytest.raises(native().Fault, match="past the end of the code"):
        launch("s_nop 0")


@pytest.mark.parametrize("arch", ARCHS)
def test_vgpr_indexing(arch: str) -> None:
    """M0 selects a register relative to the one that is named; only the operands that the mode lists move."""
    out = run(
        """
        v_mov_b32_e32 v10, 10
        v_mov_b32_e32 v11, 11
        v_mov_b32_e32 v12, 12
        v_mov_b32_e32 v20, 20
        v_mov_b32_e32 v22, 22
        s_mov_b32 s10, 2
        s_set_gpr_idx_on s10, gpr_idx(SRC0)
        v_mov_b32_e32 v20, v10
        s_set_gpr_idx_off
        s_set_gpr_idx_on s10, gpr_idx(DST)
        v_add_u32_e32 v20, v10, v11
        s_set_gpr_idx_off
        v_lshlrev_b32_e32 v22, 8, v22
        v_add_u32_e32 v9, v20, v22
    """,
        arch=arch,
    )
    assert (out == 12 + (21 << 8)).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_vskip(arch: str) -> None:
    out = run(
        """
        v_mov_b32_e32 v9, 1
        s_mov_b32 s10, 4
        s_setvskip s10, 2
        v_mov_b32_e32 v9, 2
        s_add_u32 s11, s10, 1
        s_setvskip s10, 1
        v_add_u32_e32 v9, s11, v9
    """,
        arch=arch,
    )
    assert (out == 6).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_scratch(arch: str) -> None:
    out = run(
        """
        v_lshlrev_b32_e32 v1, 2, v0
        v_and_b32_e32 v2, 12, v1
        scratch_store_dword v2, v0, off offset:16
        scratch_load_dword v9, v2, off offset:16
        s_waitcnt vmcnt(0)
    """,
        arch=arch,
        scratch=32,
    )
    assert (out == np.arange(64)).all()
    report = launch("v_mov_b32_e32 v1, 64\nscratch_store_dword v1, v0, off\ns_endpgm", scratch=32, arch=arch)
    assert [f.check for f in report.findings] == ["bounds"] and "32 bytes a lane" in report.findings[0].detail


def test_results_do_not_depend_on_threads_or_checks() -> None:
    results = [
        run(REDUCE, n=512, lds=2048, threads=t, checks=c, grid=(9, 1, 1)) for t in (1, 2, 4) for c in (True, False)
    ]
    assert all((r == results[0]).all() for r in results)


def test_counts_by_instruction() -> None:
    out = np.zeros(512, np.uint32)
    report = launch(REDUCE + STORE, out, block=(512, 1, 1), lds=2048, grid=(2, 1, 1))
    code = {k: n for k, n in enumerate(report.pc_counts) if n}
    assert report.instructions == sum(code.values())
    assert code[0] == 16, "once per wave, 8 waves in 2 groups"
    assert max(code.values()) == 16 * 9, "nine steps"
