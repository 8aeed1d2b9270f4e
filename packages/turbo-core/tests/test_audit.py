# SPDX-License-Identifier: MIT
"""The audit: reading code objects, judging what they use, and the command that prints it."""

import json
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest

from turbo_core import UnsupportedError
from turbo_core import audit as audits
from turbo_core.__main__ import main
from turbo_core.audit import AuditRow, CodeObject, TritonKernel, audit, format_table
from turbo_core.code_object import KernelResources, kernel_resources, occupancy

FINE = KernelResources(
    kernel="fine", arch="gfx950", threads=256, vgpr=128, agpr=0, sgpr=40, lds=32768, scratch=0, vgpr_spills=0,
    sgpr_spills=0, kernarg=70000, dynamic_stack=False, occupancy=4,
)  # fmt: skip
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
        ".name": used.kernel, ".vgpr_count": used.vgpr, ".agpr_count": used.agpr, ".sgpr_count": used.sgpr,
        ".vgpr_spill_count": used.vgpr_spills, ".sgpr_spill_count": used.sgpr_spills,
        ".group_segment_fixed_size": used.lds, ".private_segment_fixed_size": used.scratch,
        ".max_flat_workgroup_size": used.threads, ".uses_dynamic_stack": used.dynamic_stack, ".other": None,
        ".kernarg_segment_size": used.kernarg, ".negative": [-3, -300],
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
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<H", header, 18, 224)
    struct.pack_into("<Q", header, 0x28, 64 + len(body))
    struct.pack_into("<I", header, 0x30, 0x500 | (machine or MACHINES[used.arch]))
    struct.pack_into("<HH", header, 0x3A, 64, 2)
    return bytes(header) + body + sections


@pytest.mark.parametrize("arch", audits.ARCHS)
def test_code_object_is_read_back(arch):
    used = KernelResources(
        kernel="a_kernel_with_a_name_of_over_31_characters", arch=arch, threads=1024, vgpr=254, agpr=126, sgpr=71,
        lds=65536, scratch=24, vgpr_spills=3, sgpr_spills=300, kernarg=70000, dynamic_stack=True, occupancy=0,
    )  # fmt: skip
    assert kernel_resources(code_object(used)) == [used], "1024 threads with 254 registers each are more than there are"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"not an ELF file", "no 64-bit ELF file for AMDGPU: it starts with b'not an'"),
        (code_object(FINE, machine=MACHINES["gfx90a"]), "machine 0x3f; gfx942 and gfx950 are accepted"),
        (code_object(FINE, note_name=b"OTHER\0"), "has no AMDGPU metadata note"),
    ],
)
def test_other_files_are_refused(data, complaint):
    with pytest.raises(UnsupportedError, match=complaint):
        kernel_resources(data)


@pytest.mark.parametrize(
    ("changes", "waves"),
    [
        ({"vgpr": 64, "lds": 0}, 8),
        ({"vgpr": 65, "lds": 0}, 7),
        ({"vgpr": 128, "lds": 0}, 4),
        ({"vgpr": 256, "lds": 0}, 2),
        ({"vgpr": 512, "lds": 0}, 1),
        ({"vgpr": 32, "lds": 80 * 1024}, 2),  # two work-groups of 4 waves on 4 SIMDs
        ({"vgpr": 32, "lds": 160 * 1024, "threads": 512}, 2),
        ({"vgpr": 32, "lds": 32 * 1024, "arch": "gfx942"}, 2),
    ],
)
def test_occupancy(changes, waves):
    used = replace(FINE, **changes)
    assert occupancy(used.arch, used.vgpr, used.lds, used.threads) == waves


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """One installed wheel; the test fills the kernels that it lists per architecture."""
    kernels = {"gfx942": [], "gfx950": []}

    def add(used, only=False):
        path = tmp_path / f"{used.kernel}.{used.arch}.hsaco"
        path.write_bytes(code_object(used))
        kernels[used.arch].append(CodeObject(used.kernel, used.arch, path, only))

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
        ({"vgpr_spills": 3}, "spills 3 VGPRs and 0 SGPRs"),
        ({"sgpr_spills": 2}, "spills 0 VGPRs and 2 SGPRs"),
        ({"scratch": 16}, "uses 16 bytes of scratch a lane"),
        ({"lds": 64 * 1024 + 1}, "uses 65537 bytes of LDS; gfx942 has 65536"),
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
    wheel(replace(FINE, kernel="half"))
    wheel(replace(FINE, kernel="gfx950_alone"), only=True)
    failed = [row for row in audit() if row.failures]
    assert [(row.resources.kernel, row.failures) for row in failed] == [
        ("half", ("there is no code object for gfx942",))
    ]


