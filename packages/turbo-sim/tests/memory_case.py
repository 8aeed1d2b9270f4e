# SPDX-License-Identifier: MIT
"""One memory instruction (or a few) as a whole launch with all checks on: registers, LDS and a memory block in,
the same out.
"""

from __future__ import annotations

from dataclasses import dataclass

import asm_kernels
import numpy as np

LANES = 64
ALL = (1 << 64) - 1
PARTIAL = 0x8000_0F0F_5A5A_0001
ADDRESS = 250  # VGPR of the frame: 4 * lane


@dataclass
class After:
    v: dict[int, np.ndarray]  # rows that were asked for
    lds: np.ndarray  # bytes
    memory: np.ndarray  # bytes
    findings: list


def run(
    text: str,
    *,
    arch: str = "gfx950",
    v: dict[int, np.ndarray] | None = None,
    s: dict[int, int] | None = None,
    out: tuple[int, ...] = (),
    lds: np.ndarray | None = None,
    memory: np.ndarray | None = None,
    exec_mask: int = ALL,
    scratch: int = 0,
    costs: bool = False,
) -> After:
    """Runs `text` on one wave. v: VGPR -> 64 values; s: SGPR (20 and up) -> value; lds: initial bytes (a multiple
    of 256).

    `memory` is a block whose address is in s[12:13]. It lies between guards, so an access past its ends is a finding.
    VGPRs from 240 and SGPRs below 20 belong to the frame.
    """
    v, s = v or {}, s or {}
    lds = np.zeros(0, np.uint8) if lds is None else lds.view(np.uint8).copy()
    block = (np.zeros(64, np.uint8) if memory is None else memory.view(np.uint8)).copy()
    rows = np.array([np.asarray(x, np.uint32) for x in v.values()] or [np.zeros(64)], np.uint32)
    results = np.zeros((max(1, len(out)), LANES), np.uint32)
    lds_out = np.zeros(max(256, lds.size), np.uint8)
    scalars = np.array([x & 0xFFFFFFFF for x in s.values()] or [0], np.uint32)
    code = [
        "s_load_dwordx8 s[8:15], s[0:1], 0x0",  # rows, results, memory, scalars
        "s_load_dwordx4 s[16:19], s[0:1], 0x20",  # LDS in, LDS out
        "s_load_dwordx2 s[2:3], s[0:1], 0x30",  # EXEC
        f"v_lshlrev_b32 v{ADDRESS}, 2, v0",
        "s_waitcnt lgkmcnt(0)",
    ]
    for k in range(lds.size // 256):
        code += [
            f"v_add_u32 v251, {256 * k}, v{ADDRESS}",
            "global_load_dword v252, v251, s[16:17]",
            "s_waitcnt vmcnt(0)",
            "ds_write_b32 v251, v252",
        ]
    for k, row in enumerate(v):
        code += [f"v_add_u32 v251, {256 * k}, v{ADDRESS}", f"global_load_dword v{row}, v251, s[8:9]"]
    code += [f"s_load_dword s{row}, s[14:15], {4 * k:#x}" for k, row in enumerate(s)]
    code += [
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "s_mov_b64 exec, s[2:3]",
        text,
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "s_mov_b64 exec, -1",
    ]
    for k, row in enumerate(out):
        code += [f"v_add_u32 v251, {256 * k}, v{ADDRESS}", f"global_store_dword v251, v{row}, s[10:11]"]
    for k in range(lds.size // 256):
        code += [
            f"v_add_u32 v251, {256 * k}, v{ADDRESS}",
            "ds_read_b32 v252, v251",
            "s_waitcnt lgkmcnt(0)",
            "global_store_dword v251, v252, s[18:19]",
        ]
    code.append("s_endpgm")
    report = asm_kernels.launch(
        "\n".join(code), rows, results, block, scalars, lds if lds.size else np.zeros(4, np.uint8), lds_out, exec_mask,
        arch=arch, lds=lds.size, scratch=scratch, vgprs=256, agprs=256, threads=1, costs=costs,
    )  # fmt: skip
    return After({row: results[k] for k, row in enumerate(out)}, lds_out[: lds.size], block, [*report.findings])


def active(mask: int) -> np.ndarray:
    return np.array([mask >> lane & 1 for lane in range(LANES)], bool)


def random_rows(count: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**32, LANES, dtype=np.uint32) for _ in range(count)]


def random_bytes(count: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
