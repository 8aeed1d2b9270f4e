# SPDX-License-Identifier: MIT
"""Ask llvm-mc which opcode number of each GFX9 encoding is which mnemonic, for gfx942 and gfx950.

Every opcode number of every format is encoded with distinct operand registers and disassembled. The answers are facts
about the encoding: mnemonic, and how many registers each operand spans. Output: csrc/isa/opcodes.def.

    python tools/enumerate_opcodes.py [--llvm-mc llvm-mc-22] > csrc/isa/opcodes.def
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import sys

import signatures  # operand types by mnemonic

ARCHS = ("gfx942", "gfx950")
D, A, B, C = 10, 20, 40, 60  # destination and source registers: multiples of four, so that every tuple is aligned


def variants() -> list[tuple[str, int, bytes]]:
    """All (format, opcode, bytes) to try. Later variants of one opcode are used only if earlier ones do not decode."""
    out: list[tuple[str, int, bytes]] = []

    def add(fmt: str, op: int, *words: int) -> None:
        out.append((fmt, op, b"".join(struct.pack("<I", w & 0xFFFFFFFF) for w in words)))

    for op in range(0x60):
        add("SOP2", op, 0x80000000 | op << 23 | 12 << 16 | B << 8 | A)
    for op in range(0x1D):
        add("SOPK", op, 0xB0000000 | op << 23 | 12 << 16 | 1)
        add("SOPK", op, 0xB0000000 | op << 23 | 12 << 16 | 1, 5)
    for op in range(0x100):
        add("SOP1", op, 0xBE800000 | 12 << 16 | op << 8 | A)
    for op in range(0x80):
        add("SOPC", op, 0xBF000000 | op << 16 | B << 8 | A)
        add("SOPP", op, 0xBF800000 | op << 16 | 1)
        add("SOPP", op, 0xBF800000 | op << 16)
    for op in range(0x100):
        add("SMEM", op, 0xC0000000 | op << 18 | 1 << 17 | 12 << 6 | A >> 1, 0x10)
        add("SMEM", op, 0xC0000000 | op << 18 | 12 << 6, 0)
        add("SMEM", op, 0xC0000000 | op << 18, 0)
    for op in range(0x3E):
        add("VOP2", op, op << 25 | D << 17 | B << 9 | 256 + A)
        add("VOP2", op, op << 25 | D << 17 | B << 9 | 256 + A, 5)
        add("VOP2", op, op << 25 | D << 17 | B << 9 | A)
    for op in range(0x100):
        add("VOP1", op, 0x7E000000 | D << 17 | op << 9 | 256 + A)
        add("VOP1", op, 0x7E000000 | D << 17 | op << 9 | A)
        add("VOP1", op, 0x7E000000 | op << 9)
        add("VOPC", op, 0x7C000000 | op << 17 | B << 9 | 256 + A)
    for op in range(0x200, 0x380):
        for s0, s1, s2 in (
            (256 + A, 256 + B, 256 + C),
            (256 + A, 256 + B, 0),
            (256 + A, B, 0),
            (A, B, 0),
            (256 + A, 0, 0),
        ):
            add("VOP3", op, 0xD0000000 | op << 16 | D, s0 | s1 << 9 | s2 << 18)
    for op in range(0x1C0, 0x200):
        add("VOP3", op, 0xD0000000 | op << 16 | D, (256 + A) | (256 + B) << 9 | (256 + C) << 18)
        add("VOP3", op, 0xD0000000 | op << 16 | 12 << 8 | D, (256 + A) | (256 + B) << 9 | (256 + C) << 18)
    for op in range(0x80):
        add("VOP3P", op, 0xD3800000 | op << 16 | 1 << 14 | D, (256 + A) | (256 + B) << 9 | (256 + C) << 18 | 3 << 27)
        add("VOP3P", op, 0xD3800000 | op << 16 | D, (256 + A) | (256 + B) << 9 | (256 + C) << 18)
        add("VOP3P", op, 0xD3800000 | op << 16 | 12, (256 + A) | (256 + B) << 9 | (256 + 64) << 18)
        add("VOP3P", op, 0xD3800000 | op << 16 | 12, (256 + A) | (256 + B) << 9)
    for op in range(0x100):
        add("DS", op, 0xD8000000 | op << 17 | 0, 12 << 24 | C << 16 | B << 8 | A)
        for fields in (12 << 24 | B << 8 | A, 12 << 24 | A, C << 16 | B << 8 | A, B << 8 | A, 12 << 24, A, 0):
            add("DS", op, 0xD8000000 | op << 17, fields)
    for op in range(0x80):
        add("MUBUF", op, 0xE0000000 | op << 18 | 1 << 12, 8 << 24 | (B >> 2) << 16 | 12 << 8 | A)
        add("MUBUF", op, 0xE0000000 | op << 18, 0)
        add("FLAT", op, 0xDC000000 | op << 18, 12 << 24 | 0x7F << 16 | B << 8 | A)
        add("FLAT", op, 0xDC000000 | op << 18, 12 << 24 | B << 8 | A)
        add("GLOBAL", op, 0xDC000000 | op << 18 | 2 << 14, 12 << 24 | 0x7F << 16 | B << 8 | A)
        add("SCRATCH", op, 0xDC000000 | op << 18 | 1 << 14, 12 << 24 | 0x7F << 16 | B << 8 | A)
    for op in range(0x10):
        add("MTBUF", op, 0xE8000000 | op << 15 | 1 << 12 | 4 << 19 | 7 << 23, 8 << 24 | (B >> 2) << 16 | 12 << 8 | A)
    return out


def disassemble(mc: str, arch: str, items: list[tuple[str, int, bytes]]) -> list[str | None]:
    """One text per item, None where it does not decode as exactly one instruction. Input is one line an item."""
    # After each item: padding (s_nop 0x7777) that an incomplete item may swallow, then a sentinel (s_sleep with n).
    pad = "\n0x77 0x77 0x80 0xbf" * 4
    text = "\n".join(
        " ".join(f"0x{b:02x}" for b in item[2]) + pad + f"\n0x{n & 0xFF:02x} 0x{n >> 8:02x} 0x8e 0xbf"
        for n, item in enumerate(items)
    )
    run = subprocess.run(
        [mc, "-triple=amdgcn", f"-mcpu={arch}", "-disassemble", "-show-encoding"],
        input=text,
        capture_output=True,
        text=True,
    )
    out: list[str | None] = [None] * len(items)
    block: list[tuple[str, str]] = []
    for answer, encoding in re.findall(r"^\t(.*?)\s*(?:;|//) encoding: \[(.*?)\]", run.stdout, re.M):
        code = [int(x, 16) for x in encoding.split(",")]
        if code[2:] == [0x8E, 0xBF]:
            n = code[0] | code[1] << 8
            if len(block) == 1 and block[0][1].count(",") == len(items[n][2]) - 1:  # unused fields may be printed as 0
                out[n] = block[0][0]
            block = []
        elif code != [0x77, 0x77, 0x80, 0xBF]:
            block.append((answer, encoding))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llvm-mc", default="llvm-mc-22")
    parser.add_argument("--raw", action="store_true", help="print the disassembler's own text, for looking")
    args = parser.parse_args()
    items = variants()
    table: dict[str, dict] = {}
    for arch_index, arch in enumerate(ARCHS):
        seen: set[tuple[str, int]] = set()
        for (fmt, op, _), text in zip(items, disassemble(args.llvm_mc, arch, items)):
            if text is None or (fmt, op) in seen:
                continue
            seen.add((fmt, op))
            if args.raw:
                print(arch, fmt, hex(op), text)
            name = re.sub(r"_(e32|e64|dpp|sdwa|vi|gfx9)$", "", text.split()[0])
            operands = text.split(None, 1)[1] if " " in text else ""
            entry = table.setdefault(name, {"fmt": fmt, "ops": [-1, -1], "text": operands})
            if entry["fmt"] == fmt:
                entry["ops"][arch_index] = op
    table["s_sleep"] = {"fmt": "SOPP", "ops": [0x0E, 0x0E], "text": "1"}  # the sentinel hides itself
    print("// SPDX-License-Identifier: MIT")
    print(
        "// Made by tools/enumerate_opcodes.py from llvm-mc's answers. OP(mnemonic, format, opcode on gfx942, gfx950,"
    )
    print("//   class, destination, source 0, 1, 2): operand types; -1: the architecture does not have it.")
    for name, e in list(table.items()):  # the 16-byte forms: the second half is the opcode of the unscaled instruction
        if name.startswith("v_mfma_f32_") and name.endswith("_f8f6f4"):
            table[name.replace("v_mfma_f32", "v_mfma_scale_f32")] = {
                "fmt": "VOP3PX2",
                "ops": e["ops"],
                "text": e["text"],
            }
    for name, e in table.items():
        cls, sig = signatures.signature(name, e["fmt"], e["text"])
        print(
            f"OP({name}, {e['fmt']}, {e['ops'][0]:#x}, {e['ops'][1]:#x}, {cls}, ".replace("-0x1", "-1")
            + ", ".join(f'"{s}"' for s in sig)
            + ")"
        )


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/", 1)[0])
    main()
