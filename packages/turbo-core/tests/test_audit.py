# SPDX-License-Identifier: MIT
"""The audit: reading code objects, judging what they use, and the command that prints it."""

import json
import struct
from dataclasses import replace

import pytest

from turbo_core import UnsupportedError
from turbo_core import audit as audits
from turbo_core.__main__ import main
from turbo_core.audit import AuditRow, CodeObject, TritonKernel, audit, format_table, occupancy
from turbo_core.code_object import KernelResources, kernel_resources

FINE = KernelResources("fine", "gfx950", 128, 0, 40, 0, 0, 32768, 0, 256)
MACHINES = {"gfx942": 0x4C, "gfx950": 0x4F, "gfx90a": 0x3F}


def pack(value):
    """MessagePack of the kinds that compilers write, in several encodings of each."""
    if isinstance(value, dict):
        head = bytes([0x80 | len(value)]) if len(value) < 16 else b"\xde" + struct.pack(">H", len(value))
        return head + b"".join(pack(k) + pack(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(pack, value))
    if isinstance(value, str):
        raw = value.encode()
        return (bytes([0xA0 | len(raw)]) if len(raw) < 32 else b"\xd9" + bytes([len(raw)])) + raw
    if isinstance(value, bool) or value is None:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if value < 0:
        return struct.pack("b", value) if value >= -32 else b"\xd1" + struct.pack(">h", value)
    if value < 128:
        return bytes([value])
    return b"\xcd" + struct.pack(">H", value) if value < 65536 else b"\xce" + struct.pack(">I", value)


def code_object(used, machine=None, note_name=b"AMDGPU\0"):
    """A minimal ELF with one note section that describes ``used``."""
    kernel = {
        ".name": used.name, ".vgpr_count": used.vgprs, ".agpr_count": used.agprs, ".sgpr_count": used.sgprs,
        ".vgpr_spill_count": used.vgpr_spills, ".sgpr_spill_count": used.sgpr_spills,
        ".group_segment_fixed_size": used.lds, ".private_segment_fixed_size": used.scratch,
        ".max_flat_workgroup_size": used.max_work_group, ".uses_dynamic_stack": False, ".other": None,
        ".kernarg_segment_size": 70000, ".negative": [-3, -300],
        ".language_version_of_the_source_in_a_long_key": [2, 0], ".wavefront_size": 64, ".symbol": "x.kd",
    }  # fmt: skip
    descriptor = pack({"amdhsa.version": [1, 2], "amdhsa.kernels": [kernel]})
    name = note_name + b"\0" * (-len(note_name) % 4)
    note = struct.pack("<III", len(note_name), len(descriptor), 32) + name + descriptor
    note += b"\0" * (-len(note) % 4)
    filler = struct.pack("<III", 4, 0, 1) + b"GNU\0"
    body = filler + note
    sections = struct.pack("<IIQQQQ", 0, 0, 0, 0, 0, 0).ljust(64, b"\0")
    sections += struct.pack("<IIQQQQ", 0, 7, 0, 0, 64, len(body)).ljust(64, b"\0")
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", header, 0x28, 64 + len(body))
    struct.pack_into("<I", header, 0x30, 0x500 | (machine or MACHINES[used.arch]))
    struct.pack_into("<HH", header, 0x3A, 64, 2)
    return bytes(header) + body + sections


@pytest.mark.parametrize("arch", audits.ARCHS)
def test_code_object_is_read_back(arch):
    used = KernelResources("a_kernel_with_a_name_of_over_31_characters", arch, 254, 126, 71, 3, 300, 65536, 24, 1024)
    assert kernel_resources(code_object(used)) == [used]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"not an ELF file", "a 64-bit ELF file is accepted"),
        (code_object(FINE, machine=MACHINES["gfx90a"]), "machine 0x3f; gfx942 and gfx950"),
        (code_object(FINE, note_name=b"OTHER\0"), "has no AMDGPU metadata note"),
    ],
)
def test_other_files_are_refused(data, complaint):
    with pytest.raises(UnsupportedError, match=complaint):
        kernel_resources(data)


