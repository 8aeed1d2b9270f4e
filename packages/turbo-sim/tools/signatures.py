# SPDX-License-Identifier: MIT
"""Operand types of a mnemonic: register widths from the disassembler's text, number types from the name's suffixes."""

from __future__ import annotations

import re

TYPE = r"(pk|f16|f32|f64|bf16|i8|u8|i16|u16|i24|u24|i32|u32|i64|u64|b8|b16|b32|b64|fp8|bf8|fp4|f8f6f4|xf32)"
TRANS = ("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos", "v_prng")
LANE = {
    "f16": "f16",
    "bf16": "b16",
    "i16": "b16",
    "u16": "b16",
    "b16": "b16",
    "f32": "f32",
    "f64": "f64",
    "i64": "i64",
    "u64": "b64",
    "b64": "b64",
    "xf32": "f32",
}


def _split(text: str) -> list[str]:
    return [t for t in re.split(r",\s*(?![^\[]*\])", re.sub(r" (offen|off\b|abid|op_sel_hi|format).*", "", text)) if t]


def _dwords(token: str) -> int:
    m = re.match(r"[sva]\[(\d+):(\d+)\]", token.strip())
    return int(m.group(2)) - int(m.group(1)) + 1 if m else 1


def instruction_class(name: str, fmt: str) -> str:
    if fmt in ("DS",):
        return "Lds"
    if fmt in ("MUBUF", "MTBUF", "FLAT", "GLOBAL", "SCRATCH"):
        return "Vmem"
    if fmt == "SMEM":
        return "Smem"
    if name.startswith(("v_mfma", "v_smfmac")):
        return "Mfma"
    if fmt.startswith("VOP"):
        return "Trans" if name.startswith(TRANS) and "24" not in name else "Valu"
    if name.startswith(("s_cbranch", "s_branch", "s_endpgm", "s_setpc", "s_swappc", "s_call")):
        return "Branch"
    if name == "s_barrier":
        return "Barrier"
    if name in ("s_waitcnt", "s_nop", "s_sleep"):
        return "Wait"
    if fmt == "SOPP":
        return "Message"
    return "Salu"


def _number(name: str, position: int, dwords: int) -> str:
    """Type of source `position` (0..) or of the destination (-1) from the suffixes: v_cvt_f32_f16 = f32 from f16."""
    tokens = re.findall(rf"(?<=_){TYPE}(?=_|$)", name)
    packed = "pk" in tokens
    tokens = [t for t in tokens if t != "pk"]
    if not tokens:
        return "b64" if dwords == 2 else "b32"
    if len(tokens) == 1 or name.startswith(("v_mfma", "v_smfmac", "v_dot")):
        token = tokens[0] if position in (-1, 2) else tokens[-1]
    else:
        token = tokens[0] if position == -1 else tokens[1]
    if name.startswith("v_cvt_scalef32") and position >= 1:
        return "f32"
    if re.match(r"v_cmpx?_class", name) and position == 1 or name.startswith("v_cvt_f32_ubyte") and position == 0:
        return "b32"
    if name == "v_cvt_pk_u8_f32" and position >= 1:
        return "b32"
    if name.startswith("v_dot2") and position in (0, 1):
        return {"f16": "pf16"}.get(token, "p16") if name[:5] != "v_dot2c" else "b32"
    if name.startswith("v_mfma"):
        return "f64" if token == "f64" and dwords % 2 == 0 else ("f32" if token == "f32" else "b32")
    if name.startswith("v_pk_") and token == "f32":
        return "pf32"
    if packed and token in ("f16",):
        return "pf16" if name.startswith("v_pk_") else "f16"
    if packed and token in ("i16", "u16", "b16"):
        return "p16" if name.startswith("v_pk_") else "b16"
    kind = LANE.get(token, "b32")
    size = {"f64": 2, "i64": 2, "b64": 2}.get(kind, 1)
    if size != dwords:
        # A suffix that does not describe this operand: shift counts, exponents of ldexp, masks of cmp_class.
        return "b64" if dwords == 2 else "b32"
    return kind


