# SPDX-License-Identifier: MIT
"""A profile as text."""

from __future__ import annotations

from typing import Any

__all__ = ["profile_table"]

NOTE = "model, not a measurement: exact counts, and lower bounds from issue cycles; no latencies, caches or clocks"


def _rows(rows: list[tuple[str, ...]], indent: str = "  ") -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        indent
        + "  ".join(cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    ]


def profile_table(p: dict[str, Any], hot: int = 12) -> str:
    """Counts, bounds, occupancy and hot instructions of one launch."""
    lines = [f"{p['kernel']} ({p['arch']}): {NOTE}"]
    lines += _rows(
        [
            ("work-groups", f"{p['work_groups']:,}"),
            ("waves", f"{p['waves']:,}"),
            ("wave-instructions", f"{p['wave_instructions']:,}"),
            *((f"  {name}", f"{count:,}") for name, count in sorted(p["instructions"].items(), key=lambda kv: -kv[1])),
            *((name, f"{count:,}") for name, count in p["mfma"].items()),
        ]
    )
    lines.append(
        "  issue cycles (sum over the device; bound if spread evenly over "
        f"{p['compute_units_used']} of {p['compute_units']} compute units):"
    )
    lines += _rows(
        [(unit, f"{cycles:,}", f"{p['bound_cycles_by_unit'][unit]:,.0f}") for unit, cycles in p["unit_cycles"].items()],
        "    ",
    )
    lines.append(f"  lower bound: {p['bound_cycles']:,.0f} cycles, limited by {p['limit'] or 'nothing'}")
    if p["mfma_share"]:
        simd = p["simd_cycles"]
        lines.append(
            f"  MFMA share: at most {p['mfma_share']:.0%} of a SIMD's time (matrix unit and what cannot run beside it: "
            f"{simd['matrix']:,} cycles; issue of vector instructions: {simd['issue']:,})"
        )
    asked = p["vmem_load_bytes"] + p["vmem_store_bytes"]
    touched = p["vmem_segments_of_64_bytes"] * 64
    lines.append(
        f"  memory: {p['vmem_load_bytes']:,} bytes loaded, {p['vmem_store_bytes']:,} stored; "
        f"64-byte segments hold {touched:,} bytes"
        + (f" ({asked / touched:.0%} used)" if touched else "")
        + (f"; {p['atomics']:,} atomics" if p["atomics"] else "")
    )
    lines.append(
        f"  LDS: {p['lds_bytes_moved']:,} bytes in {p['lds_cycles']:,} cycles, "
        f"of which {p['lds_conflict_cycles']:,} are bank conflicts"
    )
    lines.append(
        f"  registers: {p['vgprs_allocated']} allocated ({p['vgprs']} VGPRs, {p['agprs']} AGPRs), {p['sgprs']} SGPRs, "
        f"{p['vgpr_spills']} spills, {p['scratch_bytes']} bytes of scratch; LDS {p['lds_bytes']:,} bytes a work-group"
    )
    lines.append(
        f"  occupancy: {p['waves_per_simd']} waves a SIMD"
        + ("" if p["occupancy_limit"] == "none" else f", limited by {p['occupancy_limit']}")
    )
    rows = [("pc", "times", "issue cycles", "conflicts/segments", "instruction")]
    for h in p["hot"][:hot]:
        extra = h.get("lds_conflict_cycles", h.get("segments", 0))
        where = f"  {h['source']}" if h["source"] else ""
        rows.append(
            (f"{h['pc']:#x}", f"{h['times']:,}", f"{h['issue_cycles']:,}", f"{extra:,}", h["instruction"] + where)
        )
    widths = [max(len(r[k]) for r in rows) for k in range(4)]
    lines.append("  hot instructions:")
    lines += ["    " + "  ".join(c.rjust(w) for c, w in zip(r, widths)) + "  " + r[4] for r in rows]
    lines += [f"  finding: {f}" for f in p["findings"]]
    return "\n".join(lines)