@pytest.mark.parametrize(
    ("changes", "waves"),
    [
        ({"vgprs": 64, "lds": 0}, 8),
        ({"vgprs": 65, "lds": 0}, 7),
        ({"vgprs": 128, "lds": 0}, 4),
        ({"vgprs": 256, "lds": 0}, 2),
        ({"vgprs": 512, "lds": 0}, 1),
        ({"vgprs": 32, "lds": 80 * 1024}, 2),  # two work-groups of 4 waves on 4 SIMDs
        ({"vgprs": 32, "lds": 160 * 1024, "max_work_group": 512}, 2),
        ({"vgprs": 32, "lds": 32 * 1024, "arch": "gfx942"}, 2),
    ],
)
def test_occupancy(changes, waves):
    assert occupancy(replace(FINE, **changes)) == waves


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """One installed wheel; the test fills the kernels that it lists per architecture."""
    kernels = {"gfx942": [], "gfx950": []}

    def add(used, only=False):
        path = tmp_path / f"{used.name}.{used.arch}.hsaco"
        path.write_bytes(code_object(used))
        kernels[used.arch].append(CodeObject(used.name, used.arch, path, only))

    monkeypatch.setattr(audits, "find_kernels", lambda: {"turbo-fake": lambda arch, full: kernels[arch]})
    add.kernels = kernels
    return add


def both(add, **changes):
    for arch in audits.ARCHS:
        add(replace(FINE, arch=arch, lds=0, **changes))


def test_clean_kernels_pass(wheel, capsys):
    both(wheel)
    assert main(["audit"]) == 0
    assert "2 kernels, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"vgpr_spills": 3}, "spills 3 vector and 0 scalar registers"),
        ({"sgpr_spills": 2}, "spills 0 vector and 2 scalar registers"),
        ({"scratch": 16}, "uses 16 bytes of scratch a lane"),
        ({"lds": 64 * 1024 + 1}, "needs 65537 bytes of LDS, gfx942 has 65536"),
    ],
)
def test_each_fault_fails(wheel, capsys, changes, failure):
    wheel(replace(FINE, **{"arch": "gfx942", "lds": 0, **changes}))
    wheel(replace(FINE, lds=0))
    assert main(["audit"]) == 1
    out = capsys.readouterr().out
    assert failure in out
    assert "2 kernels, 1 failed" in out


def test_kernel_missing_for_one_architecture_fails(wheel):
    both(wheel)
    wheel(replace(FINE, name="half"))
    wheel(replace(FINE, name="gfx950_alone"), only=True)
    failed = [row for row in audit() if row.failures]
    assert [(row.resources.name, row.failures) for row in failed] == [("half", ("there is no code object for gfx942",))]


def test_nothing_to_audit_is_no_success(wheel):
    assert main(["audit"]) == 1


def test_json_and_choice_of_architecture(wheel, capsys):
    both(wheel)
    assert main(["audit", "--json", "--arch", "gfx950", "--wheel", "turbo-fake"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["wheel"], row["name"], row["arch"], row["vgprs"], row["occupancy"], row["failures"]) == (
        "turbo-fake", "fine", "gfx950", 128, 4, [],
    )  # fmt: skip


def test_unknown_wheel_is_refused(wheel):
    with pytest.raises(UnsupportedError, match="no kernels of turbo-x"):
        list(audit(wheels=["turbo-x"]))


def test_table_lines_up():
    rows = [AuditRow("turbo-fake", "HIP", FINE, 4, ()), AuditRow("turbo-fake", "HIP", FINE, 4, ("spills",))]
    lines = format_table(rows).splitlines()
    assert lines[0].index("verdict") == lines[1].index("ok") == lines[2].index("spills")


def test_triton_kernel_is_compiled_and_read(monkeypatch):
    triton = pytest.importorskip("triton")
    from types import SimpleNamespace

    seen = {}

    def compile(source, target, options):
        seen.update(source=source, target=target, options=options)
        metadata = SimpleNamespace(num_warps=8, shared=99)
        return SimpleNamespace(asm={"hsaco": code_object(FINE)}, metadata=metadata)

    monkeypatch.setattr(triton, "compile", compile)
    monkeypatch.setattr("triton.compiler.ASTSource", lambda *parts: parts)
    record = TritonKernel("gemm 256", "gfx950", "fn", {"a": "*bf16"}, {"B": 1}, {(0,): []}, {"num_warps": 8})
    (used,) = record.resources()
    assert used == replace(FINE, name="gemm 256", lds=99, max_work_group=512)
    assert seen["source"] == ("fn", {"a": "*bf16"}, {"B": 1}, {(0,): []})
    assert (seen["target"].arch, seen["target"].warp_size, seen["options"]) == ("gfx950", 64, {"num_warps": 8})