# Operands whose type is not the name's: {mnemonic: {position: type}}.
EXCEPTIONS: dict[str, dict[int, str]] = {
    "v_ldexp_f32": {1: "b32"},
    "v_ldexp_f16": {1: "b16"},
    "v_cndmask_b32": {2: "b64"},
    "v_frexp_exp_i16_f16": {-1: "b16"},
    "v_div_fmas_f32": {},
    "v_mad_mix_f32": {0: "f16", 1: "f16", 2: "f16"},
}


def _memory(name: str, fmt: str, tokens: list[str]) -> list[str]:
    """DS: destination, address, data0, data1. Others: destination, address or base, "", data. By register number."""
    width = {re.sub(r"[^\d].*", "", t[1:].lstrip("[")): _dwords(t) for t in tokens if re.match(r"[sva][\[\d]", t)}

    def b(n: int | None) -> str:
        return "" if not n else {1: "b32", 2: "b64"}.get(n, f"b32x{n}")

    if fmt == "DS":
        return [b(width.get("12")), b(width.get("20")), b(width.get("40")), b(width.get("60"))]
    if fmt == "SOPP":
        return ["", "", "", ""]
    if fmt == "SMEM":
        if not tokens:
            return ["", "", "", ""]
        n = (
            width.get("12")
            if "12" in width
            else (_dwords(tokens[0]) if "memtime" in name or "realtime" in name else None)
        )
        stores = "store" in name or "atomic" in name
        returned = None if "store" in name else (n // 2 if "cmpswap" in name and n else n)
        return [b(returned), b(width.get("20")), "", b(n if stores else None)]
    atomic, load = "atomic" in name, "load" in name
    n = width.get("12") if fmt in ("MUBUF", "MTBUF") or (load and not atomic) else width.get("40")
    if "_lds_" in name:
        n = None
    returned = n if load else (n // 2 if "cmpswap" in name and n else n) if atomic else None
    return [b(returned), b(width.get("20")), "", b(None if load else n)]


def signature(name: str, fmt: str, text: str) -> tuple[str, list[str]]:
    """Class and [destination, source 0, source 1, source 2] as type names; "b128"-like names give a width only."""
    cls = instruction_class(name, fmt)
    tokens = [t.strip() for t in _split(text)]
    if fmt not in ("SOP1", "SOP2", "SOPC", "SOPK", "VOP1", "VOP2", "VOPC", "VOP3", "VOP3P", "VOP3PX2"):
        return cls, _memory(name, fmt, tokens)
    scalar_second = (
        fmt in ("VOP2", "VOP3")
        and len(tokens) > 1
        and (tokens[1] == "vcc" or tokens[1].startswith("s["))
        and name != "v_writelane_b32"
    )
    destination: str | None = None
    if fmt == "SOPC" or name in ("s_setpc_b64", "s_rfe_b64", "s_cbranch_join", "s_set_gpr_idx_idx"):
        sources = tokens
    else:
        destination, sources = (tokens[0] if tokens else None), tokens[1:]
    if scalar_second:
        sources = sources[1:]
    if fmt == "VOPC":
        destination = None

    def one(position: int, token: str) -> str:
        if name in EXCEPTIONS and position in EXCEPTIONS[name]:
            return EXCEPTIONS[name][position]
        n = _dwords(token) if token not in ("vcc",) else 2
        t = _number(name, position, n)
        natural = 2 if t in ("b64", "i64", "f64", "pf32") else 1
        return t if n == natural else f"{t}x{n}"

    if name in ("v_readlane_b32", "v_writelane_b32"):  # asked for with more vector operands than they take
        sources = sources[:2]
    out = [one(-1, destination) if destination else ""]
    out += [one(k, t) for k, t in enumerate(sources[:3])]
    return cls, (out + [""] * 4)[:4]
