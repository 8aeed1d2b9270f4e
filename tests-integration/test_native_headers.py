# SPDX-License-Identifier: MIT
"""The device headers: every function compiles for both architectures, to the instructions that its comment promises."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from turbo_core.code_object import CodeObject
from turbo_testing.device_compiler import ARCHS, CSRC_COMMON, compile_hip

SOURCE = CSRC_COMMON / "tests" / "all_headers.hip"
INCLUDE = CSRC_COMMON / "include"
HEADERS = sorted((INCLUDE / "turbo").glob("*.h"))
GEMM_HEADERS = sorted((INCLUDE / "turbo" / "gemm").glob("*.h"))  # of which wheels instantiate the kernels

# Instructions per architecture that the headers name: what a wrapper is for.
# fmt: off
BOTH = {
    "global_load_dwordx4", "global_load_dwordx2", "global_load_dword", "global_load_ushort", "global_store_dwordx4",
    "global_store_short", "ds_read_b128", "ds_write_b128", "ds_bpermute_b32", "s_barrier", "v_readlane_b32",
    "v_readfirstlane_b32", "v_rsq_f32_e32", "v_add_f32_dpp", "v_med3_f32", "v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32",
    "v_cvt_pk_f32_fp8_e32", "v_cvt_pk_f32_bf8_e32", "buffer_load_dword", "buffer_load_dwordx2", "buffer_load_dwordx4",
    "buffer_store_dwordx4", "v_mfma_f32_16x16x4_f32", "v_mfma_f32_32x32x2_f32", "v_mfma_f32_16x16x16_bf16",
    "v_mfma_f32_32x32x8_f16", "v_mfma_f32_16x16x32_fp8_bf8", "v_mfma_f32_32x32x16_bf8_bf8",
}
ONLY_GFX950 = {
    "v_cvt_pk_bf16_f32", "ds_read_b64_tr_b16", "ds_read_b64_tr_b8", "v_mfma_f32_16x16x32_bf16",
    "v_mfma_f32_32x32x16_f16", "v_mfma_scale_f32_16x16x128_f8f6f4", "v_mfma_scale_f32_32x32x64_f8f6f4",
}
# fmt: on


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("headers")
    outputs = {}
    for arch in ARCHS:
        outputs[arch] = folder / f"all.{arch}.hsaco"
        done = compile_hip(SOURCE, arch, outputs[arch], "-Werror")
        assert done.returncode == 0, done.stderr
    return outputs


@pytest.mark.parametrize("arch", ARCHS)
def test_every_header_compiles_alone(arch, tmp_path):
    """In any order, so a header includes what it needs."""
    for header in HEADERS + GEMM_HEADERS:
        name = header.relative_to(INCLUDE).as_posix()
        if name == "turbo/gemm/mx.h" and arch != "gfx950":
            continue  # scaled matrix instructions
        source = tmp_path / f"{header.stem}.hip"
        source.write_text(f'#include "{name}"\n__attribute__((global)) void nothing() {{}}\n')
        done = compile_hip(source, arch, tmp_path / "out.hsaco", "-Werror", "-Wno-unused-function")
        assert done.returncode == 0, f"{name}\n{done.stderr}"


@pytest.mark.parametrize("arch", ARCHS)
def test_all_functions_compile_without_spills(compiled, arch):
    code_object = CodeObject(compiled[arch])
    assert code_object.arch == arch
    assert code_object.undefined_symbols() == []
    kernels = code_object.kernels()
    assert len(kernels) > 35
    assert [problem for kernel in kernels for problem in kernel.problems()] == []


def test_the_test_source_names_every_function():
    """A function that nobody instantiates would never be compiled."""
    pattern = re.compile(r"TURBO_(?:DEVICE|CODEC) [\w<>, ]+?[ &*](\w+)\(")
    text = SOURCE.read_text() + "".join(header.read_text() for header in HEADERS)
    missing = []
    for header in HEADERS:
        for name in set(pattern.findall(header.read_text())):
            uses = len(re.findall(rf"\b{name}\b\W", text))
            if uses < 2:
                missing.append(f"{header.name}: {name}")
    assert missing == []


@pytest.mark.parametrize("arch", ARCHS)
def test_instructions(compiled, arch):
    simulator = pytest.importorskip("turbo_sim.testing")
    if reason := simulator.why_no_llvm("llvm-objdump"):
        pytest.skip(reason)
    objdump = simulator.llvm_tool("llvm-objdump")
    listing = subprocess.run(
        [objdump, "-d", f"--mcpu={arch}", str(compiled[arch])], capture_output=True, text=True, check=True
    )
    found = set(re.findall(r"^\t(\w+)", listing.stdout, re.M))
    assert BOTH - found == set()
    assert not [name for name in found if name.startswith(("flat_", "scratch_"))], (
        "a pointer has lost its address space"
    )
    if arch == "gfx950":
        assert ONLY_GFX950 - found == set()
        assert " lds" in listing.stdout and re.search(r"buffer_load_dwordx4 .* lds", listing.stdout)


# --- fp8 --------------------------------------------------------------------------------------------------------------

FORMATS = {
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3_fnuz": "float8_e4m3fnuz",
    "e5m2_fnuz": "float8_e5m2fnuz",
}


@pytest.fixture(scope="module")
def codec(tmp_path_factory) -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    output = tmp_path_factory.mktemp("codec") / "libcodec.so"
    source = CSRC_COMMON / "tests" / "fp8_codec.cpp"
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wno-unused-function"]
    subprocess.run([*command, f"-I{CSRC_COMMON / 'include'}", str(source), "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


@pytest.mark.parametrize("name", FORMATS)
def test_fp8_decode_of_all_codes(codec, name):
    np, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    codes = np.arange(256, dtype=np.uint8)
    values = np.empty(256, dtype=np.float32)
    getattr(codec, f"decode_{name}")(
        codes.ctypes.data_as(ctypes.c_void_p), values.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(256)
    )
    expected = codes.view(getattr(ml_dtypes, FORMATS[name])).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(values[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_fp8_encode(codec, name, saturate):
    """All values of the format, all midpoints and their neighbours, the edges, and random bits of every magnitude."""
    np, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    dtype = getattr(ml_dtypes, FORMATS[name])
    finite = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    finite = np.unique(finite[np.isfinite(finite)])
    middle = (finite[1:] + finite[:-1]) / 2
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 240, 248, 256, 448, 464, 480, 57344, 61440, 65536]
    )
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 18, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.random.default_rng(1).normal(size=1 << 16) * 2.0 ** np.random.default_rng(2).integers(-20, 18, 1 << 16)
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))
    x = np.concatenate([part.astype(np.float32) for part in (finite, middle, up, down, edges, -edges, near)] + [bits])
    codes = np.empty(x.size, dtype=np.uint8)
    getattr(codec, f"encode_{name}")(
        x.ctypes.data_as(ctypes.c_void_p),
        codes.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_long(x.size),
        ctypes.c_int(saturate),
    )
    limit = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(invalid="ignore"):  # casts of NaN
        expected = (np.clip(x, -limit, limit) if saturate else x).astype(dtype)  # clip keeps NaN
    values, wanted = codes.view(dtype).astype(np.float32), expected.astype(np.float32)
    wrong = ~((values == wanted) | (np.isnan(values) & np.isnan(wanted)))
    assert not wrong.any(), f"{x[wrong][:5]} became {values[wrong][:5]}, not {wanted[wrong][:5]}"
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(values[numbers]), np.signbit(wanted[numbers]))