@pytest.mark.parametrize(
    ("table", "missing"),
    [
        ({"single_arch": ["half.gfx950"]}, []),
        ({"single_arch": []}, ["half"]),
        ({"single_arch": ["half.gfx942", "fine.gfx950"]}, ["half"]),
        ({}, ["half"]),  # as builds before wrote it
        (None, ["half"]),
    ],
)
def test_the_wheels_table_says_what_one_architecture_alone_has(monkeypatch, tmp_path, table, missing):
    """An editable install has two folders; the code objects lie in one of them."""
    lib = tmp_path / "installed" / "lib"
    lib.mkdir(parents=True)
    for name, arch in (("fine", "gfx942"), ("fine", "gfx950"), ("half", "gfx950")):
        (lib / f"{name}.{arch}.hsaco").write_bytes(code_object(replace(FINE, kernel=name, arch=arch, lds=0)))
    if table is not None:
        (lib / "resources.json").write_text(json.dumps(table))
    package = SimpleNamespace(__path__=[str(tmp_path / "source"), str(tmp_path / "installed")])
    monkeypatch.setattr(
        audits, "find_kernels", lambda: {"turbo-fake": lambda arch, full: audits.code_objects(package, arch)}
    )
    rows = list(audit())
    assert [row.resources.kernel for row in rows if row.failures] == missing
    assert sorted((row.resources.kernel, row.resources.arch) for row in rows if not row.failures) == [
        ("fine", "gfx942"), ("fine", "gfx950"), ("half", "gfx950"),
    ]  # fmt: skip


def test_nothing_to_audit_is_no_success(wheel):
    assert main(["audit"]) == 1


def test_json_and_choice_of_architecture(wheel, capsys):
    both(wheel)
    assert main(["audit", "--json", "--arch", "gfx950", "--wheel", "turbo-fake"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["wheel"], row["kernel"], row["arch"], row["vgpr"], row["occupancy"], row["failures"]) == (
        "turbo-fake", "fine", "gfx950", 128, 4, [],
    )  # fmt: skip


def test_unknown_wheel_is_refused(wheel):
    with pytest.raises(UnsupportedError, match="no kernels of turbo-x"):
        list(audit(wheels=["turbo-x"]))


def test_table_lines_up():
    rows = [AuditRow("turbo-fake", "HIP", FINE, ()), AuditRow("turbo-fake", "HIP", FINE, ("spills",))]
    lines = format_table(rows).splitlines()
    assert lines[0].index("verdict") == lines[1].index("ok") == lines[2].index("spills")


def test_the_whole_audit_has_kernels_for_large_tensors_too():
    attrs = {(0,): [["tt.divisibility", 16], ["tt.pointer_range", 32]], (1,): [["tt.divisibility", 16]]}
    record = TritonKernel("norm", "gfx950", "fn", {"x": "*bf16", "n": "i32"}, {}, attrs, {})
    larger = record.past_2_gib()
    assert larger.name == "norm past 2 GiB"
    assert larger.attrs == {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}
    assert larger.past_2_gib() is None
    assert list(audits._with_variants([record, larger], full=True)) == [record, larger, larger]
    assert list(audits._with_variants([record], full=False)) == [record]


def test_triton_kernel_is_compiled_and_read(monkeypatch):
    triton = pytest.importorskip("triton")
    seen = {}

    def compile(source, target, options):
        seen.update(source=source, target=target, options=options)
        metadata = SimpleNamespace(num_warps=8, shared=99)
        return SimpleNamespace(asm={"hsaco": code_object(FINE)}, metadata=metadata)

    monkeypatch.setattr(triton, "compile", compile)
    monkeypatch.setattr("triton.compiler.ASTSource", lambda *parts: parts)
    record = TritonKernel("gemm 256", "gfx950", "fn", {"a": "*bf16"}, {"B": 1}, {(0,): []}, {"num_warps": 8})
    (used,) = record.resources()
    assert used == replace(FINE, kernel="gemm 256", lds=99, threads=512)
    assert seen["source"] == ("fn", {"a": "*bf16"}, {"B": 1}, {(0,): []})
    assert (seen["target"].arch, seen["target"].warp_size, seen["options"]) == ("gfx950", 64, {"num_warps": 8})
